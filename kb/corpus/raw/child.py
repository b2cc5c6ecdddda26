"""The reading process: parses files for its parent process, one after the other, under limits.

`kb.corpus.raw.reading` starts it. It holds nothing worth stealing: no secret, no connection, and no file but the one
it reads.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator

import msgspec

from colmlm.kb.corpus.format import Parsed, Refusal
from colmlm.kb.corpus.raw.blocks import ReadPiece
from colmlm.kb.corpus.raw.read import read_pieces
from colmlm.kb.corpus.raw.wire import WIDEST, Ask, Limits, Told, receive_message, send_message

_MOST_REFUSALS = 1000  # refusals reported of one document
_FARTHEST = 2**53 - 1  # the largest offset that JSON holds exactly
_MOST_QUOTED = 1000  # characters of each text in a refusal


def main() -> None:
    limits = Limits(*map(int, sys.argv[1:]))
    asked, telling = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):  # keeps a parser's own output out of the messages
        os.dup2(nothing, number)
    _confine(limits)
    send_message(telling, _encoded(Told()))  # tells the parent that the process runs
    while (message := receive_message(asked)) is not None:
        for told in _answer(msgspec.json.decode(message, type=Ask), limits):
            send_message(telling, told)


def _confine(limits: Limits) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if sys.platform == "linux":  # on other systems the limit counts something else, or has no effect
        memory = limits.memory_mb << 20
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))


def _allow(limits: Limits) -> None:
    """Allow the next document its processor time, after which the kernel ends the process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = int(used.ru_utime + used.ru_stime) + 1 + limits.seconds
    resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))


def _answer(ask: Ask, limits: Limits) -> Iterator[bytes]:
    line, reached = ask.after, 0
    _allow(limits)
    try:
        for piece in read_pieces(ask):
            yield _encode_piece(piece, limits)
            line, reached = piece.line, piece.reached
            _allow(limits)
        yield _encoded(Told(line, reached, end=True))
    except MemoryError:
        yield _encoded(Told(line, reached, breach="memory"))
    except Exception as error:  # noqa: BLE001 - whatever a parser raises is why this document was given up
        yield _encoded(Told(line, reached, breach="broken", how=type(error).__name__))


def _encode_piece(piece: ReadPiece, limits: Limits) -> bytes:
    parsed = piece.parsed
    if parsed is not None and parsed.refusals:
        parsed = Parsed(parsed.document, tuple(_refusals(parsed)), parsed.overlaps_resolved)
    document = None if parsed is None else parsed.document
    if document is None or len(document.text) <= limits.characters:
        message = _encoded(Told(piece.line, piece.reached, parsed))
        if len(message) <= WIDEST * limits.characters:
            return message
    too_large = Refusal(
        "" if document is None else document.external_id[:_MOST_QUOTED], 0, limits.sentence("size"), "size"
    )
    return _encoded(Told(piece.line, piece.reached, Parsed(None, (too_large,))))


def _refusals(parsed: Parsed) -> Iterator[Refusal]:
    """Yield the refusals to report: not too many, and with texts that are cut short and can be stored."""
    for one in parsed.refusals[:_MOST_REFUSALS]:
        yield Refusal(_shown(one.document), min(one.offset, _FARTHEST), _shown(one.reason), one.code)
    if (more := len(parsed.refusals) - _MOST_REFUSALS) > 0:
        last = parsed.refusals[-1]
        yield Refusal(_shown(last.document), last.offset, f"... and {more} more like these", last.code)


def _shown(words: str) -> str:
    words = words if len(words) <= _MOST_QUOTED else f"{words[:_MOST_QUOTED]}..."
    return words.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\ufffd")


def _encoded(told: Told) -> bytes:
    return msgspec.json.encode(told)


if __name__ == "__main__":
    main()
