"""An ASGI application that only parses a lookup's request and answers: the limit of what its server can do.

    python -m colmlm.lab.bench.bare_asgi 8500

It runs under uvicorn as `colmlm serve` does, without threads, tokens or a database.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import uvicorn

from colmlm.api.wire import LookupAnswer, LookupAnswers, LookupRequest
from colmlm.kb.lookup.records import Hit

_ANSWER = LookupAnswer(
    question=None,
    hits=[Hit(1, 1, "a value of some words", 0.5, 1)],
    runner_up=0.25,
    threshold=0.125,
    seq=1,
)


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Answer every request with the same hit for each query."""
    if scope["type"] != "http":
        return
    body, more = b"", scope["method"] == "POST"
    while more:
        message = await receive()
        body, more = body + message["body"], message.get("more_body", False)
    asked = msgspec.json.decode(body or b"{}", type=LookupRequest)
    found = LookupAnswers(checkpoint_id=asked.checkpoint_id or "", answers=[_ANSWER for _ in asked.queries])
    said = msgspec.json.encode(found)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(said)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": said})


def main() -> None:
    uvicorn.run(
        answer,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        log_config=None,
        access_log=False,
        lifespan="off",
    )


if __name__ == "__main__":
    main()
