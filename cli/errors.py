"""Turns an error into an exit code and one line on stderr.

The exit codes of every command are:

====  ==============================================================================
0     done
1     a check said no (`doctor`, `demo`), an erasure missed its level, or an error has no code of its own
2     the command line, a setting or a value is wrong; an input file cannot be read
3     something was refused (`corpus add`), what was named does not exist, or nothing answers
4     what was asked for conflicts with the state of the knowledge base
5     the database, Milvus, Ray, the shared snapshots or the server is out of reach, or a migration is needed
6     the index is behind or was refused; the server is busy
7     the checkpoint, its base model or an annotator cannot be used
8     a lock, a statement or a turn to decode took too long; nothing was done
9     the disk is full or cannot be written
70    a fault of the program
130   interrupted
141   the reader of the output closed it
====  ==============================================================================
"""

from __future__ import annotations

import re
from typing import NamedTuple

from colmlm.kb.errors import KBError, remedy_after
from colmlm.kb.texts.characters import visible_text

CHECK_FAILED = 1
USAGE = 2
REFUSED = 3
CONFLICT = 4
DATABASE = 5
INDEX = 6
MODEL = 7
WAITED = 8
DISK = 9
FAULT = 70
INTERRUPTED = 130
BROKEN_PIPE = 141

# By name and not by class, so that a command without a model need not import it to report an error.
_CODES = {
    "colmlm.kb.errors.KBError": CHECK_FAILED,
    "colmlm.kb.errors.EvidenceRefused": CHECK_FAILED,
    "colmlm.kb.errors.Invalid": USAGE,
    "colmlm.kb.errors.SettingsError": USAGE,
    "colmlm.kb.errors.NotFound": REFUSED,
    "colmlm.kb.errors.Conflict": CONFLICT,
    "colmlm.kb.errors.OutOfReach": DATABASE,
    "colmlm.kb.errors.CandidatesRefused": INDEX,
    "colmlm.kb.errors.IndexBehind": INDEX,
    "colmlm.kb.errors.IndexInvariant": INDEX,
    "colmlm.kb.errors.SnapshotRefused": INDEX,
    "colmlm.kb.errors.Waited": WAITED,
    "colmlm.kb.errors.StorageRefused": DISK,
    "colmlm.api.client.connection.TokenRefused": USAGE,
    "colmlm.api.client.connection.RequestRefused": USAGE,
    "colmlm.api.client.connection.ServerUnreachable": DATABASE,
    "colmlm.api.client.connection.ServerBusy": INDEX,
    "colmlm.model.annotate.config.AnnotatorError": MODEL,
    "colmlm.model.lm.config.CheckpointError": MODEL,
    "colmlm.model.lm.config.BaseNotFound": MODEL,
    "colmlm.model.text.tokens.TokenizerUnfit": MODEL,
    "colmlm.model.training.config.TrainingRefused": USAGE,
    "colmlm.model.training.config.TrainingBroken": CHECK_FAILED,
    "colmlm.model.lm.chat_endpoint.EndpointUnusable": MODEL,
    "colmlm.model.annotate.config.ResultsUnusable": USAGE,
    "sqlalchemy.exc.OperationalError": DATABASE,
    "sqlalchemy.exc.InterfaceError": DATABASE,
    "psycopg.OperationalError": DATABASE,
    "psycopg.InterfaceError": DATABASE,
    "builtins.UnicodeError": USAGE,
    "builtins.FileNotFoundError": USAGE,
    "builtins.FileExistsError": USAGE,
    "builtins.IsADirectoryError": USAGE,
    "builtins.NotADirectoryError": USAGE,
    "builtins.PermissionError": USAGE,
    "builtins.OSError": 1,
    "builtins.MemoryError": 1,
}

# The extra that installs a package, by the name under which the package is imported.
EXTRAS = {
    "accelerate": "train",
    "bm25s": "train",
    "matplotlib": "train",
    "mcp": "mcp",
    "pydantic": "mcp",
    "ray": "ray",
    "rouge_score": "lab",
    "scipy": "lab",
}

