"""A server that runs here is asked in place of loading the model once more, and its answers are the same."""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colmlm.api.app import create_app
from colmlm.cli.bases.nearby import SERVER_FILE, NearEncoder, near_base, near_encoder, told_of
from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.kb.evidence.generation import GenerationRequest, Item
from tests.api.serving import served
from tests.cli.conftest import QUESTIONS, Ran, Run, invoke
from tests.fakes import NearReader

QUESTION = QUESTIONS["Lima"]
PROMPT = f"Question: {QUESTION} Answer:"
FORCED = ("--mode", "forced", "--threshold", -1, "--max-tokens", 4)
ALONE = ("--server", "")
VOLATILE = ("generation_id", "at")
WHEN_STORED = re.compile(r"(?<=^output )\d+|\d{4}-\d\d-\d\d \d\d:\d\d$", re.MULTILINE)


@contextmanager
def running(**parts: Any) -> Iterator[str]:
    """A server on the home of the test, with the model in this process; `parts` stand in for its own."""
    with Runtime.from_environment() as runtime, socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with told_of(runtime, listener, url) as key:
            parts = {"encoder": runtime.encoder, "generator": runtime.generator, **parts}
            with served(create_app(runtime.kb, **parts, local=key), listener):
                yield url


@pytest.fixture
def near(keyed: list[int]) -> Iterator[str]:
    with running() as url:
        yield url


@pytest.fixture
def no_model(near: str, checkpoint: Path) -> Iterator[None]:
    """Whoever loads the model fails in the test: its weights are gone, and only the server has them in memory."""
    weights = checkpoint / "model.safetensors"
    away = weights.rename(checkpoint / "away")
    assert invoke("lookup", QUESTION, *ALONE).code == 7
    yield
    away.rename(weights)


def same(*words: object) -> Ran:
    """How a command ended that says the same when a server answers it and when this process does."""
    near, alone = invoke(*words, "--json", "-v"), invoke(*words, "--json", "-v", *ALONE)
    assert "Answered by the server" in near.err and "Answered by this process" in alone.err
    assert near.code == alone.code
    stable = [{n: v for n, v in ran.json.items() if n not in VOLATILE} for ran in (near, alone)]
    assert stable[0] == stable[1]
    return near


def test_a_lookup_is_answered_as_by_this_process(near: str, subtests: pytest.Subtests) -> None:
    for more in ((), ("-k", 1), ("--threshold", 1), ("--threshold", -1), ("--min-seq", 2)):
        with subtests.test(more=more):
            assert same("lookup", QUESTION, *more).code == 0


def test_an_output_is_the_one_of_this_process(near: str, subtests: pytest.Subtests) -> None:
    for more in ((), ("--mode", "off"), ("--temperature", 2, "--seed", 3), ("--stop", "a")):
        with subtests.test(more=more):
            assert same("generate", PROMPT, *FORCED, *more).code == 0


def test_a_stream_is_the_one_of_this_process(near: str) -> None:
    asked, alone = (invoke("generate", PROMPT, *FORCED, "--stream", *more) for more in ((), ALONE))
    assert asked.code == alone.code == 0
    assert WHEN_STORED.sub("", asked.out) == WHEN_STORED.sub("", alone.out)


def test_no_model_is_loaded_where_a_server_has_it(no_model: None, run: Run, checkpoint: Path) -> None:
    assert run("lookup", QUESTION).code == 0
    assert run("lookup", QUESTION, "--checkpoint", checkpoint).code == 0
    assert run("generate", PROMPT, *FORCED).code == 0


def test_the_server_is_not_named_where_its_outputs_are_at_home(near: str, run: Run) -> None:
    assert "colmlm trace output " in run("generate", PROMPT, *FORCED).err


