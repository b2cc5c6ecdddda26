"""Records of what weights were trained on: which texts are the same, and what a record is not read from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colmlm.kb.corpus.training_record import RECORD_FILE, TrainingRecord, find_record, text_digest

RECORD = TrainingRecord.begin(base="smollm2-135m").with_texts(
    map(text_digest, ("Lima lies\nin Peru.", "Caf\u00e9"))
)


@pytest.mark.parametrize("text", ["Lima lies in Peru.", " Lima  lies\tin\r\nPeru.\n", "Cafe\u0301"])
def test_white_space_and_the_form_of_accents_make_no_other_text(text: str) -> None:
    assert RECORD.has_text(text)


@pytest.mark.parametrize("text", ["lima lies in Peru.", "Lima lies in Peru", "", "Cafe"])
def test_another_text_is_not_listed(text: str) -> None:
    assert not RECORD.has_text(text)


def test_a_record_is_read_back_and_goes_on_with_its_salt() -> None:
    again = TrainingRecord.read(RECORD.content)
    assert again == RECORD and again.sha256 == RECORD.sha256
    more = again.with_texts([text_digest("Cork")], "some answers").with_texts(
        [text_digest("Cork")], "some answers"
    )
    assert (more.count, more.salt, more.bases) == (3, RECORD.salt, RECORD.bases)
    assert more.unknown == ("some answers",) and more.has_text("Caf\u00e9")
    assert RECORD.digests[:16] not in TrainingRecord.begin().with_texts([text_digest("Caf\u00e9")]).digests


def test_two_records_of_one_text_have_nothing_in_common() -> None:
    one, other = (TrainingRecord.begin().with_texts([text_digest("Cork")]) for _ in range(2))
    assert one.digests != other.digests and one.has_text("Cork") and other.has_text("Cork")


_SAID = json.loads(RECORD.content)


@pytest.mark.parametrize(
    "said",
    [
        [], {}, "no", _SAID | {"format": 2}, _SAID | {"count": 3}, _SAID | {"digests": "!"}, _SAID | {"bases": 1},
        _SAID | {"digest": _SAID["digest"] | {"n": 1 << 40}}, _SAID | {"digest": _SAID["digest"] | {"n": 1000}},
        _SAID | {"digest": _SAID["digest"] | {"salt": "xy"}}, _SAID | {"digest": _SAID["digest"] | {"r": 1 << 20}},
    ],
)  # fmt: skip
def test_what_is_no_record_is_refused(said: object, tmp_path: Path) -> None:
    content = json.dumps(said).encode()
    with pytest.raises(ValueError) as refused:
        TrainingRecord.read(content)
    assert "Error" not in str(refused.value) and "indices" not in str(refused.value)
    (tmp_path / RECORD_FILE).write_bytes(content)
    (tmp_path / "colmlm.json").write_text(json.dumps({"name": "one", "digests": {RECORD_FILE: "0" * 64}}))
    assert find_record(tmp_path).fault == "its record was altered"


@pytest.mark.parametrize("description", ["", "[]", "{}", '{"name": "one", "digests": 3}'])
def test_a_description_that_cannot_be_read_gives_no_record(description: str, tmp_path: Path) -> None:
    (tmp_path / "colmlm.json").write_text(description)
    assert find_record(tmp_path).fault == "its description cannot be read"
    assert find_record(tmp_path / "nothing").fault == "its files are not here"
