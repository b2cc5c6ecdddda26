"""Declares TOFU with models trained here, with and without the forget set: deletion beside gradient baselines."""

from __future__ import annotations

from math import ceil
from pathlib import Path

from colmlm.lab.paper.declared import PaperStep, Places, Preparation

# For each forget set: the split that is kept, and the seeds of the gradient baseline.
_SETS = {
    "forget05": ("retain95", (0, 42, 69)),
    "forget01": ("retain99", (0,)),
    "forget10": ("retain90", (0,)),
}

# The paper trains all weights for ten epochs at 3e-5. Here adapters are trained, with the next-token loss at all
# positions. A fact's question already stands before its answer, so it is encoded at <FACT-q> only.
_BATCH = 16
_TRAINING = ("--no-demo", "--batch", str(_BATCH), "--set", "ntp_fraction=1.0")
_LOOKING = (1, ("--set", "qa_fraction=0", "--learning-rate", "0.0005"))  # epochs, and further settings
_BY_HEART = (5, ("--method", "standard"))
_UNLEARNING_RATE = "0.0003"  # for an adapter; the default of `train unlearn` is for all weights
_EPOCHS = 5  # of unlearning; for one seed the model after each epoch is measured, for a curve
_CURVES = {("forget05", "npo-0"), ("forget05", "grad-diff")}
# Text that is not marked is memorised, and no deletion reaches it. A third of an answer is marked and looked up; the
# model reads each answer once, to learn its wording.
_SPANS = ("--span-threshold", "0.03")
Argv = tuple[str, ...]


def unlearning(places: Places, checkpoint: Path) -> tuple[list[PaperStep], list[Preparation]]:
    """Declares every step and what it needs. Each has a new knowledge base, so that none measures another's edits."""
    models = _Models(places, checkpoint)
    steps: list[PaperStep] = []
    preparations = [*models.of("full"), *(one for kept, _ in _SETS.values() for one in models.of(kept))]
    for forget, (kept, seeds) in _SETS.items():
        preparations += _knowledge(models, forget, kept)
        steps += [
            _step(places, forget, "retain", kept, models.looking(kept), reference=None),
            _step(places, forget, "full", f"{forget}-known", models.looking("full"), reference="retain"),
            _step(places, forget, "deleted", f"{forget}-deleted", models.looking("full"), reference="retain"),
        ]
        references = {
            "standard-retain": ("standard-" + kept, None),
            "standard": ("standard-full", "standard-retain"),
        }
        steps += [
            _step(places, forget, name, trained, places.out / "runs" / trained, reference=reference)
            for name, (trained, reference) in references.items()
        ]  # fmt: skip
        for name, options in _baselines(seeds).items():
            preparations.append(_unlearned(places, forget, kept, name, options))
            run = places.out / "runs" / f"{forget}-{name}"
            left = {name: run}
            if (forget, name) in _CURVES:
                left = {f"{name}-epoch-{n}": run / f"epoch-{n}" for n in range(1, _EPOCHS)} | left
            steps += [
                _step(places, forget, each, run.name, checkpoint, reference="standard-retain")
                for each, checkpoint in left.items()
            ]
    return steps, preparations


