"""A short run of Schemathesis over the whole description; `tests.acceptance.schemathesis_all` is the long one."""

from __future__ import annotations

import pytest

from colmlm.kb.service import KnowledgeBase
from tests.acceptance.schemathesis_all import fill, run, token_of
from tests.fakes import FakeEncoder


@pytest.mark.slow(reason="sends thousands of generated requests")
def test_every_operation_does_what_its_description_says(kb: KnowledgeBase, encoder: FakeEncoder) -> None:
    app = fill(kb, encoder)
    outcome = run(app, token_of(kb, "admin"), "admin", max_examples=2, phases=("examples", "fuzzing"))
    assert outcome.ok, outcome.report
    assert outcome.operations > 50 and outcome.cases > outcome.operations
