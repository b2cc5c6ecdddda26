"""Files travel in parts that are checked, and come back in files that are small enough."""

from __future__ import annotations

import random
import zipfile
from pathlib import Path

import pytest

from colmlm.lab.half_hour.parcels import MOST_FILES, ParcelError, bring_back, pack, receive


def noise(path: Path, size: int, seed: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(random.Random(seed).randbytes(size))
    return path


def test_the_last_part_makes_the_store(tmp_path: Path):
    folder = noise(tmp_path / "package" / "code.py", 3000).parent
    noise(folder / "__pycache__" / "code.pyc", 10)
    weights = noise(tmp_path / "weights", 9000)
    parts = pack({"site/package": folder, "data/weights": weights}, tmp_path / "out", part_bytes=4000)
    assert len(parts) == 4 and max(part.stat().st_size for part in parts) <= 4000
    store = tmp_path / "store"
    for number in (2, 0, 3, 1):
        missing = receive(parts[number], store)
        assert (not missing) == (number == 1) == (store / "data").is_dir()
    assert (store / "data" / "weights").read_bytes() == weights.read_bytes()
    assert [path.name for path in (store / "site" / "package").iterdir()] == ["code.py"]


def test_a_damaged_part_is_refused_and_can_be_sent_again(tmp_path: Path):
    (part,) = pack({"a": noise(tmp_path / "a", 100)}, tmp_path / "out")
    whole = part.read_bytes()
    part.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ParcelError, match="send it again"):
        receive(part, tmp_path / "store")
    part.write_bytes(whole)
    assert receive(part, tmp_path / "store") == []


def test_what_comes_back_is_cut_to_files_that_join_again(tmp_path: Path):
    made, back = noise(tmp_path / "made", 2500), tmp_path / "back"
    assert bring_back({"made": made}, back, file_bytes=1000) == []
    pieces = sorted(back.iterdir())
    assert [piece.name for piece in pieces] == ["made.zip.1", "made.zip.2", "made.zip.3"]
    joined = tmp_path / "joined.zip"
    joined.write_bytes(b"".join(piece.read_bytes() for piece in pieces))
    assert zipfile.ZipFile(joined).read("made") == made.read_bytes()


def test_what_does_not_fit_is_left_out_and_named(tmp_path: Path):
    files = {f"f{n}": noise(tmp_path / f"f{n}", 500, n) for n in range(MOST_FILES + 1)}
    back = tmp_path / "back"
    assert bring_back(files, back) == [f"f{MOST_FILES}"]
    assert len(list(back.iterdir())) == MOST_FILES
    assert bring_back({"large": noise(tmp_path / "large", 2500)}, tmp_path / "other", file_bytes=300) == [
        "large"
    ]
    assert not list((tmp_path / "other").iterdir())
