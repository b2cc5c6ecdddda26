"""A server that speaks the chat protocol, marks years or answers as told, and fails on command."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from colmlm.model.lm.chat_endpoint import rough_tokens

_YEAR = re.compile(r"\b\d{4}\b")
_TITLE = re.compile(r"Its title: (.*)")


@dataclass
class ChatServer:
    """A chat server. Each request takes the next of `commands`: a status, or the name of a fault; then it behaves.

    Faults: "cut" closes the connection, "html" sends a page, "altered", "unclosed", "fenced", "length", "forward" and
    "quoted" spoil the answer. `requests` are the messages of each request, `keys` its authorization. `says` gives the
    answer to messages under a command.
    """

    url: str = ""
    commands: list[str] = field(default_factory=list)
    requests: list[list[dict[str, str]]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    says: Callable[[list[dict[str, str]], str], str] = lambda messages, command: annotated(messages, command)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next_command(self, messages: list[dict[str, str]], key: str | None) -> str:
        with self.lock:
            self.requests.append(messages)
            self.keys.append(key)
            return self.commands.pop(0) if self.commands else "behave"


def annotated(messages: list[dict[str, str]], command: str = "behave") -> str:
    """Gives the last chunk that was sent with its years marked, spoilt as the command says."""
    chunk = [m["content"] for m in messages if m["role"] == "user" and "cannot be used" not in m["content"]][
        -1
    ]
    title = found.group(1) if (found := _TITLE.search(messages[0]["content"])) else "it"
    question = {"forward": f"When did {title} meet Zora?"}.get(command, f"When did {title} open?")
    if command == "quoted":
        question = f'When did "{title}" open?'
    text = _YEAR.sub(lambda m: f'<FACT q="{question}" a="the year {m.group()}">{m.group()}</FACT>', chunk)
    if command == "altered":
        return text.replace("opened", "was opened")
    if command == "unclosed":
        return text.replace("</FACT>", "", 1)
    return f"```text\n{text}\n```" if command == "fenced" else text


@contextmanager
def chat_server() -> Iterator[ChatServer]:
    state = ChatServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            messages = body["messages"]
            command = state.next_command(messages, self.headers["authorization"])
            if command == "cut":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
                self.close_connection = True
            elif command == "html":
                self.answer(200, b"<html>busy</html>")
            elif command.isdigit():
                said = f"status {command} for {self.headers['authorization']}".encode()
                self.answer(int(command), said, {"Retry-After": "0.01"})
            else:
                text = state.says(messages, command)
                asked = sum(rough_tokens(message["content"]) for message in messages)
                record: dict[str, Any] = {
                    "choices": [
                        {
                            "message": {"role": "assistant", "content": text},
                            "finish_reason": "length" if command == "length" else "stop",
                        }
                    ],
                    "usage": {"prompt_tokens": asked, "completion_tokens": rough_tokens(text)},
                }
                self.answer(200, json.dumps(record).encode())

        def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
