"""Lookups: answer questions, or the queries of a decoder in another process, with facts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from litestar import Response, delete, get, post
from litestar.concurrency import sync_to_thread
from litestar.openapi.spec import OpenAPIMediaType, Operation, RequestBody, Schema
from litestar.openapi.spec.enums import OpenAPIFormat, OpenAPIType
from litestar.params import JSONBody, QueryParameter, RawBody

from colmlm.api.errors import PROBLEMS
from colmlm.api.middleware.auth import CorpusLimit, Limiter, Right, in_thread, needs
from colmlm.api.ports import FromPorts, Ports, QuestionEncoder
from colmlm.api.routes.parameters import WithToken, require_past
from colmlm.api.routes.responses import on_record
from colmlm.api.wire import (
    JSON,
    LOOKUPS,
    MAX_CHARS_TO_ENCODE,
    MAX_DIM,
    MAX_FACTS_TO_ENCODE,
    MAX_ID,
    MAX_QUERIES,
    MAX_VECTORS,
    MSGPACK,
    OCTETS,
    SEEN,
    VECTORS,
    DocumentToEncode,
    EncodedTexts,
    LookupAnswer,
    LookupAnswers,
    LookupRequest,
    QuestionRequest,
    TextsToEncode,
    Why,
)
from colmlm.kb.answers.records import Answer, AnswerThreshold
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.kb.errors import InvalidQuery, KeysetMismatch, count_of
from colmlm.kb.lookup.options import KEY, READER, LookupOptions
from colmlm.kb.lookup.records import AsOfLookup, Lookup, LookupSpace
from colmlm.kb.lookup.replica import KeyLookup

if TYPE_CHECKING:
    from litestar.types import HTTPScope

    from colmlm.kb.answers.ranked import RankedLookups
    from colmlm.kb.lookup.lookups import AsOf, Lookups


@post("/lookups", status_code=200, opt=needs(Right.lookup, scoped=CorpusLimit.filter), responses=PROBLEMS)
async def look_up(ports: FromPorts, request: WithToken, data: JSONBody[LookupRequest]) -> LookupAnswers:
    """Look up.

    Gives the hits of each question and query, best first, at or above the threshold. No match is a normal result.
    `as_of` needs the right `audit`, and is not answered with `accepted_only`. With a `ranking` by more than the key one
    fact is given.
    """
    if data.as_of is not None:
        require_past(request)
    if (asked := read_key_lookup(data)) is not None:
        return convert_lookups(asked.checkpoint_id, [], await ports.find_by_key(asked))
    with (
        move_past_lookup(ports, data.as_of)
        if data.ranking != READER
        else ports.limiters.move_slot(Limiter.reading)
    ):
        return await sync_to_thread(_look_up, ports, data)


@post(
    "/encodings",
    status_code=200,
    opt=needs(Right.lookup, Limiter.reading, scoped=CorpusLimit.filter),
    responses=PROBLEMS,
)
async def encode_texts(ports: FromPorts, data: JSONBody[TextsToEncode]) -> EncodedTexts:
    """Make keys.

    Encodes questions, and the facts of documents, with the checkpoint of the active keyset. Nothing is stored. 422
    where the documents together have more than 1000 facts, or 200,000 characters.
    """
    _require_few(data.documents)
    with ports.limiters.move_slot(Limiter.long_reads) if data.documents else nullcontext():
        return await sync_to_thread(_encode_texts, ports, data)


def _require_few(documents: Sequence[DocumentToEncode]) -> None:
    """Raise `InvalidQuery` for documents that would take too much memory and time together."""
    num_facts = sum(len(given.facts) for given in documents)
    num_chars = sum(len(given.text) + len(given.title or "") for given in documents)
    if num_facts > MAX_FACTS_TO_ENCODE or num_chars > MAX_CHARS_TO_ENCODE:
        raise InvalidQuery(
            f"the documents have {count_of(num_facts, 'fact')} and {count_of(num_chars, 'character')}. One "
            f"request takes {MAX_FACTS_TO_ENCODE} facts and {MAX_CHARS_TO_ENCODE} characters. Send them in several "
            "requests"
        )


def _encode_texts(ports: Ports, data: TextsToEncode) -> EncodedTexts:
    model = ports.need_model(ports.kb.keysets.active().checkpoint_id)
    made = model.encoder.encode_documents(list(map(_document, data.documents))) if data.documents else []
    asked = model.encoder.encode_questions(data.questions).tolist() if data.questions else []
    return EncodedTexts(
        checkpoint_id=model.checkpoint.checkpoint_id,
        questions=asked,
        documents=[keys.tolist() for keys in made],
    )


def _document(given: DocumentToEncode) -> AnnotatedDocument:
    """Convert a document to encode. Raise `InvalidQuery` unless its spans are in the text, in order and apart."""
    at, text = 0, given.text
    for span in given.facts:
        if not at <= span.start < span.end <= len(text):
            raise InvalidQuery(
                f"the span {span.start}:{span.end} is outside the text, or before the previous span"
            )
        at = span.end
    facts = tuple(FactSpan(span.start, span.end, text[span.start : span.end]) for span in given.facts)
    return AnnotatedDocument("", text, facts, title=given.title)


def read_key_lookup(data: LookupRequest) -> KeyLookup | None:
    """Convert a request for a lookup by key that needs no model and waits for no change; give None for any other.

    Raise `InvalidQuery` if its queries are none or too many, differ in width, or lack a `checkpoint_id`.
    """
    if data.questions or data.ranking != KEY or data.as_of is not None or data.min_seq is not None:
        return None
    _check(data)
    return KeyLookup(_rows(data), data.checkpoint_id or "", _options_of(data))


def _options_of(data: LookupRequest) -> LookupOptions:
    return LookupOptions(
        k=data.k, threshold=data.threshold, accepted_only=data.accepted_only, corpora=data.corpora
    )


def move_past_lookup(ports: Ports, as_of: int | None) -> AbstractContextManager[None]:
    """Count a lookup `as_of` a change among long reads within the block, since it reads all keys (None: do nothing)."""
    return nullcontext() if as_of is None else ports.limiters.move_slot(Limiter.long_reads)


def _look_up(ports: Ports, data: LookupRequest) -> LookupAnswers:
    if not data.questions:
        return _lookup_answers(ports, data, None)
    return ports.ask_with_encoder(lambda encoder: _lookup_answers(ports, data, encoder))


def _lookup_answers(ports: Ports, data: LookupRequest, encoder: QuestionEncoder | None) -> LookupAnswers:
    checkpoint_id = _checkpoint_id(encoder, data)
    queries_BD = _queries(encoder, data)
    if data.as_of is not None:
        asked: AsOf | Lookups | RankedLookups = ports.kb.lookups.as_of(data.as_of)
    else:
        asked = ports.kb.lookups if data.ranking == KEY else ports.lookups
    options = _options_of(data)
    options |= {"min_seq": data.min_seq, "ranking": data.ranking, "texts": [*data.questions, *data.texts]}
    lookups = asked.find(queries_BD, checkpoint_id=checkpoint_id, **options)
    return convert_lookups(checkpoint_id, data.questions, lookups)


def convert_lookups(checkpoint_id: str, questions: Sequence[str], lookups: Sequence[Lookup]) -> LookupAnswers:
    """Convert the results of the questions, then those of the queries, to the response."""
    asked = chain(questions, repeat(None))
    answers = [convert_lookup(question, lookup) for question, lookup in zip(asked, lookups, strict=False)]
    return LookupAnswers(checkpoint_id=checkpoint_id, answers=answers)


def _checkpoint_id(encoder: QuestionEncoder | None, data: LookupRequest) -> str:
    """Give the checkpoint id of all query vectors. Raise `KeysetMismatch` if questions and queries have two."""
    _check(data)
    if encoder is None:
        return data.checkpoint_id or ""
    encoding = encoder.checkpoint.checkpoint_id
    if data.checkpoint_id not in (None, encoding):
        raise KeysetMismatch(str(data.checkpoint_id), encoding)
    return encoding


def _check(data: LookupRequest) -> None:
    if not 1 <= len(data.questions) + len(data.queries) <= MAX_QUERIES:
        raise InvalidQuery(f"a lookup takes 1 to {MAX_QUERIES} questions and queries")
    if data.queries and data.checkpoint_id is None:
        raise InvalidQuery("queries need the checkpoint_id that encoded them")


def _queries(encoder: QuestionEncoder | None, data: LookupRequest) -> npt.NDArray[np.float32]:
    """Give the query vectors [B, d]: those of the questions, then those of the request's queries."""
    if encoder is None:
        return _rows(data)
    encoded = encoder.encode_questions(data.questions)
    return np.concatenate([encoded, _rows(data, encoded.shape[1])])


