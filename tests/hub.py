"""A hub on this machine: the part of the Hugging Face hub's API that pushing and pulling a repository takes.

HF_ENDPOINT=http://127.0.0.1:PORT HF_HUB_DISABLE_XET=1 colmlm checkpoint push me/mine
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "hf_secret"


@dataclass
class Hub:
    """Repositories by name, each the files of its last commit; what was stored by digest; and what was asked."""

    address: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    stored: dict[str, bytes] = field(default_factory=dict)
    private: dict[str, bool] = field(default_factory=dict)
    commits: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)


@contextmanager
def running() -> Iterator[Hub]:
    """Gives a hub that answers on a port of the loopback."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _mode(path: str) -> dict[str, Any]:
    mode = "lfs" if path.endswith(".safetensors") else "regular"
    return {"path": path, "uploadMode": mode, "shouldIgnore": False}


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if self.headers.get("Authorization") != f"Bearer {SECRET}":
            return self._json({"error": "Invalid credentials"}, 401)
        if self.path == "/api/repos/create":
            return self._create(json.loads(body))
        if self.path.endswith("/info/lfs/objects/batch"):
            return self._batch(json.loads(body))
        repo = "/".join(self.path.split("/")[3:5])
        if "/preupload/" in self.path:
            return self._json({"files": [_mode(one["path"]) for one in json.loads(body)["files"]]})
        return self._commit(repo, [json.loads(line) for line in body.splitlines()])

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.hub.stored[hashlib.sha256(content).hexdigest()] = content
        self._json({})

    def do_GET(self) -> None:
        parts = self.path.split("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            repo = "/".join(parts[2:4])
            files = self.hub.files.get(repo)
            if files is None:
                return self._json({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
            if "tree" in parts:
                return self._json(
                    [{"type": "file", "path": p, "size": len(c), "oid": "0"} for p, c in files.items()]
                )
            siblings = [{"rfilename": path} for path in files]
            return self._json({"id": repo, "sha": self.hub.commits[repo], "siblings": siblings})
        if parts[2:3] == ["resolve"]:
            repo = "/".join(parts[:2])
            files = self.hub.files[repo]
            return self._send(files["/".join(parts[4:])], {"X-Repo-Commit": self.hub.commits[repo]})
        return self._json({}, 404)

    do_HEAD = do_GET

    def _create(self, asked: dict[str, Any]) -> None:
        repo = f"{asked['organization']}/{asked['name']}"
        self.hub.files.setdefault(repo, {})
        self.hub.private.setdefault(repo, asked.get("visibility") == "private")
        self._json({"url": f"{self.hub.address}/{repo}"})

    def _batch(self, asked: dict[str, Any]) -> None:
        upload = f"{self.hub.address}/store"
        objects = [
            {**one, "actions": {"upload": {"href": f"{upload}/{one['oid']}"}}} for one in asked["objects"]
        ]
        self._json({"transfer": "basic", "objects": objects})

    def _commit(self, repo: str, lines: list[dict[str, Any]]) -> None:
        files = self.hub.files[repo]
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.hub.messages.append(value["summary"])
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.stored[value["oid"]]
        oid = self.hub.commits[repo] = hashlib.sha1(f"{repo} {len(self.hub.messages)}".encode()).hexdigest()
        self._json(
            {"commitUrl": f"{self.hub.address}/{repo}/commit/{oid}", "commitOid": oid, "success": True}
        )

    def _json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._send(
            json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})}, status
        )

    def _send(self, content: bytes, headers: dict[str, str], status: int = 200) -> None:
        self.send_response(status)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Says nothing of requests."""
