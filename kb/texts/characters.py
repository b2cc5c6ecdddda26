r"""Characters that do not show: what nobody may write into the log, and how they are shown where a text has them.

Control characters steer a terminal, bidirectional ones make a text read otherwise than it is, and invisible ones make
two names look alike. Texts of corpora keep what they have; whoever shows them shows it.
"""

from __future__ import annotations

import re

JOINERS = "\u200c\u200d"  # words of Persian and Hindi, and many emoji, are written with them
LINES = "\t\n"

# Controls, the soft hyphen, bidirectional marks, line separators, zero widths, lone surrogates, tags: what Unicode
# calls control, format, surrogate or separator of lines, but for signs of numbers, which do show.
_UNSEEN = (
    r"\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f"
)
# Letters and marks of which nothing is seen: fillers, the blank of Braille, variation selectors.
_EMPTY = r"\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\ufe00-\ufe0f\U000e0100-\U000e01ef"

_UNSEEN_ONE = re.compile(f"[{_UNSEEN}]")
_BLANKS = re.compile(rf"[\s{_UNSEEN}{_EMPTY}]*")


def unseen(text: str, allowed: str = "") -> str | None:
    """The first character of a text that does not show, but those `allowed`; None where all do."""
    return next((found[0] for found in _UNSEEN_ONE.finditer(text) if found[0] not in allowed), None)


def is_blank(text: str) -> bool:
    """Whether nothing of this text is seen."""
    return _BLANKS.fullmatch(text) is not None


def visible(text: str, kept: str = LINES + JOINERS) -> str:
    r"""The text with what does not show written out, as in \x1b or \u202e, but what is `kept`."""
    return _UNSEEN_ONE.sub(lambda found: found[0] if found[0] in kept else written(found[0]), text)


def written(character: str) -> str:
    """A character by its number, as Python writes it."""
    number = ord(character)
    return (
        f"\\x{number:02x}"
        if number < 0x100
        else f"\\u{number:04x}"
        if number < 0x10000
        else f"\\U{number:08x}"
    )


def json_visible(text: str) -> str:
    """JSON of the same meaning, with what does not show in its strings written out."""
    return _UNSEEN_ONE.sub(lambda found: found[0] if found[0] == "\n" else _escaped(found[0]), text)


def _escaped(character: str) -> str:
    """As JSON has it: in units of UTF-16."""
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
