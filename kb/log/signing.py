"""Signatures: Ed25519 over canonical JSON, so that whoever has the public key can check evidence offline.

The private key is a file in the home directory, made on first use. It is not in the database, since whoever can
rewrite the log could then sign it again.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from colmlm.kb.errors import ASK_SIGNER, SignatureRefused

KEY_FILE = "signing.key"
_FIELDS = {"algorithm", "public_key", "signature"}


RESTORE_KEY = "Restore the file from a copy of this home."
_NAME_KEY = "Give a public key as `colmlm log export --public-key --output FILE` writes it."


def signing_key(home: Path) -> Ed25519PrivateKey:
    """Read the private key of this home, and create it if there is none.

    Raises `SignatureRefused` where its file is damaged.
    """
    file = home / KEY_FILE
    if not file.exists():
        _create(file)
    content = file.read_bytes()
    try:
        key = Ed25519PrivateKey.from_private_bytes(base64.b64decode(content)[:32])
    except ValueError as error:
        raise SignatureRefused(str(file), "the key file is damaged", RESTORE_KEY) from error
    # Most damaged private keys are valid ones too, so only the stored public half shows the damage.
    if content != _key_file_content(key):
        raise SignatureRefused(str(file), "the key file is damaged", RESTORE_KEY)
    return key


def _key_file_content(key: Ed25519PrivateKey) -> bytes:
    """Give the content of the key file: both halves of the key."""
    return base64.b64encode(key.private_bytes_raw() + key.public_key().public_bytes_raw())


def _create(file: Path) -> None:
    """Write a new key file whole or not at all; two processes that do so at once get the same key."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(_key_file_content(Ed25519PrivateKey.generate()))
        stream.flush()
        os.fsync(stream.fileno())
    with suppress(FileExistsError):
        os.link(temporary, file)
    temporary.unlink()


def sign_bytes(key: Ed25519PrivateKey, statement: Mapping[str, Any]) -> dict[str, Any]:
    """Sign a JSON object, and give it with the field `signature`. It may have no float that JSON writes inexactly."""
    return {
        **statement,
        "signature": {
            "algorithm": "ed25519",
            "public_key": encode_base64(key.public_key().public_bytes_raw()),
            "signature": encode_base64(key.sign(_canonical(statement))),
        },
    }


def verify_signature(signed: Mapping[str, Any], what: str = "document", remedy: str = ASK_SIGNER) -> KeyNames:
    """Check the signature of a JSON object and give the names of its key. Errors call it `what` and end in `remedy`.

    Raises `SignatureRefused` unless every byte is as it was signed.
    """
    signature = signed.get("signature")
    if not isinstance(signature, dict) or set(signature) != _FIELDS or signature["algorithm"] != "ed25519":
        raise SignatureRefused(what, "it has no Ed25519 signature in the form of this version", remedy)
    statement = {name: value for name, value in signed.items() if name != "signature"}
    try:
        public = base64.b64decode(signature["public_key"], validate=True)
        if any(
            encode_base64(base64.b64decode(signature[name])) != signature[name]
            for name in _FIELDS - {"algorithm"}
        ):
            raise ValueError("base64 in another spelling")
        key = Ed25519PublicKey.from_public_bytes(public)
        key.verify(base64.b64decode(signature["signature"], validate=True), _canonical(statement))
    except (InvalidSignature, ValueError, TypeError, binascii.Error) as error:
        raise SignatureRefused(what, "its signature does not match its content", remedy) from error
    return key_names(key)


@dataclass(frozen=True, slots=True)
class KeyNames:
    """The names of a public key: `keyid`, the SHA-256 of its SPKI, and the shorter `fingerprint`."""

    keyid: str
    fingerprint: str

    def among(self, trusted: Collection[str]) -> bool:
        """Tell whether this key is among the trusted ones, by its key id or its fingerprint."""
        return self.keyid in trusted or self.fingerprint in trusted


def key_names(public: Ed25519PublicKey) -> KeyNames:
    """Give the key id and the fingerprint of a public key."""
    spki = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return KeyNames(hashlib.sha256(spki).hexdigest(), fingerprint(public.public_bytes_raw()))


def write_pem(public: Ed25519PublicKey) -> str:
    """Write the public key as PEM."""
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def read_pem(text: str, what: str, remedy: str = _NAME_KEY) -> Ed25519PublicKey:
    """Read the public key of a PEM text. Raises `SignatureRefused` unless it is an Ed25519 key."""
    try:
        public = load_pem_public_key(text.encode())
    except (ValueError, UnicodeError, UnsupportedAlgorithm) as error:
        raise SignatureRefused(what, "it has no public key in PEM", remedy) from error
    if not isinstance(public, Ed25519PublicKey):
        raise SignatureRefused(what, "its public key is not an Ed25519 key", remedy)
    return public


