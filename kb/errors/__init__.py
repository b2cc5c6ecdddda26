"""The kinds of errors of the knowledge base, and those that code tells apart.

Each gives the cause and the remedy in one line, has a stable code, and carries the ids it concerns as attributes. The
edges, `api` and `cli`, choose HTTP status and exit code by the kind. The other errors are in `kb.errors.refusals`.
"""

from __future__ import annotations

import re
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
        """Decorate a function that words a message: it makes errors of this kind, with its arguments as attributes."""
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
    """Replace the lists among an error's arguments by tuples, as the caller may change a list later."""
    return {
        name: tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else value
        for name, value in arguments.items()
    }


def format_list(fact_ids: Sequence[int]) -> str:
    """List ids for a message: the first ten, and the number of the others."""
    shown = ", ".join(str(fact_id) for fact_id in fact_ids[:10])
    return shown if len(fact_ids) <= 10 else f"{shown} and {len(fact_ids) - 10} more"


_OF_ONE = {"are": "is", "have": "has", "were": "was"}


def name_facts(fact_ids: Sequence[int], verb: str) -> str:
    """Name facts with a plural verb: "fact 3 is", "facts 3, 5 are"."""
    if len(fact_ids) == 1:
        return f"fact {fact_ids[0]} {_OF_ONE[verb]}"
    return f"facts {format_list(fact_ids)} {verb}"


def count_of(number: int, noun: str, verb: str = "") -> str:
    """Write a number with its noun: "1 document", "12,000 documents"; with a plural verb also "1 fact has"."""
    if number == 1:
        return f"1 {noun} {_OF_ONE.get(verb) or f'{verb}{_s_or_es(verb)}'}" if verb else f"1 {noun}"
    many = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}{_s_or_es(noun)}"
    return f"{number:,} {many}{f' {verb}' if verb else ''}"


_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\([^()]*\)")


def remedy_after(cause: str, remedy: str) -> str:
    """Give a blank and the remedy of a class; "" if the cause has its own remedy, as a second sentence."""
    return "" if re.search(r"[.;] ", _QUOTED.sub("", cause)) else f" {remedy}"


def describe_misread(error: Exception) -> str:
    """Say why a record or line was misread, without the types of Python that a parser's error may name."""
    if isinstance(error, KeyError):
        return f"it has no field {error}"
    is_pythons = isinstance(error, TypeError | AttributeError | IndexError | RecursionError)
    return "a field of it holds another kind of value" if is_pythons else str(error)


def _s_or_es(word: str) -> str:
    return "es" if word.endswith(("s", "x", "ch")) else "s"


# The kinds.


class NotFound(KBError):
    """Something that was named does not exist."""


class Conflict(KBError):
    """The state of the knowledge base does not allow what was asked for."""


class Invalid(KBError):
    """A request that makes no sense as it is."""


class OutOfReach(KBError):
    """The database, or another server that this base needs, does not answer or cannot be used now."""


class Waited(KBError):
    """A lock, a statement or a turn to decode took too long; nothing was done."""


class StorageRefused(KBError):
    """The disk is full or cannot be written."""


class EvidenceRefused(KBError):
    """A file or a measurement failed its check, so nothing may rest on it. Not about the outputs of `kb.evidence`."""


# Errors that code tells apart, each below its kind.


class FactNotFound(NotFound):
    title = "No such fact"

    def __init__(self, fact_ids: Sequence[int]) -> None:
        self.fact_ids = tuple(fact_ids)
        super().__init__(
            f"No fact {format_list(fact_ids)}. Nothing was changed. List facts with `colmlm facts list`."
        )


class QuestionSetNotFound(NotFound):
    title = "No such set of questions"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"No set of questions is named {name!r}. Nothing was changed. List the sets with `colmlm questions list`."
        )


