"""Selectors of facts in JSON, with the same parts as the options of `colmlm forget plan`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, field
from msgspec.structs import asdict

from colmlm.api.wire.requests import Id, Request, Threshold
from colmlm.kb.selectors import Selector

Said = Annotated[str, Meta(min_length=1, max_length=10_000)]
Time = Annotated[datetime, Meta(tz=True)]


class SelectorParts(Request, frozen=True, kw_only=True):
    """Selects the facts that fit every given part; at least one, or `everything` alone.

    `document` is an id or corpus/name. `text` is matched literally in value and question, ignoring case; `question` is
    the exact text. `first_seq`, `last_seq`, `since` and `until` bound the change that created the fact. `like` is a
    fact that the others must resemble: the cosine of their keys is at least `radius` (null: the keyset's threshold).
    """

    fact_ids: Annotated[list[Id], Meta(max_length=10_000)] = field(default_factory=list)
    document: Said | None = None
    corpus: Said | None = None
    uri: Said | None = None
    uri_prefix: Said | None = None
    text: Said | None = None
    question: Said | None = None
    licence: Said | None = None
    first_seq: Id | None = None
    last_seq: Id | None = None
    since: Time | None = None
    until: Time | None = None
    like: Id | None = None
    radius: Threshold | None = None
    everything: bool = False

    def selector(self) -> Selector:
        """Converts the parts to a selector. Raises `InvalidSelector`."""
        return Selector(**{**asdict(self), "fact_ids": tuple(self.fact_ids)})
