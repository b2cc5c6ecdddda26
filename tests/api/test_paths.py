"""The ways on docs/explanation/packages.md, recorded while a real lookup, edit and retraining run."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import CAPITAL, Client
from tests.fakes import FakeEncoder
from tests.hops import own_frames, recorded_hops
from tests.places import ROOT

PAGE = ROOT / "docs" / "explanation" / "packages.md"
PACKAGES = ("kb", "api", "cli", "model")
WIDTH = 34
MOST_HOPS = 9  # may only go down
# Text checks, waits, connections and figures are called everywhere, and are no part of a way.
ASIDE = (
    "kb/texts/",
    "kb/principal",
    "kb/store/pool",
    "kb/store/engines",
    "kb/store/scoped_role",
    "kb/store/patience",
    "api/watch/",
)


class Recorder:
    """Records the calls between files below a function, each once, while it is told to."""

    def __init__(self) -> None:
        self.entry: tuple[str, str] | None = None
        self.calls: dict[tuple[str, str], None] = {}
        self.unfollowed = "-"

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or self.entry is None or (called := place(frame)) is None:
            return
        if called == self.entry:
            self.calls[called] = None
        elif self.entry in (above := [place(one) for one in callers(frame)]):
            caller = next(one for one in above if one is not None)
            within = caller[0] == called[0] or caller[0].startswith(self.unfollowed)
            if not within and not called[1].startswith("_"):
                self.calls[called] = None

    @contextmanager
    def way_of(
        self, path: str, function: str, unfollowed: str = "-"
    ) -> Iterator[dict[tuple[str, str], None]]:
        """Record the calls below this function; what the package `unfollowed` calls is left out."""
        self.entry, self.calls, self.unfollowed = (path, function), {}, unfollowed
        try:
            yield self.calls
        finally:
            self.entry = None


def callers(frame: FrameType) -> Iterator[FrameType]:
    while (above := frame.f_back) is not None:
        yield above
        frame = above


def place(frame: FrameType) -> tuple[str, str] | None:
    """Give the file and the function of a frame of this program; None for others, and for generated code."""
    code = frame.f_code
    _, found, path = code.co_filename.rpartition("/colmlm/")
    if not found or path.partition("/")[0] not in PACKAGES or path.startswith(ASIDE):
        return None
    if code.co_name.startswith(("<", "__")):
        return None
    return path, code.co_name


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """A recorder that sees every thread which begins after it."""
    made, before = Recorder(), sys.getprofile()
    threading.setprofile(made)
    sys.setprofile(made)
    yield made
    sys.setprofile(before)
    threading.setprofile(None)


def drawn(calls: dict[tuple[str, str], None]) -> str:
    return "".join(f"{path:{WIDTH}}{function}\n" for path, function in calls)


def require(title: str, calls: dict[tuple[str, str], None]) -> None:
    """Require that the page draws this way; with UPDATE_DOCS write it anew."""
    page = PAGE.read_text()
    head, _, rest = page.partition(f"## {title}, through the packages\n```\n")
    old, _, after = rest.partition("```")
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(f"{head}## {title}, through the packages\n```\n{drawn(calls)}```{after}")
    else:
        assert old == drawn(calls), "run: UPDATE_DOCS=1 pytest tests/api/test_paths.py"


def test_the_way_of_a_lookup_is_the_one_taken(recorder: Recorder, operator: Client, fact_id: int) -> None:
    for _ in range(2):  # the first fills caches
        with recorder.way_of("api/routes/lookups.py", "_look_up") as calls:
            assert operator.post("/v1/lookups", json={"questions": [CAPITAL]}).status_code == 200
    require("A lookup", calls)


def test_the_way_of_an_edit_is_the_one_taken(recorder: Recorder, operator: Client, fact_id: int) -> None:
    for verb in ("delete", "restore", "delete"):
        body = {"fact_ids": [fact_id], "reason": "test"}
        path, method = ("/v1/facts", "DELETE") if verb == "delete" else ("/v1/facts/restore", "POST")
        with recorder.way_of("api/routes/facts.py", "delete_facts") as calls:
            assert operator.request(method, path, json=body).status_code == 200
    require("An edit", calls)


def test_the_way_of_a_rekey_is_the_one_taken(recorder: Recorder, atlas: KnowledgeBase) -> None:
    for salt in ("one", "two"):
        with recorder.way_of("kb/switching/keysets.py", "rekey", "kb/lookup/") as calls:
            atlas.keysets.rekey(FakeEncoder(salt))
    require("A rekey", calls)


def test_few_functions_stand_between_a_request_and_its_sql(operator: Client, fact_id: int) -> None:
    """The route runs in a thread, so the middleware that waits for it is counted where that begins."""
    waiting: list[list[str]] = []
    submit = asyncio.BaseEventLoop.run_in_executor

    def submitted(self: Any, *given: Any) -> Any:
        waiting.append(own_frames())
        return submit(self, *given)

    body = {"fact_ids": [fact_id], "reason": "test"}
    with recorded_hops() as stacks, pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.BaseEventLoop, "run_in_executor", submitted)
        assert operator.request("DELETE", "/v1/facts", json=body).status_code == 200
    found = waiting[-1] + min(stacks, key=len)
    assert len(found) <= MOST_HOPS, "\n".join(found)
