"""Render pages from templates for the signed-in token, errors as pages with cause and remedy, and read forms.

Every page is complete without the script. The script requests the same pages and takes the parts that it needs, so
that each page has one template. A form that is refused is shown again as it was sent, with messages beside its fields.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import wraps
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any, ParamSpec
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from litestar import Request, Response
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.params import SkipValidation
from markupsafe import Markup

from colmlm.api.errors import Refused, problem_of
from colmlm.api.middleware.auth import CorpusLimit, Right, needs
from colmlm.api.ports import Ports
from colmlm.kb.access.records import TokenRecord
from colmlm.kb.errors import KBError, count_of
from colmlm.kb.evidence.records import OutputTrace, TracedSplice
from colmlm.kb.facts.records import FactFound, FactRecord, FoundIn
from colmlm.kb.log.records import ChangeRecord, OnRecord
from colmlm.kb.removal.holds import Holds, Retention
from colmlm.kb.removal.records import Hold
from colmlm.kb.texts.characters import parse_moment, visible_text

# Tables as cards: on a phone every cell names its column, since there is no room for a row of headings.

_HEADING = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_ROW = re.compile(r"<tr\b.*?</tr>", re.DOTALL)
_CELL = re.compile(r"<td\b")


def with_columns(table: Markup) -> Markup:
    """Write the heading of its column on every cell of an HTML table, as an attribute that the style shows."""
    head, body, rows = str(table).partition("<tbody>")
    names = [Markup(name).striptags() for name in _HEADING.findall(head)]
    return Markup(head + body + _ROW.sub(lambda row: _label_cells(row[0], names), rows))  # texts are escaped


def _label_cells(row: str, names: list[str]) -> str:
    first, *cells = _CELL.split(row)
    labels = [str(Markup('<td data-column="{}"').format(name)) for name in names[: len(cells)]]
    return first + "".join(label + cell for label, cell in zip_longest(labels, cells, fillvalue="<td"))


HERE = Path(__file__).parent
THEME_COOKIE = "colmlm_theme"
THEMES = ("system", "light", "dark")

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {"Content-Security-Policy": _POLICY}

PageRequest = Request[TokenRecord, Any, Any]
Page = Response[Any]


@dataclass(frozen=True, slots=True)
class NavigationEntry:
    """An entry of the navigation, its group, the right that a token needs to be shown it, and whether a token of some
    corpora is shown it, too (`scoped`).
    """

    name: str
    href: str
    icon: str
    right: Right
    group: str
    scoped: bool = False

    def is_for(self, token: TokenRecord) -> bool:
        return token.may(self.right) and (self.scoped or token.corpora is None)


PLACES = (
    NavigationEntry("Ask", "/console/ask", "ask", Right.read, "Answers", scoped=True),
    NavigationEntry("Questions", "/console/questions", "questions", Right.read, "Answers"),
    NavigationEntry("Misses", "/console/misses", "misses", Right.read, "Answers"),
    NavigationEntry("Facts", "/console/facts", "facts", Right.read, "Knowledge", scoped=True),
    NavigationEntry("Corpora", "/console/corpora", "corpora", Right.read, "Knowledge", scoped=True),
    NavigationEntry("Review", "/console/review", "review", Right.read, "Knowledge", scoped=True),
    NavigationEntry("Contradictions", "/console/contradictions", "contradictions", Right.read, "Knowledge"),
    NavigationEntry("Forget", "/console/forget", "forget", Right.audit, "Removal", scoped=True),
    NavigationEntry("Erasures", "/console/erasures", "erasures", Right.admin, "Removal"),
    NavigationEntry("Audit", "/console/audit", "audit", Right.audit, "Audit", scoped=True),
    NavigationEntry("Keysets", "/console/keysets", "keysets", Right.read, "Operation"),
    NavigationEntry("Backups", "/console/backups", "backups", Right.admin, "Operation"),
    NavigationEntry("Tokens", "/console/tokens", "tokens", Right.admin, "Operation"),
    NavigationEntry("Status", "/console/status", "status", Right.read, "Operation"),
)


def page(request: PageRequest, template: str, status_code: int = 200, **context: Any) -> Page:
    """Render a page of the console. Templates get the token's rights as `may`, and offer only what those allow.

    `whole` says whether the rights are on all corpora.
    """
    token = request.user
    filled = render(
        template,
        theme=theme_of(request.cookies),
        menu=[
            (group, list(places))
            for group, places in groupby(
                (place for place in PLACES if place.is_for(token)), key=lambda place: place.group
            )
        ],
        path=request.url.path,
        here=str(request.url.path) + (f"?{request.url.query}" if request.url.query else ""),
        viewer=token,
        whole=token.corpora is None,
        docs_url=request.scope["state"]["ports"].settings.docs_url,
        may={right.value for right in Right if token.may(right)},
        **context,
    )
    return Response(filled, status_code=status_code, media_type="text/html", headers=HEADERS)


def show_problem(request: Request[Any, Any, Any], error: Exception) -> Page:
    """Answer any exception of the console's routes with its problem document as a page."""
    problem, headers = problem_of(error)
    answer = page(request, "problem.html", problem.status, problem=problem)
    answer.headers.update(headers)
    return answer


