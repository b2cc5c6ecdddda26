"""Ask forty questions by the command line, HTTP, MCP, the console and a chat, and compare what each of them says.

`python -m tests.acceptance.doors` adds the newcomer's three documents to a home of its own, serves it with the
released weights, prints what differs as JSON, and ends with 1 where something does.
"""

from __future__ import annotations

import html
import json
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
from mcp import Client

from tests.acceptance.newcomer_run import PARTS, QUESTIONS, WHO_SUPPLIED, fill
from tests.cli.conftest import invoke, started
from tests.cli.operating.test_mcp import over_stdio, told

ABOUT_PARTS = ("How many kilograms does the {part} weigh?", "how often must the {part} be inspected")
ASKED = (
    *QUESTIONS,
    *(WHO_SUPPLIED.format(part=part) for part in PARTS[:10]),
    *(asked.format(part=part) for asked in ABOUT_PARTS for part in PARTS[10:20]),
)
Said = dict[str, str | None]
_ANSWER = re.compile(r'<section class="card answer".*?</section>', re.DOTALL)
_TITLE = re.compile(r'<h2 id="answer-title"[^>]*>(.*?)</h2>', re.DOTALL)
_LINES = re.compile(r"<blockquote[^>]*>(.*?)</blockquote>", re.DOTALL)
SILENT = "The knowledge base has no sure answer to this"
LINES = "The lines that answer"


@contextmanager
def serving() -> Iterator[str]:
    """Run `colmlm serve` on the home of this process and give its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with started("serve", "--port", port) as process:
        for _ in range(600):
            try:
                if httpx.get(f"{address}/readyz").status_code == 200:
                    break
            except httpx.TransportError:
                assert process.poll() is None, "the server ended"
            time.sleep(0.5)
        yield address
        process.terminate()
        process.wait(60)


def by_http(address: str, secret: str) -> Said:
    headers = {"Authorization": f"Bearer {secret}"}
    with httpx.Client(base_url=address, headers=headers, timeout=60) as client:
        posted = (client.post("/v1/answers", json={"question": asked}) for asked in ASKED)
        return dict(
            zip(ASKED, (answer.raise_for_status().json()["answer"] for answer in posted), strict=True)
        )


def by_command(address: str, token: Path) -> Said:
    answers = (invoke("ask", asked, "--server", address, "--token-file", token, "--json") for asked in ASKED)
    return dict(zip(ASKED, (answer.json["answer"] for answer in answers), strict=True))


def by_mcp(address: str, token: Path) -> Said:
    async def talk(client: Client) -> Said:
        return {asked: (await told(client, "ask", question=asked))["answer"] for asked in ASKED}

    return over_stdio("--server", address, "--token-file", token, talk=talk)


def by_console(address: str, secret: str) -> Said:
    with httpx.Client(base_url=address, timeout=60, headers={"Origin": address}) as client:
        assert client.post("/session", data={"key": secret}).status_code == 303
        return {
            asked: _read_shown_answer(client.post("/console/ask/answer", data={"question": asked}).text)
            for asked in ASKED
        }


def _read_shown_answer(page: str) -> str | None:
    """Give the answer that a page of the console shows: its title, or the lines below it."""
    section = _ANSWER.search(page)
    assert section is not None, page
    title = _TITLE.search(section[0])
    assert title is not None
    if title[1] == SILENT:
        return None
    shown = _LINES.search(section[0]) if title[1] == LINES else title
    assert shown is not None
    return html.unescape(re.sub("</?mark>", "", shown[1]))


def by_chat(address: str, secret: str) -> Said:
    client = openai.OpenAI(base_url=f"{address}/v1", api_key=secret, max_retries=0)
    model = client.models.list().data[0].id
    said: Said = {}
    for asked in ASKED:
        message = client.chat.completions.create(model=model, messages=[{"role": "user", "content": asked}])
        said[asked] = message.choices[0].message.content
    return said


def compare(place: Path) -> dict[str, Any]:
    """Ask all of it at every door, and tell where two of them differ."""
    folder = place / "mine"
    folder.mkdir()
    fill(folder)
    invoke("corpus", "add", folder, "--corpus", "mine")
    token = place / "token"
    made = invoke("tokens", "create", "asker", "--role", "reader", "--json")
    token.write_text(made.json["token"], encoding="utf-8")
    token.chmod(0o600)
    with serving() as address:
        doors = {
            "http": by_http(address, made.json["token"]),
            "command": by_command(address, token),
            "mcp": by_mcp(address, token),
            "console": by_console(address, made.json["token"]),
            "chat": by_chat(address, made.json["token"]),
        }
    said = {asked: {door: answers[asked] for door, answers in doors.items()} for asked in ASKED}
    differ = {asked: answers for asked, answers in said.items() if len(set(answers.values())) > 1}
    answered = sum(doors["http"][asked] is not None for asked in ASKED)
    return {
        "questions": len(ASKED),
        "answered": answered,
        "agree": len(ASKED) - len(differ),
        "differ": differ,
    }


def main() -> int:
    with tempfile.TemporaryDirectory() as place:
        os.environ["COLMLM_HOME"] = str(Path(place) / "home")
        found = compare(Path(place))
        invoke("db", "down")
    print(json.dumps(found, indent=1))
    return int(bool(found["differ"]))


if __name__ == "__main__":
    sys.exit(main())