def own_key_names(home: Path) -> KeyNames | None:
    """Give the names of this home's key; None where it has not signed anything yet."""
    return key_names(signing_key(home).public_key()) if (home / KEY_FILE).exists() else None


def require_signer(key: str, trusted: Collection[str], what: str) -> None:
    """Raise `SignatureRefused` unless the fingerprint `key` is among the trusted ones."""
    if key not in trusted:
        cause = f"it was signed by key {key}, not by {' or '.join(sorted(trusted))}"
        raise SignatureRefused(what, cause, f"If you trust that key, pass --key {key}.")


def fingerprint(public_key: bytes) -> str:
    """Give the fingerprint of a raw public key: 16 hex digits, to compare by eye with one known from elsewhere."""
    return hashlib.sha256(public_key).hexdigest()[:16]


def _canonical(statement: Mapping[str, Any]) -> bytes:
    return json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def encode_base64(data: bytes) -> str:
    """Encode bytes as base64 text."""
    return base64.b64encode(data).decode()


# Envelopes: signed statements in a form that other tools read, DSSE around an in-toto Statement.
#
# The signature is Ed25519 over DSSE's pre-authentication encoding of the payload. A statement names its signer's public
# key too, so that a reader who knows that key's id (the SHA-256 of its SPKI) needs nothing else. The envelope alone
# proves nothing of its signer, since anybody can sign with a key of their own: compare the id with one known from
# elsewhere.

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_ENVELOPE_FIELDS = {"payloadType", "payload", "signatures"}


@dataclass(frozen=True, slots=True)
class OpenedEnvelope:
    """The content of an envelope whose signature is valid; `names` are those of the key that signed it."""

    predicate_type: str
    subject: Mapping[str, Any]
    predicate: Mapping[str, Any]
    names: KeyNames


def close_envelope(
    key: Ed25519PrivateKey, predicate_type: str, name: str, sha256: str, predicate: Mapping[str, Any]
) -> dict[str, Any]:
    """Sign an in-toto statement about one subject, its name and SHA-256, and give the DSSE envelope around it."""
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": sha256}}],
        "predicateType": predicate_type,
        "predicate": {**predicate, "signer": {"public_key": write_pem(key.public_key())}},
    }
    payload = _canonical(statement)
    signature = {
        "keyid": key_names(key.public_key()).keyid,
        "sig": encode_base64(key.sign(encode_for_signing(PAYLOAD_TYPE, payload))),
    }
    return {"payloadType": PAYLOAD_TYPE, "payload": encode_base64(payload), "signatures": [signature]}


def encode_for_signing(payload_type: str, payload: bytes) -> bytes:
    """Encode a payload as DSSE's pre-authentication encoding, the bytes that are signed."""
    return b"DSSEv1 %d %s %d %s" % (len(payload_type.encode()), payload_type.encode(), len(payload), payload)


def is_envelope(value: Mapping[str, Any]) -> bool:
    """Tell whether a JSON object is meant as a DSSE envelope, and not as evidence of an earlier program version."""
    return "payload" in value


def open_envelope(envelope: Mapping[str, Any], what: str) -> OpenedEnvelope:
    """Read a signed envelope. Raises `SignatureRefused` unless every byte is as the key that it names signed it."""
    try:
        if set(envelope) != _ENVELOPE_FIELDS or envelope["payloadType"] != PAYLOAD_TYPE:
            raise ValueError("another payload")
        (signature,) = envelope["signatures"]
        payload, signed = _decode_base64(envelope["payload"]), _decode_base64(signature["sig"])
        statement = json.loads(payload)
        public = read_pem(statement["predicate"]["signer"]["public_key"], what, ASK_SIGNER)
        names = key_names(public)
        if set(signature) != {"keyid", "sig"} or signature["keyid"] != names.keyid:
            raise ValueError("another key")
        public.verify(signed, encode_for_signing(PAYLOAD_TYPE, payload))
        if statement["_type"] != STATEMENT_TYPE:
            raise ValueError("another statement")
        (subject,) = statement["subject"]
        return OpenedEnvelope(statement["predicateType"], dict(subject), statement["predicate"], names)
    except InvalidSignature as error:
        raise SignatureRefused(what, "its signature does not match its content") from error
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise SignatureRefused(
            what, "it is damaged, or no signed statement in the form of this version"
        ) from error


def _decode_base64(text: str) -> bytes:
    """Decode base64, and raise `ValueError` for any spelling but the canonical one."""
    data = base64.b64decode(text, validate=True)
    if encode_base64(data) != text:
        raise ValueError("base64 in another spelling")
    return data
