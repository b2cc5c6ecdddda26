"""Shards hold what tokenising gives, an interrupted build is continued, and damaged shards are refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.corpus.training_record import TrainingRecord
from colmlm.model.text.tokens import FactTokenizer
from colmlm.model.training.config import TrainConfig, TrainingRefused
from colmlm.model.training.corpora import (
    Corpus,
    TokenShard,
    build_shards,
    open_shards,
    read_manifest,
    tokenise,
)
from colmlm.model.training.steps import Steps
from tests.kb.corpora import PERU, document, numbered
from tests.tiny import byte_tokenizer, merging_tokenizer

CONFIG = TrainConfig(batch_documents=4, block=2, max_length=64, title_fraction=0.5)
DOCUMENTS = [
    PERU,
    AnnotatedDocument("titled", "Nothing is asked of naïve 🏔️ <FACT> texts.", title="A title"),
    *numbered(7),
    document("long", "so " * 90, ("<FACT>x</FACT>", "What is <FACT-q>?"), " and ", ("é 🏔️", "Why?"), "."),
]


@pytest.fixture(scope="module", params=["bytes", "merging"])
def tokenizer(request: pytest.FixtureRequest) -> FactTokenizer:
    return byte_tokenizer() if request.param == "bytes" else merging_tokenizer()


def build(directory: Path, tokenizer: FactTokenizer, documents: list[AnnotatedDocument] = DOCUMENTS) -> int:
    """Builds shards and gives how many were kept."""
    *_, last = build_shards(documents, directory, tokenizer, CONFIG, per_shard=3)
    return last.kept


def arrays(corpus: Corpus) -> list[dict[str, list[int]]]:
    return [{n: getattr(s, n).tolist() for n in TokenShard.__dataclass_fields__} for s in corpus.shards]


def test_a_shard_gives_documents_questions_and_values_back(tokenizer: FactTokenizer):
    (shard,) = tokenise(DOCUMENTS, tokenizer, replace(CONFIG, title_fraction=0.0)).shards
    assert len(shard) == len(DOCUMENTS)
    for number, doc in enumerate(DOCUMENTS):
        whole = tokenizer.document(doc, with_title=False)
        encoded, facts = shard.encoded_piece(number, 0, len(whole))
        assert encoded == whole and len(facts) == len(doc.facts)
        for fact, span in zip(facts, doc.facts, strict=True):
            assert shard.question(fact) == tokenizer.question(span.question or "").ids
            assert tokenizer.decode(shard.value(number, fact)).strip() == span.value
        for cut in range(len(whole) + 1):
            parts = [shard.encoded_piece(number, 0, cut)[0], shard.encoded_piece(number, cut, len(whole))[0]]
            assert parts[0].ids + parts[1].ids == whole.ids
            assert parts[0].masked + parts[1].masked == whole.masked
            assert (
                *parts[0].fact_positions,
                *(cut + p for p in parts[1].fact_positions),
            ) == whole.fact_positions


def test_the_share_of_titles_is_drawn_by_document_and_not_by_order(tokenizer: FactTokenizer):
    titled = [replace(d, title=f"Title {d.external_id}") for d in numbered(60)]
    config = replace(CONFIG, title_fraction=0.5)
    (shard,), (other,) = (tokenise(some, tokenizer, config).shards for some in (titled, titled[::-1]))
    lengths, reverse = np.diff(shard.starts), np.diff(other.starts)
    assert lengths.tolist() == reverse[::-1].tolist()
    bare = np.diff(tokenise(numbered(60), tokenizer, config).shards[0].starts)
    assert 15 < (lengths > bare).sum() < 45


def test_shards_read_from_files_are_those_in_memory(tokenizer: FactTokenizer, tmp_path: Path):
    assert build(tmp_path, tokenizer) == 0
    corpus = open_shards(tmp_path, tokenizer, CONFIG)
    parts = [DOCUMENTS[n : n + 3] for n in range(0, len(DOCUMENTS), 3)]
    expected = [arrays(tokenise(part, tokenizer, CONFIG))[0] for part in parts]
    assert arrays(corpus) == expected
    assert all(isinstance(shard.ids, np.memmap) for shard in corpus.shards)
    built = read_manifest(tmp_path)["built"]
    assert built["documents"] == corpus.num_documents == len(DOCUMENTS)
    assert (built["tokens"], built["questions"]) == (corpus.num_tokens, corpus.num_questions)
    assert built["question_tokens"] == sum(len(shard.questions) for shard in corpus.shards)


def test_steps_from_shards_are_those_from_memory(tokenizer: FactTokenizer, tmp_path: Path):
    build(tmp_path, tokenizer)
    mapped = Steps([open_shards(tmp_path, tokenizer, CONFIG)], tokenizer, CONFIG)
    inside = Steps([tokenise(DOCUMENTS, tokenizer, CONFIG)], tokenizer, CONFIG)
    assert list(islice(mapped, 9)) == list(islice(inside, 9))


def test_a_build_that_was_cut_off_goes_on(tokenizer: FactTokenizer, tmp_path: Path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    build(whole, tokenizer)
    list(islice(build_shards(DOCUMENTS, cut, tokenizer, CONFIG, per_shard=3), 2))
    (cut / ".00002").mkdir()  # the shard that was being written when the build was killed
    (cut / ".00002" / "ids.npy").write_bytes(b"half")
    with pytest.raises(TrainingRefused, match="no finished shards"):
        open_shards(cut, tokenizer, CONFIG)
    before = (cut / "00001" / "ids.npy").stat().st_mtime_ns
    assert build(cut, tokenizer) == 2
    assert (cut / "00001" / "ids.npy").stat().st_mtime_ns == before
    assert read_manifest(cut) == read_manifest(whole)


def test_a_damaged_shard_of_a_build_is_made_again(tokenizer: FactTokenizer, tmp_path: Path):
    build(tmp_path, tokenizer)
    (tmp_path / "00001" / "ids.npy").write_bytes(b"damaged")
    assert build(tmp_path, tokenizer) == 3
    open_shards(tmp_path, tokenizer, CONFIG)


def test_other_documents_are_refused(tokenizer: FactTokenizer, tmp_path: Path):
    build(tmp_path, tokenizer)
    with pytest.raises(TrainingRefused, match="made of other documents"):
        build(tmp_path, tokenizer, DOCUMENTS[1:])
    with pytest.raises(TrainingRefused, match="not of these documents"):
        build(tmp_path, tokenizer, DOCUMENTS[:3])
    with pytest.raises(TrainingRefused, match="no documents"):
        list(build_shards([], tmp_path / "none", tokenizer, CONFIG))


@pytest.mark.parametrize(
    "config, says",
    [
        (replace(CONFIG, title_fraction=1.0), "title_fraction 0.5, and here it is 1.0"),
        (replace(CONFIG, max_question_length=64), "max_question_length"),
    ],
)
def test_shards_of_other_settings_are_refused(tmp_path: Path, config: TrainConfig, says: str):
    tokenizer = byte_tokenizer()
    build(tmp_path, tokenizer)
    with pytest.raises(TrainingRefused, match=says):
        open_shards(tmp_path, tokenizer, config)
    with pytest.raises(TrainingRefused, match=says):
        list(build_shards(DOCUMENTS, tmp_path, tokenizer, config, per_shard=3))


def test_shards_of_another_tokenizer_are_refused(tmp_path: Path):
    build(tmp_path, byte_tokenizer())
    with pytest.raises(TrainingRefused, match="tokenizer_sha256"):
        open_shards(tmp_path, merging_tokenizer(), CONFIG)
    with pytest.raises(TrainingRefused, match="space_inside"):
        open_shards(tmp_path, byte_tokenizer(space_inside=False), CONFIG)


def test_whatever_is_damaged_is_noticed(tmp_path: Path):
    tokenizer = byte_tokenizer()
    build(tmp_path / "good", tokenizer, DOCUMENTS[:3])
    files = sorted(p.relative_to(tmp_path / "good") for p in (tmp_path / "good").rglob("*") if p.is_file())
    assert len(files) == 2 + len(TokenShard.__dataclass_fields__)
    for number, file in enumerate(file for file in files if file.name != "shards.json"):
        for spoil in ("flip", "cut", "remove"):
            copy = shutil.copytree(tmp_path / "good", tmp_path / f"{number}-{spoil}")
            data = bytearray((copy / file).read_bytes())
            data[len(data) // 2] ^= 1
            (copy / file).write_bytes(data if spoil == "flip" else data[:-1])
            if spoil == "remove":
                (copy / file).unlink()
            with pytest.raises(TrainingRefused, match=r"damaged|not the one that was written"):
                open_shards(copy, tokenizer, CONFIG)


def test_shards_know_the_texts_of_their_documents_and_those_of_an_older_release_do_not(tmp_path: Path):
    tokenizer = byte_tokenizer()
    build(tmp_path, tokenizer, DOCUMENTS)
    mapped = open_shards(tmp_path, tokenizer, CONFIG)
    record = mapped.add_to_record(TrainingRecord.begin())
    assert all(record.has_text(document.text) for document in DOCUMENTS) and not record.unknown
    older = [replace(shard, text_digests=None) if n == 0 else shard for n, shard in enumerate(mapped.shards)]
    partly = replace(mapped, shards=tuple(older)).add_to_record(TrainingRecord.begin())
    assert 0 < partly.count < record.count and partly.unknown == ("shards of an older release",)


def test_a_folder_that_is_no_folder_of_shards_is_refused(tmp_path: Path):
    for content in ("[]", "{}", "{", json.dumps({"made": {}, "built": {}})):
        (tmp_path / "shards.json").write_text(content)
        with pytest.raises(TrainingRefused):
            read_manifest(tmp_path)
