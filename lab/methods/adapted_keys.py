"""Keys predicted from those of an older checkpoint, measured against true ones: what share of their recall is kept.

A fact of the sample has its true key, all others have predicted ones, as after `colmlm rekey --adapt`. Queries are of
the newer checkpoint.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.keys.keysets import STORED
from colmlm.kb.keys.maps import best_map, shares_found
from colmlm.model.evaluate.recall import Encodes, decoder_queries, document_keys, in_batches
from colmlm.model.evaluate.residual_maps import fit_residual

Floats = NDArray[np.float32]

KINDS = ("context", "question")
METHODS = ("procrustes", "ridge", "mlp")
_PIECE = 500  # documents


@dataclass(frozen=True, slots=True)
class CheckpointKeys:
    """A checkpoint's keys of facts, by kind, the queries that are asked of each kind, and what each took in seconds."""

    name: str
    keys: dict[str, Floats]
    queries: dict[str, Floats]
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class AskedCorpus:
    """Documents of facts, which are asked for where they have a question. A fact is known by its place among all."""

    documents: Sequence[AnnotatedDocument]

    @property
    def asked(self) -> NDArray[np.int64]:
        """The facts that have a question."""
        return np.flatnonzero([fact.question is not None for d in self.documents for fact in d.facts])

    @property
    def questions(self) -> list[str]:
        return [fact.question for d in self.documents for fact in d.facts if fact.question is not None]

    @property
    def document_of(self) -> NDArray[np.int64]:
        """The place of each fact's document."""
        return np.repeat(np.arange(len(self.documents)), [len(d.facts) for d in self.documents])

    @property
    def digest(self) -> str:
        said = sha256()
        for document in self.documents:
            said.update(document.text.encode())
            said.update(repr([(fact.start, fact.end, fact.question) for fact in document.facts]).encode())
        return said.hexdigest()[:12]

    def pieces(self) -> list[AskedCorpus]:
        """Gives it in pieces, whose keys are made and kept one by one."""
        return [AskedCorpus(self.documents[at : at + _PIECE]) for at in range(0, len(self.documents), _PIECE)]

    def sample(self, size: int, seed: int) -> NDArray[np.int64]:
        """Gives the facts of documents that are drawn until they have so many."""
        order = random.Random(seed).sample(range(len(self.documents)), len(self.documents))
        document_of, chosen, facts = self.document_of, [], 0
        for place in order:
            if facts >= size:
                break
            chosen.append(place)
            facts += len(self.documents[place].facts)
        return np.flatnonzero(np.isin(document_of, chosen))

    def length(self, facts: NDArray[np.int64]) -> int:
        """Counts what is read for keys of these facts: the characters of their documents."""
        return sum(len(self.documents[place].text) for place in np.unique(self.document_of[facts]))


@dataclass(frozen=True, slots=True)
class AdaptedPair:
    """What one way of predicting gave for a pair of checkpoints, with recall by true keys and by the old ones.

    `recall_before` is that of the old checkpoint's queries by its own keys. `seconds` has the sample's share, by
    characters read, of the seconds that all true keys took, and the fit.
    """

    origin: str
    to: str
    kind: str
    facts: int
    sample: int
    seed: int
    method: str
    recall_at_1: float
    recall_at_1_true: float
    recall_at_1_old: float | None
    recall_at_1_before: float
    recall_at_10: float
    recall_at_10_true: float
    recall_at_10_old: float | None
    recall_at_10_before: float
    cosine: float
    seconds: float
    seconds_true: float

    def as_json(self) -> dict[str, object]:
        told = asdict(self)
        return {"from": told.pop("origin"), **told}


def keys_of(
    encoder: Encodes, name: str, corpus: AskedCorpus, kinds: Sequence[str], done: Callable[[int], None]
) -> CheckpointKeys:
    """Makes the keys of these kinds, as exact as a knowledge base stores them, and their queries."""
    made = CheckpointKeys(name, {}, {}, {})
    began = monotonic()
    made.keys["context"] = _stored(document_keys(encoder, corpus.documents, done))
    made.seconds["context"] = monotonic() - began
    began = monotonic()
    if corpus.questions:
        made.queries["context"] = in_batches(encoder.encode_questions, corpus.questions, done)
    else:
        made.queries["context"] = np.empty((0, made.keys["context"].shape[1]), np.float32)
    made.seconds["question"] = monotonic() - began
    if "question" in kinds:
        made.keys["question"] = _stored(made.queries["context"])
        made.queries["question"] = decoder_queries(encoder, corpus.questions, done)
    return made


def _stored(keys: Floats) -> Floats:
    return keys.astype(STORED).astype(np.float32)


