"""Parcels arrive whole or not at all, steps outlive the command that began them, and results come back in bounds."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from colmlm.kb import interpreter
from colmlm.lab.accelerator import BACK_BYTES, FILE_BYTES, MOST_FILES, pack, receive, write_result
from colmlm.lab.accelerator.__main__ import THERE, carry_packages, copy_data, needed_by
from colmlm.lab.accelerator.steps import StepScript, StepsFolder, bring_results, without_home
from tests.places import ROOT
from tests.test_docs import refusal_of

SCRIPTS = ("first", "second", "third", "fourth")
PLACES = {name: Path("/tmp/store") / name for name in ("data", "runs", "released", "homes")}
DATA = ROOT.parent / "shared" / "data"


def noise(path: Path, size: int, seed: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(random.Random(seed).randbytes(size))
    return path


# Parcels and results.


def unpack(parcel: Path, store: Path) -> subprocess.CompletedProcess[str]:
    """Runs a parcel as the rented machine does: by a Python that has nothing but its standard library."""
    return subprocess.run(
        interpreter.command("-I", "-S", parcel, store), capture_output=True, text=True, check=False
    )


def test_parcels_unpack_themselves_in_any_order(tmp_path: Path) -> None:
    folder = noise(tmp_path / "package" / "code.py", 3000).parent
    noise(folder / "__pycache__" / "code.pyc", 10)
    (folder / "code.py").chmod(0o755)
    weights = noise(tmp_path / "weights", 90_000)
    parcels = pack({"site/package": folder, "data/w": weights}, tmp_path / "out", "some", parcel_bytes=40_000)
    assert len(parcels) == 4 and max(parcel.stat().st_size for parcel in parcels) <= 40_000
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert {name: one["bytes"] for name, one in manifest.items()} == {
        p.name: p.stat().st_size for p in parcels
    }
    store, left = tmp_path / "store", [1, 2, 3, 4]
    for number in (3, 1, 4, 2):
        told = unpack(parcels[number - 1], store)
        left.remove(number)
        assert (json.loads(told.stdout)["missing"], told.returncode) == (left, 0)
        assert (store / "data").is_dir() == (not left)
    assert (store / "data" / "w").read_bytes() == weights.read_bytes()
    (program,) = (store / "site" / "package").iterdir()
    assert program.name == "code.py" and os.access(program, os.X_OK)
    assert not (store / "data" / "w").stat().st_mode & 0o111
    assert json.loads(unpack(parcels[0], store).stdout)["missing"] == []  # once more: nothing is missing


def test_a_damaged_parcel_is_refused_and_can_be_sent_again(tmp_path: Path) -> None:
    (parcel,) = pack({"a": noise(tmp_path / "a", 5000)}, tmp_path / "out", "some")
    whole = parcel.read_bytes()
    with zipfile.ZipFile(parcel) as archive:
        inside = archive.getinfo("part-1").header_offset + 200
    parcel.write_bytes(whole[:inside] + bytes([whole[inside] ^ 1]) + whole[inside + 1 :])
    with pytest.raises(ValueError, match="Nothing of it was kept; send it again"):
        receive(parcel, tmp_path / "store")
    assert "send it again" in unpack(parcel, tmp_path / "store").stderr
    parcel.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="Nothing of it was kept; send it again"):
        receive(parcel, tmp_path / "store")
    assert unpack(parcel, tmp_path / "store").returncode == 1
    parcel.write_bytes(whole)
    assert receive(parcel, tmp_path / "store") == []


def test_parcels_of_two_preparations_do_not_mix(tmp_path: Path) -> None:
    stores = [
        pack(
            {"a": noise(tmp_path / f"a{seed}", 60_000, seed)},
            tmp_path / f"out{seed}",
            "some",
            parcel_bytes=40_000,
        )
        for seed in (1, 2)
    ]
    receive(stores[0][0], tmp_path / "store")
    others = [number for number in range(1, len(stores[1]) + 1) if number != 2]
    assert others and receive(stores[1][1], tmp_path / "store") == others
    assert not (tmp_path / "store" / "a").exists()


def test_a_result_is_cut_to_files_that_join_again(tmp_path: Path) -> None:
    run = noise(tmp_path / "run" / "adapter.safetensors", 2500).parent
    noise(run / "state.pt", 9000)
    pieces = write_result({"run": run}, tmp_path / "results", "made", file_bytes=1000)
    assert [piece.name for piece in pieces] == ["made.zip.001", "made.zip.002", "made.zip.003"]
    assert max(piece.stat().st_size for piece in pieces) <= 1000
    joined = tmp_path / "joined.zip"
    joined.write_bytes(b"".join(piece.read_bytes() for piece in pieces))
    with zipfile.ZipFile(joined) as archive:
        assert archive.namelist() == ["run/adapter.safetensors"]
        assert archive.read("run/adapter.safetensors") == (run / "adapter.safetensors").read_bytes()


def test_no_more_comes_back_than_a_command_may_bring(tmp_path: Path) -> None:
    store = StepsFolder(tmp_path / "store")
    names = [f"r{n}.zip" for n in range(MOST_FILES + 2)]
    for name in names:
        noise(store.results / name, 100)
    with (store.results / "large.zip").open("wb") as large:
        large.truncate(FILE_BYTES)
    lines = {"one": {"results": dict.fromkeys(names, 100)}}
    assert bring_results(store, tmp_path / "first", lines)
    assert len(list((tmp_path / "first").iterdir())) == MOST_FILES
    lines["two"] = {"results": {"large.zip": FILE_BYTES}}
    assert not bring_results(
        store, tmp_path / "first", lines, frozenset(names[:MOST_FILES])
    )  # the next command
    assert sorted(p.name for p in (tmp_path / "first").iterdir()) == ["large.zip", *names]
    full = tmp_path / "third"
    with (noise(full / "other", 1)).open("r+b") as other:
        other.truncate(BACK_BYTES)
    lines["three"] = {"results": {"r0.zip": 100, "more.zip": 1}}
    noise(store.results / "more.zip", 1)
    assert bring_results(store, full, lines)


# Steps, carried out by the product's own commands.


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store whose package is this checkout's."""
    root = tmp_path / "store"
    (root / "site").mkdir(parents=True)
    (root / "site" / "colmlm").symlink_to(ROOT / "src" / "colmlm")
    return root


