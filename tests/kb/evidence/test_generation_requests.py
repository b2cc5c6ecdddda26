"""Which requests to generate abstain where nothing is found."""

from __future__ import annotations

from typing import Any

import pytest

from colmlm.kb.evidence.generation import GenerationRequest

QUESTION = "Question: Who?\nAnswer:"


@pytest.mark.parametrize(
    "asked, abstains",
    [
        ({"prompt": QUESTION}, True),
        ({"prompt": f"{QUESTION} "}, True),
        ({"prompt": QUESTION, "mode": "forced"}, True),
        ({"prompt": "The capital of Peru is"}, False),
        ({"prompt": f"{QUESTION} Lima. It"}, False),
        ({"prompt": (1, 2)}, False),
        ({"prompt": QUESTION, "mode": "off"}, False),
        ({"prompt": QUESTION, "on_miss": "continue"}, False),
        ({"prompt": "The capital", "on_miss": "abstain"}, True),
    ],
)
def test_a_question_abstains_and_a_text_goes_on_unless_told_otherwise(
    asked: dict[str, Any], abstains: bool
) -> None:
    assert GenerationRequest(**asked).abstains is abstains
