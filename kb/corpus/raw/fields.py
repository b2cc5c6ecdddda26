"""Fields: which columns of a table, or fields of a record, are a document's id, title and text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from colmlm.kb.corpus.raw.text import Unreadable

# What is taken where nobody says which field it is, whatever its case.
_USUAL: Mapping[str, tuple[str, ...]] = {
    "id": ("id",),
    "title": ("title",),
    "text": ("text", "content", "body"),
    "uri": ("uri", "url"),
    "licence": ("licence", "license"),
    "revision": ("revision", "revid"),
}
_MOST_LISTED = 30


@dataclass(frozen=True, slots=True)
class Fields:
    """The names of the fields that hold id, title and text; None stands for the usual name."""

    id: str | None = None
    title: str | None = None
    text: str | None = None

    def of(self, names: Iterable[str]) -> dict[str, str]:
        """Gives for each part of a document the one of these names that holds it.

        Raises `Unreadable` where a field that was named, or any text, is not there.
        """
        there = list(names)
        usual = {name.strip().casefold(): name for name in reversed(there)}
        chosen: dict[str, str] = {}
        for part, known in _USUAL.items():
            if (named := getattr(self, part, None)) is not None:
                chosen[part] = named
            elif (found := next((usual[name] for name in known if name in usual), None)) is not None:
                chosen[part] = found
        if missing := [name for name in chosen.values() if name not in there]:
            raise Unreadable(f"no field {missing[0]!r}; {_listed(there)}")
        if "text" not in chosen:
            raise Unreadable(f"no field 'text'; {_listed(there)}; name the one to read with --text-field")
        return chosen


USUAL = Fields()


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name[:_MOST_LISTED]) for name in names[:_MOST_LISTED])
    return f"there are {shown or 'none'}{' ...' if len(names) > _MOST_LISTED else ''}"
