"""A server of a test's own knowledge base, and commands that run both here and at that server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy.orm import Session

from colmlm.api.app import create_app
from colmlm.cli.composition.encoders import ModelEncoder
from colmlm.cli.composition.handlers import handlers, problem
from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.access.records import ROLES
from colmlm.kb.access.tokens import create_token
from colmlm.kb.answers.reading import JudgedReader
from colmlm.kb.corpus.format import Parsed
from colmlm.kb.jobs.worker import Worker
from colmlm.kb.lookup.likeness import SentenceEmbedder
from colmlm.kb.service import KnowledgeBase
from colmlm.model.lm.checkpoint import load
from tests.api.conftest import CAPITAL, PERU
from tests.api.generator import LookupGenerator
from tests.api.serving import served
from tests.cli.conftest import Ran, at_terminal, invoke

WHY = ("--reason", "a test")


@dataclass(frozen=True)
class There:
    """A server of a base that this process also has open. `tokens` are files with a token of each role."""

    address: str
    tokens: dict[str, Path]
    kb: KnowledgeBase

    def run(self, *words: object, role: str = "admin", **options: Any) -> Ran:
        return invoke(*words, "--server", self.address, "--token-file", self.tokens[role], **options)

    def at_terminal(self, *words: object, typed: str, role: str = "admin") -> Ran:
        return at_terminal(*words, "--server", self.address, "--token-file", self.tokens[role], typed=typed)

    def same(self, *words: object, volatile: tuple[str, ...] = (), code: int = 0) -> Any:
        """Runs the command with --json here and there; the outputs must be equal except for `volatile` fields."""
        here, there = invoke(*words, "--json"), self.run(*words, "--json")
        assert (here.code, there.code) == (code, code), (here.err, there.err)
        assert pruned(here.json, volatile) == pruned(there.json, volatile), words
        return here.json


def pruned(value: Any, volatile: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {name: pruned(item, volatile) for name, item in value.items() if name not in volatile}
    return [pruned(item, volatile) for item in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class ThereParts:
    """The model and the reader of servers that are started one after the other."""

    encoder: ModelEncoder
    reader: JudgedReader
    sentences: SentenceEmbedder

    @classmethod
    def load(cls, checkpoint: Path, reader: Path, folder: Path) -> ThereParts:
        """Load them as the program does: from the settings of an environment."""
        with pytest.MonkeyPatch.context() as env:
            env.setenv("COLMLM_HOME", str(folder / "home"))
            env.setenv("COLMLM_READER", str(reader))
            with Runtime.from_environment() as runtime:
                loaded, sentences = runtime.reader, runtime.sentence_encoder
        return cls(ModelEncoder(load(checkpoint, folder)), loaded, sentences)


def ingest_and_key(kb: KnowledgeBase, encoder: ModelEncoder) -> None:
    """Ingest two facts, keyed by their questions too."""
    kb.corpora.ingest([Parsed(PERU)], "atlas", actor="tester", reason="set up")
    kb.keysets.rekey(encoder, kinds=("context", "question"))


@contextmanager
def served_base(kb: KnowledgeBase, parts: ThereParts, folder: Path) -> Iterator[There]:
    """Serve the two facts, a stored output that used one, and a token of every role."""
    tokens = {role: folder / f"{role}.token" for role in ROLES}
    with Session(kb.engine) as session, session.begin():
        for role, file in tokens.items():
            file.write_text(create_token(session, f"the {role}", role) + "\n")
    generator = LookupGenerator(kb, parts.encoder)
    app = create_app(kb, parts.encoder, generator, reader=parts.reader, sentences=parts.sentences)
    with served(app) as address:
        bearer = {"Authorization": f"Bearer {tokens['reader'].read_text().strip()}"}
        httpx2.post(f"{address}/v1/generations", json={"prompt": CAPITAL}, headers=bearer).raise_for_status()
        yield There(address, tokens, kb)


@contextmanager
def working(kb: KnowledgeBase) -> Iterator[None]:
    """Runs a worker of this base in a thread."""
    with Runtime.from_environment() as runtime:
        worker = Worker(kb, handlers(runtime), explain=problem, beat_seconds=0.05)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            yield
        finally:
            worker.stop()
            thread.join()
