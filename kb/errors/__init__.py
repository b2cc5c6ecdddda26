"""The kinds of errors of the knowledge base, and those that code tells apart.

Each gives the cause and the remedy in one line, has a stable code, and carries the ids it concerns as attributes. The
edges, `api` and `cli`, choose HTTP status and exit code by the kind. The other errors are in `kb.errors.refusals`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, Self

P = ParamSpec("P")


class KBError(Exception):
    """The root of the tree: the edges, `api` and `cli`, catch this, and all other code a kind or a class below."""

    title: str = "Knowledge base error"
    code: str = "KBError"

    def __init_subclass__(cls) -> None:
        cls.code = cls.__name__
        KINDS[cls.code] = cls

    @classmethod
    def coded(cls, code: str, title: str, **more: object) -> Callable[[Callable[P, str]], Callable[P, Self]]:
        """Let a function that words a message make errors of this kind, with its arguments as attributes."""
        KINDS[code] = cls

        def maker(word: Callable[P, str]) -> Callable[P, Self]:
            @wraps(word)
            def make(*args: P.args, **kwargs: P.kwargs) -> Any:
                given = signature(word).bind(*args, **kwargs)
                given.apply_defaults()
                error = cls(word(*args, **kwargs))
                vars(error).update(_freeze_lists(given.arguments), **more, code=code, title=title)
                return error

            return make

        return maker


KINDS: dict[str, type[KBError]] = {"KBError": KBError}
"""The kind of each code: that of a class is its name."""


def _freeze_lists(arguments: dict[str, object]) -> dict[str, object]:
    """Keep lists as tuples, as the caller may change them."""
    return {
        name: tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else value
        for name, value in arguments.items()
    }


def format_list(fact_ids: Sequence[int]) -> str:
    """List ids for a message, and no more than the first ten."""
    shown = ", ".join(str(fact_id) for fact_id in fact_ids[:10])
    return shown if len(fact_ids) <= 10 else f"{shown} and {len(fact_ids) - 10} more"


# The kinds.


class NotFound(KBError):
    """Something that was named does not exist."""


class Conflict(KBError):
    """The state of the knowledge base does not allow what was asked for."""


class Invalid(KBError):
    """What was asked for makes no sense as it is."""


class OutOfReach(KBError):
    """The database, or another server that this base needs, does not answer or cannot be used now."""


class Waited(KBError):
    """A lock, a statement or a turn to decode took too long; nothing was done."""


class StorageRefused(KBError):
    """The disk is full or cannot be written."""


class EvidenceRefused(KBError):
    """A file or a measurement is not what it has to be, so that nothing rests on it."""


# Errors that code tells apart, each below its kind.


class FactNotFound(NotFound):
    title = "No such fact"

    def __init__(self, fact_ids: Sequence[int]) -> None:
        self.fact_ids = tuple(fact_ids)
        super().__init__(
            f"No fact {format_list(fact_ids)}. Nothing was done; look ids up with `colmlm facts list`."
        )


class QuestionSetNotFound(NotFound):
    title = "No such set of questions"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"No set of questions is named {name!r}. List them with `colmlm questions list`.")


class NoActiveKeyset(Conflict):
    title = "No active keyset"

    def __init__(self) -> None:
        super().__init__(
            "No keyset is active, so nothing can be looked up. Rekey with a checkpoint, then activate."
        )


class NoFormerKeyset(Conflict):
    title = "No former keyset"

    def __init__(self, keyset_id: int) -> None:
        self.keyset_id = keyset_id
        super().__init__(
            f"No keyset was active before keyset {keyset_id}, so there is nothing to go back to."
        )


class KeysetMismatch(Conflict):
    title = "Keyset of another checkpoint"

    def __init__(self, wanted: str, active: str) -> None:
        self.wanted, self.active = wanted, active
        super().__init__(
            f"The query comes from checkpoint {wanted!r}, the active keyset from {active!r}; their vectors do not "
            "compare. Load the keyset's checkpoint, or rekey and activate."
        )


class InvalidValue(Invalid):
    title = "Invalid value"

    def __init__(self, field: str, cause: str) -> None:
        self.field = field
        super().__init__(f"The {field} cannot be stored: {cause}.")


class InvalidQuery(Invalid):
    title = "Invalid query"

    def __init__(self, cause: str) -> None:
        super().__init__(f"The query cannot be searched: {cause}.")


class InvalidQuestions(Invalid):
    title = "Invalid questions"

    def __init__(self, cause: str) -> None:
        super().__init__(f"These questions cannot be asked: {cause}.")


class InvalidWork(Invalid):
    title = "Invalid job"

    def __init__(self, kind: str, cause: str) -> None:
        self.kind = kind
        super().__init__(f"A job {kind!r} cannot be made of this: {cause}. Nothing was started.")


class NotHeeded(Invalid):
    """A parameter that has no effect here. `parameter` is named as in Python; `why` says what to do."""

    title = "Cannot be heeded"

    def __init__(self, parameter: str, why: str) -> None:
        self.parameter, self.why = parameter, why
        super().__init__(f"`{parameter}`: {why}")


class WebhookRefused(Invalid):
    title = "Webhook refused"

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"Nothing is sent to this address: {why}.")


class DatabaseUnavailable(OutOfReach):
    title = "Database unavailable"

    def __init__(self, where: str, cause: str) -> None:
        self.where = where
        super().__init__(
            f"No database at {where}: {cause}. Check that the server runs and COLMLM_DATABASE_URL."
        )


class MigrationNeeded(OutOfReach):
    title = "Migration needed"

    def __init__(self, found: str | None, known: Sequence[str]) -> None:
        """Take the migration that the database is at, and those of this program, the newest first."""
        self.found, self.wanted, first = found, known[0], known[-1]
        backup = f"restore a backup of migration {self.wanted} into a new database"
        if found is not None and found < first:
            self.remedy = (
                f"Migrations before {first} are gone: run `colmlm db migrate` of a build of colmlm 0.1 that still has "
                f"{found}, and then this program, or {backup}"
            )
        elif found is not None and found > self.wanted:
            self.remedy = f"A later release has migrated it: run that one, or {backup}"
        else:
            self.remedy = "Run: colmlm db migrate"
        super().__init__(
            f"The database is at migration {found or 'none'}, this program needs {self.wanted}. {self.remedy}"
        )


class CandidatesUnavailable(OutOfReach):
    title = "Candidates unavailable"

    def __init__(self, where: str, cause: str) -> None:
        self.where = where
        super().__init__(
            f"{where} cannot be searched: {cause}. Lookups fail until it can; check that "
            "server and COLMLM_MILVUS_URI."
        )


class SharedSnapshotsUnavailable(OutOfReach):
    title = "Shared snapshots unavailable"

    def __init__(self, where: str, cause: str) -> None:
        self.where = where
        super().__init__(
            f"The shared snapshots at {where} cannot be used: {cause}. See COLMLM_SHARED_SNAPSHOTS and what the "
            "environment says of credentials."
        )


class LockHeld(Waited):
    title = "Something is locked"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"Timed out waiting for a lock in the database ({what}). Nothing was done; "
            "try again, or raise COLMLM_LOCK_TIMEOUT_SECONDS."
        )


class SignatureRefused(EvidenceRefused):
    title = "Signature refused"

    def __init__(self, what: str, cause: str, remedy: str = "") -> None:
        self.what = what
        super().__init__(
            f"{what}: {cause}. {remedy or 'It is no evidence; get it again from whoever signed it.'}"
        )


class LogRefused(EvidenceRefused):
    title = "Change log refused"

    def __init__(self, what: str, seq: int, cause: str) -> None:
        self.what, self.seq = what, seq
        super().__init__(f"{what}, change {seq}: {cause}. It is no evidence; export the log again.")


class CalibrationRefused(EvidenceRefused):
    title = "Calibration refused"

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"The answers were not calibrated: {cause}. Nothing was changed; give other or more questions that people "
            "ask, or allow a higher rate."
        )


class SettingsError(KBError):
    title = "Bad setting"

    def __init__(self, variable: str, cause: str) -> None:
        self.variable = variable
        super().__init__(f"{variable}: {cause}. Set {variable} right, or unset it for the default.")


class IndexBehind(KBError):
    title = "Index is behind"

    def __init__(self, min_seq: int, applied_seq: int, waited_seconds: float) -> None:
        self.min_seq, self.applied_seq = min_seq, applied_seq
        super().__init__(
            f"Change {min_seq} is not in the index after {waited_seconds:g} s (it has {applied_seq}). "
            "Try again, or raise COLMLM_INDEX_WAIT_SECONDS."
        )


class CandidatesRefused(KBError):
    title = "Candidates refused"

    def __init__(self, where: str, cause: str) -> None:
        self.where = where
        super().__init__(
            f"{where} is not what this base wrote there: {cause}. It is not searched; compare and mend it with "
            "`colmlm doctor --data --repair`."
        )


class IndexInvariant(KBError):
    title = "Index invariant broken"

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"The index refused: {cause}. Run `colmlm doctor --data`; the index can be rebuilt from the database."
        )


class SnapshotRefused(KBError):
    title = "Snapshot refused"

    def __init__(self, *, keyset_id: int, cause: str) -> None:
        self.keyset_id, self.cause = keyset_id, cause
        super().__init__(f"Snapshot of keyset {keyset_id}: {cause}. The index is rebuilt from the database.")
