"""Corpora as tokens: flat arrays that a step takes its documents from, in memory or mapped from files."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.kb.corpus.training_record import TrainingRecord, text_digest
from colmlm.model.lm.checkpoint import tokenizer_digest
from colmlm.model.lm.config import damaged_file, file_digest
from colmlm.model.text.tokens import EncodedText, FactTokenizer
from colmlm.model.training.config import TrainConfig, TrainingRefused


@dataclass(frozen=True, slots=True)
class TokenShard:
    """Tokenised documents in flat arrays.

    Document i has the tokens ``ids[starts[i]:starts[i + 1]]`` and the facts ``fact_starts[i]`` to ``fact_starts[i +
    1]``; fact f begins a lookup at ``positions[f]`` of its document and has the question
    ``questions[question_starts[f]:question_starts[f + 1]]``, which is empty if it has none. `masked` holds one bit per
    token. `text_digests` has the 32 bytes of each document's `text_digest`; None if an older program made the shard.
    """

    ids: NDArray[Any]
    masked: NDArray[np.uint8]
    starts: NDArray[np.int64]
    positions: NDArray[np.uint32]
    fact_starts: NDArray[np.int64]
    questions: NDArray[Any]
    question_starts: NDArray[np.int64]
    text_digests: NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self.starts) - 1

    def encoded_piece(self, document: int, start: int, end: int) -> tuple[EncodedText, range]:
        """Give tokens `start` to `end` of a document, and the numbers of the facts whose lookups begin in them."""
        at = int(self.starts[document])
        first, last = (int(n) for n in self.fact_starts[document : document + 2])
        found = first + np.searchsorted(self.positions[first:last], [start, end])
        facts = range(int(found[0]), int(found[1]))
        positions = tuple(int(p) - start for p in self.positions[facts.start : facts.stop])
        ids = tuple(self.ids[at + start : at + end].tolist())
        return EncodedText(ids, positions, self._mask_of(at + start, at + end)), facts

    def question(self, fact: int) -> tuple[int, ...]:
        """Give the token ids of a fact's question with its closing token; empty for a fact without a question."""
        start, end = (int(n) for n in self.question_starts[fact : fact + 2])
        return tuple(self.questions[start:end].tolist())

    def value(self, document: int, fact: int) -> tuple[int, ...]:
        """Give the token ids of a fact's value, without the tokens that open and close the lookup."""
        at = int(self.starts[document]) + int(self.positions[fact]) + 1
        run = self._mask_of(at, int(self.starts[document + 1]))
        length = run.index(False) if False in run else len(run)
        return tuple(self.ids[at : at + length - 1].tolist())  # the last masked token closes the value

    def _mask_of(self, start: int, end: int) -> tuple[bool, ...]:
        first = start // 8
        bits = np.unpackbits(self.masked[first : -(-end // 8)], bitorder="little")
        return tuple(bits[start - first * 8 : end - first * 8].astype(bool).tolist())


@dataclass(frozen=True, slots=True)
class Corpus:
    """The documents of several shards as one corpus. `sha256` digests the texts and annotations they were made from."""

    shards: tuple[TokenShard, ...]
    sha256: str

    @property
    def num_documents(self) -> int:
        return sum(len(shard) for shard in self.shards)

    @property
    def num_tokens(self) -> int:
        return sum(int(shard.starts[-1]) for shard in self.shards)

    def add_to_record(self, record: TrainingRecord) -> TrainingRecord:
        """Give the training record with the digests of all its texts added, also of those that no step draws."""
        known = [shard.text_digests for shard in self.shards if shard.text_digests is not None]
        older = "shards of an older release" if len(known) < len(self.shards) else None
        return record.with_texts((row.tobytes() for digests in known for row in digests), older)

    @property
    def num_questions(self) -> int:
        return sum(int(np.count_nonzero(np.diff(shard.question_starts))) for shard in self.shards)


def question_sequence(ids: Sequence[int]) -> EncodedText:
    """Make a sequence of a question's token ids: its key is read at the last token, and no token is scored."""
    return EncodedText(tuple(ids), (len(ids) - 1,), (True,) * len(ids))


def merge_corpora(corpora: Sequence[Corpus]) -> Corpus:
    """Join several corpora into one."""
    if len(corpora) == 1:
        return corpora[0]
    digest = hashlib.sha256("".join(corpus.sha256 for corpus in corpora).encode())
    return Corpus(tuple(shard for corpus in corpora for shard in corpus.shards), digest.hexdigest())


def data_hash(documents: Iterable[AnnotatedDocument]) -> str:
    """Compute the SHA-256, in hex, of every document's title, text, spans with questions, and paraphrases, in order."""
    digest = hashlib.sha256()
    for document in documents:
        if document.title:
            digest.update(document.title.encode() + b"\1")
        digest.update(document.text.encode() + b"\0")
        for span in document.facts:
            digest.update(f"{span.start}:{span.end}:{span.question}\0".encode())
            if span.answer and span.answer != span.value:
                digest.update(f"{span.answer}\1".encode())
    return digest.hexdigest()


def tokenise(documents: Sequence[AnnotatedDocument], tokenizer: FactTokenizer, config: TrainConfig) -> Corpus:
    """Tokenise the documents into a corpus in memory."""
    shard = shard_of(documents, tokenizer, Tokenising.of(config))
    return Corpus((shard,), data_hash(documents))


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenising:
    """The settings by which documents become tokens; the same settings give the same tokens."""

    max_question_length: int
    title_fraction: float
    paraphrase_fraction: float

    @staticmethod
    def of(config: TrainConfig) -> Tokenising:
        return Tokenising(
            max_question_length=config.max_question_length,
            title_fraction=config.title_fraction,
            paraphrase_fraction=config.paraphrase_fraction,
        )


def shard_of(
    documents: Iterable[AnnotatedDocument], tokenizer: FactTokenizer, settings: Tokenising
) -> TokenShard:
    """Tokenise the documents into one shard.

    Whether a document begins with its title depends on its id alone. Which of its spans are paraphrased depends on that
    id and on their order.
    """
    ids, masked, questions = array("I"), bytearray(), array("I")
    positions, lengths, num_facts, asked = array("I"), array("q"), array("q"), array("q")
    texts = bytearray()
    for document in documents:
        titled = random.Random(f"title/{document.external_id}").random() < settings.title_fraction
        said = splice_answers(document, settings.paraphrase_fraction)
        encoded = tokenizer.document(said, with_title=titled)
        texts += text_digest(document.text)
        ids.extend(encoded.ids)
        masked.extend(encoded.masked)
        lengths.append(len(encoded))
        positions.extend(encoded.fact_positions)
        num_facts.append(len(encoded.fact_positions))
        for question in _questions(document, encoded, tokenizer, settings.max_question_length):
            questions.extend(question)
            asked.append(len(question))
    kind = np.uint16 if tokenizer.vocabulary_size <= 1 << 16 else np.uint32
    return TokenShard(
        ids=np.array(ids, dtype=kind),
        masked=np.packbits(np.frombuffer(masked, dtype=np.uint8), bitorder="little"),
        starts=_starts(lengths),
        positions=np.array(positions, dtype=np.uint32),
        fact_starts=_starts(num_facts),
        questions=np.array(questions, dtype=kind),
        question_starts=_starts(asked),
        text_digests=np.frombuffer(bytes(texts), dtype=np.uint8).reshape(-1, 32),
    )


def splice_answers(document: AnnotatedDocument, fraction: float) -> AnnotatedDocument:
    """Give the document with answers in place of values, in a random share `fraction` of the spans with an answer.

    In decoding, values that were looked up differ from the text likewise. Offsets stay those of the text.
    """
    if not fraction:
        return document
    rng = random.Random(f"paraphrase/{document.external_id}")

    def paraphrase(span: FactSpan) -> FactSpan:
        drawn = rng.random() < fraction
        return replace(span, value=span.answer) if drawn and span.answer else span

    return replace(document, facts=tuple(map(paraphrase, document.facts)))


def _questions(
    document: AnnotatedDocument, encoded: EncodedText, tokenizer: FactTokenizer, max_length: int
) -> Iterator[tuple[int, ...]]:
    """Yield the question's token ids of each lookup; empty without one, or if the method makes no keys of questions."""
    if tokenizer.markup.key is None:
        yield from [()] * len(encoded.fact_positions)
        return
    for span in document.facts:
        yield tokenizer.question(span.question, max_length).ids if span.question else ()


def _starts(lengths: array[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.array(lengths, dtype=np.int64))]).astype(np.int64)


# The order in which a corpus is read: seeded, endless, and the same in every run and on any hardware.

Compose = Callable[[Sequence[NDArray[np.int64]]], list[NDArray[np.int64]]]


@dataclass(frozen=True, slots=True)
class DocumentPiece:
    """A document of a corpus, or a piece of one that is longer than a row: its tokens `start` to `end`."""

    shard: int
    document: int
    start: int
    end: int


class Pieces:
    """The documents of a corpus by number; those longer than `max_length` are cut into pieces of equal length.

    It keeps 16 bytes per document; all other data stay in the corpus.
    """

    def __init__(self, corpus: Corpus, max_length: int) -> None:
        sizes = [len(shard) for shard in corpus.shards]
        self._shards = np.concatenate([[0], np.cumsum(sizes)])
        self._lengths = np.concatenate([np.diff(shard.starts) for shard in corpus.shards])
        self._starts = np.concatenate([[0], np.cumsum(-(-self._lengths // max_length))])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def place(self, piece: int) -> DocumentPiece:
        document = int(np.searchsorted(self._starts, piece, side="right")) - 1
        first, following = (int(n) for n in self._starts[document : document + 2])
        number, count, length = piece - first, following - first, int(self._lengths[document])
        shard = int(np.searchsorted(self._shards, document, side="right")) - 1
        start, end = number * length // count, (number + 1) * length // count
        return DocumentPiece(shard, document - int(self._shards[shard]), start, end)

    def lengths(self) -> NDArray[np.int64]:
        """Give the number of tokens of every piece."""
        counts = np.diff(self._starts)
        whole = np.repeat(self._lengths, counts)
        number = np.arange(len(self)) - np.repeat(self._starts[:-1], counts)
        count = np.repeat(counts, counts)
        return (number + 1) * whole // count - number * whole // count


@dataclass(frozen=True, kw_only=True, slots=True)
class Quota:
    """The amount that a step takes from a stream: `documents` pieces, or as many as hold about `tokens` tokens."""

    documents: int | None = None
    tokens: int | None = None


class PieceStream:
    """The endless, seeded order in which steps take the pieces of a corpus.

    With `compose` every `window` successive steps exchange their pieces when the first of them is asked for: `compose`
    gets the pieces of these steps and returns them regrouped, and `state` then holds the regrouped steps.
    """

    def __init__(
        self,
        pieces: Pieces,
        quota: Quota,
        *,
        block: int,
        tag: str,
        compose: Compose | None = None,
        window: int = 1,
    ) -> None:
        self.pieces, self.quota = pieces, quota
        self._block, self._tag = block, tag
        self._compose, self._window = compose, window
        self._epoch: tuple[int, NDArray[np.int64], NDArray[np.int64]] | None = None
        self._composed: tuple[int, list[NDArray[np.int64]]] | None = None
        if quota.tokens is None:
            assert quota.documents is not None
            self.per_epoch = max(1, len(pieces) // quota.documents)
        else:
            self.per_epoch = min(len(pieces), -(-int(pieces.lengths().sum()) // quota.tokens))

    def numbers(self, step: int) -> NDArray[np.int64]:
        """Give the numbers of a step's pieces."""
        if self._compose is None:
            return self._draw_pieces(step)
        epoch, within = divmod(step, self.per_epoch)
        first = epoch * self.per_epoch + within // self._window * self._window
        if self._composed is None or self._composed[0] != first:
            last = min(first + self._window, (epoch + 1) * self.per_epoch)
            self._composed = (first, self._compose([self._draw_pieces(n) for n in range(first, last)]))
        return self._composed[1][step - first]

    def state(self) -> dict[str, Any]:
        """Give the regrouped steps, which a resumed run cannot compute with its changed model; or an empty dict."""
        if self._composed is None:
            return {}
        return {"first": self._composed[0], "steps": [numbers.tolist() for numbers in self._composed[1]]}

    def restore(self, state: dict[str, Any]) -> None:
        if state:
            steps = [np.array(numbers, dtype=np.int64) for numbers in state["steps"]]
            self._composed = (state["first"], steps)

    def _draw_pieces(self, step: int) -> NDArray[np.int64]:
        epoch, within = divmod(step, self.per_epoch)
        if self._epoch is None or self._epoch[0] != epoch:
            order = epoch_order(len(self.pieces), self._block, f"{self._tag}/{epoch}")
            self._epoch = (epoch, order, self._edges(order))
        _, order, edges = self._epoch
        return order[edges[within] : edges[within + 1]]

    def _edges(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the indices in an epoch's order at which its steps begin, and at last the length of the order."""
        if self.quota.documents is not None:
            return np.minimum(np.arange(self.per_epoch + 1) * self.quota.documents, len(order))
        reached = np.cumsum(self.pieces.lengths()[order])
        goals = np.arange(self.per_epoch + 1) * (int(reached[-1]) / self.per_epoch)
        edges = np.searchsorted(reached, goals, side="left")
        edges[0], edges[-1] = 0, len(order)
        # Every step has at least one piece, however long pieces are.
        ahead = np.arange(self.per_epoch + 1)
        return np.minimum(np.maximum(edges, ahead), len(order) - ahead[::-1])


def epoch_order(count: int, block: int, tag: str) -> NDArray[np.int64]:
    """Order the numbers below `count` in shuffled blocks of `block` neighbours; `tag` seeds the cuts and the order.

    The shuffle sorts raw words of a PCG64, whose stream numpy keeps the same in all its versions.
    """
    seed = int.from_bytes(hashlib.sha256(tag.encode()).digest()[:16])
    words = np.random.PCG64(seed)
    first = int(words.random_raw()) % block or block
    cuts = np.concatenate([[0], np.arange(first, count, block), [count]])
    lengths = np.diff(cuts)
    shuffled = np.argsort(words.random_raw(len(lengths)), kind="stable")
    starts, lengths = cuts[:-1][shuffled], lengths[shuffled]
    before = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    return np.arange(count) + np.repeat(starts - before, lengths)


def apportion(count: int, weights: Sequence[float]) -> list[int]:
    """Divide `count` in proportion to the weights, rounding the largest remainders up.

    Raises TrainingRefused if a positive weight would get nothing.
    """
    exact = [count * weight / sum(weights) for weight in weights]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: shares[i] - exact[i])
    for i in by_remainder[: count - sum(shares)]:
        shares[i] += 1
    if any(weight > 0 and not share for weight, share in zip(weights, shares, strict=True)):
        raise TrainingRefused(
            f"a batch of {count} documents is too small for the weights {list(weights)}. "
            "Nothing was trained. Raise --batch"
        )
    return shares


# Corpora as files: tokenised once, checked by their digests, read through memory maps.
#
# A shard is a folder of plain arrays with ``shard.json``; a folder of shards has ``shards.json``, written last.
# Both hold the SHA-256 of the files they describe. Shards belong to one tokenizer and one markup; any other is refused.

SHARDS_FILE, SHARD_FILE = "shards.json", "shard.json"
FORMAT = 1
_ARRAYS = tuple(TokenShard.__dataclass_fields__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardSettings(Tokenising):
    """The settings that shards were made with; other settings give other tokens."""

    method: str
    space_inside: bool
    tokenizer_sha256: str
    format: int = FORMAT

    @classmethod
    def of_run(cls, tokenizer: FactTokenizer, config: TrainConfig) -> ShardSettings:
        return cls(
            **asdict(Tokenising.of(config)),
            method=tokenizer.markup.method,
            space_inside=tokenizer.space_inside,
            tokenizer_sha256=tokenizer_digest(tokenizer),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltShards:
    """The contents of shards in numbers; `kept` counts the shards that an earlier build had finished."""

    documents: int
    tokens: int
    questions: int
    question_tokens: int
    shards: int
    sha256: str
    kept: int = 0


def build_shards(
    documents: Iterable[AnnotatedDocument],
    directory: Path,
    tokenizer: FactTokenizer,
    config: TrainConfig,
    *,
    per_shard: int = 10_000,
) -> Iterator[BuiltShards]:
    """Write the documents as shards of `per_shard` documents; after each shard yield the totals so far.

    An interrupted build is continued: finished shards are kept. Raises `TrainingRefused` if they hold other documents
    or have other settings, and if there are no documents.
    """
    made = ShardSettings.of_run(tokenizer, config)
    directory.mkdir(parents=True, exist_ok=True)
    reading, kept, records = iter(documents), 0, list[dict[str, Any]]()
    while chunk := list(islice(reading, per_shard)):
        target = directory / f"{len(records):05d}"
        record = _read_finished(target, made)
        if record is None:
            record = _write_shard(target, chunk, tokenizer, made)
        elif record["data_sha256"] != data_hash(chunk):
            raise TrainingRefused(f"{target} was made of other documents; name another --out")
        else:
            kept += 1
        records.append(record)
        yield _sum_records(records, kept)
    if not records:
        raise TrainingRefused(
            "there are no documents to make shards of. Nothing was written. Name files that hold some"
        )
    _write_manifest(directory, made, records)


def open_shards(directory: Path, tokenizer: FactTokenizer, config: TrainConfig) -> Corpus:
    """Open a folder of shards as a memory-mapped corpus; all of it is read once, to check its digests.

    Raises `TrainingRefused` for a damaged or unfinished folder, and for one of another tokenizer or other settings.
    """
    record = read_manifest(directory)
    _require_same_settings(directory, record["made"], ShardSettings.of_run(tokenizer, config))
    for name, digest in record["shards"].items():
        _check_shard(directory / name, digest)
    return Corpus(tuple(_map_shard(directory / name) for name in record["shards"]), record["built"]["sha256"])


def read_manifest(directory: Path) -> dict[str, Any]:
    """Read ``shards.json``: settings (``made``), totals (``built``), digests. Raises `TrainingRefused` if unusable."""
    try:
        record: dict[str, Any] = json.loads((directory / SHARDS_FILE).read_text())
    except FileNotFoundError as error:
        raise TrainingRefused(
            f"{directory} holds no finished shards; make them with `colmlm train shards`"
        ) from error
    except ValueError as error:
        raise TrainingRefused(
            f"{directory / SHARDS_FILE} cannot be read ({error}); run `colmlm train shards` again"
        ) from error
    if not (isinstance(record, dict) and {"made", "built", "shards"} <= record.keys()):
        raise TrainingRefused(
            f"{directory / SHARDS_FILE} is no manifest of shards; run `colmlm train shards` again"
        )
    return record


def _write_shard(
    target: Path, documents: Sequence[AnnotatedDocument], tokenizer: FactTokenizer, made: ShardSettings
) -> dict[str, Any]:
    """Write the documents as one shard, whole or not at all, and give the shard's description."""
    shard = shard_of(documents, tokenizer, made)
    scratch = target.with_name(f".{target.name}")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    for name in _ARRAYS:
        np.save(scratch / f"{name}.npy", getattr(shard, name), allow_pickle=False)
    record = {
        "made": asdict(made),
        "data_sha256": data_hash(documents),
        "documents": len(shard),
        "tokens": int(shard.starts[-1]),
        "questions": int(np.count_nonzero(np.diff(shard.question_starts))),
        "question_tokens": len(shard.questions),
        "files": {f"{name}.npy": file_digest(scratch / f"{name}.npy") for name in _ARRAYS},
    }
    (scratch / SHARD_FILE).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")
    shutil.rmtree(target, ignore_errors=True)
    os.replace(scratch, target)
    return record


def _read_finished(target: Path, made: ShardSettings) -> dict[str, Any] | None:
    """Read the description of an earlier build's shard; give None if the shard is missing or damaged."""
    try:
        record: dict[str, Any] = json.loads((target / SHARD_FILE).read_text())
        whole = damaged_file(target, record["files"]) is None
    except (FileNotFoundError, ValueError, KeyError):
        return None
    if not whole:
        return None
    _require_same_settings(target, record["made"], made)
    return record


def _sum_records(records: Sequence[Mapping[str, Any]], kept: int = 0) -> BuiltShards:
    sums = {
        name: sum(int(record[name]) for record in records)
        for name in ("documents", "tokens", "questions", "question_tokens")
    }
    digest = hashlib.sha256("".join(record["data_sha256"] for record in records).encode())
    return BuiltShards(**sums, shards=len(records), kept=kept, sha256=digest.hexdigest())


def _write_manifest(directory: Path, made: ShardSettings, records: Sequence[Mapping[str, Any]]) -> None:
    """Write the manifest ``shards.json``, which marks the folder's shards as complete; refuse any other shard there."""
    names = [f"{number:05d}" for number in range(len(records))]
    found = {path.name for path in directory.glob("[0-9]*")}
    if extra := sorted(found - set(names)):
        raise TrainingRefused(f"{directory / extra[0]} is not of these documents; name another --out")
    manifest = {
        "made": asdict(made),
        "built": asdict(_sum_records(records)),
        "shards": {name: file_digest(directory / name / SHARD_FILE) for name in names},
    }
    unfinished = directory / f".{SHARDS_FILE}"
    unfinished.write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n")
    os.replace(unfinished, directory / SHARDS_FILE)


def _require_same_settings(where: Path, theirs: Mapping[str, Any], ours: ShardSettings) -> None:
    for name, value in asdict(ours).items():
        if theirs.get(name) != value:
            again = "make shards in another folder with `colmlm train shards`"
            options = {"method": "--method "} | {
                field.name: f"--set {field.name}=" for field in fields(Tokenising)
            }
            asked = f"pass {options[name]}{theirs[name]}, or " if name in options and name in theirs else ""
            raise TrainingRefused(
                f"{where} was made with {name} {theirs.get(name)!r}, and here it is {value!r}; {asked}{again}"
            )


def _check_shard(shard: Path, digest: str) -> None:
    if not (shard / SHARD_FILE).is_file() or file_digest(shard / SHARD_FILE) != digest:
        raise TrainingRefused(
            f"{shard / SHARD_FILE} is missing or not the one that was written; run `colmlm train shards` again"
        )
    files = json.loads((shard / SHARD_FILE).read_text())["files"]
    missing = next((name for name in files if not (shard / name).is_file()), None)
    if name := missing or damaged_file(shard, files):
        raise TrainingRefused(
            f"{shard / name} is missing or damaged; remove {shard} and run `colmlm train shards` again"
        )


def _map_shard(shard: Path) -> TokenShard:
    arrays = [name for name in _ARRAYS if name != "text_digests" or (shard / f"{name}.npy").is_file()]
    return TokenShard(
        **{name: np.load(shard / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in arrays}
    )