def _rows(data: LookupRequest, *widths: int) -> npt.NDArray[np.float32]:
    """Give the request's queries [B, d]. Raise `InvalidQuery` unless they and `widths` have one width."""
    found = {len(query) for query in data.queries}.union(widths)
    if len(found) != 1:
        raise InvalidQuery(f"queries of different widths: {', '.join(map(str, sorted(found)))}")
    with np.errstate(over="ignore"):  # an overflow becomes infinite, which the lookup refuses
        return np.array(data.queries, dtype=np.float32).reshape(len(data.queries), found.pop())


def convert_lookup(question: str | None, lookup: Lookup) -> LookupAnswer:
    """Convert the result of one query to its form in the response."""
    return LookupAnswer(
        question=question,
        hits=list(lookup.hits),
        runner_up=lookup.runner_up,
        threshold=lookup.threshold,
        seq=lookup.seq,
        abstained=lookup.abstained,
        redacted=lookup.redacted if isinstance(lookup, AsOfLookup) else None,
        unkeyed=lookup.unkeyed if isinstance(lookup, AsOfLookup) else None,
    )


# Lookups for decoders on other machines: their checkpoint and dimension, and queries as bytes, which need no
# parsing.
#
# A `POST /v1/lookups` whose body is `application/octet-stream` is rerouted here, to a path of its own.

