"""The verbs together, and the invariants that hold across them."""

from __future__ import annotations

import subprocess
import threading
from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import text

from colmlm.kb import interpreter
from colmlm.kb.errors import KeysetMismatch, MigrationNeeded, NoActiveKeyset
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.kb.store.waits import Waits
from tests.fakes import FakeEncoder, activated
from tests.kb.corpora import (
    CAPITAL,
    CHILE,
    HEIGHT,
    PERU,
    RIVER,
    ask,
    best,
    fact_id,
    ingest,
    lose_key,
    numbered,
    values,
)  # fmt: skip
from tests.kb.log.rewriting import tamper

WHO = {"actor": "tester", "reason": "test"}
FAR_AHEAD = 10**6  # an index that takes itself to be there catches up with nothing


def test_a_question_finds_its_fact_and_another_question_finds_nothing(
    kb: KnowledgeBase, encoder: FakeEncoder
):
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    assert best(kb, encoder, CAPITAL).value == "Lima"
    (missed,) = ask(kb, encoder, "Who wrote Emma?")
    assert missed.hits == () and missed.runner_up is not None and missed.runner_up < missed.threshold


def test_deleted_fact_is_gone_before_the_index_catches_up(
    kb: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder
):
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    assert best(another_process, encoder, CAPITAL).value == "Lima"
    replica = another_process.searcher.current()
    replica.candidates.advance(FAR_AHEAD)
    kb.facts.delete([fact_id(kb, "Lima")], **WHO)
    kb.facts.edit(fact_id(kb, "Amazon"), "Ucayali", **WHO)
    assert values(another_process, encoder, [CAPITAL, RIVER, HEIGHT]) == [None, "Ucayali", "6,768 m"]
    assert len(replica.candidates) == 3, "the index was to lag in this test"


def test_lookup_widens_until_it_has_passed_every_dead_candidate(
    kb: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder
):
    ingest(kb, *numbered(100))
    kb.keysets.rekey(encoder)
    replica = another_process.searcher.current()
    replica.candidates.advance(FAR_AHEAD)
    survivor = fact_id(kb, "value 7")
    kb.facts.delete([fact.fact_id for fact in kb.facts.find(limit=200) if fact.fact_id != survivor], **WHO)
    (lookup,) = ask(another_process, encoder, "Nothing like it?", k=3, threshold=-1)
    assert [hit.fact_id for hit in lookup.hits] == [survivor]
    assert len(replica.candidates) == 100, "the index was to lag in this test"


def test_an_edit_is_read_back_with_its_seq_in_another_process(
    kb: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder
):
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    another_process.lookups.catch_up()
    seq = kb.facts.edit(fact_id(kb, "Lima"), "Cusco", **WHO).seq
    (lookup,) = ask(another_process, encoder, CAPITAL, min_seq=seq)
    assert lookup.hits[0].value == "Cusco" and lookup.hits[0].version == 2 and lookup.seq >= seq


def test_index_follows_deletes_and_restores_of_another_process(
    kb: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder
):
    ingest(kb, PERU, CHILE)
    kb.keysets.rekey(encoder)
    index = another_process.searcher.current().candidates
    kb.facts.delete([fact_id(kb, "Lima"), fact_id(kb, "Santiago")], **WHO)
    assert another_process.lookups.catch_up() == kb.log.head_seq() and len(index) == 2
    kb.facts.restore([fact_id(kb, "Lima")], **WHO)
    another_process.lookups.catch_up()
    assert len(index) == 3 and best(another_process, encoder, CAPITAL).value == "Lima"


def test_facts_keyed_by_another_process_are_found(
    kb: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder
):
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    assert values(another_process, encoder, [CAPITAL, "Who wrote Emma?"]) == ["Lima", None]
    kb.facts.add("Who wrote Emma?", "Jane Austen", **WHO)
    assert values(another_process, encoder, ["Who wrote Emma?"]) == [None], "it has no key yet"
    kb.keysets.rekey(encoder)
    assert values(another_process, encoder, ["Who wrote Emma?"]) == ["Jane Austen"]


def test_activation_flips_every_process_and_back(
    kb: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder
):
    ingest(kb, PERU)
    old = kb.keysets.rekey(encoder)
    assert best(another_process, encoder, CAPITAL).value == "Lima"
    newer = FakeEncoder(salt="2", dim=16)
    new = kb.keysets.rekey(newer)
    assert (old.state, new.state) == ("active", "ready")
    with pytest.raises(KeysetMismatch):
        ask(another_process, newer, CAPITAL)
    assert activated(kb, new.keyset_id).state == "active"
    assert best(another_process, newer, CAPITAL).value == "Lima"
    with pytest.raises(KeysetMismatch):
        ask(another_process, encoder, CAPITAL)
    activated(kb, old.keyset_id)
    assert best(another_process, encoder, CAPITAL).value == "Lima"


def test_a_keyset_that_was_active_before_is_caught_up_when_it_comes_back(
    kb: KnowledgeBase, encoder: FakeEncoder
):
    ingest(kb, PERU)
    old = kb.keysets.rekey(encoder)
    newer = FakeEncoder(salt="2")
    activated(kb, kb.keysets.rekey(newer).keyset_id)
    kb.facts.delete([fact_id(kb, "Lima")], **WHO)
    activated(kb, old.keyset_id)
    assert values(kb, encoder, [CAPITAL, RIVER]) == [None, "Amazon"]
    assert kb.upkeep.fsck().ok


