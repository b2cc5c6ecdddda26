"""Multiple choice by likelihood, counted as lm_eval counts it."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from colmlm.kb import interpreter
from colmlm.lab.main import lm_eval
from colmlm.model.decoding.scoring import score_tokens
from colmlm.model.evaluate.continuations import Item, choose, with_shots
from colmlm.model.lm.checkpoint import load
from tests.cli.conftest import ROOT, Run, invoke

CHOICES = ("Lima", "a lake that lies high", "x")


@pytest.fixture
def use(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLMLM_CHECKPOINT", str(checkpoint))


def test_a_choice_is_as_likely_as_its_tokens_after_the_context(checkpoint: Path) -> None:
    loaded, context = load(checkpoint, checkpoint), "Answer:"
    (chosen,) = choose(loaded, [Item(context, CHOICES, 0)])
    for choice, logprob in zip(CHOICES, chosen.logprobs, strict=True):
        (scored,) = score_tokens(loaded, [loaded.tokenizer.prompt(f"{context} {choice}")])
        assert logprob == pytest.approx(sum(one.logprob for one in scored[len(context) :]), rel=1e-4)


def test_the_right_ones_are_counted(use: None, checkpoint: Path, tmp_path: Path) -> None:
    loaded = load(checkpoint, checkpoint)
    (chosen,) = choose(loaded, [Item("Answer:", CHOICES, 0)])
    likeliest = chosen.logprobs.index(max(chosen.logprobs))
    by_character = [logprob / len(choice) for logprob, choice in zip(chosen.logprobs, CHOICES, strict=True)]
    items: list[dict[str, Any]] = [
        {"context": "Answer:", "choices": CHOICES, "answer": answer} for answer in (likeliest, *range(3))
    ]
    file = tmp_path / "items.jsonl"
    file.write_text("".join(json.dumps(item) + "\n" for item in items))
    told = invoke("evaluate", "choices", file, "--json").json
    assert told["items"] == 4 and told["acc"] == 2 / 4
    is_same = by_character.index(max(by_character)) == likeliest
    assert told["acc_norm"] == (2 if is_same else 1) / 4
    assert invoke("evaluate", "choices", file, "--limit", 1, "--json").json["acc"] == 1.0


@pytest.mark.parametrize("line", ["{", '{"context": "x", "choices": ["a", "b"], "answer": 2}', ""])
def test_a_file_that_holds_no_items_is_one_line(use: None, tmp_path: Path, line: str) -> None:
    file = tmp_path / "items.jsonl"
    file.write_text(line)
    ran = invoke("evaluate", "choices", file)
    assert ran.code == 2 and ran.err.count("\n") == 1 and "ITEMS" in ran.err


NLU = ROOT.parent / "shared" / "data" / "nlu"


def lines(file: Path, items: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(item) + "\n" for item in items))
    return file


def items(count: int, answers: int = 3) -> list[dict[str, Any]]:
    return [
        {"context": f"Question: {n}?\nAnswer:", "choices": CHOICES, "answer": n % answers}
        for n in range(count)
    ]


def test_exemplars_are_solved_items_drawn_by_the_seed_and_a_stopped_run_goes_on(
    use: None, checkpoint: Path, tmp_path: Path
) -> None:
    asked, shots = lines(tmp_path / "items", items(4)), lines(tmp_path / "shots", items(9))
    out = tmp_path / "scores.jsonl"
    base = ("evaluate", "choices", asked, "--shots", shots, "--num-shots", 2, "--json", "--out", out)
    first = invoke(*base, "--seed", 1).json
    kept = out.read_text().splitlines()
    ran = invoke(*base, "--seed", 1, "--seed", 2)
    assert "4 scores are there already" in ran.err and out.read_text().splitlines()[:5] == kept
    told, loaded = ran.json, load(checkpoint, checkpoint)
    for seed, found in zip((1, 2), told["by_seed"], strict=True):
        read = [Item(i["context"], CHOICES, i["answer"]) for i in items(9)]
        behind = list(with_shots(read[:4], read, 2, seed))
        assert [one.context.count("Answer: ") for one in behind] == [2] * 4
        assert len({one.context for one in behind}) == 4
        assert found["acc"] == sum(one.is_right for one in choose(loaded, behind)) / 4
    assert first["by_seed"] == told["by_seed"][:1] and first["deviation"] == {"acc": None, "acc_norm": None}
    for name in ("acc", "acc_norm"):
        assert told[name] == pytest.approx(sum(one[name] for one in told["by_seed"]) / 2)
        low, high = told["intervals"][name]
        assert low <= told[name] <= high
    other = invoke(*base[:-4], 3, *base[-3:])
    assert other.code == 2 and "its shots differ" in other.err
    few = invoke(*base, "--num-shots", 10)
    assert few.code == 2 and "9 items, and --num-shots is 10" in few.err


def test_with_the_knowledge_base_choices_are_scored_with_its_lookups(
    run: Run, keyed: list[int], tmp_path: Path
) -> None:
    asked = lines(tmp_path / "items", items(2))
    words = ("evaluate", "choices", asked, "--mode", "auto", "--threshold", -1, "--json")
    told = run(*words, "--checkpoint", os.environ["COLMLM_CHECKPOINT"]).json
    assert (told["items"], told["mode"], told["method"], told["threshold"]) == (2, "auto", "co-lmlm", -1)
    assert told["seq"] > 0 and told["keyset_id"] > 0


@pytest.mark.shared_data
@pytest.mark.skipif(not NLU.is_dir(), reason="the evaluation data is not there")
def test_every_set_becomes_items_and_exemplars_that_are_not_among_them(use: None, tmp_path: Path) -> None:
    made = interpreter.command(ROOT / "benchmarks" / "nlu_task.py", NLU, tmp_path)
    subprocess.run(made, check=True, capture_output=True)
    chances = {"csqa": 5, "hellaswag": 4, "piqa": 2, "siqa": 3, "arc_easy": 4}
    for name, choices in chances.items():
        asked, shots = (
            [json.loads(line) for line in (tmp_path / f"{name}{kind}.jsonl").read_text().splitlines()]
            for kind in ("", ".shots")
        )
        assert len(asked) >= 1000 and len(shots) >= 100
        assert sum(len(item["choices"]) == choices for item in asked) >= 0.99 * len(asked)
        assert all(item["context"] and 0 <= item["answer"] < len(item["choices"]) for item in asked + shots)
        assert len({item["answer"] for item in asked}) >= choices
        texts = {json.dumps(item) for item in shots}
        assert sum(json.dumps(item) in texts for item in asked) <= 5  # a set may repeat an item
        assert (tmp_path / f"colmlm_{name}.yaml").is_file()


@pytest.mark.skipif(find_spec("lm_eval") is not None, reason="lm_eval is installed")
def test_without_lm_eval_its_command_says_what_brings_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        lm_eval()
    told = capsys.readouterr().err
    assert ended.value.code == 2 and told.count("\n") == 1 and "colmlm[harness]" in told


@pytest.mark.slow(reason="runs lm_eval beside ours")
@pytest.mark.skipif(find_spec("lm_eval") is None, reason="lm_eval is not installed (extra harness)")
def test_lm_eval_counts_the_same(run: Run, keyed: list[int], tmp_path: Path) -> None:
    """In process, by the model class, with exemplars, with and without the knowledge base."""
    asked, shots = lines(tmp_path / "csqa.jsonl", items(6)), lines(tmp_path / "shots.jsonl", items(9))
    task = runpy.run_path(str(ROOT / "benchmarks" / "nlu_task.py"))["YAML"].format(
        task="colmlm_csqa", items=asked, shots=shots
    )
    (tmp_path / "colmlm_csqa.yaml").write_text(task)
    environment = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    for mode in ("off", "auto"):
        command = interpreter.command(
            "-c", "from colmlm.lab.main import lm_eval; lm_eval()",
            "run", "--model", "colmlm", "--include_path", tmp_path,
            "--model_args", f"checkpoint={os.environ['COLMLM_CHECKPOINT']},mode={mode}",
            "--tasks", "colmlm_csqa", "--num_fewshot", "2", "--seed", "0,0,0,1",
            "--output_path", tmp_path / mode, "--log_samples",
        )  # fmt: skip
        ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        (file,) = (tmp_path / mode).rglob("results_*.json")
        results = json.loads(file.read_text())
        ours = run(
            "evaluate", "choices", asked, "--shots", shots, "--num-shots", 2, "--seed", 1, "--mode", mode,
            "--out", tmp_path / f"{mode}.jsonl", "--json",
        ).json  # fmt: skip
        counted = results["results"]["colmlm_csqa"]
        assert (counted["acc,none"], counted["acc_norm,none"]) == (ours["acc"], ours["acc_norm"])
        assert results["config"]["checkpoint_id"] == ours["checkpoint_id"]
        (samples,) = (tmp_path / mode).rglob("samples_*.jsonl")
        theirs = sorted(map(json.loads, samples.read_text().splitlines()), key=lambda one: one["doc_id"])
        told = [json.loads(line) for line in (tmp_path / f"{mode}.jsonl").read_text().splitlines()[1:]]
        for own, other in zip(told, theirs, strict=True):
            assert own["logprobs"] == pytest.approx([float(r[0][0]) for r in other["resps"]], rel=1e-4)