MAX_BYTES = 16 * 1024 * 1024
_MSGPACKS = (MSGPACK, "application/x-msgpack", "application/vnd.msgpack")
_DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}

Dim = Annotated[int, QueryParameter(ge=1, le=MAX_DIM, description="Numbers in a query")]
Of = Annotated[str, QueryParameter(min_length=1, max_length=200, description="Who encoded the queries")]
Dtype = Annotated[Literal["float32", "float16"], QueryParameter()]
K = Annotated[int, QueryParameter(ge=1, le=100)]
Threshold = Annotated[float | None, QueryParameter(ge=-1, le=1)]
# Not `ge=0`, since the OpenAPI document loses a limit of 0 for an optional parameter.
MinSeq = Annotated[int | None, QueryParameter(gt=-1, le=MAX_ID, description=SEEN)]
AsOfSeq = Annotated[
    int | None, QueryParameter(gt=-1, le=MAX_ID, description="Answer as the base stood at this change")
]

AcceptedOnly = Annotated[bool, QueryParameter(description="Find no fact that is only proposed")]
OfCorpora = Annotated[list[str] | None, QueryParameter(description="Only of these corpora; may be repeated")]


@dataclass
class _TakesOctets(Operation):
    """An operation of the OpenAPI document with a body of bytes, since Litestar describes none for such a handler."""

    def __post_init__(self) -> None:
        octets = Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY)
        self.request_body = RequestBody(
            required=True,
            description="The queries, row by row, little-endian",
            content={OCTETS.decode(): OpenAPIMediaType(schema=octets)},
        )


@get("/lookups", **in_thread(Right.lookup, scoped=CorpusLimit.filter))
def read_space(ports: FromPorts) -> LookupSpace:
    """Read what lookups are answered from.

    Gives the checkpoint whose queries are accepted, their dimension, the threshold, and the last change.
    """
    return ports.kb.lookups.space()


