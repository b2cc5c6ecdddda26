"""What the page of facts searches for: its form read, the search done, and all that it finds as ids or as CSV."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from colmlm.api.console.forms import Form
from colmlm.api.console.views import PageRequest
from colmlm.api.nouns.fact_table import pages
from colmlm.api.ports import Ports
from colmlm.api.routes.searching import nearest, require_shown
from colmlm.api.schema.shown import shown_to
from colmlm.kb.facts.records import ORDERS, STATES, FactFound, FactPage, FactSearch, Order, State
from colmlm.kb.facts.reviews import REVIEWS, Review

WAYS = ("words", "exactly", "meaning")
FILTERS = ("text", "way", "corpus", "document", "state", "review", "actor", "kind", "since", "until", "sort")


class Finding:
    """The search that a form asks for."""

    def __init__(self, ports: Ports, request: PageRequest, form: Form) -> None:
        """Reads the form. Raises `Mistakes`, `RightMissing` or `ModelMissing`, and what the search raises later."""
        text, way = form.optional("text", limit=1000), form.choice("way", WAYS)
        near = text if way == "meaning" else None
        self._sought: FactSearch = {
            "text": None if near else text,
            "literally": way == "exactly",
            "corpus": form.optional("corpus"),
            "document_id": form.integer("document"),
            "state": cast(State, form.choice("state", STATES)),
            "actor": form.optional("actor", limit=200),
            "kind": form.optional("kind", limit=100),
            "since": form.moment("since"),
            "until": form.moment("until"),
            "review": cast(Review | None, form.choice("review", ("", *REVIEWS)) or None),
            "order": cast(Order, form.choice("sort", ORDERS)),
        }
        form.check()
        require_shown(request, self._sought)
        self._shown, self._nearest = shown_to(request, ports), nearest(ports, near, self._sought)

    def page(self, *, after: int, limit: int) -> FactPage:
        self._sought["after"], self._sought["limit"] = after, limit
        return self._shown.search(nearest=self._nearest, **self._sought)

    def every(self) -> Iterator[FactFound]:
        """Gives all that are found, by pages."""
        return pages(self.page)


def filters(form: Form) -> dict[str, str]:
    """Gives the filters that a form holds, for the addresses of other pages with the same."""
    return {name: form.raw(name) for name in FILTERS if form.raw(name)}