def test_an_index_can_be_made_from_the_database_alone(
    kb: KnowledgeBase, settings: Settings, encoder: FakeEncoder
):
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    elsewhere = replace(settings, home=settings.home / "elsewhere")
    with KnowledgeBase.open(elsewhere) as moved:
        assert best(moved, encoder, CAPITAL).value == "Lima"
        moved.lookups.rebuild()
        assert list(elsewhere.index_directory.rglob("*.faiss"))
        assert best(moved, encoder, RIVER).value == "Amazon"


def test_reopening_starts_from_the_snapshot_and_catches_up(
    kb: KnowledgeBase, settings: Settings, encoder: FakeEncoder
):
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    kb.lookups.snapshot()
    kb.facts.delete([fact_id(kb, "Lima")], **WHO)
    lose_key(kb, "6,768 m")
    with KnowledgeBase.open(settings) as reopened:
        assert values(reopened, encoder, [CAPITAL, RIVER]) == [None, "Amazon"]
        assert len(reopened.searcher.current().candidates) == 2, "one that was built anew would have one key"


def test_a_damaged_snapshot_is_refused_and_rebuilt(
    kb: KnowledgeBase, settings: Settings, encoder: FakeEncoder
):
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    kb.lookups.snapshot()
    (snapshot,) = settings.index_directory.rglob("*.faiss")
    content = bytearray(snapshot.read_bytes())
    content[len(content) // 2] ^= 0xFF
    snapshot.write_bytes(content)
    with KnowledgeBase.open(settings) as reopened:
        assert values(reopened, encoder, [CAPITAL, RIVER]) == ["Lima", "Amazon"]
        assert reopened.upkeep.fsck().ok


def test_a_snapshot_of_a_history_that_was_rolled_back_is_refused(
    kb: KnowledgeBase, settings: Settings, encoder: FakeEncoder
):
    """As after restoring the database from a backup: the seqs are the same, what happened is not."""
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    kb.facts.delete([fact_id(kb, "Lima")], **WHO)
    kb.lookups.snapshot()
    tamper(
        kb,
        "DELETE FROM change WHERE kind = 'delete'",
        "UPDATE fact SET deleted_seq = NULL",
        "UPDATE fact_version SET to_seq = NULL",
    )
    kb.facts.edit(fact_id(kb, "Amazon"), "Ucayali", **WHO)
    with KnowledgeBase.open(settings) as reopened:
        assert values(reopened, encoder, [CAPITAL, RIVER]) == ["Lima", "Ucayali"]
        assert reopened.upkeep.fsck().ok


def test_lookups_beside_edits_never_answer_with_a_deleted_fact(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, *numbered(40))
    kb.keysets.rekey(encoder)
    ids = {fact.value: fact.fact_id for fact in kb.facts.find(limit=100)}
    gone: set[str] = set()
    wrong: list[str] = []
    stop = threading.Event()

    def look() -> None:
        rng = np.random.default_rng(0)
        while not stop.is_set():
            n = int(rng.integers(40))
            was_gone = f"value {n}" in gone
            (found,) = values(kb, encoder, [f"Question {n}?"])
            if (was_gone and found is not None) or (found is None and f"value {n}" not in gone | deleting):
                wrong.append(f"{n}: {found}")

    deleting: set[str] = set()
    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for n in range(0, 40, 2):
        deleting.add(f"value {n}")
        kb.facts.delete([ids[f"value {n}"]], **WHO)
        gone.add(f"value {n}")
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == [] and kb.upkeep.fsck().ok


def test_a_database_without_the_schema_is_refused_with_the_remedy(settings: Settings):
    with KnowledgeBase.open(settings) as kb, kb.engine.begin() as connection:
        connection.execute(text("DELETE FROM alembic_version"))
    with pytest.raises(MigrationNeeded, match="colmlm"):
        KnowledgeBase.open(settings)


def test_without_a_keyset_a_lookup_says_so(kb: KnowledgeBase, encoder: FakeEncoder):
    with pytest.raises(NoActiveKeyset):
        ask(kb, encoder, "Anything?")


def test_there_is_one_index_a_process_on_whichever_connections_it_is_asked_first(
    kb: KnowledgeBase, encoder: FakeEncoder
):
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    with KnowledgeBase.open(kb.settings) as opened:
        beside = opened.beside("test", Waits.of(kb.settings), 1)
        assert best(beside, encoder, CAPITAL).value == "Lima"
        assert opened.searcher is beside.searcher
        assert opened.searcher.applied_seq is not None


def test_the_nouns_of_a_base_bring_no_model_and_no_web_framework():
    program = (
        "import sys; from pathlib import Path; from sqlalchemy import create_engine\n"
        "from colmlm.kb.service import KnowledgeBase; from colmlm.kb.store.settings import Settings\n"
        "kb = KnowledgeBase(Settings(home=Path('nowhere')), create_engine('postgresql+psycopg://'))\n"
        "nouns = [name for name, noun in vars(KnowledgeBase).items() if isinstance(noun, property)]\n"
        "assert len(nouns) > 7 and all(getattr(kb, noun) for noun in nouns)\n"
        "print([m for m in ('torch', 'transformers', 'litestar', 'typer', 'alembic') if m in sys.modules])"
    )
    done = subprocess.run(interpreter.command("-c", program), check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_a_base_whose_facts_are_read_brings_no_arrays_and_no_index(settings: Settings):
    program = (
        "import sys; from pathlib import Path; from colmlm.kb.service import KnowledgeBase\n"
        "from colmlm.kb.store.settings import Settings\n"
        f"KnowledgeBase.open(Settings(home=Path({str(settings.home)!r}), "
        f"database_url={settings.database_url!r})).facts.find()\n"
        "print([m for m in ('numpy', 'faiss', 'alembic', 'cryptography') if m in sys.modules])"
    )
    done = subprocess.run(interpreter.command("-c", program), check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
