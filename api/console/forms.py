"""Forms: reads what was sent field by field, and notes a message for each field that is not valid.

A form that is refused is shown again as it was sent, with the messages beside its fields.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import wraps
from typing import Any, ParamSpec, TypedDict

from litestar.di import NamedDependency
from litestar.params import SkipValidation

from colmlm.api.console.views import Page, PageRequest, page
from colmlm.api.errors import Refused, problem_of
from colmlm.api.ports import Ports
from colmlm.kb.errors import KBError
from colmlm.kb.log.records import ChangeRecord
from colmlm.kb.texts.characters import moment

P = ParamSpec("P")

MAX_ID = 2**63 - 1
LONGEST = 10_000


class SignedReason(TypedDict):
    """Hold who makes a change, and why."""

    actor: str
    reason: str


@Refused.coded("Mistakes", "This form is not complete", status=422)
def form_mistakes(fields: Sequence[str]) -> str:
    return f"Nothing was done. See the note at {', '.join(fields)}, put it right and send it again."


@dataclass(slots=True)
class Form:
    """The fields of a form by name. Reading one notes its mistake; `check` raises them all at once.

    `error` is the error that refused the whole form, which the template shows above it.
    """

    sent: Mapping[str, Any] = field(default_factory=dict)
    mistakes: dict[str, str] = field(default_factory=dict)
    error: KBError | None = None

    @classmethod
    def of_query(cls, request: PageRequest) -> Form:
        """Give a form with the fields of a query string."""
        return cls({name: request.query_params.getall(name) for name in request.query_params})

    def all(self, name: str) -> list[str]:
        found = self.sent.get(name, [])
        return [str(value) for value in found] if isinstance(found, list) else [str(found)]

    def raw(self, name: str, default: str = "") -> str:
        """Give the text that was sent, for the field to show again."""
        found = self.all(name)
        return found[-1] if found else default

    def refuse(self, error: KBError) -> Form:
        self.error = error
        return self

    def check(self) -> None:
        """Raise `Mistakes` where a field read so far is not valid."""
        if self.mistakes:
            raise form_mistakes(list(self.mistakes))

    def sign(self, request: PageRequest) -> SignedReason:
        """Read the reason of a change, and give it with the token's name. Raise `Mistakes` as `check` does."""
        reason = self.text("reason", limit=1000)
        self.check()
        return {"actor": request.user.name, "reason": reason}

    def text(self, name: str, *, limit: int = LONGEST) -> str:
        """Read a text, which may not be empty."""
        said = self._text(name, limit)
        if not said:
            self.mistakes.setdefault(name, "Say something here: it may not be empty.")
        return said

    def optional(self, name: str, *, limit: int = LONGEST) -> str | None:
        return self._text(name, limit) or None

    def _text(self, name: str, limit: int) -> str:
        said = self.raw(name).replace("\r\n", "\n").strip()
        if "\x00" in said:
            self.mistakes[name] = "It holds a NUL character, which no text does. Remove it."
        elif len(said) > limit:
            self.mistakes[name] = f"It has {len(said):,} characters; at most {limit:,} are taken. Shorten it."
        return said

    def integer(self, name: str, low: int = 1, high: int = MAX_ID) -> int | None:
        said = self.raw(name).strip()
        if not said:
            return None
        if len(said) < 20 and said.isascii() and said.isdecimal() and low <= int(said) <= high:
            return int(said)
        upper = "" if high == MAX_ID else f" and at most {high:,}"
        self.mistakes[name] = f"Give a whole number of at least {low:,}{upper}."
        return None

    def number(self, name: str, low: float, high: float) -> float | None:
        said = self.raw(name).strip()
        if not said:
            return None
        try:
            value = float(said)
        except ValueError:
            value = math.nan
        if low <= value <= high:
            return value
        self.mistakes[name] = f"Give a number from {low:g} to {high:g}, such as {(low + high) / 2:g}."
        return None

    def choice(self, name: str, allowed: Sequence[str]) -> str:
        """Read one of `allowed`; the first if nothing was sent."""
        said = self.raw(name) or allowed[0]
        if said not in allowed:
            self.mistakes[name] = f"Choose one of {', '.join(allowed)}."
        return said

    def flag(self, name: str) -> bool:
        return self.raw(name) == "yes"

    def ids(self, name: str) -> list[int]:
        """Read ids: several fields, or several ids in one field between commas or spaces."""
        said = " ".join(self.all(name)).replace(",", " ").split()
        if any(not (one.isascii() and one.isdecimal() and len(one) < 19 and int(one)) for one in said):
            self.mistakes[name] = "Give ids, such as 12 or 12, 15."
            return []
        return list(dict.fromkeys(map(int, said)))

    def moment(self, name: str) -> datetime | None:
        """Read a date or time in ISO 8601, in UTC if it names no zone."""
        said = self.raw(name).strip()
        if not said:
            return None
        try:
            return moment(said)
        except ValueError:
            self.mistakes[name] = "Give a date or a time, such as 2026-01-31 or 2026-01-31T12:00."
            return None


def form_page(request: PageRequest, template: str, form: Form, **context: Any) -> Page:
    """Give the page with this form, with the status of the error that refused it, if one did."""
    status = problem_of(form.error)[0].status if form.error else 200
    return page(request, template, status, form=form, **context)


FromForm = NamedDependency[SkipValidation[Form]]


async def read_form(request: PageRequest) -> Form:
    """Read the fields of a request's body; of a GET, those of its query string."""
    if request.method == "GET":
        return Form.of_query(request)
    sent = await request.form()
    return Form({name: sent.getall(name) for name in sent})


def show_again(show: Callable[..., Page]) -> Callable[[Callable[P, Page]], Callable[P, Page]]:
    """Make a handler show its form again, with the message, where what was sent is refused."""

    def decorate(act: Callable[P, Page]) -> Callable[P, Page]:
        @wraps(act)
        def handle(*args: P.args, **kwargs: P.kwargs) -> Page:
            try:
                return act(*args, **kwargs)
            except KBError as error:
                form = kwargs["form"]
                assert isinstance(form, Form)
                form.refuse(error)
                return show(*args, **kwargs)

        return handle

    return decorate


def find_change(ports: Ports, form: Form) -> ChangeRecord | None:
    """Give the change that the query string names, as the log holds it, for the note on what was just done."""
    seq = form.integer("change")
    return next(iter(ports.kb.log.changes(after=seq - 1, limit=1)), None) if seq else None


def corpus_options(ports: Ports) -> list[tuple[str, str]]:
    """Give the options of a field that chooses a corpus."""
    return [("", "every corpus"), *((stats.corpus, stats.corpus) for stats in ports.kb.corpora.all())]
