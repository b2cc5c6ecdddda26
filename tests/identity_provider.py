"""What an identity provider publishes, served on loopback, and tokens that it signs. The keys are made by the test."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

AUDIENCE = "colmlm-api"
ANN = {"sub": "7f3c", "email": "ann@example.org", "email_verified": True}


@dataclass
class SigningKey:
    """A key pair, with its id and algorithm."""

    key_id: str
    algorithm: str
    private: Any

    @classmethod
    def new(cls, algorithm: str, key_id: str | None = None) -> SigningKey:
        if algorithm == "EdDSA":
            made: Any = ed25519.Ed25519PrivateKey.generate()
        elif algorithm == "ES256":
            made = ec.generate_private_key(ec.SECP256R1())
        else:
            made = rsa.generate_private_key(65537, 2048)
        return cls(key_id or f"key of {algorithm}", algorithm, made)

    def published(self) -> dict[str, Any]:
        algorithm = jwt.get_algorithm_by_name(self.algorithm)
        said: dict[str, Any] = json.loads(algorithm.to_jwk(self.private.public_key()))  # type: ignore[attr-defined]
        return {**said, "kid": self.key_id, "use": "sig"}

    def sign(self, claims: dict[str, Any], **header: Any) -> str:
        headers = {"kid": self.key_id, "typ": "at+jwt", **header}
        kept = {name: value for name, value in headers.items() if value is not None}
        return jwt.encode(claims, self.private, self.algorithm, headers=kept)


@dataclass
class KeyServer:
    """What a provider serves on loopback: metadata, and keys. `asked` has the paths that were asked for."""

    issuer: str = ""
    keys: list[SigningKey] = field(default_factory=list)
    changed: dict[str, Any] = field(default_factory=dict)
    status: int = 200
    asked: list[str] = field(default_factory=list)

    def answer(self, path: str) -> dict[str, Any]:
        self.asked.append(path)
        if path == "/jwks":
            secret = {"kty": "oct", "kid": "shared", "k": "c2VjcmV0", "alg": "HS256"}
            weak = rsa.generate_private_key(65537, 1024).public_key()
            numbers = json.loads(jwt.get_algorithm_by_name("RS256").to_jwk(weak))  # type: ignore[attr-defined]
            others = [secret, {**numbers, "kid": "weak"}, {"kty": "RSA", "kid": "broken"}, {"kty": "EC"}]
            return {"keys": [*others, *(key.published() for key in self.keys)]}
        told = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/auth",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/jwks",
        }
        return told | self.changed

    def claims(self, **changed: Any) -> dict[str, Any]:
        """Give claims that are right, with some changed, and those left out whose value is None."""
        now = int(time.time())
        right = {
            "iss": self.issuer,
            "aud": AUDIENCE,
            "iat": now,
            "exp": now + 600,
            "groups": ["editors"],
            **ANN,
        }
        return {name: value for name, value in (right | changed).items() if value is not None}


@contextmanager
def serving_keys(keys: Sequence[SigningKey]) -> Iterator[KeyServer]:
    """Serve these keys, and the metadata that leads to them."""
    served = KeyServer(keys=list(keys))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(served.answer(self.path)).encode()
            self.send_response(served.status)
            self.send_header("content-length", str(len(body)))
            self.send_header("location", f"{served.issuer}/elsewhere")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        served.issuer = f"http://127.0.0.1:{listening.server_port}"
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield served
        finally:
            listening.shutdown()
            thread.join()
