"""`corpus annotate`: raw documents to an annotated file, gone on with after anything, and priced where it costs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from colmlm.kb.corpus.format import AnnotatedDocument, read_annotated
from tests.cli.conftest import Run, annotators_that_ask
from tests.disks import files_limited_to
from tests.model.annotate.chat_server import ChatServer, chat_server
from tests.tiny_annotators import tiny_question_generator, tiny_span_annotator

KEY = "sk-of-the-command-line"
CLOSING = "When did the hall close?"


@pytest.fixture
def closing(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Light annotators that ask of every year a question that says too much before a text speaks of closing."""
    annotators_that_ask(CLOSING, tmp_path_factory.mktemp("annotators"), monkeypatch)


@pytest.fixture
def chats(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    monkeypatch.setenv("COLMLM_ANNOTATOR_API_KEY", KEY)
    with chat_server() as running:
        yield running


def raw(folder: Path, count: int = 3) -> Path:
    folder.mkdir()
    for n in range(count):
        text = f"Hall {n} opened in {1900 + n}. It closed in 2001. Zora came late."
        (folder / f"hall-{n:02}.txt").write_text(text, encoding="utf-8")
    return folder


def facts(path: Path) -> list[tuple[str, str, str | None]]:
    documents = [parsed.document for parsed in read_annotated(path)]
    return [(d.external_id, f.value, f.question) for d in documents if d is not None for f in d.facts]


@pytest.mark.usefixtures("closing")
def test_documents_become_an_annotated_corpus_with_its_rejects_beside_it(run: Run, tmp_path: Path) -> None:
    folder, out = raw(tmp_path / "raw"), tmp_path / "out.jsonl"
    (folder / "empty.txt").touch()
    ran = run("corpus", "annotate", folder, "--output", out, "--json")
    assert ran.code == 3 and ran.json["refusals"][0]["document"] == "empty.txt"
    assert (ran.json["documents"], ran.json["facts"], ran.json["questions"]) == (3, 6, 3)
    assert facts(out)[:2] == [("hall-00.txt", "1900", None), ("hall-00.txt", "2001", CLOSING)]
    rejects = [json.loads(line) for line in (tmp_path / "out.rejects.jsonl").read_text().splitlines()]
    assert ran.json["rejected"] == {"forward": 3, "lossy": 3} and len(rejects) == 6
    assert (rejects[0]["code"], rejects[0]["value"], rejects[0]["question"]) == ("forward", "1900", CLOSING)
    assert run("corpus", "add", out, "--format", "annotated", "--corpus", "halls").code == 0
    only = tmp_path / "spans.jsonl"
    assert run("corpus", "annotate", folder, "--output", only, "--no-questions").code == 3
    assert [question for _, _, question in facts(only)] == [None] * 6
    strict = tmp_path / "strict.jsonl"
    run("corpus", "annotate", folder, "--output", strict, "--drop-unquestioned")
    assert len(facts(strict)) == 3


def test_questions_that_do_not_lead_back_to_their_fact_are_rejected_unless_none_are_verified(
    run: Run, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    annotators_that_ask("Who baked the bread?", tmp_path_factory.mktemp("annotators"), monkeypatch)
    folder, out = raw(tmp_path / "raw", 1), tmp_path / "out.jsonl"
    verified = run("corpus", "annotate", folder, "--output", out, "--json").json
    assert (verified["facts"], verified["questions"], verified["rejected"]["unverified"]) == (2, 0, 2)
    rejects = [json.loads(line) for line in (tmp_path / "out.rejects.jsonl").read_text().splitlines()]
    unverified = [one for one in rejects if one["code"] == "unverified"]
    assert [(one["value"], one["question"]) for one in unverified] == [
        ("1900", "Who baked the bread?"), ("2001", "Who baked the bread?")
    ]  # fmt: skip
    told = run("corpus", "annotate", folder, "--output", tmp_path / "all.jsonl", "--no-verify", "--json").json
    assert told["questions"] == 2 and "unverified" not in told["rejected"]


@pytest.mark.slow(reason="is broken off and begun again")
@pytest.mark.usefixtures("closing")
@pytest.mark.parametrize(("cut", "options"), [("rejects.jsonl", ()), ("jsonl", ("--no-questions",))])
def test_a_run_that_is_cut_off_within_a_line_goes_on_and_gives_the_same_file(
    run: Run, tmp_path: Path, cut: str, options: tuple[str, ...]
) -> None:
    folder = raw(tmp_path / "raw", 20)
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    annotate = ("corpus", "annotate", folder, *options, "--output")
    assert run(*annotate, whole).code == 0
    written = (tmp_path / f"whole.{cut}").read_bytes()
    with files_limited_to(written.index(b"\n", len(written) // 2) + 10):  # a few bytes into a line
        assert run(*annotate, parts).code == 9
    assert not (tmp_path / f"parts.{cut}").read_bytes().endswith(b"\n")
    done = parts.read_bytes().count(b"\n")
    assert 0 < done < 20
    ran = run(*annotate, parts)
    assert ran.code == 0 and f"has {done} documents; going on from there" in ran.err
    assert f"{20 - done} more" in ran.out
    for name in ("jsonl", "rejects.jsonl"):
        assert (tmp_path / f"parts.{name}").read_bytes() == (tmp_path / f"whole.{name}").read_bytes()
    (folder / "hall-03.txt").write_text("Hall 3 opened in 1999.")
    ran = run(*annotate, parts)
    assert ran.code == 2 and "'hall-03.txt' with another text" in ran.err


def seed(folder: Path, out: Path, chats: ChatServer) -> tuple[str | Path, ...]:
    """The command that has this server annotate."""
    return (
        "corpus",
        "annotate",
        folder,
        "--output",
        out,
        "--annotator",
        "seed",
        "--model",
        "m",
        "--url",
        chats.url,
    )


def test_the_seed_annotator_is_not_spread_by_ray(run: Run, tmp_path: Path, chats: ChatServer) -> None:
    ran = run(*seed(raw(tmp_path / "raw"), tmp_path / "seed.jsonl", chats), "--yes", "--ray", "auto")
    assert ran.code == 2 and "--concurrency" in ran.err
    assert not chats.requests


def test_the_seed_annotator_says_its_price_and_asks_before_it_sends_anything(
    run: Run, chats: ChatServer, tmp_path: Path
) -> None:
    folder, out = raw(tmp_path / "raw"), tmp_path / "seed.jsonl"
    command = seed(folder, out, chats)
    prices = ("--price-in", "2", "--price-out", "10")
    dry = run(*command, *prices, "--dry-run", "--json").json["estimate"]
    assert (dry["documents"], dry["chunks"]) == (3, 3)
    assert dry["price"] == pytest.approx((2 * dry["tokens_in"] + 10 * dry["tokens_out"]) / 1e6)
    unasked = run(*command, *prices)
    assert unasked.code == 2 and "--yes" in unasked.err and "3 documents" in unasked.err
    assert chats.requests == [] and not out.exists()
    assert run(*command[:-2], "--yes").code == 2
    ran = run(*command, "--yes", "--json", "--concurrency", 1)
    assert ran.code == 0 and (ran.json["documents"], ran.json["facts"]) == (3, 6)
    assert ran.json["usage"]["requests"] == 3 and set(chats.keys) == {f"Bearer {KEY}"}
    again = run(*command, "--yes", "--json").json
    assert (again["documents"], again["estimate"]["documents"], len(chats.requests)) == (0, 0, 3)


def test_an_endpoint_that_fails_is_one_line_without_the_key(
    run: Run, chats: ChatServer, tmp_path: Path
) -> None:
    folder, out = raw(tmp_path / "raw"), tmp_path / "seed.jsonl"
    chats.commands += ["behave", "401"]
    command = seed(folder, out, chats)
    ran = run(*command, "--yes", "--concurrency", 1)
    assert ran.code == 7 and "COLMLM_ANNOTATOR_API_KEY" in ran.err and KEY not in ran.err + ran.out
    assert f"1 document is in {out}. Run the same command again" in ran.err
    assert run(*command, "--yes").code == 0 and len(facts(out)) == 6


def test_real_annotators_fit_the_pipeline(run: Run, tmp_path: Path) -> None:
    folder, out = raw(tmp_path / "raw"), tmp_path / "out.jsonl"
    spans = tiny_span_annotator(tmp_path / "spans")
    questions = tiny_question_generator(tmp_path / "questions")
    ran = run(
        "corpus", "annotate", folder, "--output", out, "--json",
        "--span-annotator", spans, "--question-generator", questions,
    )  # fmt: skip
    assert ran.code == 0 and ran.json["documents"] == 3 and ran.json["facts"] == len(facts(out)) > 0
    documents: list[AnnotatedDocument | None] = [parsed.document for parsed in read_annotated(out)]
    assert all(
        d is not None and d.text[f.start : f.end] == f.value
        for d in documents
        for f in (d.facts if d else ())
    )


def test_a_threshold_that_marks_all_or_nothing_is_refused(
    run: Run, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    words = ("corpus", "annotate", raw(tmp_path / "raw"), "--output", tmp_path / "out.jsonl")
    for threshold in ("0", "1", "nan"):
        with subtests.test(threshold=threshold):
            assert run(*words, "--span-threshold", threshold).code == 2
