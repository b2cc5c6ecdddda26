"""Corpora as files: tokenised once, checked by their digests, read through memory maps.

A shard is a folder of plain arrays with ``shard.json``; a folder of shards has ``shards.json``, which is written last.
Both hold the SHA-256 of the files they describe. Shards belong to one tokenizer and one markup; with any other they are
refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.lm.checkpoint import tokenizer_digest
from colmlm.model.lm.config import damaged_file, file_digest
from colmlm.model.text.tokens import FactTokenizer
from colmlm.model.training.config import TrainConfig, TrainingRefused
from colmlm.model.training.corpora import Corpus, Tokenising, TokenShard, data_hash, shard_of

SHARDS_FILE, SHARD_FILE = "shards.json", "shard.json"
FORMAT = 1
_ARRAYS = tuple(TokenShard.__dataclass_fields__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Made(Tokenising):
    """The settings that shards were made with; other settings give other tokens."""

    method: str
    space_inside: bool
    tokenizer_sha256: str
    format: int = FORMAT

    @classmethod
    def by(cls, tokenizer: FactTokenizer, config: TrainConfig) -> Made:
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
    """Write the documents as shards; yield the totals after each shard, and at the end those of all.

    An interrupted build is continued: finished shards are kept if they hold the same documents with the same settings.
    Raises `TrainingRefused` if they do not.
    """
    made = Made.by(tokenizer, config)
    directory.mkdir(parents=True, exist_ok=True)
    reading, kept, records = iter(documents), 0, list[dict[str, Any]]()
    while chunk := list(islice(reading, per_shard)):
        target = directory / f"{len(records):05d}"
        record = _read_finished(target, made)
        if record is None:
            record = _write_shard(target, chunk, tokenizer, made)
        elif record["data_sha256"] != data_hash(chunk):
            raise TrainingRefused(f"{target} was made of other documents; name another folder")
        else:
            kept += 1
        records.append(record)
        yield _sum_records(records, kept)
    if not records:
        raise TrainingRefused("there are no documents to make shards of")
    _seal(directory, made, records)


def open_shards(directory: Path, tokenizer: FactTokenizer, config: TrainConfig) -> Corpus:
    """Open a folder of shards as a memory-mapped corpus; all of it is read once, to check its digests.

    Raises `TrainingRefused` for a damaged or unfinished folder, and for one of another tokenizer or other settings.
    """
    record = read_manifest(directory)
    _same_making(directory, record["made"], Made.by(tokenizer, config))
    for name, digest in record["shards"].items():
        _check_shard(directory / name, digest)
    return Corpus(tuple(_map_shard(directory / name) for name in record["shards"]), record["built"]["sha256"])


def read_manifest(directory: Path) -> dict[str, Any]:
    """Read ``shards.json``: ``made``, ``built`` and the digest of each shard's description."""
    try:
        record: dict[str, Any] = json.loads((directory / SHARDS_FILE).read_text())
    except FileNotFoundError as error:
        raise TrainingRefused(
            f"{directory} holds no finished shards; make them with `colmlm train shards`"
        ) from error
    except ValueError as error:
        raise TrainingRefused(f"{directory / SHARDS_FILE} cannot be read ({error})") from error
    if not (isinstance(record, dict) and {"made", "built", "shards"} <= record.keys()):
        raise TrainingRefused(f"{directory / SHARDS_FILE} is no manifest of shards")
    return record


def _write_shard(
    target: Path, documents: Sequence[AnnotatedDocument], tokenizer: FactTokenizer, made: Made
) -> dict[str, Any]:
    """Write a shard whole or not at all; give its description."""
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


def _read_finished(target: Path, made: Made) -> dict[str, Any] | None:
    """Read the description of an earlier build's shard; give None if there is none, or it is damaged."""
    try:
        record: dict[str, Any] = json.loads((target / SHARD_FILE).read_text())
        whole = damaged_file(target, record["files"]) is None
    except (FileNotFoundError, ValueError, KeyError):
        return None
    if not whole:
        return None
    _same_making(target, record["made"], made)
    return record


def _sum_records(records: Sequence[Mapping[str, Any]], kept: int = 0) -> BuiltShards:
    sums = {
        name: sum(int(record[name]) for record in records)
        for name in ("documents", "tokens", "questions", "question_tokens")
    }
    digest = hashlib.sha256("".join(record["data_sha256"] for record in records).encode())
    return BuiltShards(**sums, shards=len(records), kept=kept, sha256=digest.hexdigest())


def _seal(directory: Path, made: Made, records: Sequence[Mapping[str, Any]]) -> None:
    """Write the manifest, which says that the shards are complete."""
    names = [f"{number:05d}" for number in range(len(records))]
    found = {path.name for path in directory.glob("[0-9]*")}
    if extra := sorted(found - set(names)):
        raise TrainingRefused(f"{directory / extra[0]} is not of these documents; name another folder")
    manifest = {
        "made": asdict(made),
        "built": asdict(_sum_records(records)),
        "shards": {name: file_digest(directory / name / SHARD_FILE) for name in names},
    }
    unfinished = directory / f".{SHARDS_FILE}"
    unfinished.write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n")
    os.replace(unfinished, directory / SHARDS_FILE)


def _same_making(where: Path, theirs: Mapping[str, Any], ours: Made) -> None:
    for name, value in asdict(ours).items():
        if theirs.get(name) != value:
            raise TrainingRefused(
                f"{where} was made with {name} {theirs.get(name)!r}, and here it is {value!r}; "
                "make the shards again in another folder, or ask for what they have"
            )


def _check_shard(shard: Path, digest: str) -> None:
    if not (shard / SHARD_FILE).is_file() or file_digest(shard / SHARD_FILE) != digest:
        raise TrainingRefused(
            f"{shard / SHARD_FILE} is missing or not the one that was written; make it again"
        )
    files = json.loads((shard / SHARD_FILE).read_text())["files"]
    missing = next((name for name in files if not (shard / name).is_file()), None)
    if name := missing or damaged_file(shard, files):
        raise TrainingRefused(f"{shard / name} is missing or damaged; remove {shard} and make it again")


def _map_shard(shard: Path) -> TokenShard:
    return TokenShard(
        **{name: np.load(shard / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in _ARRAYS}
    )