def write_plan(root: Path, steps: Sequence[dict[str, Any]]) -> None:
    plan = {"name": "some", "size": "tiny", "values": {"shares": "2"}, "steps": list(steps)}
    (root / "plan.json").write_text(json.dumps(plan))


def step(name: str, *commands: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "commands": list(commands), "seconds": 300, **more}


def run_command(root: Path, *more: object) -> list[str]:
    return interpreter.command("-m", "colmlm.lab.accelerator", "run", "--store", root, *more)


def run(root: Path, *more: object) -> tuple[int, list[dict[str, Any]]]:
    ran = subprocess.run(run_command(root, *more), capture_output=True, text=True, check=False)
    assert not ran.stderr
    return ran.returncode, [json.loads(line) for line in ran.stdout.splitlines()]


COUNTS = "colmlm corpus annotate $data/a.txt --output $runs/a.jsonl --dry-run --json"


def test_each_step_tells_a_line_and_brings_its_result(store: Path, tmp_path: Path) -> None:
    shared = step("shares", "colmlm no-such-$share", back=["nothing"])
    write_plan(store, [step("good", COUNTS, back=["made"]), shared, step("after", COUNTS, needs=["shares"])])
    noise(store / "runs" / "made", 10)
    (store / "data").mkdir()
    (store / "data" / "a.txt").write_text("The canteen opened in 1987.\n")
    code, lines = run(store, "--out", tmp_path / "out")
    assert code == 1
    assert [(line["step"], line["rc"]) for line in lines] == [("good", 0), ("shares", 2), ("after", None)]
    assert all({"step", "seconds", "tokens_per_second"} <= line.keys() for line in lines)
    assert lines[0]["figures"]["estimate"]["documents"] == 1
    assert "no-such-0" in lines[1]["error"]
    assert lines[2]["left_out"] == "needs shares"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["some-good.zip", "some-shares.zip"]
    with zipfile.ZipFile(tmp_path / "out" / "some-good.zip") as archive:
        assert archive.namelist() == ["made", "step.json", "step.log"]
    assert run(store, "--out", tmp_path / "again")[1] == lines  # told again, and brought once
    assert not list((tmp_path / "again").iterdir())


