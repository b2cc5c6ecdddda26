"""The declaration of a step of `colmlm evaluate paper`: a command, the data it reads and the knowledge base it uses."""

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
    """The folders of a run. The page shows them by name, so that its commands can be repeated on other machines."""

    out: Path
    data: Path
    released: Path

    @property
    def names(self) -> dict[str, Path]:
        return {"$OUT": self.out, "$DATA": self.data, "$RELEASED": self.released}

    def shown(self, argv: Sequence[str]) -> str:
        """Gives a command as it is typed, with the folders' names."""
        return " ".join(("colmlm", *map(self.word, argv)))

    def home(self, preparation: str) -> Path:
        return self.out / "kb" / preparation

    def word(self, word: str) -> str:
        """Gives a word of a command, or a path, with the folders' names."""
        for name, folder in self.names.items():
            if word == str(folder) or word.startswith(f"{folder}/"):
                return f"{name}{word[len(str(folder)) :]}"
        return word if _PLAIN.fullmatch(word) else shlex.quote(word)


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """A JSON Lines file `target` with what `take` makes of up to `rows` rows of `source` (None: all)."""

    source: Path
    target: Path
    take: Take
    rows: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """A knowledge base of its own, and the commands that fill it, in order. Each command is run once.

    A preparation that only makes files, such as a training, has a home too, which stays empty. `after` names the
    preparations that it needs.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    excerpts: tuple[Excerpt, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperStep:
    """One measurement: a `colmlm evaluate` command on the knowledge base of its first preparation.

    The page shows it in `section` under the name `label`; `data` says what it is measured on. A step is skipped where
    one of its `needs` is missing.
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
class PaperPlan:
    """All steps in the order in which they run, and the preparations by name."""

    steps: tuple[PaperStep, ...]
    preparations: Mapping[str, Preparation]

    def chain(self, step: PaperStep) -> list[Preparation]:
        """Gives the preparations that a step needs, each after those that it needs itself."""
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

    def digest(self, step: PaperStep, places: Places) -> str:
        """Gives a digest of the commands that prepare a step and of the rows of its excerpts, on which its result
        depends.
        """
        made_of = [
            (
                one.name,
                [places.shown(argv) for argv in one.commands],
                [excerpt.rows for excerpt in one.excerpts],
            )
            for one in self.chain(step)
        ]
        return sha256(repr(made_of).encode()).hexdigest()

    def missing(self, step: PaperStep) -> list[Path]:
        """Gives the missing files among those that a step and its preparations read."""
        read = [*step.needs, *(excerpt.source for one in self.chain(step) for excerpt in one.excerpts)]
        return [path for path in dict.fromkeys(read) if not path.exists()]
