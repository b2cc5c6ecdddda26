"""Envelopes: signed statements in a form that other tools read, DSSE around an in-toto Statement.

The signature is Ed25519 over DSSE's pre-authentication encoding of the payload. A statement names its signer's public
key too, so that a reader who knows that key's id (the SHA-256 of its SPKI) needs nothing else. The envelope alone
proves nothing of its signer, since anybody can sign with a key of their own: compare the id with one known from
elsewhere.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from colmlm.kb.errors import SignatureRefused
from colmlm.kb.log import signing

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_FIELDS = {"payloadType", "payload", "signatures"}


@dataclass(frozen=True, slots=True)
class OpenedEnvelope:
    """The content of an envelope whose signature is valid; `names` are those of the key that signed it."""

    predicate_type: str
    subject: Mapping[str, Any]
    predicate: Mapping[str, Any]
    names: signing.KeyNames


def close_envelope(
    key: Ed25519PrivateKey, predicate_type: str, name: str, sha256: str, predicate: Mapping[str, Any]
) -> dict[str, Any]:
    """Makes a signed statement about one subject, given by name and SHA-256."""
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": sha256}}],
        "predicateType": predicate_type,
        "predicate": {**predicate, "signer": {"public_key": signing.as_pem(key.public_key())}},
    }
    payload = json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    signature = {
        "keyid": signing.names_of(key.public_key()).keyid,
        "sig": signing.in_base64(key.sign(encoded(PAYLOAD_TYPE, payload))),
    }
    return {"payloadType": PAYLOAD_TYPE, "payload": signing.in_base64(payload), "signatures": [signature]}


def encoded(payload_type: str, payload: bytes) -> bytes:
    """Gives DSSE's pre-authentication encoding, the bytes that are signed."""
    return b"DSSEv1 %d %s %d %s" % (len(payload_type.encode()), payload_type.encode(), len(payload), payload)


def is_envelope(value: Mapping[str, Any]) -> bool:
    """Says whether this claims to be an envelope, and not evidence in an earlier form."""
    return "payload" in value


def open_envelope(envelope: Mapping[str, Any], what: str) -> OpenedEnvelope:
    """Reads an envelope. Raises `SignatureRefused` unless every byte is as the key that it names signed it."""
    try:
        if set(envelope) != _FIELDS or envelope["payloadType"] != PAYLOAD_TYPE:
            raise ValueError("another payload")
        (signature,) = envelope["signatures"]
        payload, signed = _bytes(envelope["payload"]), _bytes(signature["sig"])
        statement = json.loads(payload)
        public = signing.from_pem(statement["predicate"]["signer"]["public_key"], what)
        names = signing.names_of(public)
        if set(signature) != {"keyid", "sig"} or signature["keyid"] != names.keyid:
            raise ValueError("another key")
        public.verify(signed, encoded(PAYLOAD_TYPE, payload))
        if statement["_type"] != STATEMENT_TYPE:
            raise ValueError("another statement")
        (subject,) = statement["subject"]
        return OpenedEnvelope(statement["predicateType"], dict(subject), statement["predicate"], names)
    except InvalidSignature as error:
        raise SignatureRefused(what, "its signature does not fit what it says") from error
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise SignatureRefused(what, "it is no signed statement that this program knows") from error


def _bytes(text: str) -> bytes:
    """Decodes base64, and raises `ValueError` for any spelling but the canonical one."""
    data = base64.b64decode(text, validate=True)
    if signing.in_base64(data) != text:
        raise ValueError("base64 in another spelling")
    return data
