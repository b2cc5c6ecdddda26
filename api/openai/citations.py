"""Spliced facts as citations: with all that is known of each, and as the annotations that clients of OpenAI's keep."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from colmlm.kb.evidence.records import OutputTrace, TracedSplice
from colmlm.kb.facts.records import SamplePlace, Source


class CitedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The document a fact was read from; ``text[start:end]`` is the fact's span in its text, in code points.

    It is the source of the fact without its revision.
    """

    document_id: int
    corpus: str
    external_id: str
    title: str | None
    uri: str | None
    licence: str | None
    start: int
    end: int


class Citation(msgspec.Struct, frozen=True, kw_only=True):
    """A spliced fact: ``text[start:end]`` of the choice `index` is its value, in code points. `url` is the trace.
    A `review` of "proposed" says that nobody has accepted the fact yet. A fact of a release has no document but a
    `sample`.

    Its offsets count in the choice, which may begin with the prompt, and those of a splice in the output.
    """

    index: int
    start: int
    end: int
    value: str
    fact_id: int
    version: int
    score: float | None
    document: CitedDocument | None
    url: str
    review: str | None = None
    sample: SamplePlace | None = None


class UrlCitation(msgspec.Struct, frozen=True, kw_only=True):
    """Where a value stands in a message, and what it was read from. Offsets count code points, up to `end_index`.

    `url` is the document's address, or the trace where it has none.
    """

    start_index: int
    end_index: int
    url: str
    title: str


class Annotation(msgspec.Struct, frozen=True, kw_only=True):
    """A citation in the form that chats have for it."""

    url_citation: UrlCitation
    type: str = "url_citation"


def citations(trace: OutputTrace, base_url: str, *, index: int = 0, shift: int = 0) -> list[Citation]:
    """Gives the spliced facts of an output, whose text begins `shift` characters into the choice."""
    return [
        _citation(splice, trace, base_url, index, shift)
        for splice in trace.splices
        if splice.outcome == "hit"
    ]


def _citation(splice: TracedSplice, trace: OutputTrace, base_url: str, index: int, shift: int) -> Citation:
    assert splice.fact_id is not None and splice.version is not None, "a hit names its fact"
    return Citation(
        index=index,
        start=splice.output_start + shift,
        end=splice.output_end + shift,
        value=splice.value,
        fact_id=splice.fact_id,
        version=splice.version,
        score=splice.score,
        document=None if splice.source is None else _document(splice.source),
        url=f"{base_url.rstrip('/')}/v1/generations/{trace.generation_id}",
        review=splice.review,
        sample=splice.sample,
    )


def _document(source: Source) -> CitedDocument:
    return CitedDocument(
        document_id=source.document_id,
        corpus=source.corpus,
        external_id=source.external_id,
        title=source.title,
        uri=source.uri,
        licence=source.licence,
        start=source.start,
        end=source.end,
    )


def url_citation(cited: Citation) -> UrlCitation:
    """Gives a citation with the fields that OpenAI has for one."""
    document = cited.document
    return UrlCitation(
        start_index=cited.start,
        end_index=cited.end,
        url=(document.uri if document else None) or cited.url,
        title=(document.title or document.external_id) if document else cited.value,
    )


def annotated(cited: Sequence[Citation]) -> list[Annotation]:
    return [Annotation(url_citation=url_citation(one)) for one in cited]
