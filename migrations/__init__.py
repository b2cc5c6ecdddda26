"""The schema's history. A package, so that an installed program finds it (see kb.database.migrate)."""
