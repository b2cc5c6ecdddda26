from __future__ import annotations

from pathlib import Path

import pytest

from colmlm.cli.composition.readers import confidence_of_reader, reader_at, verifying_reader_at
from colmlm.cli.settings import UserSettings
from colmlm.model.annotate.checkpoint import RELEASED_READER
from colmlm.model.annotate.config import AnnotatorError


def test_a_released_reader_may_be_named_alone_and_another_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    large = UserSettings(reader=Path("reader-mpnet"))
    assert reader_at(UserSettings(), None) == RELEASED_READER
    assert reader_at(large, None) == verifying_reader_at(large) == RELEASED_READER.parent / "reader-mpnet"
    assert reader_at(large, tmp_path / "mine") == tmp_path / "mine"
    (tmp_path / "reader-mpnet").mkdir()
    assert reader_at(large, None) == Path("reader-mpnet")


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(AnnotatorError, match=r"there is no reader in .*/typo"):
        confidence_of_reader(tmp_path / "typo")
