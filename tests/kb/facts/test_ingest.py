"""Ingest: all of a file or nothing, twice is once, and what a changed document keeps."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from colmlm.kb import interpreter
from colmlm.kb.corpus.format import FactSpan, Parsed, Refusal
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.fakes import FakeEncoder
from tests.kb.corpora import CAPITAL, CHILE, HEIGHT, PERU, RIVER, document, fact_id, ingest, numbered, values
from tests.places import PYTHONPATH, ROOT

WHO = {"actor": "tester", "reason": "test"}

CHANGED = document(
    "peru",
    "Peru lies in South America. Its capital is ",
    ("Lima", CAPITAL),
    ". In its mountains, far up, rises the ",
    ("Amazon", RIVER),
    ". The highest peak of them all has ",
    ("6,768 m", HEIGHT),
    ".",
)


def test_ingest_reports_what_it_took_in_one_change(kb: KnowledgeBase):
    heard: list[int] = []
    parsed = [Parsed(PERU, overlaps_resolved=2), Parsed(None, (Refusal("x", 0, "bad"),)), Parsed(CHILE)]
    report = kb.corpora.ingest(parsed, "lands", on_document=heard.append, **WHO)
    assert (report.documents, report.facts, report.unchanged, report.replaced) == (2, 4, 0, 0)
    assert report.overlaps_resolved == 2 and report.refusals == (Refusal("x", 0, "bad"),)
    assert heard == [1, 2]
    (change,) = kb.log.changes()
    assert (change.seq, change.kind, change.num_facts) == (report.seq, "ingest", 4)


def test_ingesting_twice_is_ingesting_once(kb: KnowledgeBase):
    ingest(kb, PERU, CHILE)
    again = ingest(kb, PERU, CHILE)
    assert (again.documents, again.facts, again.unchanged, again.seq) == (0, 0, 2, None)
    assert len(kb.facts.find()) == 4 and kb.log.head_seq() == 1


def test_deleted_facts_stay_deleted_when_their_document_comes_again(kb: KnowledgeBase):
    ingest(kb, PERU)
    lima = fact_id(kb, "Lima")
    kb.facts.delete([lima], **WHO)
    ingest(kb, PERU)
    ingest(kb, CHANGED)
    assert kb.facts.show(lima).deleted_seq is not None
    assert [f.value for f in kb.facts.find()] == ["6,768 m", "Amazon"] or len(kb.facts.find()) == 2


def test_a_changed_document_keeps_the_facts_that_stand(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    before = {f.value: f.fact_id for f in kb.facts.find()}
    kb.facts.edit(before["Lima"], "Cusco", **WHO)
    report = ingest(kb, CHANGED)
    assert (report.documents, report.replaced, report.facts) == (1, 1, 2)
    assert kb.facts.show(before["Lima"]).value == "Cusco", "a correction outlives a new edition"
    assert {f.value: f.fact_id for f in kb.facts.find(deleted=True)} == {
        v: before[v] for v in ("Amazon", "6,768 m")
    }
    assert values(kb, encoder, [CAPITAL, RIVER]) == ["Cusco", None]
    kb.keysets.rekey(encoder)
    assert values(kb, encoder, [CAPITAL, RIVER, HEIGHT]) == ["Cusco", "Amazon", "6,768 m"]
    assert kb.upkeep.fsck().ok and kb.upkeep.fsck().unkeyed_facts == 0


def test_a_fact_that_moved_behind_other_text_is_keyed_again(kb: KnowledgeBase, encoder: FakeEncoder):
    long = "It is known to everyone who was ever there that the highest peak has "
    ingest(kb, document("d", "One. ", long, ("6,768 m", HEIGHT), "."))
    kb.keysets.rekey(encoder)
    before = fact_id(kb, "6,768 m")
    ingest(kb, document("d", "One and two. ", long, ("6,768 m", HEIGHT), "."))
    assert fact_id(kb, "6,768 m") == before
    assert values(kb, encoder, [HEIGHT]) == [None], "its key was made from another text"
    assert kb.upkeep.fsck().ok and kb.keysets.show(kb.keysets.active().keyset_id).num_unkeyed == 1
    kb.keysets.rekey(encoder)
    assert values(kb, encoder, [HEIGHT]) == ["6,768 m"] and kb.upkeep.fsck().ok


def test_the_text_a_deleted_edition_said_is_still_there(kb: KnowledgeBase):
    ingest(kb, PERU)
    old = kb.facts.show(fact_id(kb, "Amazon")).source
    ingest(kb, CHANGED)
    assert old is not None and kb.documents.text(old.document_id) == PERU.text
    assert [d.text for d in kb.corpora.export("lands")] == [CHANGED.text]


def test_a_second_document_with_the_same_id_is_refused(kb: KnowledgeBase):
    report = ingest(kb, PERU, CHANGED)
    assert report.documents == 1 and [r.document for r in report.refusals] == ["peru"]


def test_a_span_that_is_not_verbatim_is_refused_and_the_rest_is_taken(kb: KnowledgeBase):
    wrong = replace(CHILE, facts=(FactSpan(0, 3, "Lima"), *CHILE.facts))
    report = ingest(kb, wrong, PERU)
    assert (report.documents, report.facts) == (2, 4) and "not verbatim" in report.refusals[0].reason


def test_offsets_are_code_points(kb: KnowledgeBase):
    ingest(kb, document("d", "Köln 🙂 liegt am ", ("Rhein 🙂", "Woran liegt Köln?"), "."))
    assert kb.upkeep.fsck().ok and [f.value for f in kb.facts.find()] == ["Rhein 🙂"]


def test_backslashes_tabs_and_newlines_survive_the_copy(kb: KnowledgeBase):
    odd = document("d\\1\t", "A \\N line\nand a\ttab: ", ("\\.\t\\N", "Odd?"), "\r\n\\.\n")
    ingest(kb, odd)
    assert list(kb.corpora.export("lands")) == [odd]


def test_an_error_in_the_middle_leaves_nothing(kb: KnowledgeBase):
    def broken():
        yield Parsed(PERU)
        raise RuntimeError("the disk went away")

    with pytest.raises(RuntimeError):
        kb.corpora.ingest(broken(), "lands", **WHO)
    assert kb.corpora.all() == [] and kb.log.head_seq() == 0


def test_two_facts_that_look_alike_both_stand(kb: KnowledgeBase):
    pieces = ("x " * 30, ("same", "Q?"), " " + "x " * 30, ("same", "Q?"), ".")
    ingest(kb, document("d", *pieces))
    before = [f.fact_id for f in kb.facts.find()]
    ingest(kb, document("d", *pieces, " More."))
    assert [f.fact_id for f in kb.facts.find()] == before and kb.upkeep.fsck().ok


_KILLED = """
import os, signal, sys
from pathlib import Path
from colmlm.kb.corpus.format import Parsed
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.kb.corpora import numbered

def documents():
    for n, document in enumerate(numbered(5000)):
        if sys.argv[3] == "reading" and n == 4000:
            os.kill(os.getpid(), signal.SIGKILL)
        yield Parsed(document)

kb = KnowledgeBase.open(Settings(home=Path(sys.argv[1]), database_url=sys.argv[2]))
from colmlm.kb.log import audit
if sys.argv[3] == "writing":
    audit.append_change = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)
kb.corpora.ingest(documents(), "lands", actor="victim", reason="test")
"""


@pytest.mark.parametrize("moment", ["reading", "writing"])
def test_nothing_is_there_of_an_ingest_that_was_killed(
    kb: KnowledgeBase, settings: Settings, encoder: FakeEncoder, tmp_path: Path, moment: str
):
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    assert settings.database_url is not None
    command = interpreter.command("-c", _KILLED, settings.home, settings.database_url, moment)
    killed = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": PYTHONPATH}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [f.value for f in kb.facts.find()] == ["Lima", "Amazon", "6,768 m"]
    assert kb.upkeep.fsck().ok
    assert ingest(kb, *numbered(10)).documents == 10, "the lock of the dead is free"
