"""A program opens the knowledge base here or at an address, and asks both for the same."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from colmlm import connect
from colmlm.api.client.connection import ServerUnreachable, TokenRefused
from colmlm.cli.bases.local_base import LocalBase
from colmlm.kb import interpreter
from colmlm.kb.errors import KeysetMismatch, NotHeeded
from colmlm.kb.evidence.generation import GenerationRequest
from tests.api.conftest import CAPITAL
from tests.cli.elsewhere import There
from tests.refusals import raises_code

WHO = {"actor": "ada", "reason": "a test"}


def token(there: There, role: str = "admin") -> str:
    return there.tokens[role].read_text().strip()


def told(base: LocalBase) -> tuple[object, ...]:
    """What is the same wherever it is asked for."""
    (fact, _) = base.facts.find(corpus="atlas")
    return (
        fact,
        base.facts.show(fact.fact_id),
        base.documents.find(),
        base.corpora.all(),
        base.lookups.ask(CAPITAL, k=2),
        base.lookups.space(),
        base.outputs.trace_fact(fact.fact_id),
        base.log.changes(),
        base.keysets.listed(),
        base.jobs.list(),
        base.upkeep.statistics(),
    )


def test_here_and_elsewhere_say_the_same(there: There) -> None:
    with connect() as here, connect(there.address, token=token(there)) as elsewhere:
        assert told(here) == told(elsewhere)


def test_here_and_elsewhere_answer_from_the_corpora_that_are_named(there: There) -> None:
    with connect() as here, connect(there.address, token=token(there)) as elsewhere:
        for base in (here, elsewhere):
            source = base.lookups.answer(CAPITAL, threshold=0.0, corpora=("atlas",)).source
            assert source is not None and source.corpus == "atlas"
            with raises_code("CorpusNotFound", match="'nowhere'"):
                base.lookups.answer(CAPITAL, corpora=("atlas", "nowhere"))


def test_an_option_that_a_verb_has_not_or_lacks_is_refused_here_and_elsewhere(there: There) -> None:
    with connect() as here, connect(there.address, token=token(there)) as elsewhere:
        for base in (here, elsewhere):
            with pytest.raises(TypeError, match="corpsu"):
                base.facts.find(corpsu="atlas")  # type: ignore[call-arg]
            with pytest.raises(TypeError, match="radius"):
                base.lookups.ask(CAPITAL, radius=0.5)  # type: ignore[call-arg]
            with pytest.raises(TypeError, match="reason"):
                base.facts.add("Which sea is there?", "the Pacific", actor="ada")  # type: ignore[call-arg]


def test_an_edit_elsewhere_is_read_back_here(there: There) -> None:
    with connect() as here, connect(there.address, token=token(there)) as elsewhere:
        added = elsewhere.facts.add("Which sea is there?", "the Pacific", **WHO)
        assert added.keyed and here.facts.show(added.fact_ids[0]).value == "the Pacific"
        done = elsewhere.facts.delete(added.fact_ids, abstain=True, **WHO)
        assert here.facts.show(added.fact_ids[0]).deleted_seq == done.seq
        here.facts.restore(added.fact_ids, **WHO)
        assert elsewhere.facts.show(added.fact_ids[0]).deleted_seq is None
        said = elsewhere.decoder.generate(GenerationRequest(prompt=CAPITAL))
        assert here.outputs.trace(said.generation_id).output == said.output


def test_it_says_nothing_on_the_streams_of_the_program(
    there: There, capfd: pytest.CaptureFixture[str]
) -> None:
    with connect() as here:
        assert here.facts.add("Which river?", "the Amazon", **WHO).keyed
    assert capfd.readouterr() == ("", "")


def test_what_cannot_be_opened_is_refused_at_once(there: There) -> None:
    with pytest.raises(NotHeeded, match="`token`"):
        connect(there.address)  # type: ignore[call-overload]
    with pytest.raises(TokenRefused):
        connect(there.address, token="colmlm_nobody")
    with pytest.raises(KeysetMismatch):
        connect(there.address, token=token(there), checkpoint_id="another")
    with pytest.raises(ServerUnreachable):
        connect("http://127.0.0.1:9", token="colmlm_nobody")


def test_a_program_in_a_folder_of_other_packages_of_these_names_finds_ours(
    there: There, tmp_path: Path
) -> None:
    for name in ("api", "cli", "kb", "model"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('somebody else')")
    program = (
        "import sys\nfrom colmlm import connect\n"
        f"with connect({there.address!r}, token=sys.argv[1]) as kb:\n    print(len(kb.facts.find()))\n"
        "    kb.lookups.ask('Which?')\n"
        "heavy = {'litestar', 'typer', 'rich', 'torch', 'faiss', 'numpy', 'sqlalchemy', 'psycopg'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    words = interpreter.command("-c", program, token(there))
    path = os.pathsep.join((str(tmp_path), os.environ["PYTHONPATH"]))  # as Python has it, left alone
    env = {**os.environ, "PYTHONPATH": path}
    ran = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.splitlines()) == (0, ["2", "[]"]), ran.stderr
