"""A short run of Schemathesis with tokens of one corpus; `tests.acceptance.schemathesis_scoped` is the long one."""

from __future__ import annotations

import pytest

from colmlm.kb.access.records import SCOPED_ROLES
from colmlm.kb.service import KnowledgeBase
from tests.acceptance.schemathesis_scoped import app_of, run_scoped
from tests.api.planted import Planted
from tests.fakes import FakeEncoder


@pytest.mark.slow(reason="sends thousands of generated requests")
@pytest.mark.parametrize("role", SCOPED_ROLES)
def test_no_generated_request_fails_the_server_or_is_told_of_another_corpus(
    kb: KnowledgeBase, planted: Planted, encoder: FakeEncoder, role: str
) -> None:
    phases = ("examples", "fuzzing")
    found = run_scoped(kb, app_of(kb, encoder), role, max_examples=2, phases=phases)
    assert found.outcome.ok, found.outcome.report
    assert found.leaks == [] and found.answers > 50
    assert found.outcome.operations > 50 and found.outcome.cases > found.outcome.operations