def render(template: str, **context: Any) -> str:
    return templates.get_template(template).render(**context)


def theme_of(cookies: Mapping[str, str]) -> str:
    """Give the theme in the browser's cookie; "system" for anything else."""
    chosen = cookies.get(THEME_COOKIE, "")
    return chosen if chosen in THEMES else "system"


def in_words(count: int, thing: str, *, first: bool = False) -> str:
    """Write a count in words: "one fact", "twelve facts", "40 facts"; with a capital if it is `first` in a sentence."""
    number = _NUMBERS[count] if 0 <= count < len(_NUMBERS) else f"{count:,}"
    said = f"{number} {thing}" if count == 1 else f"{number} {thing}s"
    return said[:1].upper() + said[1:] if first else said


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count) or in_words(count, "time")


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def _score(score: float | None) -> str:
    return "–" if score is None else f"{score:.3f}"


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _shorten(text: str | None, limit: int = 80) -> str:
    flat = " ".join((text or "").split())
    return flat if len(flat) <= limit else flat[: limit - 1].rstrip() + "…"


def query(**parts: Any) -> str:
    """Build a query string of the parts that are not empty."""
    said = {name: value for name, value in parts.items() if value not in (None, "", 0)}
    return f"?{urlencode(said, doseq=True)}" if said else "?"


class TypedText(str):
    """A text put back into a field unescaped by `_visible_value`, so that sending the form again changes nothing."""

    __slots__ = ()


def _visible_value(value: Any) -> Any:
    """Escape invisible characters of the texts that a template inserts; markup and form fields stay as they are."""
    return (
        visible_text(value) if isinstance(value, str) and not isinstance(value, Markup | TypedText) else value
    )


_NUMBERS = (
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)

templates = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=_visible_value,
)
templates.filters.update(
    as_typed=TypedText,
    moment=_moment,
    score=_score,
    percent=_percent,
    shorten=_shorten,
    count_of=count_of,
    in_words=in_words,
    times=_times,
    with_columns=with_columns,
    number="{:,}".format,
)
templates.globals.update(query=query)


# Cuts texts at marked spans: an output at its splices, a document at its facts, a passage around one fact.

AROUND = 280  # characters of a document before and after a span
BLOCK = 10_000  # characters of a document that are drawn together
BEFORE, SHOWN = 80, 240  # characters before the first word that was found, and in all


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """A piece of an output: plain text, or a lookup.

    `number` counts the hits from 1; it is None where nothing was spliced.
    """

    text: str
    splice: TracedSplice | None = None
    number: int | None = None


@dataclass(frozen=True, slots=True)
class SpanPassage:
    """A span of a document and the text around it.

    `cut_before` and `cut_after` tell whether the document has more there.
    """

    before: str
    span: str
    after: str
    cut_before: bool
    cut_after: bool


@dataclass(frozen=True, slots=True)
class DocumentPart:
    """A part of a document: plain text, or a fact's span."""

    text: str
    fact: FactRecord | None = None


def pieces(trace: OutputTrace) -> list[OutputPiece]:
    """Split an output at its lookups into pieces, in order."""
    found, at, number = [], 0, 0
    for splice in trace.splices:
        found.append(OutputPiece(trace.output[at : splice.output_start]))
        number += splice.outcome == "hit"
        text = trace.output[splice.output_start : splice.output_end]
        found.append(OutputPiece(text, splice, number if splice.outcome == "hit" else None))
        at = splice.output_end
    found.append(OutputPiece(trace.output[at:]))
    return [piece for piece in found if piece.text or piece.splice]


def became_of(splice: TracedSplice) -> str:
    """Give what a spliced fact is now: "current", "corrected", "deleted" or "erased"; without a splice, the outcome."""
    if splice.outcome != "hit":
        return splice.outcome
    if splice.erased:
        return "erased"
    if not splice.live:
        return "deleted"
    return "current" if splice.is_current else "corrected"


def passage(text: str, start: int, end: int) -> SpanPassage:
    first, last = max(0, start - AROUND), min(len(text), end + AROUND)
    return SpanPassage(text[first:start], text[start:end], text[end:last], first > 0, last < len(text))


def stretches(text: str, facts: Iterable[FactRecord]) -> list[DocumentPart]:
    """Cut a document at the spans of its facts; of spans that overlap, the first counts."""
    found: list[DocumentPart] = []
    at = 0
    for fact in _by_place(facts):
        assert fact.source is not None
        if fact.source.start < at:
            continue
        found += [
            DocumentPart(text[at : fact.source.start]),
            DocumentPart(text[fact.source.start : fact.source.end], fact),
        ]
        at = fact.source.end
    return [*found, DocumentPart(text[at:])]


