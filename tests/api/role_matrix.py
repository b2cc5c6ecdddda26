"""The table of who may ask what, made by asking: every route of an app, as every role and without a key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler

from colmlm.kb.access.api_keys import ROLES

OPEN = {
    ("POST", "/session"),  # it checks the key in its form, and answers nothing without one
    ("GET", "/console/static/{name}"),  # the style of that form
    ("GET", "/healthz"),  # these two say next to nothing
    ("GET", "/readyz"),
}

# What a route is asked with where more than its right is needed for all that it has; see docs/access.md, "The past".
LEAST = {"/v1/corpora/{corpus}/export": "?live_only=true"}

# An id of nothing: an admin who asks to end key 1 would end a key that is asked with next.
_EXAMPLES: Mapping[type, str] = {int: "987654321", str: "x", Path: "x"}


@dataclass(frozen=True)
class Route:
    """A route as it can be asked for. `template` names its parameters, `path` has examples for them."""

    method: str
    template: str
    path: str
    handler: HTTPRouteHandler


def routes(app: Litestar) -> list[Route]:
    """Every method and path that reaches a handler, but for OPTIONS, which only names the methods."""
    return sorted(_routes(app), key=lambda route: (route.template, route.method))


def _routes(app: Litestar) -> Iterator[Route]:
    for route in app.routes:
        parts: list[Any] = list(route.path_components)
        path = "/" + "/".join(p if isinstance(p, str) else _EXAMPLES[p.type] for p in parts)
        template = "/" + "/".join(p if isinstance(p, str) else f"{{{p.name}}}" for p in parts)
        for handler in getattr(route, "route_handlers", ()):
            for method in sorted(handler.http_methods - {"OPTIONS"}):
                yield Route(method, template, path, handler)


def matrix(app: Litestar, address: str, tokens: Mapping[str, str]) -> str:
    """The table in Markdown; `tokens` has one of each role. A cell is what came back, not what the route says."""
    lines = [f"| route | {' | '.join(ROLES)} | no key |", f"|---|{'---|' * (len(ROLES) + 1)}"]
    with httpx.Client(base_url=address, timeout=60) as client:
        for route in routes(app):
            if (route.method, route.template) not in OPEN:
                cells = [_answer(client, route, tokens[role]) for role in ROLES]
                cells.append(_answer(client, route, None))
                lines.append(f"| `{route.method} {route.template}` | {' | '.join(cells)} |")
    return "\n".join(lines)


@dataclass(frozen=True)
class Ask:
    """A way to ask for what the base said once. `asked` is how the docs tell it, `word` what only that has."""

    asked: str
    method: str
    path: str
    word: str
    body: Mapping[str, Any] | None = None


def past_matrix(address: str, tokens: Mapping[str, str], asks: Iterable[Ask]) -> str:
    """The table of who is shown the past, by what the answers say. "marks" is an answer without it."""
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
    ) as answer:  # some answers never end
        if answer.status_code == 401:
            return ""
        if answer.status_code != 403:
            assert answer.status_code in (503, *range(200, 500)), (route.template, answer.status_code)
            return "yes"
        said = answer.read().decode()  # a problem document, or the same as a page of the console
        assert "RightMissing" in said or '"right_missing"' in said or "has not the right" in said
        return ""