@post(
    "/lookups/vectors",
    status_code=200,
    opt=needs(Right.lookup, scoped=CorpusLimit.filter),
    responses=PROBLEMS,
    operation_class=_TakesOctets,
    request_max_body_size=MAX_BYTES,
)
async def look_up_vectors(
    ports: FromPorts,
    request: WithToken,
    body: RawBody,
    checkpoint_id: Of,
    dim: Dim,
    dtype: Dtype = "float32",
    k: K = 1,
    threshold: Threshold = None,
    min_seq: MinSeq = None,
    as_of: AsOfSeq = None,
    accepted_only: AcceptedOnly = False,
    corpora: OfCorpora = None,
) -> Response[LookupAnswers]:
    """Look up queries that are bytes.

    The body is rows of `dim` little-endian numbers of `dtype`; `POST /v1/lookups` accepts it too. The response is the
    same as to a lookup in JSON, or in MessagePack where `Accept` names that. `as_of` needs the right `audit`.
    """
    if as_of is not None:
        require_past(request)
    kind = request.accept.best_match([JSON, *_MSGPACKS], JSON)

    rows = decode_queries(body, dim, dtype)
    options: LookupOptions = {
        "k": k, "threshold": threshold, "accepted_only": accepted_only, "corpora": tuple(corpora or ()),
    }  # fmt: skip
    if as_of is None and min_seq is None:
        found_together = await ports.find_by_key(KeyLookup(rows, checkpoint_id, options))
        return _encoded_vectors(kind, checkpoint_id, found_together)

    def looked_up() -> Response[LookupAnswers]:
        asked = ports.kb.lookups if as_of is None else ports.kb.lookups.as_of(as_of)
        options["min_seq"] = min_seq
        found = asked.find(rows, checkpoint_id=checkpoint_id, **options)
        return _encoded_vectors(kind, checkpoint_id, found)

    with move_past_lookup(ports, as_of):
        return await sync_to_thread(looked_up)


def _encoded_vectors(kind: str, checkpoint_id: str, found: Sequence[Lookup]) -> Response[LookupAnswers]:
    answers = convert_lookups(checkpoint_id, [], found)
    encoded: Any = msgspec.json.encode(answers) if kind == JSON else msgspec.msgpack.encode(answers)
    return Response(encoded, media_type=kind)


def decode_queries(body: bytes, dim: int, dtype: str) -> npt.NDArray[np.float32]:
    """Decode a body into [B, dim]. Raise `InvalidQuery` unless it is whole rows, at least one and not too many."""
    stored = _DTYPES[dtype]
    rows, rest = divmod(len(body), dim * stored.itemsize)
    if rest:
        raise InvalidQuery(f"{len(body)} bytes are not whole rows of {dim} numbers of {dtype}")
    if not 1 <= rows <= MAX_VECTORS:
        raise InvalidQuery(f"a lookup takes 1 to {MAX_VECTORS} queries, but these are {rows}")
    return np.frombuffer(body, dtype=stored).reshape(rows, dim).astype(np.float32)


def reroute_octets(scope: HTTPScope) -> None:
    """Reroute a lookup whose body is bytes to `look_up_vectors`, since Litestar chooses a route by its path alone."""
    if scope["path"] == LOOKUPS and scope["method"] == "POST":
        kind = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
        if kind.partition(b";")[0].strip().lower() == OCTETS:
            scope["path"] = VECTORS


# Answers: questions are answered with a span of a document, or with the word that nothing stored answers them.


@post("/answers", status_code=200, **in_thread(Right.read, Limiter.reading, scoped=CorpusLimit.filter))
def answer_question(ports: FromPorts, data: JSONBody[QuestionRequest]) -> Answer:
    """Answer a question.

    The answer is a span of a document, with the facts it touches; `answer` is null where nothing stored answers the
    question. The mode `paper` takes the fact with the nearest key instead, and reads nothing. Each answer is stored as
    the output `generation_id`, also where nothing is said; it is null where the server keeps no answers.
    """
    return ports.need_answers().answer(data.question, data.mode, **data.options)


@get("/answers/threshold", **in_thread(Right.read))
def read_answer_threshold(ports: FromPorts) -> AnswerThreshold:
    """Read the threshold of answers.

    Gives the score from which answers are given, the calibration that chose it, and what speaks against that by now.
    """
    return ports.need_calibrations().standing()


@delete("/answers/threshold", status_code=200, **in_thread(Right.edit))
def use_shipped_threshold(ports: FromPorts, request: WithToken, data: JSONBody[Why]) -> AnswerThreshold:
    """Go back to the shipped threshold.

    The calibration no longer counts, from this commit on and in every process.
    """
    return ports.need_calibrations().drop(**on_record(request, data))


HANDLERS = (
    look_up,
    encode_texts,
    answer_question,
    read_answer_threshold,
    use_shipped_threshold,
    look_up_vectors,
    read_space,
)
