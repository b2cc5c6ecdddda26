"""Stores outputs of decoders elsewhere. The knowledge base checks what it can of them, and takes the rest on trust."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from sqlalchemy.orm import Session

from colmlm.kb.errors import InvalidSplice, InvalidValue
from colmlm.kb.evidence import attribution, storing
from colmlm.kb.evidence.records import NewOutput, OutputTrace
from colmlm.kb.keys.keysets import STORED
from colmlm.kb.log import audit
from colmlm.kb.tables import CheckpointRow


def record(session: Session, generation: NewOutput) -> OutputTrace:
    """Stores the output and gives its trace; see `Outputs.record_from_elsewhere`."""
    _check(session, generation)
    trace = attribution.trace_stored(session, storing.record(session, generation))
    return replace(trace, splices=tuple(replace(splice, history=()) for splice in trace.splices))


def _check(session: Session, generation: NewOutput) -> None:
    if generation.seq > (head := audit.head_seq(session)):
        raise InvalidValue("seq", f"change {generation.seq} is not there yet; the last one is {head}")
    if (checkpoint := session.get(CheckpointRow, generation.checkpoint_id)) is None:
        raise InvalidValue("checkpoint_id", f"no keyset here is of checkpoint {generation.checkpoint_id!r}")
    for ordinal, splice in enumerate(generation.splices):
        if splice.query is not None and not _is_query(splice.query, checkpoint.dim):
            raise InvalidSplice(ordinal, f"its query is not {checkpoint.dim} finite numbers in fp16")


def _is_query(query: bytes, dim: int) -> bool:
    return len(query) == dim * STORED.itemsize and bool(np.isfinite(np.frombuffer(query, STORED)).all())
