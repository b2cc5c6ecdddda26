"""`colmlm train` from start to end on a tiny model: presets and overrides, shards, plans, going on, and plots."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from colmlm.cli.training.train import choose_config
from colmlm.kb.corpus.format import AnnotatedDocument, to_record
from colmlm.model.lm.checkpoint import load
from colmlm.model.lm.encoder import KeyEncoder
from colmlm.model.training.logs import PLOT_FILE
from tests.cli.conftest import invoke
from tests.kb.corpora import numbered
from tests.tiny import tiny_base

TINY = '{"layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "ffn": 48, "context": 128}'

pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning",
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLMLM_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base(tmp_path_factory.mktemp("base"))


def written(path: Path, documents: list[AnnotatedDocument]) -> Path:
    path.write_text("".join(json.dumps(to_record(d)) + "\n" for d in documents))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path / "numbers.jsonl", numbered(24))


def random_start(base: Path) -> list[str]:
    """The paper's run from random weights, at the size of a test."""
    return [
        "--preset", "co-lmlm-360m", "--set", f"architecture={TINY}", "--set", f"tokenizer={base}",
        "--set", "max_length=64", "--batch", "2", "--micro", "1", "--set", "precision=fp32",
    ]  # fmt: skip


def losses(run: Path) -> list[tuple[str, str]]:
    with (run / "loss.csv").open() as lines:
        return [(row["step"], row["loss"]) for row in csv.DictReader(lines)]


