"""Uploads: files for a job to read. A file is written to disk as it arrives, so its size costs no memory."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, post
from litestar.concurrency import sync_to_thread
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import QueryParameter

from colmlm.api.door.rights import Lane, Right, needs
from colmlm.api.errors import MEDIA_TYPE, PROBLEMS
from colmlm.api.ports import FromPorts
from colmlm.api.wire.answers import Problem
from colmlm.kb.access.tokens import TokenRecord
from colmlm.kb.jobs.tickets import Upload, Uploads

FileName = Annotated[
    str,
    QueryParameter(min_length=1, max_length=200, description="The file's name; its end says what kind it is"),
]


_TOO_LARGE = ResponseSpec(
    Problem, generate_examples=False, description="The file is too large", media_type=MEDIA_TYPE
)


# `request_max_body_size` is None, since the settings hold the limit, which is checked while the file arrives.
@post(
    "/uploads",
    opt=needs(Right.edit, Lane.uploads),
    responses=PROBLEMS | {413: _TOO_LARGE},
    request_max_body_size=None,
)
async def upload(ports: FromPorts, request: Request[TokenRecord, Any, Any], name: FileName) -> Upload:
    """Upload a file.

    The body is stored unchanged for a job, which names it by `upload_id`. It is removed when that job is over, or after
    a day without one.
    """
    with Uploads.of(ports.kb.settings).receive(name) as receiving:
        async for block in request.stream():
            await sync_to_thread(receiving.write, block)
    return receiving.upload