class NoActiveKeyset(Conflict):
    title = "No active keyset"

    def __init__(self) -> None:
        super().__init__(
            "No keyset is active, so lookups cannot be answered. Nothing was changed. Run `colmlm keysets create`, "
            "then `colmlm keysets activate`."
        )


class NoFormerKeyset(Conflict):
    title = "No former keyset"

    def __init__(self, keyset_id: int) -> None:
        self.keyset_id = keyset_id
        super().__init__(
            f"No keyset was active before keyset {keyset_id}, so there is none to go back to. Nothing was changed. "
            "Choose one from `colmlm keysets list` and run `colmlm keysets activate`."
        )


class KeysetMismatch(Conflict):
    title = "Keyset of another checkpoint"

    def __init__(self, wanted: str, active: str, keyset_id: int | None = None) -> None:
        """Take the checkpoint that came, that of the keyset, and which keyset that is (None: the active one)."""
        self.wanted, self.active, self.keyset_id = wanted, active, keyset_id
        is_active = keyset_id is None
        came, keyset = ("query", "the active keyset") if is_active else ("encoder", f"keyset {keyset_id}")
        other = ", or activate a keyset of the query's with `colmlm keysets activate`" if is_active else ""
        super().__init__(
            f"The {came} comes from checkpoint {wanted!r}, {keyset} from {active!r}. Their vectors cannot be compared. "
            f"Nothing was changed. Name {active!r} with --checkpoint or COLMLM_CHECKPOINT{other}."
        )


class InvalidValue(Invalid):
    title = "Invalid value"

    def __init__(self, field: str, cause: str) -> None:
        self.field, self.cause = field, cause
        remedy = remedy_after(cause, "Correct the value and try again.")
        super().__init__(f"Invalid {field}: {cause}. Nothing was changed.{remedy}")


class InvalidQuery(Invalid):
    title = "Invalid query"

    def __init__(self, cause: str, refused: str = "The query cannot be searched") -> None:
        remedy = remedy_after(cause, "Correct it and try again.")
        super().__init__(f"{refused}: {cause}. Nothing was changed.{remedy}")


class InvalidQuestions(Invalid):
    title = "Invalid questions"

    def __init__(self, cause: str) -> None:
        remedy = remedy_after(cause, "Correct these, leave some out, or add them to another set.")
        super().__init__(f"These questions cannot be used: {cause}. Nothing was changed.{remedy}")


class InvalidWork(Invalid):
    title = "Invalid job"

    def __init__(self, kind: str, cause: str) -> None:
        self.kind = kind
        remedy = remedy_after(cause, "Correct it and start it again.")
        super().__init__(f"Job {kind!r} cannot start: {cause}. Nothing was changed.{remedy}")


class NotHeeded(Invalid):
    """A parameter that has no effect here. `parameter` is named as in Python; `why` says what to do."""

    title = "Cannot be heeded"

    def __init__(self, parameter: str, why: str) -> None:
        self.parameter, self.why = parameter, why
        remedy = remedy_after(why, "Leave it out.")
        super().__init__(f"`{parameter}` cannot be used here: {why} Nothing was changed.{remedy}")


class WebhookRefused(Invalid):
    title = "Webhook refused"

    def __init__(self, why: str) -> None:
        self.why = why
        remedy = remedy_after(why, "Give another address.")
        super().__init__(f"This address cannot be used: {why}. Nothing was changed.{remedy}")


class DatabaseUnavailable(OutOfReach):
    title = "Database unavailable"

    def __init__(self, where: str, cause: str, after: str | None = None) -> None:
        """Take in `after` what was kept and what helps, where that is not as with a server that went away."""
        self.where = where
        after = after or (
            "Confirmed edits are kept; an edit without a confirmation was perhaps not made. Check the server with "
            "`colmlm db status`, and COLMLM_DATABASE_URL. Then see the edits with `colmlm log list`."
        )
        super().__init__(f"No database answers at {where}: {cause.rstrip('.')}. {after}")


