"""The parts of the product that `colmlm evaluate documents` asks, from its options."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.records import SPAN, Answer
from colmlm.lab.methods.ablations import KEY, RANKINGS, READER, WHOLE, Ablations, named
from colmlm.lab.methods.document_ways import Ask
from colmlm.lab.methods.own_base import NO_KEYS

ANY_SPAN = "none"


def ranking_of(said: str, keys: str, mode: str) -> frozenset[str]:
    """Reads what finds an answer. Without keys it is words and the reader, in the paper's mode the key alone."""
    if mode not in ("read", "paper"):
        raise typer.BadParameter(f"{mode!r} is neither read nor paper.", param_hint="--mode")
    parts = frozenset(said.split(",")) if mode == "read" else frozenset((KEY,))
    if keys == NO_KEYS and mode == "read":
        parts -= {KEY}
    if parts not in RANKINGS or (keys == NO_KEYS and KEY in parts):
        ways = "; ".join(map(named, RANKINGS))
        raise typer.BadParameter(f"it is none of {ways}, or there are no keys.", param_hint="--ranking")
    return parts


def spans_of(said: str | None) -> float | None:
    """Reads a threshold of the annotator (None: its own)."""
    if said is None or said == ANY_SPAN:
        return None
    try:
        threshold = float(said)
    except ValueError:
        threshold = math.nan
    if not 0 < threshold < 1:
        raise typer.BadParameter(f"{said!r} is neither none nor between 0 and 1.", param_hint="--spans")
    return threshold


def is_product(answers: Answering, parts: frozenset[str], mode: str, *, any_span: bool) -> bool:
    """Tell whether this way of answering is the product's own, with no part left out."""
    return mode == "read" and parts == (WHOLE if answers.questions else WHOLE - {KEY}) and not any_span


def way_of(answers: Answering, parts: frozenset[str], mode: str, *, any_span: bool) -> Ask:
    """Gives what is asked, at the lowest threshold. The product itself is asked wherever it can answer so."""
    if mode == "paper" or parts == {KEY}:
        return partial(answers.nearest_fact, threshold=-1.0)
    if is_product(answers, parts, mode, any_span=any_span):
        return partial(_likeliest, answers)
    return partial(Ablations(answers).ask, ranking=parts, any_span=any_span)


def _likeliest(answers: Answering, question: str) -> Answer:
    """Answer whatever the scores; a passage has the highest threshold of spans beside which it is said."""
    found = answers.ask(question, threshold=0.0, nearest=0)
    if found.grain == SPAN:
        return found
    return replace(found, score=answers.reader.confidence.beside_spans(found.score))


def threshold_of(runtime: Runtime, answers: Answering, parts: frozenset[str]) -> float:
    """Gives the shipped threshold: that of the confidence where a reader reads, else that of the keys."""
    if READER in parts:
        return answers.reader.confidence.threshold
    return runtime.kb.keysets.active().threshold
