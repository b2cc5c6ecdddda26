"""The records that functions on checkpoints and keysets take and return.

During an upgrade, servers of two versions of the program read some of them, and some versions refuse a record with an
unknown field. So one column has the fields that the previous version knows, and a second column the whole record. Where
a server of the previous version has written since, the first column is newer than the second, and counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import msgspec

from colmlm.kb.log.records import OnRecord

T = TypeVar("T")

SINCE = "since"  # in a field's metadata: the migration before which no version of the program knows it


def former_release_fields(record: Any) -> dict[str, Any]:
    """Give a record's fields that the previous version of the program knows, to be stored for its servers."""
    named = asdict(record)
    return {field.name: named[field.name] for field in fields(record) if SINCE not in field.metadata}


def read_stored(kind: type[T], known: Mapping[str, Any] | None, whole: Mapping[str, Any] | None) -> T | None:
    """Read a record from its columns: `known` has the previous version's fields, `whole` all. None without a record.

    Where they differ, `known` counts. Fields that only a later version of the program knows are ignored.
    """
    if known is None:
        return None
    is_of_it = whole is not None and known.items() <= whole.items()
    return msgspec.convert(whole if is_of_it else known, kind)


RECALL = 0.98  # the share of nearest keys that lookups are to find
MAX_EDITS = 1000  # edits of facts allowed between a gate and the activation that relies on it


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A checkpoint that makes keys.

    `checkpoint_id` is a digest of the weights and the tokenizer; `dim` is the keys' width. `trained_on` is `record:`
    and the digest of the record of what it was trained on; without a record it is a digest of the data, or None.
    """

    checkpoint_id: str
    name: str
    dim: int
    path: str | None = None
    tokenizer_hash: str | None = None
    trained_on: str | None = None


@dataclass(frozen=True, slots=True)
class IndexFit:
    """Record how a keyset's index was fitted to its keys: its `spec`, and how many of its lists a search reads.

    `recall` is the share of nearest keys that it then found; None where that was not measured. An exact index has no
    lists. A lookup of k facts scores 2 k and `spare` candidates; None, as older fits have it, where that is not fitted.
    """

    spec: str
    lists: int
    lists_read: int
    recall: float | None = None
    spare: int | None = field(default=None, metadata={SINCE: "0028"})


@dataclass(frozen=True, slots=True)
class BuiltIndex:
    """An index that was rebuilt from the database and written to disk as a snapshot."""

    keyset_id: int
    index_spec: str
    num_keys: int
    seq: int
    fit: IndexFit


@dataclass(frozen=True, slots=True)
class RekeyPart:
    """A part of a rekey for a process elsewhere: the ids of a queue from `first` to `last`, and how to work them.

    `database_id` is that of the part's base. It may be worked twice: documents and facts with a key are passed over.
    """

    database_id: str
    keyset_id: int
    queue: str
    first: int
    last: int
    actor: str
    corpus: str | None
    batch: int
    kinds: tuple[str, ...]
    replace: bool


@dataclass(frozen=True, slots=True)
class SharedSnapshot:
    """The record of a keyset's snapshot in the shared place: its `file`, the file's digest and size, and its content.

    `log_hash` is the hash of change `applied_seq`, the last one in it, and `place` the address of the shared place.
    """

    file: str
    sha256: str
    num_bytes: int
    spec: str
    count: int
    applied_seq: int
    log_hash: str
    place: str | None = field(default=None, metadata={SINCE: "0028"})


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysetHead:
    """A keyset, which is all keys that one checkpoint made, without their numbers: counting millions takes seconds.

    `state` is building, ready, active or retired. Where it is `accepted_only`, its lookups find no proposed fact.
    """

    keyset_id: int
    checkpoint_id: str
    checkpoint_name: str
    dim: int
    index_spec: str
    threshold: float
    calibrated: bool
    state: str
    applied_seq: int
    accepted_only: bool = False
    index_fit: IndexFit | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """Record how keys of a `kind` were predicted from another keyset's, by a map fitted on `sample` facts; `left` still
    are.

    The method is "none" where all facts are in the sample and too few for a map.
    The recalls are of the sample's questions among its facts: by keys predicted for documents outside the fit, by the
    true keys, and by the other keyset's keys as they are. They are None where no fact of the sample has a question.
    """

    kind: str
    from_keyset_id: int
    method: str
    sample: int
    left: int
    recall_at_1: float | None = None
    recall_at_1_true: float | None = None
    recall_at_1_old: float | None = None
    recall_at_10: float | None = None
    recall_at_10_true: float | None = None
    recall_at_10_old: float | None = None

    @property
    def kept(self) -> float | None:
        """The share of the true keys' recall that predicted ones keep."""
        if self.recall_at_1 is None or not self.recall_at_1_true:
            return None
        return self.recall_at_1 / self.recall_at_1_true


