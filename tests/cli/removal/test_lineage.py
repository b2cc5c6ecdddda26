"""Lineage into weights: an erasure and a trace name the weights that were trained on a document, by real trainings."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from colmlm.kb.corpus.format import AnnotatedDocument, to_record
from colmlm.kb.corpus.training_record import RECORD_FILE, TrainingRecord, text_digest
from colmlm.model.lm.config import CONFIG_FILE
from tests.cli.conftest import Run, invoke
from tests.kb.corpora import document, numbered
from tests.tiny import tiny_base

TINY = '{"layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "ffn": 48, "context": 128}'
BECAUSE = ("--reason", "request of the person")

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

FIRST, SECOND = numbered(20)[:10], numbered(20)[10:]
OTHERS = [document(f"o{n}", f"Other {n} says ", (f"thing {n}", f"Which thing {n}?"), ".") for n in range(4)]


def written(path: Path, documents: list[AnnotatedDocument]) -> Path:
    path.write_text("".join(json.dumps(to_record(one)) + "\n" for one in documents))
    return path


@dataclass(frozen=True)
class Trained:
    """Runs: `first` on ten documents, `second` from it on ten more, `third` on none of either."""

    folder: Path

    def __getattr__(self, name: str) -> Path:
        return self.folder / name


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("trained")
    base = tiny_base(folder / "base")
    start = ["--preset", "co-lmlm-360m", "--set", f"architecture={TINY}", "--set", f"tokenizer={base}"]
    small = ["--set", "max_length=64", "--batch", 2, "--micro", 1, "--set", "precision=fp32", "--steps", 2]
    for name, documents, how in (
        ("first", FIRST, start),
        ("second", SECOND, ["--init", folder / "first", "--adapt", "full", "--no-demo"]),
        ("third", OTHERS, start),
    ):
        file = written(folder / f"{name}.jsonl", documents)
        more = small if how is start else ["--steps", 2, "--batch", 4]
        done = invoke("train", *how, *more, "--annotated", file, "--out", folder / name)
        assert done.code == 0, done.err
    return Trained(folder)


def record_of(run: Path) -> TrainingRecord:
    return TrainingRecord.read((run / RECORD_FILE).read_bytes())


@pytest.fixture
def seen(home: Path, run: Run, trained: Trained, checkpoint: Path) -> dict[str, int]:
    """A base with all documents that knows the three runs and an old checkpoint. Gives facts by value."""
    file = written(home.parent / "all.jsonl", [*FIRST, *SECOND, *OTHERS])
    assert run("corpus", "add", file, "--format", "annotated", "--corpus", "numbers").code == 0
    for place in (trained.first, trained.second, checkpoint):
        done = run("keysets", "fill", "--checkpoint", place)
        assert done.code == 0, done.err
    shutil.copytree(trained.third, home / "checkpoints" / "third")
    facts = run("facts", "list", "--all", "--json").json["facts"]
    return {fact["value"]: fact["fact_id"] for fact in facts}


def said_of(told: list[dict[str, Any]]) -> dict[str, str]:
    return {one["name"]: one["says"] for one in told}


EXPECTED = {"first": "listed", "second": "listed", "third": "not-listed", "tiny-3": "unknown"}


def test_report_and_certificate_name_the_weights_that_were_trained_on_a_document(
    run: Run, seen: dict[str, int], tmp_path: Path
) -> None:
    fact = seen["value 3"]
    foretold = run("erase", fact, "--dry-run", "--json").json
    assert said_of(foretold["lineage"]) == EXPECTED

    ran = run("erase", fact, *BECAUSE, "--yes", "--json")
    assert ran.code == 0 and said_of(ran.json["lineage"]) == EXPECTED
    (numbers,) = {tuple(one["documents"]) for one in ran.json["lineage"] if one["says"] == "listed"}
    assert list(numbers) == ran.json["documents"]

    file = tmp_path / "erased.json"
    assert run("erase", "certificate", ran.json["seq"], "--output", file).code == 0
    statement = json.loads(base64.b64decode(json.loads(file.read_text())["payload"]))
    told = statement["predicate"]["lineage"]
    ids = {one["name"]: one["checkpoint"] for one in ran.json["lineage"]}
    assert told["weights"] == "weights are not changed by an erasure"
    assert told["records"] == [
        f"the record of first ({ids['first']}) lists the digest of document {numbers[0]}",
        f"the record of second ({ids['second']}) lists the digest of document {numbers[0]}",
        f"of tiny-3 ({ids['tiny-3']}) it is unknown: it has no record",
        f"the record of third ({ids['third']}) lists none of the texts",
    ]
    assert "value 3" not in json.dumps(statement) and "Text 3" not in json.dumps(statement)
    checked = run("log", "verify", file)
    assert checked.code == 0 and told["records"][0] in checked.out


def test_prose_names_them_too_and_a_document_of_the_second_run_is_of_that_alone(
    run: Run, seen: dict[str, int]
) -> None:
    said = run("erase", seen["value 13"], "--dry-run").out
    assert "Trained on it: second (" in said and "first (" in said.split("not trained on it: ")[1]
    assert "Unknown whether trained on it: tiny-3 (" in said and "it has no record" in said
    assert "Trained on its document: first (" in run("trace", "fact", seen["value 3"]).out
    traced = run("trace", "fact", seen["thing 2"], "--json").json["lineage"]
    assert said_of(traced) == EXPECTED | {"first": "not-listed", "second": "not-listed", "third": "listed"}


def test_a_text_that_was_redacted_before_is_answered_by_the_log(
    run: Run, home: Path, trained: Trained
) -> None:
    two = document(
        "two", "Of one, ", ("value 3", "What of one?"), ", and of another, ", ("nine", "And?"), "."
    )
    file = written(home.parent / "two.jsonl", [two])
    start = json.loads((trained.first / CONFIG_FILE).read_text())["training"]["config"]
    assert start["init"] == "random"
    done = run(
        "train", "--init", trained.first, "--adapt", "full", "--no-demo", "--steps", 1, "--batch", 4,
        "--annotated", file, "--out", home / "checkpoints" / "two",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert run("corpus", "add", file, "--format", "annotated", "--corpus", "numbers").code == 0
    one, other = (fact["fact_id"] for fact in run("facts", "list", "--json").json["facts"])
    shutil.copytree(trained.third, home / "checkpoints" / "third")
    assert said_of(run("erase", one, *BECAUSE, "--yes", "--json").json["lineage"]) == {
        "third": "not-listed", "two": "listed",
    }  # fmt: skip
    shutil.copytree(trained.second, home / "checkpoints" / "later")
    assert said_of(run("erase", other, "--dry-run", "--json").json["lineage"]) == {
        "second": "unknown", "third": "not-listed", "two": "listed",
    }  # fmt: skip


def test_an_altered_a_removed_and_a_replaced_record_are_seen(
    run: Run, seen: dict[str, int], trained: Trained, tmp_path: Path
) -> None:
    fact = seen["value 3"]
    places = {name: tmp_path / "kept" / name for name in ("first", "second")}
    for name, kept in places.items():
        shutil.copytree(trained.folder / name, kept)

    def told(name: str) -> tuple[str, str]:
        found = run("erase", fact, "--dry-run", "--json").json["lineage"]
        return next((one["says"], one["why"]) for one in found if one["name"] == name)

    file = trained.first / RECORD_FILE
    try:
        said = json.loads(file.read_text())
        file.write_text(json.dumps(said | {"count": 0, "digests": ""}))
        assert told("first") == ("unknown", "its record was altered")
        assert run("checkpoint", "info", "--checkpoint", trained.first).code != 0
        file.unlink()
        assert told("first") == ("unknown", "its record was removed")
        description = json.loads((trained.first / CONFIG_FILE).read_text())
        del description["digests"][RECORD_FILE]
        (trained.first / CONFIG_FILE).write_text(json.dumps(description))
        assert told("first") == ("unknown", "it has no record")
        for name in (RECORD_FILE, CONFIG_FILE):
            shutil.copyfile(trained.third / name, trained.second / name)
        assert told("second") == ("unknown", "it was registered with another record, or none")
    finally:
        for name, kept in places.items():
            shutil.rmtree(trained.folder / name)
            shutil.copytree(kept, trained.folder / name)
    assert told("first")[0] == told("second")[0] == "listed"


def test_a_record_counts_documents_and_shows_none_of_their_texts(
    run: Run, home: Path, trained: Trained
) -> None:
    first, second, third = (record_of(trained.folder / name) for name in ("first", "second", "third"))
    assert (first.count, second.count, third.count) == (10, 20, 4)
    assert (first.bases, first.unknown) == ((), ()) == (second.bases, second.unknown)
    content = first.content + (trained.first / CONFIG_FILE).read_bytes()
    for one in FIRST:
        plain = hashlib.sha256(one.text.encode()).digest()
        assert first.has_text(one.text) and second.has_text(one.text) and not third.has_text(one.text)
        for shown in (one.text.encode(), plain, plain.hex().encode(), base64.b64encode(plain)[:-2]):
            assert shown not in content and shown not in first.digests
        assert text_digest(one.text)[:16] not in first.digests
    assert first.salt == second.salt != third.salt
    info = run("checkpoint", "info", "--checkpoint", trained.second)
    assert "trained on 20 documents" in info.out
    told = run("checkpoint", "info", "--checkpoint", trained.second, "--json").json
    assert told["record"] == {"documents": 20, "bases": [], "unknown": None}
    assert told["trained_on"] == f"record:{second.sha256}"
    assert "not known of its training: it has no record" in run("checkpoint", "info").out


def test_an_export_carries_the_record(run: Run, home: Path, trained: Trained, tmp_path: Path) -> None:
    done = run("checkpoint", "export", tmp_path / "plain", "--checkpoint", trained.second)
    assert done.code == 0, done.err
    assert (tmp_path / "plain" / RECORD_FILE).read_bytes() == (trained.second / RECORD_FILE).read_bytes()
    digests = json.loads((tmp_path / "plain" / CONFIG_FILE).read_text())["digests"]
    assert digests[RECORD_FILE] == record_of(trained.second).sha256