def blocks(parts: Iterable[DocumentPart]) -> list[list[DocumentPart]]:
    """Group a document's parts into blocks that end with a line, of which a browser draws only the visible ones."""
    found: list[list[DocumentPart]] = [[]]
    length = 0
    for part in parts:
        end = part.text.rfind("\n") + 1
        length += len(part.text)
        if part.fact is not None or length < BLOCK or not end:
            found[-1].append(part)
            continue
        found[-1].append(DocumentPart(part.text[:end]))
        found.append([DocumentPart(part.text[end:])])
        length = len(part.text) - end
    return found


def excerpts(fact: FactFound) -> dict[str, list[tuple[str, bool]]]:
    """Give for each place where the fact was found an excerpt: pieces of text, each with whether it is a found word."""
    return {found.place: _excerpt(found) for found in fact.found}


def _excerpt(found: FoundIn) -> list[tuple[str, bool]]:
    """Cut a text around its first found word into pieces, each with whether it is a found word."""
    marks = found.marks
    first = max(0, marks[0].start - BEFORE)
    pieces, at, last = [("…", False)] if first else [], first, min(len(found.said), first + SHOWN)
    for mark in marks:
        if mark.end <= last:
            pieces += [(found.said[at : mark.start], False), (found.said[mark.start : mark.end], True)]
            at = mark.end
    return [*pieces, (found.said[at:last], False), *([("…", False)] if last < len(found.said) else [])]


def _by_place(facts: Iterable[FactRecord]) -> Sequence[FactRecord]:
    return sorted(
        (fact for fact in facts if fact.source),
        key=lambda f: (f.source.start, f.fact_id) if f.source else (0, 0),
    )


P = ParamSpec("P")

MAX_ID = 2**63 - 1
LONGEST = 10_000


@Refused.coded("Mistakes", "This form is not complete", status=422)
def form_mistakes(fields: Mapping[str, str]) -> str:
    named = " ".join(f"'{name}': {mistake}" for name, mistake in fields.items())
    return f"Some fields are not right. {named} Nothing was changed. Correct them and send it again."


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

    def all_values(self, name: str) -> list[str]:
        found = self.sent.get(name, [])
        return [str(value) for value in found] if isinstance(found, list) else [str(found)]

    def raw(self, name: str, default: str = "") -> str:
        """Give the text that was sent, for the field to show again."""
        found = self.all_values(name)
        return found[-1] if found else default

    def refuse(self, error: KBError) -> Form:
        self.error = error
        return self

    def check(self) -> None:
        """Raise `Mistakes` if a field that was read so far is not valid."""
        if self.mistakes:
            raise form_mistakes(dict(self.mistakes))

    def sign(self, request: PageRequest) -> OnRecord:
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
        said = " ".join(self.all_values(name)).replace(",", " ").split()
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
            return parse_moment(said)
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


def verb_of(request: PageRequest) -> str:
    """Give the last part of the path, which names the action to confirm or do, such as "delete"."""
    return request.url.path.rpartition("/")[2]


def on_each(
    method: Callable[..., HTTPRouteHandler], *paths: str, right: Right, scoped: CorpusLimit | None = None
) -> Callable[[Callable[..., Page]], tuple[HTTPRouteHandler, ...]]:
    """Give a decorator that makes a handler for each path, since one for several is wrapped in a thread repeatedly."""

    def decorate(act: Callable[..., Page]) -> tuple[HTTPRouteHandler, ...]:
        opt = needs(right, scoped=scoped)
        return tuple(method(path, opt=opt, sync_to_thread=True)(act) for path in paths)

    return decorate


def show_again(show: Callable[..., Page]) -> Callable[[Callable[P, Page]], Callable[P, Page]]:
    """Wrap a handler so that a form that is refused is shown again, with the error's message."""

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


def find_keeping(
    ports: Ports, request: PageRequest, *, document_id: int | None, fact_id: int | None = None
) -> dict[str, Any]:
    """Give as `holds` those on a fact or document that the token may see, as `due` when a rule takes the document."""
    holds: list[Hold] = []
    if request.user.may(Right.audit) and request.user.corpora is None:
        named = {"document_id": document_id} if fact_id is None else {"fact_id": fact_id}
        holds = Holds(ports.kb).all(standing=True, **named)
    due = None if document_id is None else Retention(ports.kb).due(document_id)
    return {"holds": holds, "due": due}


def find_change(ports: Ports, form: Form) -> ChangeRecord | None:
    """Give the change that the query string names, as the log holds it, for the note on what was just done."""
    seq = form.integer("change")
    found = ports.kb.log.changes(after=seq - 1, limit=1) if seq else ()
    return next((change for change in found if change.seq == seq), None)


def corpus_options(ports: Ports) -> list[tuple[str, str]]:
    """Give the options of a field that chooses a corpus, as pairs of value and label."""
    return [("", "every corpus"), *((stats.corpus, stats.corpus) for stats in ports.kb.corpora.all())]
