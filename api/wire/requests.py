"""The bodies of requests, with a limit for every size."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from colmlm.kb.evidence.generation import GenerationRequest
from colmlm.kb.lookup.options import AcceptedOnly, AnswerWanted

MAX_ID = 2**63 - 1
MAX_BODY_BYTES = 2 * 1024 * 1024
MAX_QUERIES = 64
MAX_PAGE = 500
MAX_FACTS_PER_EDIT = 1000
MAX_FACTS_TO_ENCODE = 1000
MAX_CHARS_TO_ENCODE = 200_000
Id = Annotated[int, Meta(ge=1, le=MAX_ID)]
Seq = Annotated[int, Meta(ge=0, le=MAX_ID)]
SEEN = "Wait until this change is seen, to read an edit back; 404 where nobody made it, 503 where it takes too long"
MinSeq = Annotated[int, Meta(ge=0, le=MAX_ID, description=SEEN)]
Threshold = Annotated[float, Meta(ge=-1, le=1)]
DecodingThreshold = Annotated[
    float,
    Meta(
        ge=-1,
        le=1,
        description="The least score of a fact, by the scale of the `ranking`. Where nobody named one and the reader "
        "decides on a question, it is a probability and only raises the threshold of answers: no fact is cited that "
        "an answer is refused by; name the ranking `reader` to lower it, or `key` for a cosine",
    ),
]
Reason = Annotated[str, Meta(min_length=1, max_length=1000, description="Why; it stays in the change log")]
Behalf = Annotated[
    str,
    Meta(
        min_length=1, max_length=200, description="On whose behalf; kept beside the token, which is the actor"
    ),
]
OldBehalf = Annotated[
    str,
    Meta(min_length=1, max_length=200, description="The former name of `on_behalf_of`, heeded without that"),
]
Question = Annotated[str, Meta(min_length=1, max_length=2000)]
Value = Annotated[str, Meta(min_length=1, max_length=10_000)]
Version = Annotated[
    int,
    Meta(ge=1, le=2**31 - 1, description="The version that was read: 409 where the fact has another by now"),
]
Vector = Annotated[list[float], Meta(min_length=1, max_length=16_384)]


OnMiss = Annotated[
    Literal["abstain", "continue"],
    Meta(
        description="What follows a lookup that finds nothing: nothing more is said, or the model's own words. "
        "Default: a prompt that ends in `Answer:` abstains, any other continues"
    ),
]


RankingName = Annotated[
    Literal["key", "words", "reader"],
    Meta(
        description="What lookups find facts by: the key alone, the key and words, or these and a reader, whose score "
        "and threshold are probabilities"
    ),
]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base of all request bodies. It refuses unknown fields: a misspelt `threshold` would give a wrong result."""


class Why(Request, frozen=True, kw_only=True):
    """The reason for an edit, and on whose behalf it is made."""

    reason: Reason
    on_behalf_of: Behalf | None = None
    actor: OldBehalf | None = None


class SpanToEncode(Request, frozen=True, kw_only=True):
    """A fact's span in a document: from the code point `start` up to `end`."""

    start: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    end: Annotated[int, Meta(ge=1, le=2**31 - 1)]


class DocumentToEncode(Request, frozen=True, kw_only=True):
    """A document whose facts get keys, and their spans in the order of the text, without overlap."""

    text: Annotated[str, Meta(min_length=1, max_length=MAX_CHARS_TO_ENCODE)]
    title: Annotated[str, Meta(max_length=10_000)] | None = None
    facts: Annotated[list[SpanToEncode], Meta(min_length=1, max_length=MAX_FACTS_TO_ENCODE)]


class TextsToEncode(Request, frozen=True, kw_only=True):
    """Questions, and documents with facts, whose keys a client stores itself.

    All documents together have at most 1000 facts, and 200,000 characters in texts and titles.
    """

    questions: Annotated[list[Question], Meta(max_length=MAX_QUERIES)] = []
    documents: Annotated[list[DocumentToEncode], Meta(max_length=MAX_QUERIES)] = []


class LookupRequest(Request, frozen=True, kw_only=True):
    """At least one question, which the server encodes, or query, which the checkpoint `checkpoint_id` made.

    With a `ranking` by more than the key each query has one of the `texts`; a question is its own.
    """

    questions: Annotated[list[Question], Meta(max_length=MAX_QUERIES)] = []
    queries: Annotated[list[Vector], Meta(max_length=MAX_QUERIES)] = []
    checkpoint_id: Annotated[str, Meta(max_length=200)] | None = None
    k: Annotated[int, Meta(ge=1, le=100)] = 1
    threshold: Threshold | None = None
    min_seq: MinSeq | None = None
    as_of: Annotated[Seq | None, Meta(description="Answer as the base stood at this change")] = None
    ranking: RankingName = "key"
    texts: Annotated[list[Annotated[str, Meta(max_length=2000)]], Meta(max_length=MAX_QUERIES)] = []
    accepted_only: AcceptedOnly = False


class QuestionRequest(AnswerWanted, Request, frozen=True, kw_only=True):
    """A question to answer. `threshold` is a probability, or in the mode `paper` a cosine."""

    question: Question
    mode: Literal["read", "paper"] = "read"


class LookupFields(Request, frozen=True, kw_only=True):
    """What a request to decode says of its lookups."""

    threshold: DecodingThreshold | None = None
    min_seq: MinSeq | None = None
    fact_bias: Annotated[float, Meta(ge=-100, le=100)] | None = None
    on_miss: OnMiss | None = None
    ranking: RankingName | None = None
    accepted_only: AcceptedOnly = False


class NewGeneration(LookupFields, frozen=True, kw_only=True):
    """A `kb.evidence.generation.GenerationRequest`. With `stream` the response is server-sent events."""

    prompt: Annotated[str, Meta(min_length=1)]
    mode: Literal["auto", "forced", "off"] = "auto"
    max_tokens: Annotated[int, Meta(ge=1, le=512)] = 64
    min_tokens: Annotated[int, Meta(ge=0, le=512)] = 0
    temperature: Annotated[float, Meta(ge=0, le=5)] = 0.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    repetition_penalty: Annotated[float, Meta(ge=0.5, le=5)] = 1.2
    stop: Annotated[list[Annotated[str, Meta(min_length=1, max_length=100)]], Meta(max_length=8)] = []
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0
    stream: bool = False

    def request(self) -> GenerationRequest:
        fields = msgspec.structs.asdict(self)
        del fields["stream"]
        return GenerationRequest(**{**fields, "stop": tuple(self.stop)})


# Tells which host names mean this machine.

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def is_loopback(host: str) -> bool:
    """Tell whether what is sent to this host stays on this machine, whatever the resolver says of other names."""
    return host.lower() in LOOPBACK


# Lookups by vectors: their paths, limits and media types.

MAX_VECTORS = 1024
MAX_DIM = 16_384
LOOKUPS, VECTORS = "/v1/lookups", "/v1/lookups/vectors"
OCTETS = b"application/octet-stream"
JSON, MSGPACK = "application/json", "application/msgpack"
