"""Format the log of a server or worker: one JSON object per line, or plain lines on a terminal.

Code logs through the standard library with its fields in `extra`. Questions, prompts and outputs are never fields, and
a secret that gets into a line is replaced by `[secret]`.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

import structlog
from sqlalchemy.exc import SQLAlchemyError
from structlog.typing import EventDict, Processor, WrappedLogger

from colmlm.api.errors import Busy
from colmlm.api.middleware.auth import is_edit
from colmlm.api.middleware.limiters import Bucket, Clock, Limiter, Limiters
from colmlm.api.request_context import RequestState, route_of
from colmlm.kb.evidence.log import Log
from colmlm.kb.log.chain import NewDenial
from colmlm.kb.store import waits
from colmlm.kb.store.engines import SECRETS
from colmlm.kb.texts.characters import LINES, visible_text

if TYPE_CHECKING:
    from litestar.types import HTTPScope

    from colmlm.api.settings import ServerSettings


_IN_QUERIES = "|".join(rf"(?<=\b{name}=)[^\s&'\"]+" for name in sorted(SECRETS))
_SECRET = re.compile(
    rf"colmlm_[A-Za-z0-9_-]{{16,}}|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)|(?i:bearer)\s+\S+|{_IN_QUERIES}"
    r"|\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_.-]+"  # a JSON Web Token
)
_BLOT = "[secret]"
# At level info these repeat this program's own log, or are noise; below it, those of object storage tell how they sign.
_CHATTY = (
    "aiobotocore",
    "botocore",
    "faiss",
    "httpcore",
    "httpx",
    "httpx2",
    "colmlm.kb.store.engines",
    "procrastinate",
    "s3fs",
    "urllib3",
    "uvicorn",
)


def configure(settings: ServerSettings, stream: TextIO | None = None) -> None:
    """Send everything that this process logs to `stream` (stderr), in the format that the settings name."""
    out = stream or sys.stderr
    as_text = settings.log_format == "text" or (settings.log_format == "auto" and out.isatty())
    handler = logging.StreamHandler(out)
    handler.setFormatter(_formatter(as_text=as_text, colours=out.isatty()))
    handler.addFilter(waits.is_news)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # it warns at every attempt to connect


def _formatter(*, as_text: bool, colours: bool) -> logging.Formatter:
    before: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        blot_secrets,
        show_all,
    ]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=before,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *(_text_processors(colours) if as_text else _json_processors()),
        ],
    )


def _text_processors(colours: bool) -> list[Processor]:
    # Not structlog's rich tracebacks: they show local variables, and with them what was asked.
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=colours, pad_event_to=0, exception_formatter=plain)]


def _json_processors() -> list[Processor]:
    return [
        structlog.processors.EventRenamer("message"),
        structlog.processors.JSONRenderer(ensure_ascii=False),
    ]


def blot_secrets(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Replace tokens, passwords in URLs and bearer headers in every text of a log line, also in its traceback."""
    return {name: blot_secret(value) for name, value in event.items()}


def show_all(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Escape invisible characters, so that no name in a log line can control a terminal or start another line."""
    return {name: _visible_field(name, value) for name, value in event.items()}


def _visible_field(name: str, value: Any) -> Any:
    return visible_text(value, LINES if name == "exception" else "") if isinstance(value, str) else value


def blot_secret(value: Any) -> Any:
    """Give the value; if it is a text, with its secrets replaced."""
    return _SECRET.sub(_BLOT, value) if isinstance(value, str) else value


# Logs every denial and every edit, one line each, with request id, actor and route as fields.
#
# Denials are also stored in the database for auditors: up to `RECORDED_A_MINUTE` of requests with a token and
# as many of requests without. The rest is only counted. A database that does not answer does not change the
# response.

RECORDED_A_MINUTE = 60

_DENIED = frozenset({401, 403, 421, 429})
_DENIED_BY_CAUSE = "LogoutRefused"  # has the status 400, as its protocol wants

_log = logging.getLogger("colmlm.journal")


class Journal:
    """Log denials and edits for auditors. Used on the event loop."""

    def __init__(self, log: Log, limiters: Limiters, clock: Clock = time.monotonic) -> None:
        self._log, self._limiters = log, limiters
        self._of_tokens, self._of_strangers = (Bucket(RECORDED_A_MINUTE, clock) for _ in range(2))
        self._num_unrecorded = 0

    async def note(self, scope: HTTPScope, request: RequestState) -> None:
        """Log an answered request if it was denied or was an edit."""
        is_denied = request.status in _DENIED or request.refusal == _DENIED_BY_CAUSE
        if is_denied and request.refusal is not None:
            await self._record_denial(scope, request)
        elif (request.status or 500) < 400 and is_edit(scope) and not request.is_replay:
            _log.info("edited", extra=_fields(scope, request))

    async def _record_denial(self, scope: HTTPScope, request: RequestState) -> None:
        fields = _fields(scope, request)
        _log.info("denied", extra={**fields, "cause": request.refusal})
        actor = fields["actor"]
        if (self._of_tokens if actor else self._of_strangers).take():
            self._num_unrecorded += 1
            return
        denial = NewDenial(
            request_id=request.request_id,
            actor=actor,
            method=scope["method"],
            path=route_of(scope),  # the template, since the path itself may hold what was asked
            status=request.status or 0,
            cause=request.refusal or "",
            num_unrecorded=self._num_unrecorded,
        )
        self._num_unrecorded = 0
        try:
            await self._limiters.run(Limiter.records, self._record, denial)
        except Busy:
            self._num_unrecorded += 1 + denial.num_unrecorded

    def _record(self, denial: NewDenial) -> None:
        try:
            self._log.deny(denial)
        except SQLAlchemyError as error:
            waits.log_outage(_log, "a denial was not recorded", error)


def _fields(scope: HTTPScope, request: RequestState) -> dict[str, Any]:
    token = scope.get("user")
    return {
        "request_id": request.request_id,
        "client_request_id": request.client_request_id,
        "actor": token.name if token else None,
        "method": scope["method"],
        "route": scope.get("path_template"),
        "status": request.status,
    }
