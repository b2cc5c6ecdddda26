"""What requests may say, and how much: every size has a limit here. Answers are kb.records as they are, or below."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from litestar.params import PathParameter
from msgspec import Meta

from colmlm.api.ports import GenerationRequest
from colmlm.kb.records import Hit, KeysetRecord

MAX_ID = 2**63 - 1
MAX_BODY_BYTES = 2 * 1024 * 1024
MAX_QUERIES = 64
MAX_PAGE = 500
MAX_FACTS_PER_EDIT = 1000

Id = Annotated[int, Meta(ge=1, le=MAX_ID)]
Seq = Annotated[int, Meta(ge=0, le=MAX_ID)]
SEEN = "Wait until this change is seen, to read an edit back; 404 where nobody made it, 503 where it takes too long"
MinSeq = Annotated[int, Meta(ge=0, le=MAX_ID, description=SEEN)]
Threshold = Annotated[float, Meta(ge=-1, le=1)]
Reason = Annotated[str, Meta(min_length=1, max_length=1000, description="Why; it stays in the change log")]
Behalf = Annotated[
    str,
    Meta(
        min_length=1, max_length=200, description="On whose behalf; kept beside the key, which is the actor"
    ),
]
OldBehalf = Annotated[
    str,
    Meta(min_length=1, max_length=200, description="The former name of `on_behalf_of`, heeded without that"),
]
Question = Annotated[str, Meta(min_length=1, max_length=2000)]
Value = Annotated[str, Meta(min_length=1, max_length=10_000)]
Vector = Annotated[list[float], Meta(min_length=1, max_length=16_384)]

PathId = Annotated[int, PathParameter(ge=1, le=MAX_ID)]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A misspelt field is refused: an ignored `threshold` would be a wrong answer."""


class Why(Request, frozen=True, kw_only=True):
    """Why something is edited, and on whose behalf."""

    reason: Reason
    on_behalf_of: Behalf | None = None
    actor: OldBehalf | None = None


class EditResult(msgspec.Struct, frozen=True, kw_only=True):
    """An edit in force. `seq` is its change; give `min_seq` to a lookup or a generation to read the edit back.

    `keyed` says whether every fact here can be found by lookups now; if not, rekey.
    """

    seq: int
    min_seq: int
    kind: str
    fact_ids: list[int]
    keyed: bool


class LookupRequest(Request, frozen=True, kw_only=True):
    """Questions, which the server encodes, and queries, which `checkpoint_id` encoded; at least one of either."""

    questions: Annotated[list[Question], Meta(max_length=MAX_QUERIES)] = []
    queries: Annotated[list[Vector], Meta(max_length=MAX_QUERIES)] = []
    checkpoint_id: Annotated[str, Meta(max_length=200)] | None = None
    k: Annotated[int, Meta(ge=1, le=100)] = 1
    threshold: Threshold | None = None
    min_seq: MinSeq | None = None
    as_of: Annotated[Seq | None, Meta(description="Answer as the base stood at this change")] = None


class LookupAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What one query gave. See `kb.records.Lookup`; for the last two, `kb.lookup.history`."""

    question: str | None
    hits: list[Hit]
    runner_up: float | None
    threshold: float
    seq: int
    abstained: int | None = None
    redacted: int | None = None
    unkeyed: int | None = None


class LookupAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """In order: the questions, then the queries."""

    checkpoint_id: str
    answers: list[LookupAnswer]


class NewGeneration(Request, frozen=True, kw_only=True):
    """See `api.ports.GenerationRequest`. With `stream` the answer is server-sent events."""

    prompt: Annotated[str, Meta(min_length=1)]
    mode: Literal["auto", "forced", "off"] = "auto"
    max_tokens: Annotated[int, Meta(ge=1, le=512)] = 64
    temperature: Annotated[float, Meta(ge=0, le=5)] = 0.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    repetition_penalty: Annotated[float, Meta(ge=0.5, le=5)] = 1.2
    stop: Annotated[list[Annotated[str, Meta(min_length=1, max_length=100)]], Meta(max_length=8)] = []
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0
    threshold: Threshold | None = None
    min_seq: MinSeq | None = None
    fact_bias: Annotated[float, Meta(ge=-100, le=100)] | None = None
    stream: bool = False

    def request(self) -> GenerationRequest:
        fields = msgspec.structs.asdict(self)
        del fields["stream"]
        return GenerationRequest(**{**fields, "stop": tuple(self.stop)})


class OwnWorkerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The worker that a server runs beside it. `failures` counts its last ends in a row that nobody asked for.

    What it said last is on the console's page Status and in the log.
    """

    running: bool
    since: datetime
    failures: int
    restarts: int
    exit_code: int | None = None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """`ok` where nothing is `missing`: lookups are answered, and prompts too.

    `index_seq` is the last change in this process's index, `head_seq` the last there is; `index_lag` is how many
    were not in the index when this was asked. `checkpoint_id` is the loaded model's; lookups need it to be the
    active keyset's. `workers` were heard of lately, and `worker` is the one that this server runs; `degraded` says
    `worker` where jobs are not done.
    """

    ok: bool
    missing: list[str]
    database: bool
    migrations_at_head: bool
    head_seq: int | None = None
    index_seq: int | None = None
    index_lag: int | None = None
    active_keyset: KeysetRecord | None = None
    checkpoint_id: str | None = None
    generator_loaded: bool
    degraded: list[str]
    workers: int | None = None
    worker: OwnWorkerHealth | None = None


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a server should be sent requests. What may be `missing` or `degraded` are fixed lists.

    What is degraded keeps no answer from being given (docs/operations.md).
    """

    ready: bool
    missing: tuple[str, ...]
    degraded: tuple[str, ...] = ()
