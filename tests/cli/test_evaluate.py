"""`colmlm evaluate`: figures of a tiny random model are bad, but they are counted right and said once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from kb.corpus import to_record
from tests.cli.conftest import Run, document
from tests.tiny import tiny_checkpoint


def generated(path: Path) -> Path:
    """The document with questions in other words."""
    asked = document()
    facts = tuple(replace(span, question=f"Say: {span.value[::-1]}?") for span in asked.facts)
    path.write_text(json.dumps(to_record(replace(asked, facts=facts))) + "\n")
    return path


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
    assert said.code == 0 and "tiny-3" in said.out and "2 questions over 2 facts" in said.err


def test_recall_refuses_what_cannot_be_measured_before_it_begins(
    run: Run, atlas: list[int], annotated: Path, tmp_path: Path
) -> None:
    others = tmp_path / "others.jsonl"
    others.write_text(annotated.read_text().replace('"peru"', '"chile"'))
    refused = run("evaluate", "recall", "--corpus", "atlas", "--generated", others, "--no-baselines")
    assert refused.code == 2 and "other documents" in refused.err
    assert run("evaluate", "recall", "--corpus", "nowhere").code == 3
