"""`colmlm evaluate paper`: each step once, whatever stops or fails in between, and nothing of it in the user's base."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from colmlm.kb import interpreter
from colmlm.kb.service import KnowledgeBase
from colmlm.lab.paper import excerpts
from colmlm.lab.paper.declared import Places
from colmlm.lab.paper.sizes import FULL, QUICK, VariantSizes
from colmlm.lab.paper.steps import declared
from tests.cli.conftest import ROOT, Run
from tests.lab.evaluate.test_tofu import log
from tests.test_docs import refusal_of

PUBLISHED = ("full", "retain90", "retain95")
SOUND = [f"tofu-published-{name}" for name in PUBLISHED[:2]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Made-up logs under the published names, of which the last is none, and a few paragraphs."""
    golden = tmp_path / "data" / "tofu" / "golden"
    golden.mkdir(parents=True)
    for number, name in enumerate(PUBLISHED):
        made = log(tmp_path / name, wrong=3.0 - number)
        (golden / f"phi_{name}.json.gz").write_bytes(gzip.compress(made.read_bytes()))
    (golden / "phi_retain95.json.gz").write_bytes(b"{}")
    squad = tmp_path / "data" / "squad"
    squad.mkdir()
    with (squad / "dev.jsonl").open("w") as file:
        for number in range(6):
            text = f"Hall {number} opened in {1900 + number}."
            asked = {
                "question": f"When did hall {number} open?",
                "answer": str(1900 + number),
                "answer_start": 17,
            }
            file.write(json.dumps({"title": f"Hall {number}", "context": text, "qas": [asked]}) + "\n")
    return tmp_path / "data"


