r"""Characters that do not show: finds them, and writes them out by number where a text has them.

Control characters steer a terminal, bidirectional ones change the order in which a text is read, and invisible ones
make two names look alike. The log accepts none; texts of corpora keep theirs, and whatever displays them writes them
out.
"""

from __future__ import annotations

import re

JOINERS = "\u200c\u200d"  # Persian, Hindi and many emoji need these
LINES = "\t\n"

# Controls, the soft hyphen, bidirectional marks, line separators, zero widths, lone surrogates and tags: the characters
# that Unicode classes as control, format, surrogate or line separator, without the number signs, which do show.
_UNSEEN = (
    r"\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f"
)
# Letters and marks that do not show: fillers, the blank of Braille, variation selectors.
_EMPTY = r"\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\ufe00-\ufe0f\U000e0100-\U000e01ef"

_UNSEEN_ONE = re.compile(f"[{_UNSEEN}]")
_BLANKS = re.compile(rf"[\s{_UNSEEN}{_EMPTY}]*")


def unseen(text: str, allowed: str = "") -> str | None:
    """Finds the first character of a text that does not show and is not `allowed`; None where there is none."""
    return next((found[0] for found in _UNSEEN_ONE.finditer(text) if found[0] not in allowed), None)


def is_blank(text: str) -> bool:
    """Says whether nothing of this text shows."""
    return _BLANKS.fullmatch(text) is not None


def visible(text: str, kept: str = LINES + JOINERS) -> str:
    r"""Writes out the characters of a text that do not show, as in \x1b or \u202e, except those `kept`."""
    return _UNSEEN_ONE.sub(lambda found: found[0] if found[0] in kept else written(found[0]), text)


def written(character: str) -> str:
    """Writes a character by its number, as Python does."""
    number = ord(character)
    return (
        f"\\x{number:02x}"
        if number < 0x100
        else f"\\u{number:04x}"
        if number < 0x10000
        else f"\\U{number:08x}"
    )


def json_visible(text: str) -> str:
    """Gives JSON of the same meaning, with the characters of its strings that do not show written out."""
    return _UNSEEN_ONE.sub(lambda found: found[0] if found[0] == "\n" else _escaped(found[0]), text)


def _escaped(character: str) -> str:
    """Writes a character as JSON does, in units of UTF-16."""
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