_AWAY = "Check `colmlm db status`, then try again."
_REMEDIES = {
    "colmlm.model.annotate.config.AnnotatorError": "Name another directory with COLMLM_READER, "
    "COLMLM_SPAN_ANNOTATOR or COLMLM_QUESTION_GENERATOR.",
    "colmlm.model.lm.config.CheckpointError": "Copy that directory again from where it came, or name another with "
    "the option or variable that named it, such as --checkpoint or COLMLM_CHECKPOINT.",
    "colmlm.model.lm.config.BaseNotFound": "Name another base, or install one with `colmlm weights`.",
    "colmlm.model.text.tokens.TokenizerUnfit": "Name another base or checkpoint.",
    "colmlm.model.training.config.TrainingRefused": "Give other data or settings, or another --out.",
    "sqlalchemy.exc.OperationalError": _AWAY,
    "sqlalchemy.exc.InterfaceError": _AWAY,
    "psycopg.OperationalError": _AWAY,
    "psycopg.InterfaceError": _AWAY,
    "builtins.UnicodeError": "Save the text as UTF-8 and try again.",
    "builtins.FileNotFoundError": "Check the path and try again.",
    "builtins.FileExistsError": "Name another path.",
    "builtins.IsADirectoryError": "Name a file.",
    "builtins.NotADirectoryError": "Name a directory.",
    "builtins.PermissionError": "Change the permissions, or name another path.",
    "builtins.OSError": "Nothing more was written. Check the disk and the path with `colmlm doctor`, then try again.",
    "builtins.MemoryError": "Out of memory. Free some, or work on less at once.",
}


class Failure(NamedTuple):
    """The exit code and the line on stderr of a command that failed. `line` is empty if there is nothing to print."""

    exit_code: int
    line: str


class FailedElsewhere(Exception):
    """The failure of another process of a command, with the exit code and the line that it reported."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.line)


def explain(error: BaseException) -> Failure:
    """Give the exit code of this error, and its cause and remedy in one line."""
    if isinstance(error, BrokenPipeError):
        return Failure(BROKEN_PIPE, "")
    if isinstance(error, KeyboardInterrupt):
        return Failure(INTERRUPTED, "Interrupted. What it had finished stays. Run it again to go on.")
    if isinstance(error, FailedElsewhere):
        return error.failure
    if isinstance(error, ModuleNotFoundError) and (extra := EXTRAS.get(str(error.name).partition(".")[0])):
        return Failure(
            USAGE, f"{error.name} is not installed. Install it with: pip install 'colmlm[{extra}]'"
        )
    from colmlm.kb.store.waits import (
        refusal_of,  # imports the database driver, which most commands need and help does not
    )

    error = refusal_of(error) or error
    for name in _names(error):
        if name in _CODES:
            told = str(error) if isinstance(error, KBError) else _cause_and_remedy(error, name)
            return Failure(_CODES[name], one_line(_FIELD.sub(_option, told)))
    shows = "`colmlm --debug ...` shows where: please report that."
    fault = f"{type(error).__name__}: {error}. This is a fault of colmlm. {shows}"
    return Failure(FAULT, one_line(fault))


_FIELD = re.compile(r"(--([a-z-]+)) \(([a-z_]+)\)")


def _option(said: re.Match[str]) -> str:
    """Give the option alone if a message names it with its field of the API: "--allow-erased (allow_erased)"."""
    return said[1] if said[2].replace("-", "_") == said[3] else said[0]


def one_line(message: str) -> str:
    """Replace line breaks and runs of blanks in the message by single spaces."""
    return visible_text(" ".join(message.split()))


def _names(error: BaseException) -> list[str]:
    return [f"{cls.__module__}.{cls.__qualname__}" for cls in type(error).__mro__]


def _cause_and_remedy(error: BaseException, name: str) -> str:
    """Give an error's cause and the remedy of its class; for one of `model`, also that nothing more was written."""
    cause, remedy = _cause(error), _REMEDIES.get(name, "")
    if not name.startswith("colmlm.model."):
        words_are_ours = isinstance(error, OSError) and not error.strerror
        return f"{cause}{remedy_after(cause.rstrip('.'), remedy) if words_are_ours else f' {remedy}'}"
    kept = "" if "Nothing " in cause or not remedy else " Nothing more was written."
    return f"{cause}{kept}{remedy_after(cause.rstrip('.'), remedy)}"


def _cause(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."
    # SQLAlchemy repeats the statement with its parameters; the driver's own message is the cause.
    said = str(getattr(error, "orig", None) or error).rstrip(".")
    if type(error).__name__ in ("InterfaceError", "OperationalError"):
        return f"The connection to the database broke ({said}). An edit that was not confirmed was not made."
    return f"{said}."
