"""Sets of facts forgotten on purpose: plans, their verification by questions, and certificates."""
