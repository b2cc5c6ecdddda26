"""The demo corpus is what its sources build, and the parser takes every line of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from colmlm.kb.corpus.format import read_annotated
from colmlm.kb.demo import DEMO_CORPUS
from colmlm.lab import demo_corpus as build


def test_a_build_anew_gives_the_shipped_file_and_finds_no_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for source in build.SOURCES:
        shutil.copy(DEMO_CORPUS.parent / source, tmp_path)
    assert build.main(tmp_path) == 0
    assert capsys.readouterr().err == ""
    assert (tmp_path / DEMO_CORPUS.name).read_bytes() == DEMO_CORPUS.read_bytes()


def test_the_parser_takes_every_line_without_a_refusal():
    parsed = list(read_annotated(DEMO_CORPUS))
    assert all(p.document is not None and p.refusals == () and p.overlaps_resolved == 0 for p in parsed)
    documents = [p.document for p in parsed if p.document]
    assert len({d.external_id for d in documents}) == len(documents) >= 150
    facts = [(span, d) for d in documents for span in d.facts]
    assert len(facts) >= 1500
    assert all(span.question and span.answer == span.value for span, _ in facts)
    assert all(d.title and d.uri and d.licence == "Apache-2.0" and d.revision == "1" for d in documents)


def test_facts_are_restated_in_other_documents_and_never_contradicted():
    where: dict[tuple[str | None, str], set[str]] = {}
    for parsed in read_annotated(DEMO_CORPUS):
        assert parsed.document is not None
        for span in parsed.document.facts:
            where.setdefault((span.question, span.value), set()).add(parsed.document.external_id)
    assert sum(len(documents) > 1 for documents in where.values()) >= 100
    assert len({question for question, _ in where}) == len(where)


@pytest.mark.parametrize(
    "sentences, fault",
    [
        (["It is {Lima|Where is Lima?}."], "answer inside its question"),
        (["{Lima|Where?} is big."], "opens the text"),
        (["It is { Lima|Where?}."], "span is not its value"),
        (["It is {a|Q?} and {b|Q?}."], "question asked twice"),
        (["Nothing at all."], "no facts"),
        (["It is {a|Q?} {b."], "markup left"),
    ],
)
def test_the_build_finds_what_is_wrong_with_a_document(sentences: list[str], fault: str):
    assert fault in " ".join(build.document_faults(build.compose("d", "title", sentences)))


def test_the_build_finds_what_is_wrong_with_the_whole():
    one = build.compose("d", "title", ["It is {a|Q?}."])
    other = build.compose("d", "title", ["It is {b|Q?}."])
    faults = " ".join(build.corpus_faults([one, other], build.count([one, other])))
    for fault in ("id used 2 times", "different answers: Q?", "2 documents, fewer than", "0 restated"):
        assert fault in faults