class MigrationNeeded(OutOfReach):
    title = "Migration needed"

    def __init__(self, found: str | None, known: Sequence[str]) -> None:
        """Take the migration that the database is at, and those of this program, the newest first."""
        self.found, self.wanted, first = found, known[0], known[-1]
        backup = f"restore a backup of migration {self.wanted} into a new database"
        if found is not None and found < first:
            self.remedy = (
                f"Migrations before {first} are gone. Run `colmlm db migrate` of a build of colmlm 0.1 that still has "
                f"{found}, and then this program. Or {backup}."
            )
        elif found is not None and found > self.wanted:
            self.remedy = f"A later release has migrated it. Run that release, or {backup}."
        else:
            self.remedy = "Run `colmlm db migrate`."
        super().__init__(
            f"The database is at migration {found or 'none'}, but this program needs {self.wanted}. Nothing was "
            f"changed. {self.remedy}"
        )


class CandidatesUnavailable(OutOfReach):
    title = "Candidates unavailable"

    def __init__(
        self,
        where: str,
        cause: str,
        *,
        by: str = "The Milvus server",
        remedy: str = "Check that server and COLMLM_MILVUS_URI, then try again.",
    ) -> None:
        self.where = where
        remedy = remedy_after(cause, remedy)
        super().__init__(
            f"{by} cannot give keys from {where}: {cause}. No lookup was answered and no fact was changed.{remedy}"
        )


class SharedSnapshotsUnavailable(OutOfReach):
    title = "Shared snapshots unavailable"

    def __init__(self, where: str, cause: str) -> None:
        self.where = where
        remedy = remedy_after(
            cause, "Check COLMLM_SHARED_SNAPSHOTS and its credentials, then run `colmlm doctor`."
        )
        super().__init__(
            f"The shared snapshots at {where} cannot be used: {cause}. No fact was changed.{remedy}"
        )


class LockHeld(Waited):
    title = "Something is locked"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"Other work held a lock of the base too long ({what}), so this one gave up. Nothing was changed. Try "
            "again, or raise COLMLM_LOCK_TIMEOUT_SECONDS."
        )


ASK_SIGNER = "Get it again from its signer."


class SignatureRefused(EvidenceRefused):
    title = "Signature refused"

    def __init__(self, what: str, cause: str, remedy: str = ASK_SIGNER) -> None:
        self.what = what
        super().__init__(f"{what} was refused: {cause}. Nothing was changed. {remedy}")


class LogRefused(EvidenceRefused):
    title = "Change log refused"

    def __init__(self, what: str, seq: int, cause: str) -> None:
        self.what, self.seq = what, seq
        remedy = remedy_after(cause, "Get it again from its base, with `colmlm log export`.")
        super().__init__(f"{what} was refused at change {seq}: {cause}. Nothing was changed.{remedy}")


class CalibrationRefused(EvidenceRefused):
    title = "Calibration refused"

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"The answers were not calibrated: {cause}. Nothing was changed. {remedy}")


class SettingsError(KBError):
    title = "Bad setting"

    def __init__(self, variable: str, cause: str) -> None:
        self.variable = variable
        remedy = remedy_after(cause, f"Correct {variable}, or unset it for the default.")
        super().__init__(f"{variable}: {cause}. Nothing was changed.{remedy}")


class IndexBehind(KBError):
    title = "Index is behind"

    def __init__(self, min_seq: int, applied_seq: int, waited_seconds: float) -> None:
        self.min_seq, self.applied_seq = min_seq, applied_seq
        super().__init__(
            f"Change {min_seq} did not reach the index within {waited_seconds:g} s. The index is at change "
            f"{applied_seq}. No edit was lost. Try again, or raise COLMLM_INDEX_WAIT_SECONDS."
        )


