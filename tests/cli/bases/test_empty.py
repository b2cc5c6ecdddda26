"""Lists of a base with nothing in it print a sentence."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run

LISTS = {
    "corpus list": "No corpora. Add the first: colmlm corpus add PATH --corpus NAME",
    "corpus documents": "No documents found.",
    "erase settle": "No requests found.",
    "facts compare contradictions": "No such pairs.",
    "facts compare stale": "No stale facts.",
    "facts list": "No facts found.",
    "forget list": "No forget runs found. Plan one: colmlm forget plan",
    "jobs list --state running": "No jobs found. Start one: colmlm jobs start KIND",
    "keysets list": "No keysets. Make one: colmlm keysets create",
    "log denials": "No refused requests.",
    "log list": "No changes found.",
    "misses list": "No groups found.",
    "questions list": "No sets. Make one: colmlm questions add NAME",
    "review list": "No facts to review found.",
    "tokens list": "No tokens. Make one: colmlm tokens create NAME",
    "trace outputs": "No outputs found. Store one: colmlm ask QUESTION",
    "webhooks list": "No webhooks. Add one: colmlm webhooks add URL",
}


def test_a_list_without_anything_is_one_sentence(run: Run, subtests: pytest.Subtests) -> None:
    for words, said in LISTS.items():
        with subtests.test(words=words):
            ran = run(*words.split())
            assert (ran.code, ran.out) == (0, f"{said}\n"), ran