class _Models:
    """The checkpoints trained on a split: one that looks up, and one that memorises."""

    def __init__(self, places: Places, checkpoint: Path) -> None:
        self.places, self.checkpoint = places, checkpoint

    def looking(self, split: str) -> Path:
        return self.places.out / "runs" / f"tofu-{split}"

    def documents(self, split: str) -> Path:
        return self.places.out / "data" / f"tofu-{split}.jsonl"

    def marked(self, split: str) -> Preparation:
        source = self.places.data / "tofu" / f"{split}.jsonl"
        mark = ("evaluate", "tofu-documents", str(source), "--out", str(self.documents(split)), *_SPANS)
        return Preparation(name=f"marked-{split}", commands=(mark,))

    def of(self, split: str) -> list[Preparation]:
        """Declares the trainings on a split.

        A reference also gets a knowledge base of the same name with its training data.
        """
        train = ("train", "--annotated", str(self.documents(split)), *_TRAINING)
        looking, by_heart = (
            (*settings, "--steps", str(self._steps(split, epochs)))
            for epochs, settings in (_LOOKING, _BY_HEART)
        )
        out, standard = self.looking(split), self.places.out / "runs" / f"standard-{split}"
        filled = (
            (*self.ingested(split, split), ("rekey", "--checkpoint", str(out))) if split != "full" else ()
        )
        return [
            self.marked(split),
            Preparation(
                name=split,
                after=(f"marked-{split}",),
                commands=(
                    ("db", "migrate"),
                    (*train, *looking, "--init", str(self.checkpoint), "--out", str(out)),
                    *filled,
                ),
            ),
            Preparation(
                name=f"standard-{split}",
                after=(f"marked-{split}",),
                commands=(("db", "migrate"), (*train, *by_heart, "--out", str(standard))),
            ),
        ]

    def _steps(self, split: str, epochs: int) -> int:
        """Gives the number of optimiser steps in these epochs over a split. If the split is missing, no step is run."""
        return max(1, ceil(epochs * _rows(self.places, split) / _BATCH))

    def ingested(self, split: str, corpus: str) -> tuple[Argv, ...]:
        return (
            ("corpus", "ingest", str(self.documents(split)), "--format", "annotated", "--corpus", corpus),
        )


def _knowledge(models: _Models, forget: str, kept: str) -> list[Preparation]:
    """Declares all of TOFU in two corpora, and the same after one of them is forgotten in one change."""
    after = ("full", f"marked-{kept}", f"marked-{forget}")
    known = (
        ("db", "migrate"),
        *models.ingested(kept, kept),
        *models.ingested(forget, forget),
        ("rekey", "--checkpoint", str(models.looking("full"))),
    )
    gone = (
        ("forget", "plan", "--corpus", forget, "--reason", "TOFU", "--no-model"),
        ("forget", "apply", "1", "--yes"),
    )
    return [
        models.marked(forget),
        Preparation(name=f"{forget}-known", after=after, commands=known),
        Preparation(name=f"{forget}-deleted", after=after, commands=(*known, *gone)),
    ]


def _baselines(seeds: tuple[int, ...]) -> dict[str, Argv]:
    npo = {f"npo-{seed}": ("--objective", "npo", "--beta", "0.1", "--seed", str(seed)) for seed in seeds}
    return npo | {"grad-diff": ("--objective", "grad-ascent")}


def _unlearned(places: Places, forget: str, kept: str, name: str, options: Argv) -> Preparation:
    files = [str(places.data / "tofu" / f"{split}.jsonl") for split in (forget, kept)]
    known, out = places.out / "runs" / "standard-full", places.out / "runs" / f"{forget}-{name}"
    unlearn = ("train", "unlearn", "--init", str(known), "--forget", files[0], "--retain", files[1],
               "--learning-rate", _UNLEARNING_RATE, "--epochs", str(_EPOCHS), "--keep-epochs", *options)  # fmt: skip
    return Preparation(
        name=out.name, after=("standard-full",), commands=(("db", "migrate"), (*unlearn, "--out", str(out)))
    )


def _step(
    places: Places, forget: str, name: str, knowledge: str, checkpoint: Path, *, reference: str | None
) -> PaperStep:
    logs = places.out / "tofu" / forget
    beside = ("--retain", str(logs / reference)) if reference else ()
    tofu = places.data / "tofu"
    return PaperStep(
        name=f"tofu-{forget}-{name}",
        section="tofu",
        label=f"{forget}, {name}",
        data=f"TOFU {forget}; 135M models of ours, of {_rows(places, 'full')} answers; of the retain table "
        f"{_rows(places, 'retain_perturbed')} are asked",
        shows=f"TOFU's metrics of {name} on {forget}",
        argv=(
            "evaluate", "tofu", "--data", str(tofu), "--forget", forget, "--checkpoint", str(checkpoint),
            *_SPANS, "--out", str(logs / name), *beside,
        ),
        preparations=(knowledge,),
        needs=(tofu / "full.jsonl", tofu / f"{forget}_perturbed.jsonl"),
    )  # fmt: skip


def _rows(places: Places, name: str) -> int:
    """Gives the number of rows of a file of TOFU, 0 where it is missing."""
    file = places.data / "tofu" / f"{name}.jsonl"
    return len(file.read_bytes().splitlines()) if file.is_file() else 0