class CandidatesRefused(KBError):
    title = "Candidates refused"

    def __init__(self, where: str, cause: str) -> None:
        self.where = where
        remedy = remedy_after(
            cause, "Fill the collection again from the database with `colmlm doctor --data --repair`."
        )
        super().__init__(f"The keys in {where} cannot be searched: {cause}. No fact was changed.{remedy}")


class IndexInvariant(KBError):
    title = "Index invariant broken"

    def __init__(self, cause: str) -> None:
        remedy = remedy_after(cause, "Rebuild it from the database with `colmlm doctor --data --repair`.")
        super().__init__(f"The index of keys refused a change of it: {cause}. No fact was changed.{remedy}")


class SnapshotRefused(KBError):
    title = "Snapshot refused"

    def __init__(self, *, keyset_id: int, cause: str) -> None:
        self.keyset_id, self.cause = keyset_id, cause
        super().__init__(
            f"The snapshot of keyset {keyset_id} cannot be used: {cause}. No fact was changed. The server rebuilds "
            "the index from the database, so you need do nothing."
        )


# Holds and retention rules: these say what holds keep, wherever something would be destroyed.


@Conflict.coded("HoldStands", "A hold keeps it")
def hold_stands(what: str, ids: Sequence[int], hold_ids: Sequence[int]) -> str:
    named, is_one = format_list(ids), len(hold_ids) == 1
    holds = f"hold {hold_ids[0]}" if is_one else f"holds {format_list(hold_ids)}"
    first = f"`colmlm hold release {hold_ids[0]}` ends the hold."
    ends = first if is_one else "`colmlm hold release HOLD_ID` ends each of them."
    return (
        f"{count_of(len(ids), what, 'are')} kept by {holds} ({what} {named}). Nothing was deleted or erased. See "
        f"`colmlm hold list`. {ends}"
    )


@NotFound.coded("HoldNotFound", "No such hold")
def hold_not_found(hold_id: int) -> str:
    return f"No hold {hold_id}. Nothing was changed. List the holds with `colmlm hold list`."


@Conflict.coded("HoldState", "Hold is in another state")
def hold_state(hold_id: int, state: str) -> str:
    return f"Hold {hold_id} is {state} already. Nothing was changed. See `colmlm hold list {hold_id}`."


@NotFound.coded("RetentionRuleNotFound", "No retention rule")
def retention_rule_not_found(corpus: str) -> str:
    return f"The corpus {corpus!r} has no rule to end. Nothing was changed. See `colmlm corpus list`."


# Backups: these say which key is missing, of a person or of texts.


@EvidenceRefused.coded("IdentityNeeded", "Private key is needed")
def identity_needed(file: str) -> str:
    return f"{file} is encrypted. Nothing was read or changed. Name the file of your private key with --identity."


@EvidenceRefused.coded("RecipientRefused", "Recipient refused")
def recipient_refused(recipient: str, cause: str) -> str:
    return (
        f"{recipient!r} was refused as a recipient: {cause}. Nothing was written. Name a key that begins with age1, or "
        "a file of such keys, with --recipient or in COLMLM_BACKUP_RECIPIENTS."
    )


@EvidenceRefused.coded("SealingKeysNeeded", "Sealing keys are needed")
def sealing_keys_needed(file: str, missing: str) -> str:
    return (
        f"The texts in {file} are sealed, and there is no key file {missing}. Nothing was restored. Name the key file "
        "of the base that it was made of with --keys (sealing.keys in its home)."
    )


@EvidenceRefused.coded("SealingKeysUnfit", "Sealing keys do not fit")
def sealing_keys_unfit(file: str, keys: str, cause: str) -> str:
    return (
        f"{keys} cannot open the texts in {file}: {cause}. Nothing was restored. Name the key file of today, or one "
        "from the time of the backup, with --keys."
    )


@Conflict.coded("SignOnEnded", "Signed out")
def sign_on_ended() -> str:
    return "You were signed out at the identity provider meanwhile. Nothing was changed. Sign in again."