def kept(file: Path, make: Callable[[], CheckpointKeys], kinds: Sequence[str]) -> CheckpointKeys:
    """Reads the keys from a file; makes and writes them where it lacks some."""
    if file.is_file():
        with np.load(file, allow_pickle=False) as stored:
            if all(f"keys {kind}" in stored for kind in kinds):
                parts = {
                    part: {k: stored[f"{part} {k}"].astype(np.float32) for k in kinds}
                    for part in ("keys", "queries")
                }
                seconds = {kind: float(stored[f"seconds {kind}"]) for kind in kinds}
                return CheckpointKeys(str(stored["name"]), parts["keys"], parts["queries"], seconds)
    made = make()
    arrays: dict[str, NDArray[np.generic]] = {"name": np.array(made.name)}
    for kind in kinds:
        arrays[f"keys {kind}"] = made.keys[kind].astype(STORED)
        arrays[f"queries {kind}"] = made.queries[kind]
        arrays[f"seconds {kind}"] = np.array(made.seconds[kind])
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as out:
        np.savez(out, **arrays)  # type: ignore[arg-type]
    return made


def joined(pieces: Sequence[CheckpointKeys]) -> CheckpointKeys:
    """Joins the keys of a corpus's pieces."""
    kinds = pieces[0].keys.keys()
    return CheckpointKeys(
        pieces[0].name,
        {kind: np.concatenate([piece.keys[kind] for piece in pieces]) for kind in kinds},
        {kind: np.concatenate([piece.queries[kind] for piece in pieces]) for kind in kinds},
        {kind: sum(piece.seconds[kind] for piece in pieces) for kind in kinds},
    )


def known(old: CheckpointKeys, new: CheckpointKeys, corpus: AskedCorpus, kind: str) -> dict[str, Any]:
    """Gives recall by true keys, by the old ones as they are, if they are as wide, and as the old checkpoint asks."""
    own = _own(corpus, kind)
    figures: dict[str, Any] = {"recall_at_1_old": None, "recall_at_10_old": None}
    for way, queries, keys in (
        ("_true", new.queries[kind], new.keys[kind]),
        ("_old", new.queries[kind], old.keys[kind]),
        ("_before", old.queries[kind], old.keys[kind]),
    ):
        if queries.shape[1] == keys.shape[1]:
            figures |= _named(way, shares_found(queries, own, keys))
    return figures


def _own(corpus: AskedCorpus, kind: str) -> list[int]:
    """Gives the place of the key that each query should find: only what is asked has keys of questions."""
    return list(range(len(corpus.asked))) if kind == "question" else corpus.asked.tolist()


def adapted(
    old: CheckpointKeys,
    new: CheckpointKeys,
    corpus: AskedCorpus,
    kind: str,
    beside: dict[str, Any],
    *,
    sample: int,
    method: str,
    seed: int,
) -> AdaptedPair:
    """Predicts the keys of one kind by one method from a sample of this size, and asks every fact's question.

    `beside` are the figures of what is `known`.
    """
    facts = corpus.sample(sample, seed)
    old_ND, true_NE = old.keys[kind], new.keys[kind]
    began = monotonic()
    made_NE, name, cosine = _predicted(old_ND, true_NE, facts, corpus.document_of[facts], method)
    fitting = monotonic() - began
    made_NE[facts] = true_NE[facts]
    everyone = np.arange(len(true_NE))
    read = corpus.length(facts) / max(1, corpus.length(everyone))
    return AdaptedPair(
        origin=old.name,
        to=new.name,
        kind=kind,
        facts=len(everyone),
        sample=len(facts),
        seed=seed,
        method=name,
        cosine=round(cosine, 4),
        seconds=round(read * new.seconds[kind] + fitting, 2),
        seconds_true=round(new.seconds[kind], 2),
        **_named("", shares_found(new.queries[kind], _own(corpus, kind), made_NE)),
        **beside,
    )


def _named(way: str, found: dict[int, float]) -> dict[str, float]:
    return {f"recall_at_{k}{way}": round(share, 4) for k, share in found.items()}


def _predicted(
    old_ND: Floats, true_NE: Floats, facts: NDArray[np.int64], groups: NDArray[np.int64], method: str
) -> tuple[Floats, str, float]:
    """Gives all keys as they are predicted, the way that was taken, and the mean cosine with the true ones."""
    linear = "ridge" if method == "mlp" else method
    fitted = best_map(linear, old_ND[facts], true_NE[facts], groups.tolist())
    made_NE, name = fitted.map(old_ND), fitted.method
    if method == "mlp":
        correct = fit_residual(old_ND[facts], fitted.held_out_NE, true_NE[facts])
        made_NE, name = correct(old_ND, made_NE), f"mlp behind {name}"
    others = np.setdiff1d(np.arange(len(old_ND)), facts)
    return made_NE, name, float(np.mean(np.einsum("nd,nd->n", made_NE[others], true_NE[others])))
