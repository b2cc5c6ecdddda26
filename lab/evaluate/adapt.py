"""`colmlm-lab evaluate adapt`: measures what keys predicted from an older checkpoint's cost beside making true ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from random import Random
from time import monotonic
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import examples, wants_json
from colmlm.cli.output import counting, print_json, print_table
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.kb.corpus.squad import read_squad
from colmlm.kb.keys.adapting import best_map, shares_found
from colmlm.kb.keys.keysets import STORED
from colmlm.model.evaluate.recall import Encodes, decoder_queries, document_keys, in_batches
from colmlm.model.evaluate.residual_maps import fit_residual

EXAMPLES = examples(
    "colmlm-lab evaluate adapt --squad dev.jsonl --from runs/old --to runs/new --json",
    "colmlm-lab evaluate adapt --squad dev.jsonl --from runs/old --to runs/a --to runs/b --sample 100 --sample 1000",
    "colmlm-lab evaluate adapt --generated 100000 --from runs/old --to runs/new --sample 1000 --keys keys",
)

_COLUMNS = (
    "from", "to", "kind", "sample", "method", "recall_at_1", "recall_at_1_true", "recall_at_1_old",
    "recall_at_1_before", "recall_at_10", "recall_at_10_true", "seconds", "seconds_true",
)  # fmt: skip


def adapt(
    origin: Annotated[
        Path, typer.Option("--from", exists=True, file_okay=False, help="The older checkpoint.")
    ],
    to: Annotated[
        list[Path],
        typer.Option("--to", exists=True, file_okay=False, help="A newer checkpoint; may be repeated."),
    ],
    squad: Annotated[
        Path | None,
        typer.Option(
            "--squad", exists=True, dir_okay=False, help="Texts with people's questions, in SQuAD's form."
        ),
    ] = None,
    made_up: Annotated[
        int | None,
        typer.Option(
            "--generated", min=20, help="Instead: so many made-up facts, of which some are asked for."
        ),
    ] = None,
    asked: Annotated[
        int, typer.Option("--asked", min=10, help="With --generated: how many are asked for.")
    ] = 2000,
    sample: Annotated[
        list[int] | None,
        typer.Option(
            "--sample", min=10, help="How many facts get true keys; may be repeated. Default: 1000."
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method", help="procrustes, ridge, auto or mlp; may be repeated. Default: all but auto."
        ),
    ] = None,
    kinds: Annotated[
        str,
        typer.Option(
            "--kinds", help="context, or context,question: asked at <FACT-q>, and as a decoder asks."
        ),
    ] = "context",
    documents: Annotated[
        int | None, typer.Option("--documents", min=2, help="At most so many paragraphs. Default: all.")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many draws of each sample.")] = 1,
    keys: Annotated[
        Path | None,
        typer.Option(
            "--keys", file_okay=False, help="A folder that keeps the checkpoints' keys for a next run."
        ),
    ] = None,
) -> None:
    """Measure recall by predicted keys, by true ones, and by the older checkpoint's as they are.

    Nothing is written to a knowledge base. Questions are the newer checkpoint's.
    """
    wanted = tuple(kinds.split(","))
    if not set(wanted) <= set(KINDS):
        raise typer.BadParameter(f"{kinds!r} is none of context, question.", param_hint="--kinds")
    methods = method or list(METHODS)
    if unknown := set(methods) - {*METHODS, "auto"}:
        raise typer.BadParameter(f"there is no {sorted(unknown)[0]!r}.", param_hint="--method")
    if made_up is not None and "question" in wanted:
        raise typer.BadParameter("what is generated has keys of contexts only.", param_hint="--kinds")
    corpus = AskedCorpus(_documents(squad, made_up, asked)[:documents])
    with Runtime.from_environment() as runtime:
        old = _keys(runtime, origin, corpus, wanted, keys)
        pairs: list[AdaptedPair] = []
        for path in to:
            new = _keys(runtime, path, corpus, wanted, keys)
            pairs += _measured(old, new, corpus, wanted, sample or [1000], methods, seeds)
    found = [pair.as_json() for pair in pairs]
    if wants_json():
        print_json({"pairs": found})
    else:
        print_table(_COLUMNS, [[one[column] for column in _COLUMNS] for one in found])


def _documents(squad: Path | None, made_up: int | None, asked: int) -> list[AnnotatedDocument]:
    if made_up is not None and squad is None:
        return list(generated(made_up, asked))
    if squad is None or made_up is not None:
        raise typer.BadParameter("name one of them.", param_hint="--squad, --generated")
    parsed = (one.document for one in read_squad(squad))
    return [document for document in parsed if document is not None and document.facts]


def _keys(
    runtime: Runtime, path: Path, corpus: AskedCorpus, kinds: Sequence[str], folder: Path | None
) -> CheckpointKeys:
    encoder = runtime.encoder_at(path)
    asking = 2 if "question" in kinds else 1
    with counting(f"keys of {path}", len(corpus.document_of) + asking * len(corpus.questions)) as done:

        def make(piece: AskedCorpus) -> CheckpointKeys:
            return keys_of(encoder, encoder.checkpoint.name, piece, kinds, done)

        if folder is None:
            return joined([make(piece) for piece in corpus.pieces()])
        files = (f"{encoder.checkpoint.checkpoint_id[:16]}-{piece.digest}.npz" for piece in corpus.pieces())
        pieces = zip(files, corpus.pieces(), strict=True)
        return joined([kept(folder / file, partial(make, piece), kinds) for file, piece in pieces])


def _measured(
    old: CheckpointKeys,
    new: CheckpointKeys,
    corpus: AskedCorpus,
    kinds: Sequence[str],
    samples: Sequence[int],
    methods: Sequence[str],
    seeds: int,
) -> list[AdaptedPair]:
    ways = [(k, s, m, seed) for k in kinds for s in samples for m in methods for seed in range(seeds)]
    with counting(f"maps from {old.name} to {new.name}", len(ways)) as done:
        pairs, beside = [], {kind: known(old, new, corpus, kind) for kind in kinds}
        for kind, size, method, seed in ways:
            pairs.append(adapted(old, new, corpus, kind, beside[kind], sample=size, method=method, seed=seed))
            done(1)
    return pairs


# Documents of made-up facts, as many as are wanted. Nobody has learnt what they say, no two towns are
# namesakes.

_SYLLABLES = tuple(f"{consonant}{vowel}" for consonant in "bdfgklmnprstvz" for vowel in "aiou")
_NUM_WORDS = len(_SYLLABLES) ** 3
_STRIDE = 7919  # a prime, so that neighbouring numbers have names that differ in every syllable
_TRADES = ("coopers", "dyers", "glaziers", "masons", "millers", "potters", "smiths", "tanners", "weavers")
_WARES = ("barges", "bells", "candles", "carpets", "clocks", "knives", "lamps", "paper", "ropes", "sails")

# Each piece goes before a value, which is of a kind; the question asks for it.
_PIECES = (
    ("{town} lies in ", "land", "In which land does {town} lie?"),
    (", on the river ", "name", "On which river does {town} lie?"),
    (". Founded by ", "person", "Who founded {town}?"),
    (" in ", "year", "When was {town} founded?"),
    (", it has ", "number", "How many people does {town} have?"),
    (" people. Its mayor is ", "person", "Who is the mayor of {town}?"),
    (", its school is named after ", "person", "After whom is the school of {town} named?"),
    (", its bridge was built by ", "person", "Who built the bridge of {town}?"),
    (" in ", "year", "When was the bridge of {town} built?"),
    (". It is known for its ", "ware", "What is {town} known for?"),
    (" and for the guild of ", "trade", "Which guild is {town} known for?"),
    (". The next town is ", "name", "Which town is next to {town}?"),
)


def generated(num_facts: int, asked: int, seed: int = 0) -> Iterator[AnnotatedDocument]:
    """Makes documents with so many facts or some more, of which `asked`, evenly spread, have a question."""
    random = Random(seed)
    every = max(1, num_facts // asked)
    for number in range(-(-num_facts // len(_PIECES))):
        yield _town(number, random, every)


def _town(number: int, random: Random, every: int) -> AnnotatedDocument:
    town, text, spans = _word(number), "", []
    for place, (before, kind, question) in enumerate(_PIECES):
        text += before.format(town=town)
        value = _value(kind, random)
        is_asked = (number * len(_PIECES) + place) % every == 0
        spans.append(
            FactSpan(
                len(text), len(text) + len(value), value, question.format(town=town) if is_asked else None
            )
        )
        text += value
    return AnnotatedDocument(f"town-{number}", f"{text}.", tuple(spans), title=town)


def _value(kind: str, random: Random) -> str:
    match kind:
        case "land":
            return _word(_NUM_WORDS - 1 - random.randrange(40))
        case "year":
            return str(random.randrange(900, 2000))
        case "number":
            return f"{random.randrange(300, 90_000):,}"
        case "ware":
            return random.choice(_WARES)
        case "trade":
            return random.choice(_TRADES)
        case "person":
            return f"{_word(random.randrange(_NUM_WORDS))} {_word(random.randrange(_NUM_WORDS))}"
        case _:
            return _word(random.randrange(_NUM_WORDS))


def _word(number: int) -> str:
    syllables, rest = [], number * _STRIDE % _NUM_WORDS
    for _ in range(3):
        rest, one = divmod(rest, len(_SYLLABLES))
        syllables.append(_SYLLABLES[one])
    return "".join(syllables).capitalize()


# Keys predicted from those of an older checkpoint, measured against true ones: what share of their recall is
# kept.
#
# A fact of the sample has its true key, all others have predicted ones, as after `colmlm keysets fill --predict`.
# Queries are of the newer checkpoint.

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
