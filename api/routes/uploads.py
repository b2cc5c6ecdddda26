"""Uploads: files on their way to a job. A file goes to disk as it arrives, so its size costs no memory."""

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
from colmlm.kb.access.api_keys import ApiKeyRecord
from colmlm.kb.jobs.uploads import Upload, Uploads

FileName = Annotated[
    str,
    QueryParameter(min_length=1, max_length=200, description="The file's name; its end says what kind it is"),
]


_TOO_LARGE = ResponseSpec(
    Problem, generate_examples=False, description="The file is too large", media_type=MEDIA_TYPE
)


# `request_max_body_size` None: the limit is the settings', and is kept while the file arrives.
@post(
    "/uploads",
    opt=needs(Right.edit, Lane.uploads),
    responses=PROBLEMS | {413: _TOO_LARGE},
    request_max_body_size=None,
)
async def upload(ports: FromPorts, request: Request[ApiKeyRecord, Any, Any], name: FileName) -> Upload:
    """Upload a file.

    The body is kept as it is for a job to read, which names it by the `upload_id`. It is removed when that job is
    over, or after a day without one.
    """
    with Uploads.of(ports.kb.settings).receive(name) as receiving:
        async for block in request.stream():
            await sync_to_thread(receiving.write, block)
    return receiving.upload
