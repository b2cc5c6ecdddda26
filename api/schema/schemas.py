"""The path parameters, and the responses about a server's health."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from litestar.params import PathParameter

from colmlm.api.wire.requests import MAX_ID
from colmlm.kb.keys.records import KeysetHead

PathId = Annotated[int, PathParameter(ge=1, le=MAX_ID)]


class OwnWorkerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The worker process that a server runs. `failures` counts its latest consecutive unexpected exits.

    Its last output is on the console's page Status and in the log.
    """

    running: bool
    since: datetime
    failures: int
    restarts: int
    exit_code: int | None = None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a server. `ok` is true if nothing is `missing`: it answers lookups and prompts.

    `index_seq` is the last change in this process's index, `head_seq` the last in the log; `index_lag` is how many were
    not yet in the index at the request. `checkpoint_id` is the loaded model's; lookups need it to be the active
    keyset's. `workers` is the number of live workers, and `worker` the one that this server runs. `degraded` holds
    `worker` where no jobs are done, and `model` where a model that may be wanted next is not loaded; `models_refused`
    says why, by checkpoint, and `models` are the checkpoints that are loaded.
    """

    ok: bool
    missing: list[str]
    database: bool
    migrations_at_head: bool
    head_seq: int | None = None
    index_seq: int | None = None
    index_lag: int | None = None
    active_keyset: KeysetHead | None = None
    checkpoint_id: str | None = None
    generator_loaded: bool
    degraded: list[str]
    workers: int | None = None
    worker: OwnWorkerHealth | None = None
    models: list[str] = []
    models_refused: dict[str, str] = {}


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a server should be sent requests. The names in `missing` and `degraded` are from fixed lists.

    A degraded server should be sent requests all the same (docs/operations.md).
    """

    ready: bool
    missing: tuple[str, ...]
    degraded: tuple[str, ...] = ()
