"""A witnessed head tells a log that was rewritten, though its chain fits; an exported log is checked without a base."""

from __future__ import annotations

import json

import pytest

from colmlm.kb.errors import InvalidValue, LogRefused, SignatureRefused
from colmlm.kb.evidence.records import NewOutput, Splice
from colmlm.kb.log import audit
from colmlm.kb.log.signing import signing_key
from colmlm.kb.log.witness import (
    Head,
    check_log,
    read_head,
    read_log,
    signed_head,
)
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.tables import ChangeRow
from tests.kb.corpora import PERU, fact_id, ingest
from tests.kb.log.rewriting import rewrite, tamper
from tests.places import SIGNED

WHO = {"actor": "tester", "reason": "because"}


@pytest.fixture
def edited(kb: KnowledgeBase) -> KnowledgeBase:
    ingest(kb, PERU)
    kb.facts.edit(fact_id(kb, "Lima"), "Cusco", **WHO)
    kb.facts.delete([fact_id(kb, "Amazon")], **WHO)
    return kb


def _head(kb: KnowledgeBase) -> str:
    with kb.sessions() as session:
        return json.dumps(signed_head(session, signing_key(kb.settings.home)))


def _with_another_reason(change: ChangeRow) -> None:
    change.reason = "another reason" if change.seq == 2 else change.reason


def test_a_rewritten_log_fits_together_and_not_the_witnessed_head(edited: KnowledgeBase):
    witnessed = read_head(_head(edited), "head.json")
    edited.facts.restore([fact_id(edited, "Amazon")], **WHO)
    report = edited.log.verify(witnessed)
    assert report.ok and report.holds_witnessed and (report.changes_checked, witnessed.seq) == (4, 3)
    rewrite(edited, _with_another_reason)
    assert edited.log.verify().ok
    report = edited.log.verify(witnessed)
    assert not report.ok and report.first_break is None and report.holds_witnessed is False


def test_a_log_that_was_cut_off_lacks_the_witnessed_head(edited: KnowledgeBase):
    witnessed = read_head(_head(edited), "head.json")
    tamper(edited, "DELETE FROM change WHERE seq = 3")
    assert edited.log.verify(witnessed).holds_witnessed is False


def test_a_log_of_the_release_before_is_still_accepted():
    """As it exported and signed it."""
    with (SIGNED / "log-1.jsonl").open(encoding="utf-8") as lines:
        report = check_log(lines, "log")
    assert report.ok and report.seq == report.changes_checked == 4


def test_a_head_is_evidence_only_as_it_was_signed(edited: KnowledgeBase):
    line = _head(edited)
    for forged in (line.replace('"seq": 3', '"seq": 2'), line.replace("head/1", "head/2"), "{}", "[]", ""):
        with pytest.raises(SignatureRefused):
            read_head(forged, "head.json")


def test_an_exported_log_is_checked_without_its_database(edited: KnowledgeBase):
    lines = list(edited.log.export())
    witnessed = read_head(_head(edited), "head.json")
    report = check_log(lines, "log", witnessed)
    assert report.ok and report.holds_witnessed and report.changes_checked == 3
    assert not [word for word in ("Lima", "Cusco", "Amazon") if word in "".join(lines)]
    for damaged, broken in (
        ([*lines[:2], *lines[3:]], 2),  # one taken out
        (lines[:-1], 2),  # cut off
        ([*lines[:1], lines[1].replace("tester", "other"), *lines[2:]], 1),
        ([*lines[:3], "not JSON\n", *lines[3:]], 3),
    ):
        report = check_log(damaged, "log")
        assert not report.ok and report.first_break == broken
        with pytest.raises(LogRefused):
            list(read_log(damaged, "log")[1])
    other = Head("another", witnessed.seq, witnessed.hash, witnessed.at, witnessed.key)
    assert check_log(lines, "log", other).holds_witnessed is False


def test_the_log_is_filtered_by_person_kind_fact_and_time(edited: KnowledgeBase):
    lima = fact_id(edited, "Cusco")
    edited.facts.edit(lima, "Lima", actor="ann", reason="it was right")

    def found(**filters: object) -> list[int]:
        with edited.sessions() as session:
            return [change.seq for change in audit.list_changes(session, 0, 100, **filters)]

    assert found(actor="ann") == [4] and found(kind="delete") == [3]
    assert found(fact_id=lima) == [1, 2, 4]
    second = edited.log.changes()[1].at
    assert found(since=second) == [2, 3, 4] and found(until=second) == [1]
    with edited.sessions() as session:
        newest = [change.seq for change in audit.changes_before(session, 5, 2)]
        older = [change.seq for change in audit.changes_before(session, newest[-1], 9, fact_id=lima)]
    assert (newest, older) == ([4, 3], [2, 1])


def test_an_edit_without_a_reason_is_refused(edited: KnowledgeBase):
    fact = fact_id(edited, "Cusco")
    for edit in (
        lambda: edited.facts.edit(fact, "Lima", actor="tester", reason=" "),
        lambda: edited.facts.delete([fact], actor="tester", reason=""),
        lambda: edited.facts.add("Who?", "Me", actor=" ", reason="because"),
        lambda: edited.corpora.ingest([], "lands", actor="tester", reason=""),
    ):
        with pytest.raises(InvalidValue):
            edit()
    assert edited.log.head_seq() == 3


def test_impact_names_every_output_and_what_became_of_the_fact(edited: KnowledgeBase):
    fact = fact_id(edited, "Cusco")
    output, splice = "It is Cusco.", Splice(6, 11, "hit", fact, 2, 0.9)
    stored = edited.outputs.record(NewOutput("Where?", output, "fake", "auto", 3, (splice,)))
    (used,) = edited.outputs.impact(fact).outputs
    assert (
        used.generation_id,
        used.prompt,
        used.output[used.output_start : used.output_end],
        used.version,
    ) == (
        stored,
        "Where?",
        "Cusco",
        2,
    )
    assert used.since == "current"
    edited.facts.edit(fact, "Lima", **WHO)
    assert edited.outputs.impact(fact).outputs[0].since == "corrected"
    edited.facts.delete([fact], **WHO)
    assert (
        edited.outputs.impact(fact).outputs[0].since == "deleted" and not edited.outputs.impact(fact).is_live
    )
    assert edited.outputs.impact(fact_id(edited, "Amazon")).outputs == ()
