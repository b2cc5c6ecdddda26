"""The table of routes and roles is what the app answers, and no route goes without a right."""

from __future__ import annotations

from collections.abc import Callable

from colmlm.api.middleware.auth import right_of
from colmlm.api.middleware.gate import GatedApp
from colmlm.kb.access.records import ROLES, Right
from colmlm.kb.service import KnowledgeBase
from tests.api.role_matrix import OPEN, SCOPED, matrix, routes
from tests.api.serving import served


def test_every_route_names_its_right(app: GatedApp) -> None:
    silent = [
        f"{route.method} {route.template}"
        for route in routes(app)
        if (route.method, route.template) not in OPEN
        and not isinstance(route.handler.opt.get("right"), Right)
    ]
    assert silent == [], "say what it needs: opt=needs(Right.read)"


def test_what_the_routes_say_is_what_the_app_answers(
    app: GatedApp, atlas: KnowledgeBase, new_token: Callable[[str], str]
) -> None:
    tokens = {role: new_token(role) for role in ROLES}
    tokens[SCOPED], _ = atlas.access.create(SCOPED, "reader", corpora=["atlas"])
    with served(app) as address:
        found = matrix(app, address, tokens)
    assert found.count("\n") > 15 and _by_right(app) == found


def _by_right(app: GatedApp) -> str:
    """Give the same table from the routes' own words, as the site shows it. A guard that is wrong differs."""
    lines = [f"| route | {' | '.join(ROLES)} | {SCOPED} | no token |", f"|---|{'---|' * (len(ROLES) + 2)}"]
    for route in routes(app):
        if (route.method, route.template) not in OPEN:
            having = ["yes" if right_of(route.handler) in rights else "" for rights in ROLES.values()]
            is_scoped = right_of(route.handler) in ROLES["reader"] and "scoped" in route.handler.opt
            cells = [*having, "yes" if is_scoped else "", ""]
            lines.append(f"| `{route.method} {route.template}` | {' | '.join(cells)} |")
    return "\n".join(lines)
