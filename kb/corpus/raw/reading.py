"""Reads users' files as documents, in a process of their own, so that no file can bring down the process that asks.

The database stores exactly the text that this gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from colmlm.kb.corpus.format import Parsed, Refusal
from colmlm.kb.corpus.raw.files import RawFile
from colmlm.kb.corpus.raw.limits import Limits
from colmlm.kb.corpus.raw.read import BY_LINE, FORMATS
from colmlm.kb.corpus.raw.reader import FileReader
from colmlm.kb.corpus.raw.wire import Ask, Told

MOST_BREACHES = 10  # breaches of one file; each costs the time that a document may take, and a new process

OnBytes = Callable[[int], None]


def read_raw(
    files: Sequence[RawFile],
    *,
    encoding: str | None = None,
    limits: Limits | None = None,
    on_bytes: OnBytes | None = None,
) -> Iterator[Parsed]:
    """Reads the documents of these files, in order; a file that is not a document gives one refusal.

    `encoding` applies to files that do not declare theirs, and is by default UTF-8. A second document with the same id
    is refused. `on_bytes` is called with the number of bytes read of all files, also while it waits.
    """
    seen: set[str] = set()
    asks = (
        (Ask(file.kind, str(file.path.absolute()), file.external_id, encoding), file.size) for file in files
    )
    for parsed in _read(asks, limits or Limits(), on_bytes):
        document = parsed.document
        if document is not None and document.external_id in seen:
            reason = "a second document with this id; name a folder above both, or add them to two corpora"
            yield Parsed(None, (Refusal(document.external_id, 0, reason),))
            continue
        if document is not None:
            seen.add(document.external_id)
        yield parsed


def read_corpus(
    path: Path, format_: str, *, limits: Limits | None = None, on_bytes: OnBytes | None = None
) -> Iterator[Parsed]:
    """Reads the documents and refusals of an annotated file, of a format of `kb.corpus.raw.read.FORMATS`."""
    size = path.stat().st_size
    return _read(iter([(Ask(format_, str(path.absolute())), size)]), limits or Limits(), on_bytes)


def _read(asks: Iterator[tuple[Ask, int]], limits: Limits, on_bytes: OnBytes | None) -> Iterator[Parsed]:
    done = reached = 0

    def further() -> None:
        if on_bytes is not None:
            on_bytes(done + reached)

    with FileReader(limits, further) as reader:
        for ask, size in asks:
            for told in _file(reader, ask):
                reached = min(max(reached, told.reached), size)
                further()
                if told.parsed is not None:
                    yield told.parsed
            done, reached = done + size, 0
            further()


def _file(reader: FileReader, ask: Ask) -> Iterator[Told]:
    """Yields the reports of a file.

    A document beyond the limits is refused, and where documents are lines, the next follow.

    No lines follow a breach of time, since no single line takes that long, but very many blank ones do.
    """
    for _ in range(MOST_BREACHES):
        for told in reader.read(ask):
            if told.breach is None:
                yield told
        if told.end:
            return
        yield _refused(reader.limits, ask, told)
        if not _goes_on(ask, told):
            return
        ask = replace(ask, after=told.line + 1)
    reason = (
        f"given up after {MOST_BREACHES} lines beyond the limits; the lines after {ask.after} were not read"
    )
    yield Told(ask.after, told.reached, Parsed(None, (Refusal(_name(ask), 0, reason, "broken"),)))


def _refused(limits: Limits, ask: Ask, told: Told) -> Told:
    """Gives the refusal of the document that was being read when the process ended or had to be ended."""
    assert told.breach is not None
    where, reason = ask.external_id, limits.sentence(told.breach, told.how)
    if ask.kind in (*BY_LINE, *FORMATS):
        where = f"{_name(ask)}:{told.line + 1}"
        reason += "" if _goes_on(ask, told) else "; the rest of the file was not read"
    return Told(told.line + 1, told.reached, Parsed(None, (Refusal(where, 0, reason, told.breach),)))


def _goes_on(ask: Ask, told: Told) -> bool:
    return ask.kind in BY_LINE and told.breach != "time"


def _name(ask: Ask) -> str:
    return Path(ask.path).name
