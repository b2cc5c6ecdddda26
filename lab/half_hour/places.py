"""Where the steps read and write: the store that the parcels made, and the runs in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.lab.half_hour.sizes import SIZES, Sizes
from colmlm.lab.half_hour.texts import annotated

SITE, DATA, RELEASED, MODELS = "site", "data", "released", "models"
SQUAD, MARKED, DEV, HELD = "squad.jsonl", "marked.jsonl", "dev.jsonl", "held.jsonl"
ADAPTER, STANDARD, GENERATOR = "co-lmlm-135m", "standard-135m", "question-generator-135m"


@dataclass(frozen=True, slots=True)
class Place:
    """The store on the machine that trains, and how much the steps do there."""

    store: Path
    size: str

    @property
    def sizes(self) -> Sizes:
        return SIZES[self.size]

    @property
    def cache(self) -> Path:
        """Where converted base models are."""
        return self.store / MODELS

    @property
    def squad(self) -> Path:
        """The file of questions that people asked."""
        return self.store / DATA / SQUAD

    def before(self, name: str) -> Path:
        """Gives a checkpoint or annotator that was there before, and came with the parcels."""
        return self.store / RELEASED / name

    def run(self, name: str) -> Path:
        """Gives the directory of a run; those of a smoke test or a rehearsal are apart from the others."""
        return self.store / "runs" / self.size / name

    def shards(self, method: str) -> list[Path]:
        """Lists the folders of tokens that were made for a method."""
        return sorted(self.run("questions").glob(f"shards-{method}-*"))

    def texts(self, name: str, most: int | None) -> list[AnnotatedDocument]:
        """Reads the first documents of one of the annotated files."""
        return annotated(self.store / DATA / name)[:most]