def test_the_steps_go_on_when_the_command_that_began_them_is_killed(store: Path, tmp_path: Path) -> None:
    names = [f"s{number}" for number in range(4)]
    write_plan(store, [step(name, "colmlm --version") for name in names])
    with subprocess.Popen(
        run_command(store), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as begun:
        assert begun.stdout is not None
        assert json.loads(begun.stdout.readline())["step"] == "s0"
        begun.send_signal(signal.SIGKILL)
    until = time.monotonic() + 120
    while not (store / "state" / "s3.json").is_file() and time.monotonic() < until:
        time.sleep(0.1)
    assert (store / "state" / "s3.json").is_file(), "the steps ended with the command that began them"
    code, lines = run(store, "--out", tmp_path / "out")
    assert (code, [line["step"] for line in lines]) == (0, names)
    logs = [(store / "state" / f"{name}.log").read_text() for name in names]
    assert len(set(logs)) == 1 and logs[0].count("\n") == 1, "a step was carried out twice"


def test_a_step_is_not_begun_without_time_for_it(store: Path) -> None:
    write_plan(store, [step("long", "colmlm --version")])
    code, lines = run(store, "--minutes", "0.5")
    assert (code, lines[0]["left_out"], lines[0]["rc"]) == (0, "no time", None)


def test_a_command_that_takes_too_long_is_ended(store: Path) -> None:
    """The start of Python takes longer than these steps have."""
    late = step("late", "colmlm --version") | {"seconds": 0.01}
    write_plan(store, [late, late | {"name": "bounded", "bounded": True}])
    code, lines = run(store)
    assert (code, [line["rc"] for line in lines]) == (1, [124, 0])


def test_what_every_command_reports_stands_by_its_name(store: Path, tmp_path: Path) -> None:
    several = f"COLMLM_HOME=$homes/$place {COUNTS}"
    plan = {"name": "some", "size": "tiny", "values": {"place": ["here", "there"]}}
    steps = [step("both", several.replace("a.txt", "$place.txt"), back=["$place.txt"])]
    (store / "plan.json").write_text(json.dumps(plan | {"steps": steps}))
    (store / "data").mkdir()
    for place in ("here", "there"):
        (store / "data" / f"{place}.txt").write_text("The canteen opened in 1987.\n")
        noise(store / "runs" / f"{place}.txt", 10)
    code, (line,) = run(store, "--out", tmp_path / "out")
    assert code == 0, line
    assert [name.partition(" --output")[0] for name in line["figures"]] == [
        f"COLMLM_HOME=homes/{place} colmlm corpus annotate data/{place}.txt" for place in ("here", "there")
    ]
    assert all(one["estimate"]["documents"] == 1 for one in line["figures"].values())
    assert (store / "homes" / "there" / "models").resolve() == (store / "home" / "models").resolve()
    with zipfile.ZipFile(tmp_path / "out" / "some-both.zip") as archive:
        assert archive.namelist() == ["here.txt", "there.txt", "step.json", "step.log"]
        assert archive.read("step.log").count(b'"dry_run"') == 2


def test_data_that_is_there_stands_in_for_a_step(store: Path) -> None:
    write_plan(
        store, [step("made", "colmlm no-such", stand_in="model"), step("after", COUNTS, needs=["made"])]
    )
    noise(store / "data" / "model" / "weights", 10)
    (store / "data" / "a.txt").write_text("The canteen opened in 1987.\n")
    code, lines = run(store)
    assert (code, [line["rc"] for line in lines]) == (0, [0, 0])
    assert (store / "runs" / "model" / "weights").is_file()


# The scripts.


def test_a_command_stands_for_every_item_of_the_lists_that_it_names() -> None:
    script = StepScript.read("third", "full", ["seeds=1,2", "marks=dense"])
    assert script.fill_values("$marks-$weights-$seeds") == [
        "dense-0.02-1", "dense-0.02-2", "dense-0.25-1", "dense-0.25-2"
    ]  # fmt: skip
    assert script.words(["colmlm train --set 'architecture=$architecture' --seed $seeds"], PLACES)[1] == [
        "colmlm", "train", "--set", f"architecture={script.values['architecture']}", "--seed", "2"
    ]  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_a_step_names_is_there(name: str) -> None:
    """Its data is a part, a file, or put in by hand; a run that comes back, or is told of, is written by a command."""
    script = StepScript.read(name, "full")
    assert all("part" in one or "file" in one or one.get("optional") for one in script.data)
    written = {
        str(Path(value).relative_to(PLACES["runs"]))
        for step in script.steps
        for words in script.words(step.commands, PLACES)
        for value in words
        if PLACES["runs"] in Path(value).parents
    }
    for step in script.steps:
        for run_name in (
            one for text in (*step.back, *step.speed, *step.anew) for one in script.fill_values(text)
        ):
            parts = [run_name, *map(str, Path(run_name).parents)]
            assert any(part in written for part in parts) or any(
                one.startswith(f"{run_name}/") for one in written
            ), (step.name, run_name)


@pytest.mark.shared_data
@pytest.mark.skipif(not DATA.is_dir(), reason="the evaluation data is not there")
@pytest.mark.parametrize("name", SCRIPTS[1:])
def test_the_data_of_a_script_is_there_in_few_lines(name: str, tmp_path: Path) -> None:
    script = StepScript.read(name, "tiny")
    copy_data(script, DATA, {}, tmp_path / "data")
    for one in script.data:
        files = sorted((tmp_path / "data").glob(one["name"].replace("$share", "*")))
        assert bool(files) != bool(one.get("optional")), one
        if (count := script.number_of(one.get("lines"))) and files:
            assert 0 < sum(len(file.read_bytes().splitlines()) for file in files) <= max(12, count), one


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_released_weights_that_commands_load_travel_with_a_script(name: str) -> None:
    """A checkout has all of them, so that only a machine without one tells what is missing."""
    script = StepScript.read(name, "full")
    loaded = set[str]()
    for step in script.steps:
        for command in step.commands:
            loaded |= set(re.findall(r"\$released/([\w-]+)", command))
            if " corpus annotate " in command:
                loaded.add("span-annotator-minilm")
                loaded |= (
                    set() if "--no-questions" in command else {"question-generator-135m", "reader-minilm"}
                )
    assert loaded <= set(script.released)


@pytest.mark.parametrize("size", ["full", "tiny"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_command_of_a_script_is_one_of_the_product(name: str, size: str) -> None:
    script = StepScript.read(name, size)
    commands = [*script.prepare, *(command for step in script.steps for command in step.commands)]
    refused = {
        " ".join(words): refusal
        for words in script.words(commands, PLACES)
        if (refusal := refusal_of(without_home(words)[1])) is not None
    }
    assert refused == {}
    names = [step.name for step in script.steps]
    assert {needed for step in script.steps for needed in step.needs} <= set(names)
    assert len(set(names)) == len(names)


def test_the_first_script_fits_fifteen_minutes_with_its_transfers() -> None:
    first = StepScript.read("first", "full")
    minutes = sum(float(value) for name, value in first.values.items() if name.endswith("_minutes"))
    questions = next(step.seconds for step in first.steps if step.name == "questions")
    assert minutes + questions / 60 <= 11


@pytest.mark.parametrize("name", SCRIPTS[1:])
def test_the_steps_of_the_other_scripts_fit_fifteen_minutes(name: str) -> None:
    """Bound the steps without those that given data replaces; the last ones are left out where it is not given."""
    steps = StepScript.read(name, "full").steps
    assert sum(step.seconds for step in steps if not step.stand_in) <= 14 * 60


def test_what_a_bare_machine_has_is_listed_in_the_project_file() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = {
        line.partition(">")[0].partition("=")[0] for line in project["dependency-groups"]["accelerator"]
    }
    assert listed <= THERE
    needed = needed_by("colmlm", ("cpu", "lab"))
    assert {"bm25s", "gguf", "msgspec"} <= needed - THERE


def test_packages_travel_with_the_description_that_tells_their_version(tmp_path: Path) -> None:
    carry_packages(["bm25s", "gguf"], tmp_path / "site", f"{sys.version_info.major}.{sys.version_info.minor}")
    told = subprocess.run(
        interpreter.command("-S", "-c", "import sys; sys.path.insert(0, sys.argv[1])\n"
         "from importlib.metadata import version; print(version('gguf'), version('bm25s'))", tmp_path / "site"),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert len(told.stdout.split()) == 2


# BM25 leaves JAX alone.

FAKE_JAX = (
    "import pathlib; pathlib.Path({seen!r}).write_text('imported')\nraise RuntimeError('took the memory')\n"
)
USES_BM25 = """
import sys
from colmlm.model.text.passages import PassageIndex
index = PassageIndex(["Lima is the capital of Peru.", "Accra is the capital of Ghana."])
assert index.nearest(["capital of Ghana"], 1) == [[1]]
from colmlm.lab.methods.generating_baseline import BM25Reading
assert "jax" not in sys.modules
"""


def test_searching_by_words_does_not_start_jax(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text(FAKE_JAX.format(seen=str(seen)))
    (tmp_path / "jax" / "lax.py").touch()
    path = f"{tmp_path}:{ROOT / 'src'}"
    ran = subprocess.run(
        interpreter.command("-c", USES_BM25),
        env={"PYTHONPATH": path, "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, seen.exists()) == (0, False), ran.stderr
    subprocess.run(
        interpreter.command("-c", "import bm25s"), env={"PYTHONPATH": path, "PATH": ""}, check=True
    )
    assert seen.exists(), "bm25s does not look for JAX any more: the guard can go"
