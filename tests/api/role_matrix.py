"""The table of who may call which route, measured by calling every route as every role and without a key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from litestar.handlers import HTTPRouteHandler

from colmlm.api.middleware.gate import GatedApp
from colmlm.kb.access.records import ROLES

OPEN = {
    ("POST", "/session"),  # it checks the key in its form, and answers nothing without one
    ("GET", "/console/static/{name}"),  # the style of that form
    ("GET", "/healthz"),  # this and the next say almost nothing
    ("GET", "/readyz"),
}

SCOPED = "reader of some corpora"

# Queries for routes that need more than their right to show everything; see the rights page of the site.
LEAST = {"/v1/corpora/{corpus}/export": "?live_only=true"}

# An id that does not exist: with an existing one an admin would end a token that a later request uses.
_EXAMPLES: Mapping[type, str] = {int: "987654321", str: "x", Path: "x"}


@dataclass(frozen=True)
class Route:
    """A route of the app. `template` names its parameters, `path` has examples for them."""

    method: str
    template: str
    path: str
    handler: HTTPRouteHandler


def routes(app: GatedApp) -> list[Route]:
    """Lists every method and path with a handler, except OPTIONS, which only names the methods."""
    return sorted(_routes(app), key=lambda route: (route.template, route.method))


def _routes(app: GatedApp) -> Iterator[Route]:
    for route in app.routed.routes:
        parts: list[Any] = list(route.path_components)
        path = "/" + "/".join(p if isinstance(p, str) else _EXAMPLES[p.type] for p in parts)
        template = "/" + "/".join(p if isinstance(p, str) else f"{{{p.name}}}" for p in parts)
        for handler in getattr(route, "route_handlers", ()):
            for method in sorted(handler.http_methods - {"OPTIONS"}):
                yield Route(method, template, path, handler)


def matrix(app: GatedApp, address: str, tokens: Mapping[str, str]) -> str:
    """Makes the table in Markdown from real answers; `tokens` has one of each role, and one of `SCOPED`."""
    lines = [f"| route | {' | '.join(ROLES)} | {SCOPED} | no token |", f"|---|{'---|' * (len(ROLES) + 2)}"]
    with httpx.Client(base_url=address, timeout=60) as client:
        for route in routes(app):
            if (route.method, route.template) not in OPEN:
                cells = [_answer(client, route, tokens[role]) for role in (*ROLES, SCOPED)]
                cells.append(_answer(client, route, None))
                lines.append(f"| `{route.method} {route.template}` | {' | '.join(cells)} |")
    return "\n".join(lines)


@dataclass(frozen=True)
class Ask:
    """A request for a past value. `asked` describes it for the docs, `word` is found only in the past value."""

    asked: str
    method: str
    path: str
    word: str
    body: Mapping[str, Any] | None = None


def past_matrix(address: str, tokens: Mapping[str, str], asks: Iterable[Ask]) -> str:
    """Makes the table of which role is shown the past, from real answers. "marks" is an answer with it withheld."""
    lines = [f"| asked for | {' | '.join(ROLES)} |", f"|---|{'---|' * len(ROLES)}"]
    with httpx.Client(base_url=address, timeout=60) as client:
        for ask in asks:
            cells = [_shown(client, ask, tokens[role]) for role in ROLES]
            lines.append(f"| {ask.asked} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _shown(client: httpx.Client, ask: Ask, token: str) -> str:
    headers = {"Authorization": f"Bearer {token}"}
    answer = client.request(ask.method, ask.path, headers=headers, json=ask.body)
    assert answer.status_code in (200, 403), (ask.asked, answer.text)
    if ask.word in answer.text:
        return "yes"
    return "marks" if answer.status_code == 200 else ""


def _answer(client: httpx.Client, route: Route, token: str | None) -> str:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with client.stream(
        route.method, route.path + LEAST.get(route.template, ""), headers=headers
    ) as answer:  # some answers are streams that never end
        if answer.status_code == 401:
            return ""
        if answer.status_code != 403:
            assert answer.status_code in (503, *range(200, 500)), (route.template, answer.status_code)
            return "yes"
        said = answer.read().decode()  # a problem document, or the same as a page of the console
        assert any(
            word in said for word in ("RightMissing", '"right_missing"', "lacks the right", "on all corpora")
        )
        return ""
