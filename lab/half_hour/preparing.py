"""What is made ready on the own machine: texts with dense marks, base models, what they need, cut into parcels.

The other machine has torch, transformers, peft, accelerate, typer and rich. What else the steps import is pure Python
and travels along: gguf, which reads the base's file, and bm25s, by which the reader's examples are chosen.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from colmlm.lab.half_hour.parcels import pack
from colmlm.lab.half_hour.places import (
    ADAPTER,
    DATA,
    DEV,
    GENERATOR,
    HELD,
    MARKED,
    RELEASED,
    SITE,
    SQUAD,
    STANDARD,
    annotated,
    asked,
    with_questions,
    written,
)
from colmlm.model.annotate.checkpoint import RELEASED_QUESTIONS
from colmlm.model.lm.base_models import WHEEL_FILE
from colmlm.model.lm.config import MINILM, SMOLLM2

_SEED = 9
_WHOLE = ("gguf", "bm25s")
_FILES = {
    SMOLLM2.package: (WHEEL_FILE,),
    MINILM.package: ("model/config.json", "model/model.safetensors", "model/tokenizer.json"),
}


def prepare(squad: Path, dev: Path, marked: Sequence[Path], held: Path, target: Path) -> list[Path]:
    """Makes the parcels; gives the parts.

    `marked` are files of `colmlm corpus annotate --no-questions` of the texts to train on, those of `squad` among
    them; `held` is such a file of texts for perplexity, and on `dev`, a SQuAD file, recall is measured.
    """
    made = target / "made"
    made.mkdir(parents=True, exist_ok=True)
    texts = [document for path in marked for document in annotated(path)]
    random.Random(_SEED).shuffle(texts)
    written(with_questions(texts, asked(squad)), made / MARKED)
    written(asked(dev), made / DEV)
    written(annotated(held), made / HELD)
    (made / SQUAD).write_bytes(squad.read_bytes())
    files = {f"{DATA}/{name}": made / name for name in (SQUAD, MARKED, DEV, HELD)}
    for name in (ADAPTER, STANDARD, GENERATOR):
        files[f"{RELEASED}/{name}"] = RELEASED_QUESTIONS.with_name(name)
    return pack(files | dict(_packages(made)), target)


def _packages(made: Path) -> Iterator[tuple[str, Path]]:
    """Yields the folders and files of the packages that travel, by their names in the store."""
    for package in _WHOLE:
        yield f"{SITE}/{package}", _folder(package)
    empty = made / "__init__.py"
    empty.write_text("")
    for package, names in _FILES.items():
        yield f"{SITE}/{package}/__init__.py", empty
        for name in names:
            yield f"{SITE}/{package}/{name}", _folder(package) / name


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{package} is not installed here; install colmlm[cpu,train] and the bases")
    return Path(spec.origin).parent
