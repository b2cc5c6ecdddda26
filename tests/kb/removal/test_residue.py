"""Erased facts are in no file any more: on a server of its own, whose log and tables are rewritten."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from colmlm.kb.answers.answering import Answering
from colmlm.kb.corpus.format import Parsed, read_annotated
from colmlm.kb.errors import InvalidValue
from colmlm.kb.evidence.records import NewFeedback, NewOutput, Splice
from colmlm.kb.questions.asking import ByAnswers
from colmlm.kb.questions.records import DraftQuestion
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.removal.scan import BLOCK, Matcher, ResidueReport, scan_residue
from colmlm.kb.removal.traces import Trace, load_traces, save_traces
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder, SayingReader
from tests.kb.corpora import document, fact_id, ingest
from tests.places import ROOT

DEMO = ROOT / "kb" / "demo" / "corpus.jsonl"
BY = {"actor": "tester", "reason": "request"}


def scan(kb: KnowledgeBase, traces: tuple[Trace, ...]) -> ResidueReport:
    telling = [trace for trace in traces if not trace.shared]
    keys = [n for n, trace in enumerate(telling) if trace.kind == "key"]
    return scan_residue([p.needle for p in telling], engine=kb.engine, settings=kb.settings, keys=keys)


def speak_of(kb: KnowledgeBase, encoder: FakeEncoder, fact_id: int) -> None:
    """Store an output that splices the fact, and what somebody says of it."""
    fact = kb.facts.show(fact_id)
    output = f"As I was told in passing, it is {fact.value}, or so they say."
    start = output.index(fact.value, 31)
    splice = Splice(start, start + len(fact.value), "hit", fact_id, fact.version, 0.9)
    checkpoint = encoder.checkpoint.checkpoint_id
    stored = kb.outputs.record(
        NewOutput(f"Tell me: {fact.question}", output, checkpoint, "lookup", kb.log.head_seq(), (splice,))
    )
    said = f"I would not say {fact.value}, as it does"
    kb.outputs.give_feedback(stored, NewFeedback("down", said, f"not {fact.value}"), actor="ann")


@pytest.mark.slow(reason="starts a PostgreSQL of its own and rewrites its tables")
def test_a_hundred_erased_facts_are_in_no_file(own_kb: KnowledgeBase, encoder: FakeEncoder) -> None:
    kb = own_kb
    kb.corpora.ingest(read_annotated(DEMO), "demo", **BY)
    kb.keysets.rekey(encoder)
    chosen = [fact.fact_id for fact in kb.facts.find(limit=5000)][::23][:100]
    for fact in chosen[:20]:
        speak_of(kb, encoder, fact)
    kb.facts.edit(chosen[0], "a correction of what was said there", anyway=True, **BY)
    kb.facts.delete(chosen[1:3], **BY)
    with kb.engine.begin() as connection:
        connection.execute(text("ANALYZE"))
        setting = connection.scalar(text("SHOW wal_recycle"))

    erasure = Erasure(kb)
    traces = erasure.traces(chosen)
    assert len(chosen) == 100 and {p.fact_id for p in traces if not p.shared} == set(chosen)
    before = scan(kb, traces)
    areas = ("heap", "keys", "wal", "snapshots")
    assert all(before.found[area] >= 80 for area in areas), (
        before.found
    )  # some questions, thus keys, are shared
    report = erasure.erase(chosen, **BY, now=True)
    after = scan(kb, traces)

    assert (report.level, [level.state for level in report.levels]) == (4, ["reached"] * 4), report.levels
    assert after.clean and after.num_found == 0, after
    assert set(after.found.values()) == {0} and after.num_probes == before.num_probes
    fsck = kb.upkeep.fsck()
    assert fsck.ok, fsck
    with kb.engine.connect() as connection:
        assert connection.scalar(text("SHOW wal_recycle")) == setting
        assert not connection.scalar(text("SELECT count(*) FROM pg_file_settings WHERE name = 'wal_recycle'"))


def test_a_mention_in_another_spelling_is_searched_for_as_it_stands(kb: KnowledgeBase) -> None:
    text = document("spelt", "O\u2019Malley Rock it is: ", ("O'Malley Rock", "Which rock?"), ".")
    ingest(kb, text)
    rock, spelt = [fact_id(kb, "O'Malley Rock")], "O\u2019Malley Rock".encode()
    assert Trace(rock[0], "text", spelt) in Erasure(kb).traces(rock)
    assert all(spelt not in one.needle for one in Erasure(kb).traces(rock, mentions="none"))


@pytest.mark.parametrize("name", ["uri", "licence", "external_id"])
def test_a_name_that_stays_proves_nothing(kb: KnowledgeBase, name: str) -> None:
    said = document("one", "The longest of them is ", ("the Amazon River", "Which is longest?"), " by far.")
    plain = replace(document("plain", "Nothing."), **{name: "of the Amazon River"})
    kb.corpora.ingest([Parsed(said), Parsed(plain)], "lands", **BY)
    traces = Erasure(kb).traces([fact_id(kb, "the Amazon River")])
    assert [trace.shared for trace in traces if trace.needle == b"the Amazon River"] == [True]


@pytest.mark.slow(reason="waits for a transaction that keeps the text")
def test_a_transaction_that_may_still_read_the_text_stops_at_level_two(own_kb: KnowledgeBase) -> None:
    ingest(own_kb, document("held", "Nobody knows ", ("the unheard-of", "What does nobody know?"), "."))
    held = fact_id(own_kb, "the unheard-of")
    with own_kb.engine.connect() as reader:
        reader.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        pid = reader.scalar(text("SELECT pg_backend_pid()"))
        report = Erasure(own_kb).erase([held], **BY, now=True)
    assert (report.level, report.levels[2].state) == (2, "left")
    assert str(pid) in report.levels[2].left
    assert Erasure(own_kb).finish().level == 4


def test_kept_questions_and_their_runs_leave_no_residue(own_kb: KnowledgeBase) -> None:
    ingest(own_kb, document("rare", "Nobody knows ", ("xerophytologists", "Whom does nobody know?"), "."))
    rare = fact_id(own_kb, "xerophytologists")
    kept = DraftQuestion("Who knows no xerophytologists?", ("xerophytologists",))
    own_kb.questions.add("rare", [kept], actor="tester")
    asker = ByAnswers(Answering(own_kb, None, SayingReader("xerophytologists")))
    assert own_kb.questions.run("rare", asker, actor="tester").right == 1
    traces = Erasure(own_kb).traces([rare])
    assert scan(own_kb, traces).found["heap"] > 0
    report = Erasure(own_kb).erase([rare], **BY, now=True)
    assert report.level == 4 and scan(own_kb, traces).clean


def test_a_trace_is_found_wherever_it_lies_in_a_file(tmp_path: Path) -> None:
    traces = [
        b"twelve bytes",
        b"twelve bytes and more",
        b"\x00\x01\x02\x03\x04\x05\x06\x07",
        b"not there at all",
    ]
    for at in (0, 3, BLOCK - 12, BLOCK - 5, BLOCK - 1, BLOCK, 2 * BLOCK - 20):
        file = tmp_path / "file"
        file.write_bytes(b"\xff" * at + traces[1] + b"t" * 5 + traces[2])
        assert Matcher(traces).find_in_file(file)[0] == {0, 1, 2}, at
    assert list(Matcher(traces).find(b"twelve byte")) == []


def test_traces_too_short_to_tell_anything_are_refused() -> None:
    with pytest.raises(InvalidValue, match="8 bytes"):
        Matcher([b"Lima"])


def test_traces_tell_a_fact_from_what_others_say_too(kb: KnowledgeBase, encoder: FakeEncoder) -> None:
    """A value that another text holds proves nothing; its surroundings do."""
    said = document("one", "The longest of them is ", ("the Amazon River", "Which is longest?"), " by far.")
    also = document("two", "Others prefer the Amazon River.")
    ingest(kb, said, also)
    kb.keysets.rekey(encoder)
    traces = Erasure(kb).traces([fact_id(kb, "the Amazon River")])
    assert {p.needle: p.shared for p in traces if p.kind != "key"} == {
        b"gest of them is the Amazon River by far.": False,
        b"the Amazon River": True,
        b"Which is longest?": False,
    }
    assert sorted(len(p.needle) for p in traces if p.kind == "key") == [64, 64]


def test_a_word_by_which_a_text_is_found_is_in_files_until_it_is_erased(own_kb: KnowledgeBase) -> None:
    """In the sentences, their index and the statistics, where no other trace of the fact is found."""
    said = document("dry", "One calls it ", ("Xerophytologies", "What is it called?"), ", and so be it.")
    also = document("wet", "Others call it ", ("Hydrophytologies", "How else?"), ". Hydrophytologies!")
    ingest(own_kb, said, also, document("more", ("Hydrophytology", "What?"), " it is."))
    with own_kb.engine.begin() as connection:
        connection.execute(text("ANALYZE"))
    dry, wet = fact_id(own_kb, "Xerophytologies"), fact_id(own_kb, "Hydrophytologies")
    traces = [trace for trace in Erasure(own_kb).traces([dry, wet]) if trace.kind == "word"]
    assert [(p.fact_id, p.needle, p.shared) for p in traces] == [
        (dry, b"xerophytolog", False),
        (wet, b"hydrophytolog", True),
    ]
    assert scan(own_kb, tuple(traces)).found["heap"] == 1
    report = Erasure(own_kb).erase([dry, wet], **BY, now=True)
    assert report.level == 4 and scan(own_kb, tuple(traces)).clean


def test_a_file_of_traces_is_its_owners_and_comes_back_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "traces.json"
    traces = (Trace(1, "text", "Müller of Lima".encode()), Trace(2, "key", bytes(range(64)), shared=True))
    save_traces(traces, file)
    assert file.stat().st_mode & 0o777 == 0o600 and load_traces(file) == traces
    with pytest.raises(FileExistsError):
        save_traces(traces, file)
    file.write_text(json.dumps({"format": 2}))
    with pytest.raises(InvalidValue, match="format"):
        load_traces(file)
