"""How a step of `colmlm evaluate paper` is declared: a command, the data it reads and the knowledge base it asks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

Take = Callable[[Path, int | None], Iterable[Mapping[str, Any]]]
_PLAIN = re.compile(r"[\w@%+=:,./$-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where things lie. On the page the folders have names, so that its commands can be typed elsewhere."""

    out: Path
    data: Path
    released: Path

    @property
    def names(self) -> dict[str, Path]:
        return {"$OUT": self.out, "$DATA": self.data, "$RELEASED": self.released}

    def shown(self, argv: Sequence[str]) -> str:
        """A command as it is typed, with the folders' names."""
        return " ".join(("colmlm", *map(self.word, argv)))

    def home(self, preparation: str) -> Path:
        return self.out / "kb" / preparation

    def word(self, word: str) -> str:
        """A word of a command, or a path, with the folders' names."""
        for name, folder in self.names.items():
            if word == str(folder) or word.startswith(f"{folder}/"):
                return f"{name}{word[len(str(folder)) :]}"
        return word if _PLAIN.fullmatch(word) else shlex.quote(word)


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """JSON Lines made of the data: what `take` makes of the first `rows` of `source`; None is all of them."""

    source: Path
    target: Path
    take: Take
    rows: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """A knowledge base of its own and what fills it, in order. Each command is run once.

    What makes files only, as a training does, has a home of its own too and leaves it empty. `after` names others.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    excerpts: tuple[Excerpt, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One measurement: a `colmlm evaluate` command, run as itself, on the knowledge base of its first preparation.

    `section` is where the page shows it and `label` under which name; `data` says what it is measured on. A step whose
    `needs` are not there is passed over.
    """

    name: str
    section: str
    label: str
    data: str
    shows: str
    argv: tuple[str, ...]
    preparations: tuple[str, ...] = ()
    needs: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything declared, in the order it is run."""

    steps: tuple[Step, ...]
    preparations: Mapping[str, Preparation]

    def chain(self, step: Step) -> list[Preparation]:
        """What a step needs prepared, each after what it needs itself."""
        found: dict[str, Preparation] = {}

        def visit(name: str) -> None:
            if name not in found:
                one = self.preparations[name]
                for earlier in one.after:
                    visit(earlier)
                found[name] = one

        for name in step.preparations:
            visit(name)
        return list(found.values())

    def digest(self, step: Step, places: Places) -> str:
        """Of the commands that prepare a step and of the rows that excerpts take: others give another result."""
        made_of = [
            (
                one.name,
                [places.shown(argv) for argv in one.commands],
                [excerpt.rows for excerpt in one.excerpts],
            )
            for one in self.chain(step)
        ]
        return sha256(repr(made_of).encode()).hexdigest()

    def missing(self, step: Step) -> list[Path]:
        """The data that a step and its preparations read and that are not there."""
        read = [*step.needs, *(excerpt.source for one in self.chain(step) for excerpt in one.excerpts)]
        return [path for path in dict.fromkeys(read) if not path.exists()]
