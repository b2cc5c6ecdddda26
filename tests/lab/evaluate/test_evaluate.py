"""`colmlm-lab evaluate`: figures of a tiny random model are bad, but they are counted right and said once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer

from colmlm.kb.corpus.format import to_record
from colmlm.lab.evaluate.recall import read_generated, write_generated
from colmlm.model.annotate.annotators import GeneratedQuestion
from colmlm.model.annotate.spans import SpannedText
from tests.cli.conftest import Run, document
from tests.tiny import tiny_checkpoint


def generated(path: Path) -> Path:
    """The document with questions in other words."""
    asked = document()
    facts = tuple(replace(span, question=f"Say: {span.value[::-1]}?") for span in asked.facts)
    path.write_text(json.dumps(to_record(replace(asked, facts=facts))) + "\n")
    return path


@pytest.mark.slow(reason="runs an evaluation to its end")
def test_recall_compares_checkpoints_queries_and_keys(run: Run, atlas: list[int], tmp_path: Path) -> None:
    other = tiny_checkpoint(tmp_path / "other", seed=4)
    base = ("evaluate", "recall", "--corpus", "atlas", "--no-baselines", "--json")
    plain = run(*base).json
    assert (plain["checkpoint"], plain["facts"], plain["questions"]) == ("tiny-3", 2, 2)
    assert plain["tables"] == {
        "tiny-3": {
            "question": {
                "context": {
                    n: plain[n]
                    for n in (
                        "facts",
                        "questions",
                        "recall_at_1",
                        "recall_at_10",
                        "mrr",
                        "value_at_1",
                        "mean_true_score",
                    )
                }
            }
        }
    }
    assert "decoder_queries" not in plain and 0 <= plain["recall_at_1"] <= plain["recall_at_10"] == 1

    both = run(
        *base, "--decoder-queries", "--generated", generated(tmp_path / "g.jsonl"),
        "--checkpoint", tiny_checkpoint(tmp_path / "first"), "--checkpoint", other,
    ).json  # fmt: skip
    assert both["generated_questions"] == {"facts": 2, "same_as_asked": 0}
    assert list(both["tables"]) == ["tiny-3", str(other)]
    for table in both["tables"].values():
        assert {q: list(keys) for q, keys in table.items()} == {
            "question": ["context", "question", "both"],
            "decoder": ["context", "question", "both"],
        }
    assert both["decoder_queries"] == both["tables"]["tiny-3"]["decoder"]["context"]
    assert both["mrr"] == plain["mrr"]
    said = run(*base[:-1])
    assert said.code == 0 and "tiny-3" in said.out and "recall at 1" in said.out


class Writer:
    """In the place of a question generator, which needs a trained model: notes what it is given."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.given: list[SpannedText] = []

    def annotate(self, passages: Sequence[SpannedText]) -> list[list[GeneratedQuestion | None]]:
        self.given += passages
        return [
            [GeneratedQuestion(f"Say {n}?", "x") if n else None for n, _ in enumerate(p.spans)]
            for p in passages
        ]


def test_questions_are_written_once_for_each_document_and_never_shown_the_asked_ones(tmp_path: Path) -> None:
    file, writer = tmp_path / "asked.jsonl", Writer()
    documents = [document(), document("chile"), replace(document("none"), facts=())]
    write_generated(writer, documents[:1], file)  # type: ignore[arg-type]
    file.write_text(file.read_text() + '{"id": "chi')
    write_generated(writer, documents, file)  # type: ignore[arg-type]
    assert [len(passage.spans) for passage in writer.given] == [2, 2]
    assert all(not hasattr(passage, "question") for passage in writer.given)
    found = read_generated(file)
    second = document().facts[1]
    assert found.questions == {
        (d, second.start, second.end): ("Say 1?", second.value) for d in ("peru", "chile")
    }
    with pytest.raises(typer.BadParameter, match="another text"):
        write_generated(writer, [document("peru", "Lima. Titicaca.")], file)  # type: ignore[arg-type]


@pytest.mark.slow(reason="runs an evaluation to its end")
def test_recall_by_words_and_by_the_reader_is_measured_beside_that_by_keys(
    run: Run, atlas: list[int]
) -> None:
    base = ("evaluate", "recall", "--corpus", "atlas", "--no-baselines")
    found = run(*base, "--answers", 9, "--json").json["answers"]
    assert set(found) == {"key", "key and words", "reader"}
    assert all(
        of["questions"] == 2 and 0 <= of["recall_at_1"] <= of["recall_at_10"] <= 1 for of in found.values()
    )
    assert found["key"]["recall_at_10"] == 1 and found["reader"]["value_at_1"] == 1
    assert "key and words" in run(*base, "--answers", 1).out


def test_recall_in_indexes_is_that_of_their_keys(run: Run, atlas: list[int]) -> None:
    base = ("evaluate", "recall", "--corpus", "atlas", "--no-baselines", "--index", "exact", "--json")
    report = run(*base, "--num-keys", 1, "--num-keys", 9).json
    alone, both = report["indexes"]
    assert (alone["keys"], alone["questions"], alone["first"]["share"]) == (1, 1, 1.0)
    assert (both["keys"], both["questions"], both["spec"]) == (2, 1, "IDMap2,Flat")
    (every,) = run(*base).json["indexes"]
    assert (every["keys"], every["questions"]) == (2, 2)
    assert every["rescored"]["share"] == every["first"]["share"] == report["recall_at_1"]
    assert every["bytes_per_key"] > every["code_bytes"] == 4 * 64
    few = run(*base[:-3], "--index", "pq4")
    assert few.code == 2 and "trained on 256 keys, there are 2" in few.err


def test_recall_refuses_what_cannot_be_measured_before_it_begins(
    run: Run, atlas: list[int], annotated: Path, tmp_path: Path
) -> None:
    others = tmp_path / "others.jsonl"
    others.write_text(annotated.read_text().replace('"peru"', '"chile"'))
    assert run("evaluate", "recall", "--corpus", "atlas", "--questions-by", tmp_path).code == 2
    assert run("evaluate", "recall", "--corpus", "atlas", "--generated", tmp_path / "none").code == 2
    refused = run("evaluate", "recall", "--corpus", "atlas", "--generated", others, "--no-baselines")
    assert refused.code == 2 and "for these facts" in refused.err
    assert run("evaluate", "recall", "--corpus", "nowhere").code == 3
