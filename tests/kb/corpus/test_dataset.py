"""A corpus as a dataset: files of bounded size, a card that YAML reads, and a folder that is whole or not there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from colmlm.kb.corpus import parquet
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.corpus.parquet import MOST_CHARACTERS, read_parquet, write_dataset
from tests.kb.corpora import CHILE, PERU


def test_a_file_ends_where_it_has_characters_enough(tmp_path: Path) -> None:
    long = replace(CHILE, external_id="long", facts=(), text="x" * MOST_CHARACTERS)
    assert write_dataset([PERU, long, CHILE], tmp_path / "made", "atlas") == 3
    files = sorted((tmp_path / "made" / parquet.DATA).iterdir())
    ids = [[p.document.external_id for p in read_parquet(file) if p.document is not None] for file in files]
    assert ids == [["peru", "long"], ["chile"]]


@pytest.mark.parametrize("licence", ["CC BY-SA 4.0", "ours: all rights", "# none", '"quoted"'])
def test_any_licence_leaves_the_card_one_that_is_read(tmp_path: Path, licence: str) -> None:
    write_dataset([replace(PERU, licence=licence)], tmp_path / "made", "atlas")
    card = (tmp_path / "made" / parquet.CARD_FILE).read_text()
    assert yaml.safe_load(card.split("---")[1])["license"] == licence.lower().replace(" ", "-")
    assert f"{licence} (1)" in card


def test_what_fails_on_the_way_leaves_no_folder_and_the_next_run_makes_it(tmp_path: Path) -> None:
    def failing() -> Iterator[AnnotatedDocument]:
        yield PERU
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        write_dataset(failing(), tmp_path / "made", "atlas")
    assert not (tmp_path / "made").exists()
    assert write_dataset([PERU], tmp_path / "made", "atlas") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_a_folder_that_holds_something_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(FileExistsError):
        write_dataset([PERU], tmp_path, "atlas")
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


def test_a_corpus_without_documents_is_a_dataset_without_rows(tmp_path: Path) -> None:
    assert write_dataset([], tmp_path / "made", "atlas") == 0
    (file,) = (tmp_path / "made" / parquet.DATA).iterdir()
    assert list(read_parquet(file)) == []