@pytest.fixture(scope="module")
def whole(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps from random weights, at one go."""
    folder = tmp_path_factory.mktemp("whole")
    documents = written(folder / "numbers.jsonl", numbered(24))
    done = invoke(
        "train",
        *random_start(base),
        "--steps",
        3,
        "--annotated",
        documents,
        "--out",
        folder / "run",
        "--json",
    )
    assert done.code == 0, done.err
    assert done.json["kind"] == "full" and done.json["training"]["steps"] == 3
    return folder / "run"


def test_a_run_from_random_weights_is_a_checkpoint(whole: Path):
    loaded = load(whole, whole, precision="fp32")
    assert loaded.lm.causal.config.num_hidden_layers == 2 and loaded.lm.dim == 32
    keys = KeyEncoder(loaded).encode_documents(numbered(3))
    assert [k.shape for k in keys] == [(1, 32)] * 3
    config = loaded.config.training["config"]
    assert (config["preset"], config["batch_rows"], config["micro_rows"]) == ("co-lmlm-360m", 2, 1)
    assert (config["warmup_steps"], config["cooldown_steps"], config["learning_rate"]) == (0, 0, 5e-4)
    assert [step for step, _ in losses(whole)] == ["1", "2", "3"]


def test_options_and_settings_are_judged_together(tmp_path: Path):
    """A peak below the preset's final rate is possible beside a lower final rate, and not without it."""
    out, low = tmp_path / "run", "1e-7"
    config = choose_config(out, None, None, ["final_learning_rate=1e-8"], learning_rate=float(low))
    assert (config.learning_rate, config.final_learning_rate) == (1e-7, 1e-8)
    refused = invoke("train", "--out", out, "--learning-rate", low, "--dry-run")
    assert refused.code == 2 and "(learning_rate)" in refused.err


def test_a_run_cut_off_goes_on_under_its_own_settings(base: Path, file: Path, whole: Path, tmp_path: Path):
    out = tmp_path / "run"
    (out / PLOT_FILE).mkdir(
        parents=True
    )  # so that it fails when it draws its first plot, after its first save
    command = ["train", *random_start(base), "--steps", 3, "--annotated", file, "--out", out]
    ended = invoke(*command, "--set", "save_seconds=0")
    assert ended.code == 2 and PLOT_FILE in ended.err
    (out / PLOT_FILE).rmdir()
    assert [step for step, _ in losses(out)] == ["1"]
    assert invoke("train", "--annotated", file, "--no-demo", "--out", out).code == 0
    assert losses(out) == losses(whole)


def test_other_settings_are_refused_for_a_run_that_has_begun(base: Path, file: Path, whole: Path):
    again = ["train", "--annotated", file, "--no-demo", "--out", whole]
    refused = invoke(*again, "--learning-rate", 0.1)
    assert refused.code == 2 and "peak rate" in refused.err and refused.err.count("\n") == 1
    refused = invoke("train", "--no-demo", "--annotated", written(file, numbered(5)), "--out", whole)
    assert refused.code == 2 and "another data" in refused.err


def test_an_adapter_is_trained_and_gone_on_from(base: Path, file: Path, tmp_path: Path):
    options = [
        "--annotated", file, "--no-demo", "--steps", 2, "--batch", 4, "--set", "precision=fp32", "--set",
        "lora_rank=2", "--max-length", 128,
    ]  # fmt: skip
    first, second = tmp_path / "first", tmp_path / "second"
    done = invoke("train", "--base", base, *options, "--out", first, "--json")
    assert done.code == 0, done.err
    assert (done.json["kind"], done.json["base"]) == ("adapter", str(base))
    assert invoke("train", "--init", first, *options, "--out", second, "--name", "again").code == 0
    assert load(second, second, precision="fp32").config.name == "again"
    refused = invoke("train", "--init", first, *options, "--set", "lora_rank=4", "--out", tmp_path / "x")
    assert refused.code == 7 and "rank 2" in refused.err


@pytest.mark.parametrize("method", ["standard", "asker"])
def test_other_methods_are_trained_alike(base: Path, file: Path, tmp_path: Path, method: str):
    out = tmp_path / method
    done = invoke(
        "train",
        *random_start(base),
        "--method",
        method,
        "--steps",
        2,
        "--annotated",
        file,
        "--out",
        out,
        "--json",
    )
    assert done.code == 0, done.err
    assert done.json["method"] == method
    assert done.json["training"]["config"]["preset"] == f"{method}-360m"
    assert load(out, out, precision="fp32").config.method == method


def test_shards_train_as_their_files_do(base: Path, file: Path, whole: Path, tmp_path: Path):
    folder = tmp_path / "shards"
    build = [
        "train",
        "shards",
        *random_start(base)[:8],
        "--annotated",
        file,
        "--out",
        folder,
        "--per-shard",
        10,
    ]
    built = invoke(*build, "--json")
    assert built.code == 0, built.err
    report = built.json["built"]
    assert (report["shards"], report["documents"], report["questions"], report["kept"]) == (3, 24, 24, 0)
    assert "3 shards (3 there already)" in invoke(*build).out
    out = tmp_path / "run"
    assert invoke("train", *random_start(base), "--steps", 3, "--shards", folder, "--out", out).code == 0
    assert losses(out) == losses(whole)
    (folder / "00001" / "ids.npy").write_bytes(b"damaged")
    refused = invoke("train", *random_start(base), "--shards", folder, "--out", tmp_path / "other")
    assert refused.code == 2 and "00001/ids.npy is missing or damaged" in refused.err
    refused = invoke("train", "--base", base, "--shards", folder, "--out", tmp_path / "other")
    assert refused.code == 2 and "make shards in another folder" in refused.err


def test_a_mix_weighs_shards_then_files(base: Path, file: Path, tmp_path: Path):
    other = written(tmp_path / "other.jsonl", numbered(9))
    options = [
        "--annotated",
        file,
        "--annotated",
        other,
        "--no-demo",
        "--base",
        base,
        "--batch",
        4,
        "--steps",
        4,
    ]
    out = tmp_path / "run"
    mixed = invoke("train", *options, "--mix", "1,0", "--cooldown-mix", "1,1", "--out", out, "--json")
    assert mixed.code == 0, mixed.err
    config = mixed.json["training"]["config"]
    assert (config["mix"], config["cooldown_mix"]) == ([1.0, 0.0], [1.0, 1.0])
    refused = invoke("train", *options, "--mix", "1,1,1", "--out", tmp_path / "x")
    assert refused.code == 2 and "weighs 3 corpora, and there are 2" in refused.err


def test_hard_negatives_are_mined_while_training(base: Path, file: Path, tmp_path: Path):
    out = tmp_path / "run"
    options = ["--annotated", file, "--no-demo", "--base", base, "--batch", 4, "--steps", 4]
    mined = ["--hard-negatives", 2, "--set", "mine_every=3"]
    assert invoke("train", *options, *mined, "--out", out).code == 0
    assert len(losses(out)) == 4


def test_documents_held_out_are_not_trained_on(base: Path, file: Path, tmp_path: Path):
    options = ["--annotated", file, "--no-demo", "--base", base, "--batch", 4, "--steps", 1]
    held = invoke("train", *options, "--hold-out", 10, "--out", tmp_path / "a", "--json")
    assert held.json["training"]["documents"] == 14
    refused = invoke("train", *options, "--hold-out", 24, "--out", tmp_path / "b")
    assert refused.code == 2 and "cannot leave out 24 of 24" in refused.err


def test_a_dry_run_says_what_it_takes_and_trains_nothing(base: Path, tmp_path: Path):
    command = ["train", "--preset", "co-lmlm-360m", "--set", f"tokenizer={base}", "--dry-run", "--gpus", 8]
    dry = invoke(*command, "--json")
    assert dry.code == 0, dry.err
    report = dry.json
    assert report["config"]["steps"] == 100_000
    # SmolLM2-360M without its vocabulary, and the byte tokenizer's with the three tokens.
    assert report["plan"]["parameters"]["total"] == 361_821_120 - 49_152 * 960 + 260 * 960
    assert report["plan"]["tokens"] == 100_000 * 128 * 4096
    shown = invoke("train", *random_start(base), "--dry-run")
    assert "of a h100's peak" in shown.out and "an assumption" in shown.out
    assert not list(tmp_path.iterdir())


def test_a_run_is_read_from_a_configuration_file(base: Path, tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text(f'extends = "co-lmlm-135m"\nsteps = 20_000\ntokenizer = "{base}"\n')
    report = invoke("train", "--config", file, "--dry-run", "--json").json["config"]
    assert (report["preset"], report["steps"], report["learning_rate"]) == ("mine", 20_000, 5e-4)
    changed = invoke("train", "--config", file, "--set", "steps=15000", "--dry-run", "--json")
    assert changed.json["config"]["steps"] == 15_000


def test_a_plot_is_drawn_from_the_log(whole: Path, tmp_path: Path):
    target = tmp_path / "losses.png"
    assert invoke("plot", whole, "--output", target).code == 0
    assert target.read_bytes().startswith(b"\x89PNG")
    missing = invoke("plot", tmp_path)
    assert missing.code == 2 and missing.err.count("\n") == 1


@pytest.mark.parametrize(
    "options, says",
    [
        ([], "--out"),
        (["--out", "x", "--no-demo"], "nothing to train on"),
        (["--out", "x", "--preset", "huge"], "no preset 'huge'"),
        (["--out", "x", "--config", "none.toml"], "none.toml: it cannot be read"),
        (["--out", "x", "--method", "rag"], "rag"),
        (["--out", "x", "--init", "random"], "need an architecture"),
        (["--out", "x", "--set", "weight_decay"], "is not NAME=VALUE"),
        (["--out", "x", "--set", "warp=9"], "no setting 'warp'"),
        (["--out", "x", "--set", "steps=many"], "steps: 'many' does not fit"),
        (["--out", "x", "--set", "steps=true"], "give a value such as 1"),
        (["--out", "x", "--mix", "a,b"], "mix"),
        (["--out", "x", "--batch", "6"], "no multiple of block"),
        (["--out", "x", "--learning-rate", "0"], "not above 0"),
    ],
)
def test_a_wrong_command_line_is_one_line(options: list[str], says: str):
    refused = invoke("train", *options)
    assert refused.code == 2 and says in refused.err and refused.err.count("\n") == 1


def test_a_checkpoint_that_is_no_run_is_not_written_over(base: Path, file: Path, whole: Path, tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "colmlm.json").write_text((whole / "colmlm.json").read_text())
    refused = invoke("train", "--annotated", file, "--out", tmp_path / "run")
    assert refused.code == 2 and "--init" in refused.err


def test_a_time_that_is_too_short_trains_nothing_and_says_how_long_is_enough(
    base: Path, file: Path, tmp_path: Path
):
    command = ["train", "--annotated", file, "--no-demo", "--base", base, "--out", tmp_path / "run"]
    refused = invoke(*command, "--max-minutes", 1e-6)
    assert (
        refused.code == 2 and "no step fits into the time" in refused.err and "--max-minutes" in refused.err
    )
    assert not (tmp_path / "run" / "loss.csv").exists()
    done = invoke(*command, "--max-minutes", 10, "--steps", 2)
    assert done.code == 0 and "takes about" in done.err and "step 1 of at most 2" in done.err
