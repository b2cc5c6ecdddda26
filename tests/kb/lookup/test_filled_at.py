"""Collections that were filled on a server of before: of an older release, under another address, or gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import text

from colmlm.kb.keys import keysets
from colmlm.kb.lookup.collection import Collection
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.fakes import FakeEncoder
from tests.kb.lookup.milvus_bases import NUMBER, WHO, built, indexed_here, named, on, ready
from tests.milvus_server import MilvusServer

pytestmark = pytest.mark.slow(reason="starts Milvus, whose searches see a change after seconds")

SECOND = FakeEncoder(salt="2")


@pytest.fixture
def settings(settings: Settings, milvus: MilvusServer) -> Settings:
    return on(settings, milvus)


@pytest.fixture
def beside(kb: KnowledgeBase, encoder: FakeEncoder) -> KnowledgeBase:
    """A base whose active keyset has its index here."""
    return indexed_here(kb, encoder)


def retired(kb: KnowledgeBase, second: FakeEncoder) -> int:
    """Retires a keyset and leaves its collection, as where the server is away."""
    keyset_id = ready(kb, second)
    with kb.sessions.begin() as session:
        keysets.retire_keyset(session, keyset_id, **WHO)
    return keyset_id


def building(kb: KnowledgeBase, second: FakeEncoder) -> int:
    """Fills the collection of a keyset in which a fact has no key yet."""
    keyset_id = built(kb, second)
    kb.facts.add("Who wrote Emma?", "Jane Austen", **WHO)
    return keyset_id


def level_2(kb: KnowledgeBase) -> tuple[str, str]:
    """Gives the state of an erasure's level 2 and what is left."""
    level = Erasure(kb).finish(now=False).levels[1]
    return level.state, level.left


def noted_without_address(kb: KnowledgeBase, there: Collection) -> None:
    """Writes the fit as the release did that did not keep the server's address."""
    with kb.engine.begin() as connection:
        fit = "jsonb_set(index_fit::jsonb, '{spec}', to_jsonb('milvus:' || CAST(:name AS text)))"
        connection.execute(text(f"UPDATE keyset SET index_fit = {fit} WHERE id = 2"), {"name": there.name})


@pytest.mark.parametrize("is_left", [False, True])
def test_a_keyset_that_an_earlier_release_retired_keeps_no_erasure_from_its_level(
    beside: KnowledgeBase, is_left: bool
) -> None:
    retired(beside, SECOND)
    there = named(beside)
    noted_without_address(beside, there)
    if not is_left:
        there.drop()
    assert len(beside.upkeep.fsck().mendable) == is_left
    assert level_2(beside)[0] == "reached" and not there.exists()
    assert beside.upkeep.fsck().mendable == ()
    assert beside.keysets.retire(2).state == "retired"


@pytest.mark.parametrize("make", [retired, building])
def test_a_collection_of_a_server_that_is_gone_is_told_of_and_forgotten_by_a_repair(
    beside: KnowledgeBase,
    milvus: MilvusServer,
    settings: Settings,
    make: Callable[[KnowledgeBase, FakeEncoder], int],
) -> None:
    make(beside, SECOND)
    named(beside).drop()  # so that this server is, to whoever calls it by another name, one that never had it
    moved = replace(settings.milvus, uri=milvus.uri.replace("127.0.0.1", "localhost"))
    with KnowledgeBase.open(replace(settings, milvus=moved)) as kb:
        state, left = level_2(kb)
        assert state == "left" and milvus.uri in left
        (told,) = kb.upkeep.repair(dry_run=True).mended
        assert milvus.uri in told and kb.upkeep.fsck().mendable == (told,)
        report = kb.upkeep.repair()
        assert report.mended == (told,) and report.left == () and report.after.mendable == ()
        assert level_2(kb)[0] == "reached"


def test_a_collection_that_is_needed_is_filled_anew_on_the_server_there_is_now(
    beside: KnowledgeBase, milvus: MilvusServer, settings: Settings
) -> None:
    ready(beside, SECOND)
    there = named(beside)
    there.drop()
    moved = replace(settings.milvus, uri=milvus.uri.replace("127.0.0.1", "localhost"))
    with KnowledgeBase.open(replace(settings, milvus=moved)) as kb:
        assert "was filled at" in level_2(kb)[1]
        assert kb.upkeep.repair().after.ok and len(there.ids()) == NUMBER
        assert "was filled at" not in level_2(kb)[1]
