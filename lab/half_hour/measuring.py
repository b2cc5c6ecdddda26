"""The figures of what was trained: recall on texts that nothing learnt from, and perplexity by static and dynamic."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.lab.half_hour.places import (
    ADAPTER,
    CO_LMLM,
    DEV,
    HELD,
    MARKED,
    SCRATCH,
    STANDARD,
    Place,
    annotated,
)
from colmlm.model.evaluate.perplexity import (
    DocumentSums,
    dynamic_tallies,
    openings,
    perplexities,
    plain_tallies,
    static_tally,
)
from colmlm.model.evaluate.recall import AskedFacts, WrittenQuestions, document_keys, table
from colmlm.model.lm.checkpoint import Checkpoint, load
from colmlm.model.lm.encoder import KeyEncoder

BATCH_TOKENS = 32_768
MAX_TOKENS = 512


class NearestValue:
    """Finds the value of the nearest of some keys, by comparing with them all."""

    def __init__(self, keys_KD: NDArray[np.float32], values_K: Sequence[str]) -> None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._keys_KD, self._values_K = torch.from_numpy(keys_KD).to(device), values_K

    def __call__(self, query_D: NDArray[np.float32]) -> str:
        scores_K = self._keys_KD @ torch.from_numpy(query_D).to(self._keys_KD.device)
        return self._values_K[int(scores_K.argmax())]


def measure(place: Place) -> Path:
    """Measures the released adapter, the trained weights and the adapter made of them; gives the file of figures."""
    documents = place.texts(DEV, place.sizes.measured)
    runs = {
        "before": place.before(ADAPTER),
        "trained": place.run(CO_LMLM),
        "released": place.run(f"released/{CO_LMLM}"),
    }
    written = [one for path in sorted(place.run("questions").glob("dev-*")) for one in annotated(path)]
    standard, figures = load(place.before(STANDARD), place.cache), {}
    for name, path in runs.items():
        checkpoint = load(path, place.cache)
        figures[name] = recalls(checkpoint, documents, written) | read(checkpoint, [standard], place)
    return _kept(place, "measure", figures)


def measure_scratch(place: Place) -> Path:
    """Measures the two models from random weights; gives the file of figures."""
    ours, theirs = (load(place.run(name), place.cache) for name in SCRATCH)
    return _kept(place, "scratch", read(ours, [theirs], place))


def recalls(
    checkpoint: Checkpoint, documents: Sequence[AnnotatedDocument], written: Iterable[AnnotatedDocument]
) -> dict[str, Any]:
    """Measures recall by kind of query and of key, and the speed of keying."""
    encoder = KeyEncoder(checkpoint, batch_tokens=BATCH_TOKENS)
    tokens, started = encoder.batches(documents)[0], time.monotonic()
    contexts = document_keys(encoder, documents, lambda _: None)
    seconds = time.monotonic() - started
    questions = WrittenQuestions.of(list(written))
    made = table(
        encoder,
        AskedFacts.of(documents),
        contexts,
        generated=questions if questions.questions else None,
        as_decoder=True,
        done=lambda _: None,
    )
    shown = {kind: {name: asdict(row) for name, row in rows.items()} for kind, rows in made.items()}
    return {"recall": shown, "keying_tokens_per_second": round(tokens / seconds)}


def read(checkpoint: Checkpoint, beside: Sequence[Checkpoint], place: Place) -> dict[str, Any]:
    """Measures perplexity on held-out texts, whose lookups are among the facts of texts that were learnt from."""
    known = place.texts(MARKED, place.sizes.known)
    keys_KD = document_keys(KeyEncoder(checkpoint, batch_tokens=BATCH_TOKENS), known, lambda _: None)
    find = NearestValue(keys_KD, [fact.value for document in known for fact in document.facts])
    held = place.texts(HELD, place.sizes.held)
    found = DocumentSums([], [], [], {other.config.name: ([], []) for other in beside}, {})
    for document in held:
        found.static.append(static_tally(checkpoint, document, max_tokens=MAX_TOKENS))
        found.nearest += dynamic_tallies(checkpoint, document, [find], max_tokens=MAX_TOKENS)
        for other in beside:
            both = plain_tallies(other, checkpoint.tokenizer, document, max_tokens=MAX_TOKENS)
            for tallies, tally in zip(found.beside[other.config.name], both, strict=True):
                tallies.append(tally)
    return {
        "opening_probability": openings(found.static),
        "right_nearest": sum(tally.right for tally in found.nearest),
        "lookups": sum(tally.lookups for tally in found.nearest),
        "known_facts": len(keys_KD),
        "perplexity": perplexities(found.sums(), len(held)),
    }


def _kept(place: Place, name: str, figures: dict[str, Any]) -> Path:
    path = place.run(f"figures/{name}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1) + "\n")
    return path
