"""Figures of updates are computed from given answers, and records are read from files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colmlm.lab.evaluate.updates import PromptAnswer, Rewrite, documents, measure, prompts, read_rewrites
from colmlm.model.evaluate.run_log import EvaluationFileError

RECORD = {
    "requested_rewrite": {
        "prompt": "{} lies in",
        "subject": "Peru",
        "target_true": {"str": "America"},
        "target_new": {"str": "Asia"},
    },
    "paraphrase_prompts": ["Books. Peru is in", "On a map Peru is in"],
    "neighborhood_prompts": ["Chile lies in", "Cuba lies in"],
}


def written(folder: Path, *rows: object) -> Path:
    file = folder / "records.json"
    file.write_text(json.dumps(rows))
    return file


def test_records_become_a_document_for_each_statement(tmp_path: Path) -> None:
    other = RECORD | {"requested_rewrite": RECORD["requested_rewrite"] | {"subject": "Bolivia"}}  # type: ignore[operator]
    found = read_rewrites(written(tmp_path, RECORD, other))
    made = documents(found)
    assert [one.text for one in made] == [
        "Peru lies in America.", "Bolivia lies in America.", "Chile lies in America.", "Cuba lies in America.",
    ]  # fmt: skip
    assert all(
        one.text[span.start : span.end] == span.value == "America" for one in made for span in one.facts
    )
    assert [one.document for one in found] == [one.external_id for one in made[:2]]
    assert len(prompts(found)) == 6


def test_what_is_no_record_is_named(tmp_path: Path) -> None:
    broken = {name: part for name, part in RECORD.items() if name != "paraphrase_prompts"}
    for rows, said in (
        ([RECORD, broken], "record 2 is no record"),
        ([RECORD, 5], "record 2 is no record"),
        ([RECORD, RECORD], "a fact twice"),
        ([], "no list of records"),
    ):
        with pytest.raises(EvaluationFileError, match=said):
            read_rewrites(written(tmp_path, *rows))


def test_each_figure_counts_its_own_prompts() -> None:
    first = Rewrite("P1", "old", "new", ("W1", "W2"), ("N1", "P2"))
    second = Rewrite("P2", "old", "other", ("W3", "W4"), ("N1", "N2"))
    fact_ids = {first.document: 1, second.document: 2}
    found = {"P1": 1, "W1": 1, "W2": 7, "P2": 8, "W3": 2, "W4": 2, "N1": 9, "N2": 2}
    before = {prompt: PromptAnswer("...", "old", fact_id) for prompt, fact_id in found.items()}
    after = before | {
        "P1": PromptAnswer("...", "New ", 1),
        "W1": PromptAnswer("...", "new", 1),
        "W2": PromptAnswer("this is new", None, None),
        "W3": PromptAnswer("...", "other", 2),
        "W4": PromptAnswer("other things", "old", 2),
        "N2": PromptAnswer("...", "other", 2),
    }
    undone = before | {"N1": PromptAnswer("...", "else", 9)}
    shares = {
        name: (one["share"], one["prompts"])
        for name, one in measure([first, second], fact_ids, before, after, undone).as_json().items()
    }
    assert shares == {
        "found": (0.5, 2),
        "efficacy": (0.5, 2),
        "efficacy_where_found": (1.0, 1),
        "old_value": (0.5, 2),
        "paraphrase_found": (0.75, 4),
        "paraphrase": (0.75, 4),
        "paraphrase_where_found": (0.6667, 3),
        "locality": (0.6667, 3),
        "undone": (0.8, 10),
    }


def test_intervals_are_over_records_and_empty_figures_are_none() -> None:
    rewrites = [Rewrite(f"P{n}", "old", "new", (f"W{n}", f"V{n}"), ()) for n in range(20)]
    before = {prompt: PromptAnswer("nothing", None, None) for prompt in prompts(rewrites)}
    after = before | {p: PromptAnswer("", "new", 1) for one in rewrites[:10] for p in one.prompts}
    found = measure(rewrites, {one.document: 1 for one in rewrites}, before, after, before)
    assert (
        found.efficacy and found.paraphrase and found.efficacy_where_found is None and found.locality is None
    )
    # Two paraphrases that always agree tell no more than one.
    assert found.paraphrase.low == pytest.approx(found.efficacy.low, abs=0.06)
    assert found.efficacy.low < 0.4 and found.undone is not None and found.undone.share == 1.0