def test_an_answer_is_stored_once_by_the_server_that_keeps_answers_alike(
    keyed: list[int], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(reader=NearReader()):
        said = run("ask", QUESTION, "--json", "-v")
        assert said.json["generation_id"] == 1 and "Answered by the server" in said.err
        monkeypatch.setenv("COLMLM_KEEP_ANSWERS", "no")
        said = run("ask", QUESTION, "--json", "-v")
        assert said.json["generation_id"] is None and "Answered by this process" in said.err
    assert len(run("trace", "outputs", "--json").json["outputs"]) == 1


def test_what_the_base_refuses_is_refused_once_and_alike(no_model: None, run: Run) -> None:
    ran = run("lookup", QUESTION, "--min-seq", 10**6, "-v")
    assert ran.code == 3 and ran.err.count("\n") == 1 and "Answered" not in ran.err


def test_what_a_server_cannot_do_this_process_does(near: str, run: Run, subtests: pytest.Subtests) -> None:
    for more in (("-k", 101), ("--as-of", 2)):
        with subtests.test(more=more):
            ran = run("lookup", QUESTION, *more, "-v")
            assert "Answered by this process." in ran.err


def test_a_server_with_another_checkpoint_is_not_asked(
    near: str, run: Run, checkpoint: Path, tmp_path: Path
) -> None:
    shutil.copytree(checkpoint, tmp_path / "copy")
    ran = run("lookup", QUESTION, "--checkpoint", tmp_path / "copy", "-v")
    assert ran.code == 0 and ran.err == "Answered by this process.\n"


def test_a_server_of_other_settings_is_not_asked(near: str) -> None:
    runtime = Runtime.from_environment()
    assert near_base(runtime, None) is not None
    runtime.settings = replace(runtime.settings, database_url="postgresql+psycopg://another/base")
    assert near_base(runtime, None) is None


def test_a_proxy_of_the_environment_is_not_told(
    no_model: None, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert run("lookup", QUESTION).code == 0


def test_this_process_answers_where_the_server_has_no_model(keyed: list[int], run: Run) -> None:
    with running(encoder=None, generator=None):
        for words in (("lookup", QUESTION), ("generate", PROMPT, *FORCED)):
            ran = run(*words, "-v")
            assert ran.code == 0 and "Answered by this process." in ran.err


def test_this_process_answers_once_the_server_has_ended(keyed: list[int], run: Run, home: Path) -> None:
    with running():
        kept = (home / SERVER_FILE).read_bytes()
    assert not (home / SERVER_FILE).exists()
    (home / SERVER_FILE).write_bytes(kept)  # as a server leaves it that was killed
    (home / SERVER_FILE).chmod(0o600)
    ran = run("lookup", QUESTION, "-v")
    assert ran.code == 0 and ran.err == "Answered by this process.\n"


@dataclass
class BreakingOff:
    """A generator that fails once it has begun."""

    def stream(self, request: GenerationRequest) -> Iterator[Item]:
        yield "They say"
        raise RuntimeError("out of memory")


def test_an_output_that_breaks_off_is_not_begun_again(keyed: list[int], run: Run) -> None:
    with running(generator=BreakingOff()):
        ran = run("generate", PROMPT, *FORCED, "--stream", "-v")
    assert ran.code != 0 and ran.out.count("They say") == 1 and "Answered" not in ran.err


def test_a_server_that_others_reach_is_not_told_of(home: Path) -> None:
    bound = socket.socket()  # it does not listen
    bound.bind(("0.0.0.0", 0))
    with bound, Runtime.from_environment() as runtime, told_of(runtime, bound, "http://0.0.0.0:1") as key:
        assert key is None and not (home / SERVER_FILE).exists()


def test_a_server_whose_home_cannot_be_written_serves_without(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime, bound = Runtime.from_environment(), socket.create_server(("127.0.0.1", 0))
    home.write_text("no directory")
    with bound, told_of(runtime, bound, "http://127.0.0.1:1") as key:
        assert key is None
    assert "can't ask this server" in capsys.readouterr().err


def test_the_server_makes_the_keys_of_edits_and_this_process_loads_no_model(
    no_model: None, run: Run, keyed: list[int]
) -> None:
    why = ("--reason", "r", "--json")
    question = "What is the deepest lake of Peru?"
    added = run("facts", "add", "--question", question, "--value", "Poopó", *why)
    assert added.code == 0 and added.json["keyed"], added.err
    assert added.json["fact_ids"][0] in [hit["fact_id"] for hit in run(*found_by(question)).json["hits"]]
    edited = run("facts", "edit", keyed[0], "--question", "Where does Peru's government sit?", *why)
    assert edited.code == 0 and edited.json["keyed"], edited.err
    undone = run("facts", "undo", edited.json["seq"], *why)
    assert undone.code == 0 and undone.json["keyed"], undone.err
    assert run("facts", "list", "--near", question).code == 0
    assert run("facts", "add", "--question", f"{question} Now?", "--value", "x", *why, *ALONE).code == 7


def test_keys_made_by_the_server_are_those_of_this_process(near: str, run: Run) -> None:
    document = AnnotatedDocument("d", "Peru has a lake.", (FactSpan(11, 15, "lake"),), title="Peru")
    with Runtime.from_environment() as runtime, near_encoder(runtime) as asked:
        assert isinstance(asked, NearEncoder)
        questions = [f"{QUESTION} {n}" for n in range(70)]
        np.testing.assert_allclose(
            asked.encode_questions(questions), runtime.encoder.encode_questions(questions), atol=1e-5
        )
        (ours,), (theirs,) = runtime.encoder.encode_documents([document]), asked.encode_documents([document])
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    with running(encoder=None, generator=None):
        added = run("facts", "add", "--question", "New?", "--value", "Yes", "--reason", "r", "--json")
    assert added.json["keyed"], "this process makes the keys that the server cannot"


def found_by(question: str) -> tuple[object, ...]:
    return ("lookup", question, "--threshold", -1, "-k", 5, "--json")
