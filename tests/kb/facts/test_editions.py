"""A document that comes again: whatever stands as it was keeps its id and history, and the rest is as if fresh."""

from __future__ import annotations

from collections import defaultdict
from itertools import count

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.kb.facts.records import FactRecord
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder
from tests.kb.corpora import document, ingest

WHO = {"actor": "tester", "reason": "test"}

# Few words, so that sentences repeat, swap places and differ in one respect only.
filler = st.sampled_from(
    [" and so on ", "🏔️ " * 9, " in the long and quiet years that came after all that ", "\n"]
)
facts = st.tuples(st.sampled_from(["Lima", "Cusco", "1981 🏔️"]), st.sampled_from(["Where?", "When?"]))
texts = st.lists(st.tuples(filler, facts), max_size=6).map(
    lambda pairs: [piece for pair in pairs for piece in pair]
)
names = count()


def look(span: FactSpan, text: str) -> tuple[str, str | None, str]:
    return span.value, span.question, text[: span.start][-40:]


def standing(old: AnnotatedDocument, new: AnnotatedDocument) -> dict[int, int]:
    """Ordinals of facts of `new`, and of those of `old` that they are: the nth that looks alike is the nth."""
    alike: dict[tuple[str, str | None, str], list[int]] = defaultdict(list)
    for ordinal, span in enumerate(old.facts):
        alike[look(span, old.text)].append(ordinal)
    kept = {}
    for ordinal, span in enumerate(new.facts):
        if candidates := alike[look(span, new.text)]:
            kept[ordinal] = candidates.pop(0)
    return kept


def in_order(kb: KnowledgeBase, corpus: str) -> list[FactRecord]:
    found = [fact for fact in kb.facts.find(corpus=corpus, deleted=None, limit=1000) if fact.source]
    return sorted(found, key=lambda fact: fact.source.start if fact.source else 0)


@pytest.mark.slow(reason="draws many examples of edits")
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(texts, texts, st.data())
def test_a_new_edition_changes_no_more_than_it_must(
    kb: KnowledgeBase, encoder: FakeEncoder, before: list[object], after: list[object], data: st.DataObject
):
    corpus = f"corpus {next(names)}"
    old = document("d", "Start. ", *before)
    # Mostly the same text with a piece cut out, put in or put elsewhere.
    kept_from, kept_to = sorted(data.draw(st.tuples(*[st.integers(0, len(before))] * 2)))
    new = document("d", "Start. ", *after[:2], *before[kept_from:], *before[:kept_to], ".")
    ingest(kb, old, corpus=corpus)
    kb.keysets.rekey(encoder)
    was = in_order(kb, corpus)
    for number, fact in enumerate(was):
        action = data.draw(st.sampled_from(["leave", "update", "delete"]))
        if action == "update":
            kb.facts.edit(fact.fact_id, f"corrected {number}", anyway=True, **WHO)
        elif action == "delete":
            kb.facts.delete([fact.fact_id], **WHO)
    was = in_order(kb, corpus)
    report = ingest(kb, new, corpus=corpus)
    assert report.seq is not None, "the full stop at the end makes it another text"

    kept = standing(old, new)
    (exported,) = kb.corpora.export(corpus, live_only=False)
    everything = {fact.fact_id: fact for fact in in_order(kb, corpus)}
    edition = (
        max(fact.source.document_id for fact in everything.values() if fact.source) if new.facts else None
    )
    now = [f for f in in_order(kb, corpus) if f.source and f.source.document_id == edition]
    assert [(f.source.start, f.source.end) for f in now if f.source] == [(s.start, s.end) for s in new.facts]
    for ordinal, fact in enumerate(now):
        if ordinal in kept:
            one = was[kept[ordinal]]
            assert (fact.fact_id, fact.value, fact.version) == (one.fact_id, one.value, one.version)
            assert (fact.created_seq, fact.deleted_seq) == (one.created_seq, one.deleted_seq)
        else:
            assert fact.created_seq == report.seq and (fact.version, fact.deleted_seq) == (1, None)
            assert fact.fact_id > max((f.fact_id for f in was), default=0)
    gone = [fact for ordinal, fact in enumerate(was) if ordinal not in kept.values()]
    for fact in gone:
        assert everything[fact.fact_id].deleted_seq == (fact.deleted_seq or report.seq)
        assert everything[fact.fact_id].value == fact.value
    assert len(everything) == len(now) + len(gone) and report.facts == len(now) - len(kept)
    (change,) = kb.log.changes(after=report.seq - 1)
    assert set(change.fact_ids) == {f.fact_id for f in gone if f.deleted_seq is None} | {
        was[ordinal].fact_id for ordinal in kept.values()
    }
    fresh = [o for o in range(len(new.facts)) if o not in kept]
    moved = [o for o, k in kept.items() if new.text[: new.facts[o].start] != old.text[: old.facts[k].start]]
    waiting = [now[o] for o in (*fresh, *moved) if now[o].deleted_seq is None]
    assert kb.upkeep.fsck().ok and kb.upkeep.fsck().unkeyed_facts == len(waiting)
    assert exported.text == new.text and len(exported.facts) == len(new.facts)
    kb.keysets.rekey(encoder)
