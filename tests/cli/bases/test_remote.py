"""A knowledge base elsewhere: it answers as the one here does, refuses as it does, and is asked again with measure."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PosixPath
from typing import Any

import numpy as np
import pytest

from colmlm.api.client.api import _FileBlocks
from colmlm.api.client.client import Client
from colmlm.api.client.connection import Connection, Patience, ServerUnreachable, TokenRefused
from colmlm.api.wire import MAX_QUERIES, MAX_VECTORS
from colmlm.cli.bases.remote import OutputsElsewhere
from colmlm.cli.composition.generator import StoringGenerator
from colmlm.kb.answers.ranked import RankedLookups
from colmlm.kb.errors import InvalidQuery, KBError, KeysetMismatch
from colmlm.kb.evidence.generation import GenerationRequest
from colmlm.kb.evidence.records import NewOutput, Splice
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.texts.characters import visible_text
from colmlm.model.lm.checkpoint import Checkpoint
from tests.api.conftest import CAPITAL
from tests.api.tiny_server import TinyServer, eager_checkpoint, tiny_server
from tests.cli.conftest import invoke
from tests.fakes import NearReader
from tests.refusals import raises_code

HASTY = Patience(attempts=3, first_wait=0.0, connect_seconds=1.0, answer_seconds=5.0)
WHO = {"actor": "tester", "reason": "wrong"}


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return eager_checkpoint(tmp_path_factory.mktemp("eager"))


@pytest.fixture
def tiny(kb: KnowledgeBase, eager: Checkpoint) -> Iterator[TinyServer]:
    with tiny_server(kb, eager) as started:
        yield started


@pytest.fixture
def remote(tiny: TinyServer) -> Iterator[Client]:
    of = tiny.checkpoint.checkpoint_id
    with Client.open(tiny.address, tiny.keys["decoder"], checkpoint_id=of, patience=HASTY) as opened:
        yield opened


def queries(tiny: TinyServer, count: int = 3) -> np.ndarray:
    drawn = np.random.default_rng(1).standard_normal((count, tiny.checkpoint.lm.dim))
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


def test_it_answers_as_the_base_itself(tiny: TinyServer, remote: Client) -> None:
    of = tiny.checkpoint.checkpoint_id
    for asked in (queries(tiny), queries(tiny, MAX_VECTORS + 1)):
        there = remote.lookups.find(asked, checkpoint_id=of, k=2)
        assert there == tiny.kb.lookups.find(asked, checkpoint_id=of, k=2) and len(there[0].hits) == 2
    (none,) = remote.lookups.find(queries(tiny, 1), checkpoint_id=of, threshold=1.0)
    assert none.hits == () and none.runner_up is not None
    before = tiny.kb.log.head_seq()
    edit = tiny.kb.facts.delete([there[0].hits[0].fact_id], **WHO)
    (now,) = remote.lookups.find(asked[:1], checkpoint_id=of, min_seq=edit.seq)
    with pytest.raises(TokenRefused, match="'audit'"):
        remote.lookups.as_of(before).find(asked[:1], checkpoint_id=of)
    with Client.open(tiny.address, tiny.keys["operator"]) as of_an_operator:
        (then,) = of_an_operator.lookups.as_of(before).find(asked[:1], checkpoint_id=of)
    assert now.hits[0].fact_id != edit.fact_ids[0] == then.hits[0].fact_id and now.seq >= edit.seq


def test_what_is_decoded_here_is_stored_there_as_if_decoded_there(tiny: TinyServer, remote: Client) -> None:
    request = GenerationRequest(prompt=CAPITAL, mode="forced", max_tokens=8, ranking="key")
    here = StoringGenerator(tiny.checkpoint, OutputsElsewhere(remote), remote.lookups)
    there, told = tiny.generator.generate(request), here.generate(request)
    stored = tiny.kb.outputs.trace(told.generation_id)
    assert stored == replace(told, splices=stored.splices) and told.splices
    untold = {"history": (), "given_by": None, "document_says": None, "sentence": None}
    assert [replace(s, **untold) for s in stored.splices] == list(told.splices)
    assert (stored.output, stored.splices) == (there.output, there.splices)
    *items, streamed = here.stream(request)
    assert "".join(item for item in items if isinstance(item, str)) == told.output
    assert streamed == replace(told, generation_id=streamed.generation_id, at=streamed.at)  # type: ignore[union-attr]


@pytest.mark.parametrize("ranking", ["words", "reader"])
def test_texts_beside_queries_are_ranked_there(tiny: TinyServer, remote: Client, ranking: str) -> None:
    of, asked = tiny.checkpoint.checkpoint_id, queries(tiny, MAX_QUERIES + 1)
    texts = [CAPITAL, "Which lake lies highest? Its great lake is", *["Unheard of?"] * (MAX_QUERIES - 1)]
    there = remote.lookups.find(asked, checkpoint_id=of, ranking=ranking, texts=texts, threshold=-1.0)
    here = RankedLookups(tiny.kb, NearReader)
    assert there == here.find(asked, checkpoint_id=of, ranking=ranking, texts=texts, threshold=-1.0)
    assert there[0].hits[0].value == "Lima" and there[1].hits[0].value == "Titicaca"
    with pytest.raises(InvalidQuery, match="a text for each query"):
        remote.lookups.find(asked[:2], checkpoint_id=of, ranking=ranking, texts=texts[:1])
    with Client.open(tiny.address, tiny.keys["operator"]) as of_an_operator:
        past = of_an_operator.lookups.as_of(tiny.kb.log.head_seq())
        with pytest.raises(InvalidQuery, match="by key alone"):
            past.find(asked[:1], checkpoint_id=of, ranking=ranking, texts=texts[:1])
        assert of_an_operator.lookups.ask(CAPITAL, ranking="reader").hits[0].value == "Lima"


def test_a_decoder_here_can_have_the_reader_there(tiny: TinyServer, remote: Client) -> None:
    request = GenerationRequest(
        prompt=f"Question: {CAPITAL} Answer:", mode="forced", max_tokens=4, ranking="reader"
    )
    here = StoringGenerator(tiny.checkpoint, OutputsElsewhere(remote), remote.lookups)
    there, told = tiny.generator.generate(request), here.generate(request)
    stored = tiny.kb.outputs.trace(told.generation_id)
    assert stored.ranking == told.ranking == there.ranking == "reader"
    assert stored.output == there.output and stored.output.startswith(" Lima")
    assert stored.splices == there.splices and stored.splices[0].score <= 1  # type: ignore[operator]


def test_its_refusals_are_those_of_the_base(tiny: TinyServer, remote: Client) -> None:
    of, asked = tiny.checkpoint.checkpoint_id, queries(tiny, 1)
    with raises_code("NoSuchChange", match="10000"):
        remote.lookups.find(asked, checkpoint_id=of, min_seq=10_000)
    with pytest.raises(KeysetMismatch) as mismatch:
        remote.lookups.find(asked, checkpoint_id="another")
    assert (mismatch.value.wanted, mismatch.value.active) == ("another", of)
    with pytest.raises(InvalidQuery, match="the keys have"):
        remote.lookups.find(asked[:, :5], checkpoint_id=of)
    with pytest.raises(InvalidQuery, match="NaN"):
        remote.lookups.find(np.full_like(asked, np.nan), checkpoint_id=of)
    lying = NewOutput("p", "said", of, "auto", 1, (Splice(0, 4, "hit", 1, 1, 0.9),))
    with raises_code("InvalidSplice", match="another value"):
        remote.outputs.record_from_elsewhere(lying)


def test_another_checkpoint_or_key_is_refused_at_once(tiny: TinyServer) -> None:
    with pytest.raises(KeysetMismatch):
        Client.open(tiny.address, tiny.keys["decoder"], checkpoint_id="another")
    with pytest.raises(TokenRefused) as refused:
        Client.open(tiny.address, "colmlm_nobody")
    assert "colmlm_nobody" not in str(refused.value)


class Answering(BaseHTTPRequestHandler):
    """Answers what its server was told to, one after the other: a status, or nothing at all."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"] or 0))
        script: list[int] = self.server.script  # type: ignore[attr-defined]
        self.server.asked += 1  # type: ignore[attr-defined]
        status = script.pop(0) if script else 200
        if not status:
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def answering(*script: int) -> Iterator[tuple[str, ThreadingHTTPServer]]:
    """A server that answers so, and then 200; statuses of 0 cut the connection."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        server.script, server.asked = list(script), 0  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", server
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "script, is_repeatable, asked",
    [((503, 0), True, 3), ((429,), False, 2), ((503,), False, 1), ((0,), False, 1), ((500,), True, 1)],
)
def test_only_what_is_safe_to_repeat_is_sent_again(
    script: tuple[int, ...], is_repeatable: bool, asked: int
) -> None:
    with answering(*script) as (url, server), Connection(url, "key", HASTY) as connection:
        if asked > len(script):
            connection.request("POST", "/x", is_repeatable=is_repeatable, content=b"x")
        else:
            with pytest.raises(KBError):
                connection.request("POST", "/x", is_repeatable=is_repeatable, content=b"x")
        assert server.asked == asked  # type: ignore[attr-defined]


class _SharedOffset(PosixPath):
    """A file as macOS opens `/dev/fd/N`: each time with the offset at which the last one stopped."""

    def open(self, *args: Any, **kwargs: Any) -> Any:
        return os.fdopen(os.dup(int(self.name)), "rb")


def test_an_upload_that_is_sent_again_begins_at_the_start_of_the_file(tmp_path: Path) -> None:
    (file := tmp_path / "a.txt").write_text("Lima")
    with file.open("rb") as opened:
        place = _SharedOffset(f"/proc/self/fd/{opened.fileno()}")
        blocks = _FileBlocks(place, lambda done, total: None)
        assert list(blocks) == list(blocks) == [b"Lima"]


def test_a_server_in_trouble_is_not_asked_several_times_as_much() -> None:
    patience = replace(HASTY, saved=4.0, earned=0.5)
    with answering(*[503] * 20) as (url, server), Connection(url, "key", patience) as connection:
        for _ in range(10):
            with pytest.raises(ServerUnreachable):  # an empty 503 is not this program's
                connection.request("POST", "/x", is_repeatable=True)
        assert server.asked == 10 + 4  # type: ignore[attr-defined]
        server.script.clear()  # type: ignore[attr-defined]
        connection.request("POST", "/x", is_repeatable=True)
        assert connection.budget.left == 0.5


@pytest.mark.parametrize("content", [b"", b"two\nlines", b"colmlm_\xff", b"\0"])
def test_a_bad_token_file_is_named(tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    (file := tmp_path / "bad").write_bytes(content)
    words = ("facts", "list", "--server", "http://127.0.0.1:1")
    monkeypatch.setenv("COLMLM_KEY_FILE", str(file))
    for ran in (invoke(*words, "--token-file", file), invoke(*words)):
        assert ran.code == 2 and str(file) in ran.err and ran.err.count("\n") == 1, ran.err
    assert "Invalid value for COLMLM_KEY_FILE" in ran.err
    monkeypatch.delenv("COLMLM_KEY_FILE")
    monkeypatch.setenv("COLMLM_TOKEN_FILE", str(file))
    ran = invoke(*words)
    assert ran.code == 2 and "COLMLM_TOKEN_FILE" in ran.err, ran.err


def test_generate_decodes_here_against_a_server(
    tiny: TinyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a database of its own."""
    monkeypatch.setenv("COLMLM_CHECKPOINT", str(tiny.checkpoint.path))
    monkeypatch.setenv("COLMLM_DATABASE_URL", "postgresql://nobody@nowhere.invalid/none")
    monkeypatch.setenv("COLMLM_HOME", str(tmp_path / "home"))
    key = tmp_path / "key"
    key.write_text(tiny.keys["decoder"] + "\n")
    words = (
        "generate",
        CAPITAL,
        "--mode",
        "forced",
        "--max-tokens",
        6,
        "--server",
        tiny.address,
        "--token-file",
        key,
    )
    said = invoke(*words, "--json").json
    stored = tiny.kb.outputs.trace(said["generation_id"])
    assert (
        stored.output == said["output"] and stored.splices and said["splices"][0]["source"]["title"] == "Peru"
    )
    shown = invoke(*words, "--stream")
    assert (
        shown.code == 0 and shown.out.startswith(visible_text(said["output"])) and tiny.address in shown.err
    )