@dataclass(frozen=True, slots=True)
class AdaptedKeys:
    """Record what an adapting did for one kind of key: so many `facts` have keys of it now, true ones or predicted.

    So many were `predicted` by this run. Where none were, the `prediction` is that of the predicted keys there are.

    `seconds_true` is what true keys of all would have taken, by what one of the sample did; None where all of the
    sample were there already.
    """

    from_checkpoint: str
    to_checkpoint: str
    facts: int
    predicted: int
    prediction: Prediction
    seconds: float
    seconds_true: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysetRecord(KeysetHead):
    """A keyset with the numbers of its keys and of the facts that lack one.

    Until it is keyed again, `num_predicted` of its keys are predicted from another keyset's, as the `predictions` say.
    """

    num_keys: int
    num_unkeyed: int
    num_predicted: int = 0
    predictions: tuple[Prediction, ...] = ()


class MapFit(TypedDict, total=False):
    """Choose how keys are predicted: by a map that is fitted on about `sample` facts (by default a hundredth of them,
    and at least 250), by the `method` "procrustes", "ridge", or "auto", which takes the better of them.
    """

    sample: int
    method: str


class Adapting(MapFit, total=False):
    """Choose how keys are predicted, and from which keyset (None: the active one)."""

    from_keyset_id: int | None


class Activating(OnRecord, total=False):
    """Choose what the activation of a keyset demands: at most `max_edits` edits of facts since its gate passed, and a
    gate that asked the set `questions`, where one is named. With `force` it demands nothing of the gate.
    """

    force: bool
    max_edits: int
    questions: str | None


@dataclass(frozen=True, slots=True)
class GateStanding:
    """The result of a keyset's gate, the `criteria` of its stored report, and its age.

    `edits_since` counts edits of facts, not of keys.
    """

    checked: bool
    passed: bool
    seq: int | None = None
    edits_since: int | None = None
    failed: tuple[str, ...] = ()
    criteria: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLimits:
    """The limits that a keyset must keep. At most `sample` questions, and as many prefixes, are encoded.

    With it at least `min_right` of the set `questions`, where one is named, must be answered right, and at most
    `max_wrong` wrongly; one of these must be given.
    """

    sample: int = 500
    min_recall_at_1: float = RECALL
    min_recall_at_10: float = 0.95
    max_facts_lost: int = 0
    max_question_loss: float = 0.02
    min_agreement: float = 0.7
    min_recall_kept: float = 0.9
    questions: str | None = None
    min_right: float | None = None
    max_wrong: float | None = None

    @property
    def eased_limits(self) -> tuple[str, ...]:
        """List the limits that are easier to keep than the usual ones, such as "min_agreement 0.6"."""
        usual, given = GateLimits(), asdict(self)
        return tuple(
            f"{name} {value}"
            for name, value in given.items()
            if type(value) in (int, float)
            and name not in ("min_right", "max_wrong")
            and (value > getattr(usual, name) if name.startswith("max") else value < getattr(usual, name))
        )

    @property
    def share_right(self) -> float:
        return 0.0 if self.min_right is None else self.min_right

    @property
    def share_wrong(self) -> float:
        return 1.0 if self.max_wrong is None else self.max_wrong


class GateOptions(TypedDict, total=False):
    """Choose what a keyset is measured with: the directories of both keysets' checkpoints (None: where they were last),
    and the file for plots.
    """

    plot: Path | None
    checkpoint: Path | None
    active_checkpoint: Path | None
