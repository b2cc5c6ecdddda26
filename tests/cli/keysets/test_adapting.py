"""`colmlm keysets fill --predict`, here and on a server."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, to_record
from tests.cli.conftest import Run, invoke
from tests.cli.elsewhere import There, working
from tests.tiny import tiny_checkpoint

PAIR = {
    "from", "to", "kind", "facts", "predicted", "sample", "method", "recall_at_1", "recall_at_1_true",
    "recall_at_1_old", "recall_at_10", "recall_at_10_true", "recall_at_10_old", "seconds", "seconds_true",
}  # fmt: skip


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("other"), seed=4)


@pytest.fixture
def years(tmp_path: Path) -> Path:
    """An annotated file of thirty documents with a fact each."""
    file = tmp_path / "years.jsonl"
    lines = []
    for n in range(30):
        text = f"Bridge number {n} was opened in {1900 + n}."
        span = FactSpan(
            text.index(str(1900 + n)), len(text) - 1, str(1900 + n), f"When did bridge {n} open?", None
        )
        lines.append(json.dumps(to_record(AnnotatedDocument(f"bridge-{n}", text, (span,)))))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


@pytest.fixture
def bridges(run: Run, years: Path) -> None:
    assert run("corpus", "add", years, "--format", "annotated", "--corpus", "bridges").code == 0
    assert run("keysets", "fill").code == 0


@pytest.mark.slow(reason="keys a corpus with two models")
def test_keys_are_predicted_shown_checked_and_made_true(run: Run, bridges: None, other: Path) -> None:
    made = run("keysets", "fill", "--predict", "--checkpoint", other, "--sample", 20, "--json")
    assert made.code == 0 and "10 of 30 keys of keyset 2 are predicted" in made.err
    (pair,) = made.json["pairs"]
    assert set(pair) == PAIR and (pair["kind"], pair["facts"], pair["sample"]) == ("context", 30, 20)
    assert (pair["from"], pair["to"]) == ("tiny-3", "tiny-4")
    assert 0 <= pair["recall_at_1"] <= 1
    keyset = made.json["keyset"]
    assert (keyset["state"], keyset["num_predicted"], keyset["num_keys"]) == ("ready", 10, 30)
    assert keyset["calibrated"]
    again = run(
        "keysets", "fill", "--predict", "--checkpoint", other, "--sample", 25, "--method", "ridge", "--json"
    )
    assert "Nothing was predicted anew; keyset 2" in again.err and "colmlm keysets retire 2" in again.err
    assert again.json["pairs"][0] | {"seconds": 0} == pair | {
        "predicted": 0,
        "seconds": 0,
        "seconds_true": None,
    }
    listed = run("keysets", "list", "--json").json["keysets"][1]
    assert listed["num_predicted"] == 10 and listed["predictions"][0]["from_keyset_id"] == 1
    report = run("keysets", "check", 2, "--min-recall-kept", 0, "--json").json
    (told,) = [one for one in report["criteria"] if one["name"] == "recall kept by predicted context keys"]
    assert told["passed"] and told["note"].startswith("10 of 30 keys are predicted")
    run("keysets", "activate", 2, "--force")
    found = {one["check"]: one for one in run("doctor", "--json").json["checks"]}
    assert "10 are predicted" in found["keyset"]["found"]
    assert "colmlm keysets fill 2" in found["keyset"]["remedy"]
    true = run("keysets", "fill", 2, "--json")
    assert (true.json["num_predicted"], true.json["calibrated"]) == (0, True) and "Threshold" in true.err
    assert run("doctor", "--data", "--json").json["ok"]


def test_options_that_mean_nothing_are_refused(run: Run, bridges: None, other: Path) -> None:
    for words in (("--sample", 20), ("--predict-from", 1), ("--method", "ridge")):
        refused = run("keysets", "fill", *words)
        assert refused.code == 2 and "--predict" in refused.err
    own = run("keysets", "fill", "--predict")
    assert own.code == 2 and "belongs to this checkpoint" in own.err
    assert "with --predict-from (from_keyset), see `colmlm keysets list`" in own.err
    assert run("keysets", "fill", "--predict", "--predict-from", 9, "--checkpoint", other).code == 3
    assert run("keysets", "fill", "--predict", "--checkpoint", other, "--corpus", "none").code == 3


def test_options_that_mean_nothing_with_adapt_are_refused(run: Run, subtests: pytest.Subtests) -> None:
    options = (
        ("--ray", "auto"),
        ("--ray-workers", 2),
        ("--kinds", "context,question"),
        ("--kinds", "context"),
    )
    for command, words in product((("keysets", "fill"), ("keysets", "fill", 1)), options):
        with subtests.test(command=command, words=words):
            refused = run(*command, "--predict", *words)
            assert refused.code == 2 and str(words[0]) in refused.err and "with --predict" in refused.err


@pytest.mark.slow(reason="keys a corpus with two models")
def test_a_job_adapts_there(there: There, years: Path, tmp_path: Path) -> None:
    other = tiny_checkpoint(tmp_path / "other", seed=4, eagerness=1.0)
    assert invoke("corpus", "add", years, "--format", "annotated", "--corpus", "bridges").code == 0
    assert invoke("keysets", "fill").code == 0
    assert invoke("keysets", "create", "--checkpoint", other, "--empty", "--json").json["keyset_id"] == 2
    with working(there.kb):
        made = there.run(
            "keysets", "fill", 2, "--predict", "--sample", 20, "--corpus", "bridges", "--json", role="trainer"
        ).json
        assert [pair["kind"] for pair in made["pairs"]] == [
            "context",
            "question",
        ]  # as the old keyset has them
        assert all(set(pair) == PAIR and pair["facts"] == 30 for pair in made["pairs"])
        assert made["keyset"]["num_predicted"] == 2 * 10
        true = there.run("keysets", "fill", 2, "--json", role="trainer").json
        assert (true["num_predicted"], true["num_unkeyed"]) == (0, 0)
    assert there.run("keysets", "fill", 2, "--sample", 20).code == 2
    refused = there.run("jobs", "start", "rekey", "keyset_id=2", "sample=20")
    assert refused.code == 2 and "need adapt" in refused.err
    refused = there.run("jobs", "start", "rekey", "keyset_id=2", "adapt=true", "kinds=context,question")
    assert refused.code == 2 and "not for adapt" in refused.err
