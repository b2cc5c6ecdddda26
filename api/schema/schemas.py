"""What requests may say, and how much: every size has a limit here. Answers are records of kb as they are, or below."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from litestar.params import PathParameter

from colmlm.api.wire.requests import MAX_ID
from colmlm.kb.keys.records import KeysetRecord

PathId = Annotated[int, PathParameter(ge=1, le=MAX_ID)]


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
