"""Bases whose keys are in a Milvus collection of a test's own."""

from __future__ import annotations

import time
from dataclasses import replace

from colmlm.kb.lookup.collection import Collection
from colmlm.kb.lookup.remote import Remote
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.milvus_address import MilvusAddress
from colmlm.kb.store.settings import Settings
from tests.fakes import FakeEncoder
from tests.kb.corpora import ingest, numbered
from tests.milvus_server import MilvusServer

NUMBER = 40


def on(settings: Settings, milvus: MilvusServer) -> Settings:
    """Gives the settings with the address of this server."""
    return replace(settings, milvus=MilvusAddress(uri=milvus.uri, timeout_seconds=3))


def new_spec() -> str:
    return f"milvus:facts_{time.monotonic_ns()}"


def filled(kb: KnowledgeBase, encoder: FakeEncoder) -> KnowledgeBase:
    """Fills the base with facts whose keys are in a collection."""
    ingest(kb, *numbered(NUMBER))
    kb.keysets.create(encoder.checkpoint, new_spec())
    kb.keysets.rekey(encoder)
    return kb


def held(kb: KnowledgeBase) -> Remote:
    candidates = kb.searcher.current().candidates
    assert isinstance(candidates, Remote)
    return candidates


def collection(kb: KnowledgeBase) -> Collection:
    return held(kb).collection