def _hear_interrupts() -> None:
    """What a shell runs in the background ignores Ctrl-C, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def state(out: Path) -> dict[str, Any]:
    return {one["name"]: one for one in json.loads((out / "results.json").read_text())["steps"]}


@pytest.mark.slow(reason="runs each step as a process")
def test_a_stopped_run_goes_on_and_a_step_that_fails_is_told_and_stops_no_other(
    run: Run, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = (
        "evaluate",
        "paper",
        "--quick",
        "--out",
        str(out),
        "--data",
        str(data),
        "--only",
        "tofu-*",
        "--json",
    )
    first = out / "steps" / f"{SOUND[0]}.json"
    command = interpreter.command("-m", "colmlm.cli", *words)
    with subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, preexec_fn=_hear_interrupts
    ) as stopped:
        while not first.exists() and stopped.poll() is None:
            time.sleep(0.05)
        stopped.send_signal(signal.SIGINT)
        _, said = stopped.communicate()
    assert stopped.returncode == 130 and "step 1 of 3: tofu-published-full" in said
    made = first.stat().st_mtime_ns

    done = run(*words)
    assert done.code == 1
    assert "tofu-published-full: is there already" in done.err and first.stat().st_mtime_ns == made
    report = done.json
    assert report["steps"]["done"] == SOUND and report["failed_now"] == ["tofu-published-retain95"]
    steps, page = state(out), (out / "results.md").read_text()
    for name in SOUND:
        assert f"{steps[name]['result']['model_utility']:.3f} [" in page
        assert f"{steps[name]['command']} --json" in page
    assert f"{steps[SOUND[0]]['result']['forget_quality']:.3g}" in page
    assert "**failed**" in page and "phi_retain95.json.gz is no evaluation log" in page
    assert "no data" not in steps and "there is no $DATA/popqa" in page
    assert (out / "tofu.png").read_bytes().startswith(b"\x89PNG") and "![TOFU](tofu.png)" in page


@pytest.mark.slow(reason="runs an evaluation to its end")
def test_what_cannot_be_is_refused_and_missing_data_are_no_error(
    run: Run, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ("evaluate", "paper", "--out", out, "--data", data)
    passed_over = run(*words, "--quick", "--only", "qa-popqa-*", "--json")
    assert passed_over.code == 0 and "qa-popqa-auto" in passed_over.json["steps"]["no data"]
    assert "popqa_with_passages_500.json" in passed_over.err
    other = run(*words)
    assert other.code == 2 and "holds another run (variant quick" in other.err
    (tmp_path / "more").mkdir()
    elsewhere = run("evaluate", "paper", "--quick", "--out", out, "--data", tmp_path / "more")
    assert elsewhere.code == 2 and f"data {data}" in elsewhere.err
    unknown = run(*words, "--quick", "--only", "nothing")
    assert unknown.code == 2 and "no step is nothing" in unknown.err and "deletion" in unknown.err
    nowhere = run("evaluate", "paper", "--out", out, "--data", tmp_path / "nowhere")
    assert nowhere.code == 2 and "there is no" in nowhere.err
    listed = run(*words, "--skip", "qa-*", "--dry-run", "--json").json["steps"]
    names = [one["name"] for one in listed]
    assert "tofu-forget05-npo-42" in names and not any(name.startswith("qa-") for name in names)


@pytest.mark.slow(reason="runs each step as a process")
def test_a_step_has_a_knowledge_base_of_its_own_that_is_filled_once(
    run: Run, kb: KnowledgeBase, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ("evaluate", "paper", "--quick", "--out", out, "--data", data, "--only", "recall-squad", "--json")
    done = run(*words)
    assert done.code == 0, done.err
    assert kb.corpora.all() == [] and "COLMLM_DATABASE_URL" in os.environ
    recall = state(out)["recall-squad"]
    assert (recall["result"]["facts"], recall["result"]["questions"]) == (6, 6)
    page = (out / "results.md").read_text()
    assert "corpus ingest $OUT/data/squad.jsonl" in page and f"{recall['result']['mrr']:.3f}" in page

    (out / "steps" / "recall-squad.json").unlink()
    again = run(*words)
    assert again.code == 0 and "preparing" not in again.err
    assert state(out)["recall-squad"]["result"]["facts"] == 6


@pytest.mark.slow(reason="runs an evaluation to its end")
@pytest.mark.parametrize("sizes", [QUICK, FULL], ids=lambda sizes: sizes.variant)
def test_every_declared_command_is_one_that_the_command_line_takes(
    sizes: VariantSizes, tmp_path: Path
) -> None:
    places = Places(out=tmp_path / "out", data=tmp_path / "data", released=tmp_path / "released")
    places.out.mkdir()
    plan = declared(places, sizes, places.released / "co-lmlm-135m")
    typed = [[*step.argv, "--json"] for step in plan.steps]
    typed += [list(argv) for one in plan.preparations.values() for argv in one.commands]
    assert [f"{words}: {fault}" for words in typed if (fault := refusal_of(words))] == []
    names = [step.name for step in plan.steps]
    assert len(names) == len(set(names))
    for step in plan.steps:  # everything that is needed is declared, and data are read before they are missed
        assert plan.chain(step) or not step.preparations
        assert plan.missing(step), step.name


def test_articles_are_read_whose_subjects_have_a_lead_and_the_leads_are_theirs(tmp_path: Path) -> None:
    articles, vital = tmp_path / "articles.jsonl", tmp_path / "vital.json"
    articles.write_text(
        "".join(json.dumps({"title": t, "text": "."}) + "\n" for t in ("Sail", "Chess", "knife"))
    )
    vital.write_text(
        json.dumps({str(n): {"title": t, "extract": t} for n, t in enumerate(("Knife", "Fir", "Sail"))})
    )
    assert [one["title"] for one in excerpts.covered(articles, None, by=vital)] == ["Sail", "knife"]
    assert [one["title"] for one in excerpts.leads_of(vital, None, articles=articles)] == ["Knife", "Sail"]
    assert [one["title"] for one in excerpts.leads_of(vital, 1, articles=articles)] == ["Sail"]


def test_an_excerpt_has_something_of_every_part(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    file.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(10)))
    assert [one["n"] for one in excerpts.spread(file, 4)] == [0, 2, 5, 7]
    assert len(excerpts.spread(file, 99)) == len(excerpts.spread(file, None)) == 10
    passage = {"title": "Peru", "text": "Its capital is Lima."}
    row = {"question": "q", "possible_answers": "[]", "paragraphs": [passage, passage]}
    file.write_text(json.dumps([row, row, row]))
    assert len(list(excerpts.passages(file, None))) == 1 and len(list(excerpts.questions(file, 2))) == 2


def test_logs_in_the_folder_are_measured_beside_their_reference(tmp_path: Path) -> None:
    places = Places(out=tmp_path, data=tmp_path / "data", released=tmp_path)
    for model, reading in (
        ("retain", "spoken"),
        ("ours", "spoken"),
        ("ours", "masked"),
        ("standard", "none"),
    ):
        (tmp_path / "tofu" / "forget05" / model).mkdir(parents=True, exist_ok=True)
        log(tmp_path / "tofu" / "forget05" / model / f"{reading}.json")
    quick = {step.name: step.argv for step in declared(places, QUICK, tmp_path).steps}
    folder = tmp_path / "tofu" / "forget05"
    assert quick["tofu-log-forget05-ours-spoken"][-2:] == ("--retain", str(folder / "retain" / "spoken.json"))
    assert "--retain" not in quick["tofu-log-forget05-ours-masked"]
    full = {step.name for step in declared(places, FULL, tmp_path).steps}
    assert "tofu-log-forget05-ours-spoken" in full and "tofu-log-forget05-standard-none" not in full
