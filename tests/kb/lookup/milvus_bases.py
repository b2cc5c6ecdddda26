"""Bases whose keys are in a Milvus collection of a test's own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from colmlm.kb.lookup import snapshots
from colmlm.kb.lookup.collection import Collection
from colmlm.kb.lookup.remote import CollectionCandidates
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import MilvusAddress, Settings
from tests.fakes import FakeEncoder, activated
from tests.kb.corpora import ingest, numbered
from tests.milvus_server import MilvusServer

NUMBER = 40
WHO = {"actor": "tester", "reason": "test"}


def on(settings: Settings, milvus: MilvusServer) -> Settings:
    """Gives the settings with the address of this server."""
    return replace(settings, milvus=MilvusAddress(uri=milvus.uri, timeout_seconds=3))


@contextmanager
def away(milvus: MilvusServer) -> Iterator[None]:
    """Keeps the server away in the block."""
    milvus.kill()
    try:
        yield
    finally:
        milvus.start()


def new_spec() -> str:
    return f"milvus:facts_{time.monotonic_ns()}"


def filled(kb: KnowledgeBase, encoder: FakeEncoder) -> KnowledgeBase:
    """Fills the base with facts whose keys are in a collection."""
    ingest(kb, *numbered(NUMBER))
    kb.keysets.create(encoder.checkpoint, new_spec())
    kb.keysets.rekey(encoder)
    return kb


def held(kb: KnowledgeBase) -> CollectionCandidates:
    candidates = kb.searcher.current().candidates
    assert isinstance(candidates, CollectionCandidates)
    return candidates


def collection(kb: KnowledgeBase) -> Collection:
    return held(kb).collection


def indexed_here(kb: KnowledgeBase, encoder: FakeEncoder) -> KnowledgeBase:
    """Fills the base with facts whose active keyset has its index here, so that a second one may be in any state."""
    ingest(kb, *numbered(NUMBER))
    kb.keysets.rekey(encoder)
    return kb


def named(kb: KnowledgeBase) -> Collection:
    """Gives the one collection that a keyset of this base names."""
    with kb.sessions() as session:
        (one,) = snapshots.named_collections(session, kb.settings)
    return one.there


def built(kb: KnowledgeBase, second: FakeEncoder) -> int:
    """Fills the collection of a keyset that is still building."""
    keyset_id = kb.keysets.create(second.checkpoint, new_spec()).keyset_id
    ids, keys = kb.keysets.keys(1)
    kb.keysets.store_keys(keyset_id, ids, keys, **WHO)
    kb.keysets.build(keyset_id)
    assert kb.keysets.show(keyset_id).state == "building"
    return keyset_id


def broken_off(kb: KnowledgeBase, second: FakeEncoder) -> int:
    """Fills the collection of a keyset that is still building, but for its mark."""
    keyset_id = built(kb, second)
    there = named(kb)
    mark = there.mark(strong=True)
    assert mark is not None
    there._delete([-1 - mark.seq], there.owner)
    return keyset_id


def ready(kb: KnowledgeBase, second: FakeEncoder) -> int:
    kb.keysets.create(second.checkpoint, new_spec())
    return kb.keysets.rekey(second).keyset_id


def active(kb: KnowledgeBase, second: FakeEncoder) -> int:
    keyset_id = ready(kb, second)
    activated(kb, keyset_id)
    return keyset_id
