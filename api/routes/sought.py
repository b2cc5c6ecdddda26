"""Lookups by key that are sought with a secret: the token is checked and the facts are found in one hop to a thread.

A decoder asks for one word at a time and waits for it. Two hops, the second of which cannot begin before all of those
that came together are back from the first, cost it more than either statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from colmlm.api.door.auth import Right
from colmlm.api.door.limits import RateLimits
from colmlm.api.errors import TooManyRequests
from colmlm.kb.access.access import Access
from colmlm.kb.access.records import TokenRecord
from colmlm.kb.lookup.replica import FindsByKey, Found, KeyLookup, find_together


@dataclass(frozen=True, slots=True, eq=False)
class SecretLookup:
    """A lookup, with the secret it is asked with; None where the request was admitted before."""

    lookup: KeyLookup
    secret: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class AdmittedLookup:
    """What was found, or the error that refuses it, and the token of the secret.

    Without a token nothing was sought: the secret is unknown, or may not look up, or not now.
    """

    token: TokenRecord | None = None
    found: Found | None = None


@dataclass(frozen=True, slots=True)
class Seeking:
    """Finds what is sought together, for those whose secrets let them."""

    access: Access
    limits: RateLimits
    lookups: FindsByKey

    def find(self, sought: Sequence[SecretLookup]) -> list[AdmittedLookup]:
        """Gives the answer of each. The statements that check secrets and decide begin after all of them came."""
        tokens = self._tokens([one.secret for one in sought if one.secret is not None])
        admitted = [one.secret is None or self._may_ask(tokens[one.secret]) for one in sought]
        found = iter(
            find_together(
                self.lookups, [one.lookup for one, may in zip(sought, admitted, strict=True) if may]
            )
        )
        return [
            AdmittedLookup(tokens.get(one.secret), next(found)) if may else AdmittedLookup()
            for one, may in zip(sought, admitted, strict=True)
        ]

    def _tokens(self, secrets: list[str]) -> dict[Any, TokenRecord | None]:
        return dict(zip(secrets, self.access.of_secrets(secrets), strict=True)) if secrets else {}

    def _may_ask(self, token: TokenRecord | None) -> bool:
        if token is None or not token.may(Right.lookup):
            return False
        try:
            self.limits.check(token)
        except TooManyRequests:
            return False
        return True
