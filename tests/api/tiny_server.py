"""The API with a tiny real model on a real port, for tests with third-party clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from colmlm.api.app import create_app
from colmlm.api.routes.responses import check_client, name_asker
from colmlm.cli.composition.encoders import ModelEncoder
from colmlm.cli.composition.generator import LocalOutputs, StoringGenerator
from colmlm.kb.access.tokens import create_token
from colmlm.kb.answers.ranked import RankedLookups
from colmlm.kb.corpus.format import Parsed
from colmlm.kb.lookup.options import KEY
from colmlm.kb.service import KnowledgeBase
from colmlm.model.decoding.decoder import Decoder
from colmlm.model.decoding.together import DecoderTogether
from colmlm.model.lm.checkpoint import Checkpoint, load
from tests.api.conftest import PERU
from tests.api.serving import served
from tests.fakes import NearReader
from tests.tiny import tiny_checkpoint


def eager_checkpoint(path: Path, **options: Any) -> Checkpoint:
    """Makes random weights that look up often, in double precision, so that no two tokens are nearly equally likely."""
    tiny_checkpoint(path, eagerness=5.0, **options)
    loaded = load(path, path, precision="fp32")
    loaded.lm.model.double()
    return loaded


@dataclass(frozen=True)
class TinyServer:
    """A server at `address`; `keys` are tokens by role."""

    address: str
    keys: dict[str, str]
    kb: KnowledgeBase
    checkpoint: Checkpoint
    generator: StoringGenerator


def fill_with_tiny_keys(kb: KnowledgeBase, checkpoint: Checkpoint) -> None:
    """Ingest two facts of one document, keyed by the model, whose queries are near no key, so that any is a hit."""
    kb.corpora.ingest([Parsed(PERU)], "atlas", actor="tester", reason="set up")
    kb.keysets.set_threshold(kb.keysets.rekey(ModelEncoder(checkpoint)).keyset_id, -1.0)


@contextmanager
def tiny_server(kb: KnowledgeBase, checkpoint: Checkpoint) -> Iterator[TinyServer]:
    """Serve two facts of one document, keyed by the model, with a token of each role that asks."""
    if not kb.facts.find(limit=1):
        fill_with_tiny_keys(kb, checkpoint)
    encoder = ModelEncoder(checkpoint)
    lookups = RankedLookups(kb, NearReader)
    together = DecoderTogether(Decoder(checkpoint, lookups), asker=name_asker)
    generator = StoringGenerator(
        checkpoint, LocalOutputs(kb), lookups, ranking=KEY, check=check_client, together=together
    )
    with Session(kb.engine) as session, session.begin():
        keys = {role: create_token(session, role, role) for role in ("reader", "decoder", "operator")}
    with served(create_app(kb, encoder, generator, reader=NearReader())) as address:
        yield TinyServer(address, keys, kb, checkpoint, generator)
