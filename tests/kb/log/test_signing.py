"""Signatures: evidence holds to the byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmlm.kb.errors import SignatureRefused
from colmlm.kb.log.signing import KEY_FILE, key_names, sign_bytes, signing_key, verify_signature

STATEMENT = {"seq": 7, "hash": "ab" * 32, "facts": [1, 2], "note": "Zürich"}


def test_a_signed_statement_survives_json_and_names_its_signer(tmp_path: Path):
    key = signing_key(tmp_path / "home")
    signed = json.loads(json.dumps(sign_bytes(key, STATEMENT)))
    assert verify_signature(signed) == key_names(key.public_key())


def test_the_key_of_a_home_stays_and_is_private(tmp_path: Path):
    first, second = signing_key(tmp_path), signing_key(tmp_path)
    assert first.private_bytes_raw() == second.private_bytes_raw()
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [tmp_path / KEY_FILE]


def test_another_home_has_another_key(tmp_path: Path):
    signed = sign_bytes(signing_key(tmp_path / "a"), STATEMENT)
    other = sign_bytes(signing_key(tmp_path / "b"), STATEMENT)
    with pytest.raises(SignatureRefused):
        verify_signature(
            {**signed, "signature": {**signed["signature"], "public_key": other["signature"]["public_key"]}}
        )


@pytest.mark.parametrize("name", [*STATEMENT, "signature"])
def test_any_change_to_a_statement_is_seen(tmp_path: Path, name: str):
    signed = sign_bytes(signing_key(tmp_path), STATEMENT)
    with pytest.raises(SignatureRefused):
        verify_signature({**signed, name: "other"})
    with pytest.raises(SignatureRefused):
        verify_signature({key: value for key, value in signed.items() if key != name})
    with pytest.raises(SignatureRefused):
        verify_signature({**signed, "more": 1})


@given(data=st.dictionaries(st.text(max_size=3), st.one_of(st.none(), st.text(max_size=5), st.integers())))
def test_what_was_never_signed_is_refused(data: dict[str, object]):
    with pytest.raises(SignatureRefused):
        verify_signature(data)
    with pytest.raises(SignatureRefused):
        verify_signature({"signature": {"algorithm": "ed25519", "public_key": data, "signature": ""}})


def test_a_damaged_key_file_is_refused(tmp_path: Path):
    signing_key(tmp_path)
    file = tmp_path / KEY_FILE
    file.write_text(file.read_text()[:-8])
    with pytest.raises(SignatureRefused, match="damaged"):
        signing_key(tmp_path)
