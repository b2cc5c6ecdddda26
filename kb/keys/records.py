"""The records that verbs of checkpoints and keysets take and give."""

from __future__ import annotations

from dataclasses import dataclass

from colmlm.kb.log.records import OnRecord

RECALL = 0.98  # the share of nearest keys that lookups are to find
MAX_EDITS = 1000  # edits of facts allowed between a gate and the activation that relies on it


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A checkpoint that makes keys.

    `checkpoint_id` is a digest of the weights and the tokenizer; `dim` is the keys' width.
    """

    checkpoint_id: str
    name: str
    dim: int
    path: str | None = None
    tokenizer_hash: str | None = None
    trained_on: str | None = None


@dataclass(frozen=True, slots=True)
class IndexFit:
    """How a keyset's index was fitted to its keys: its `spec`, and how many of its lists a search reads.

    `recall` is the share of nearest keys that it then found; None where that was not measured. An exact index has no
    lists.
    """

    spec: str
    lists: int
    lists_read: int
    recall: float | None = None


@dataclass(frozen=True, slots=True)
class KeysetHead:
    """What is needed to open a keyset's index.

    Unlike a `KeysetRecord` it does not count the keys, which takes seconds.
    """

    keyset_id: int
    checkpoint_id: str
    dim: int
    index_spec: str
    index_fit: IndexFit | None = None


@dataclass(frozen=True, slots=True)
class KeysetRecord:
    """A keyset: all keys that one checkpoint made. `state` is building, ready, active or retired.

    Where it is `accepted_only`, its lookups find no proposed fact.
    """

    keyset_id: int
    checkpoint_id: str
    checkpoint_name: str
    dim: int
    index_spec: str
    threshold: float
    calibrated: bool
    state: str
    num_keys: int
    num_unkeyed: int
    applied_seq: int
    accepted_only: bool = False
    index_fit: IndexFit | None = None


class Activating(OnRecord, total=False):
    """How a keyset is activated: with `max_edits` of facts since its gate, which must have asked the set `questions`
    where one is named; or whatever the gate says, with `force`.
    """

    force: bool
    max_edits: int
    questions: str | None


@dataclass(frozen=True, slots=True)
class GateStanding:
    """The result of a keyset's gate and its age: `edits_since` counts edits of facts, not of keys."""

    checked: bool
    passed: bool
    seq: int | None = None
    edits_since: int | None = None
    failed: tuple[str, ...] = ()
