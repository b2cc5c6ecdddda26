"""TOFU's metrics: published logs give the published numbers, and small cases those computed by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from colmlm.model.evaluate.run_log import EvaluationFileError, bootstrap
from colmlm.model.evaluate.tofu import Examples, Scores, TofuLog, forget_quality
from tests.places import SHARED_DATA

GOLDEN = SHARED_DATA / "tofu" / "golden"
PUBLISHED = {
    name: f"ft_epoch5_lr2e-05_{name}_wd0.01" for name in ("phi_full", "phi_retain90", "phi_retain95")
}
needs_logs = pytest.mark.skipif(not GOLDEN.is_dir(), reason="the shared data are not beside the project")


def examples(right, stated, wrong, rouge=None) -> Examples:
    return Examples.of(
        right_N=np.array(right),
        stated_N=np.array(stated),
        wrong_N=[np.array(losses) for losses in wrong],
        rouge_N=np.ones(len(right)) if rouge is None else np.array(rouge),
    )


def separated(n: int) -> tuple[Examples, Examples]:
    """Makes two models of n examples: each of the first's truth ratios is below each of the second's."""
    rng = np.random.default_rng(0)
    return (
        examples(np.ones(n), np.ones(n), rng.uniform(5, 6, (n, 3))),
        examples(np.ones(n), np.ones(n), rng.uniform(1, 2, (n, 3))),
    )


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.shared_data
@needs_logs
def test_published_logs_give_the_published_numbers(name: str):
    expected = json.loads((GOLDEN / "reference.json").read_text())["metrics"][PUBLISHED[name]]
    log = TofuLog.read(GOLDEN / f"{name}.json.gz")
    found = {
        f"{table}_{number}": getattr(scores, field)
        for table, scores in (log.kept_scores | {"forget": Scores.of_forgotten_table(log.forget)}).items()
        for number, field in (
            ("prob", "probability"),
            ("rougeL_recall", "rouge"),
            ("truth_ratio", "truth_ratio"),
            ("n", "examples"),
        )
    } | {"model_utility": log.utility}
    assert found == pytest.approx(expected, abs=1e-9, rel=0)


@pytest.mark.shared_data
@needs_logs
def test_a_model_that_knows_and_one_that_never_saw_are_told_apart_as_published():
    (expected,) = json.loads((GOLDEN / "reference.json").read_text())["forget_quality"].values()
    full, retained = (TofuLog.read(GOLDEN / f"{name}.json.gz") for name in ("phi_full", "phi_retain90"))
    assert forget_quality(full.forget, retained.forget) == pytest.approx(tuple(expected), abs=1e-9, rel=1e-9)


@pytest.mark.parametrize(("n", "expected"), [(200, 1.9426e-119), (400, 1.0636e-239)])
def test_complete_separation_has_the_p_value_of_theory(n: int, expected: float):
    statistic, p = forget_quality(*separated(n))
    assert statistic == 1
    assert p == pytest.approx(expected, rel=1e-4)


def test_a_model_beside_itself_has_forgotten_perfectly():
    one, _ = separated(40)
    assert forget_quality(one, one) == (0, 1)


def test_scores_of_one_example_worked_out_by_hand():
    half, quarter, eighth = np.log([2, 4, 8])
    one = examples([half], [quarter], [[quarter, eighth]], [0.5])
    ratio = np.sqrt(1 / 4 * 1 / 8) / (1 / 4)
    assert one.truth_ratio_N == pytest.approx([ratio])
    kept, chosen, forgotten = (
        Scores.of_kept_table(one, choice=False),
        Scores.of_kept_table(one, choice=True),
        Scores.of_forgotten_table(one),
    )
    assert (kept.probability, kept.rouge, kept.truth_ratio) == pytest.approx((0.5, 0.5, 1 - ratio))
    assert chosen.probability == pytest.approx(0.5 / (0.5 + 1 / 4 + 1 / 8))
    assert forgotten.truth_ratio == pytest.approx(ratio)


def test_a_wrong_answer_that_is_likelier_counts_as_unknown_and_as_told_apart():
    one = examples([3.0], [3.0], [[1.0]])
    assert Scores.of_kept_table(one, choice=False).truth_ratio == 0
    assert Scores.of_forgotten_table(one).truth_ratio == pytest.approx(np.exp(-2))


def test_answers_without_any_probability_still_give_numbers():
    one = examples([1e4], [1e4], [[1e4]])
    assert Scores.of_kept_table(one, choice=True).probability == 0
    assert np.isfinite(Scores.of_forgotten_table(one).truth_ratio)


def table(**columns) -> dict:
    return {
        "avg_gt_loss": {"0": 0.5, "1": 0.25},
        "avg_paraphrased_loss": {"0": 0.5, "1": 0.5},
        "average_perturb_loss": {"0": [1.0, 2.0], "1": [1.5]},
        "rougeL_recall": {"0": 1.0, "1": 0.0},
    } | columns


def written(tmp_path: Path, **tables) -> Path:
    names = (
        "eval_log.json",
        "eval_real_author_wo_options.json",
        "eval_real_world_wo_options.json",
        "eval_log_forget.json",
    )
    file = tmp_path / "log.json"
    file.write_text(json.dumps(dict.fromkeys(names, table()) | {f"{n}.json": t for n, t in tables.items()}))
    return file


def test_a_log_reads_the_same_gzipped_or_not(tmp_path: Path):
    plain = written(tmp_path)
    packed = tmp_path / "log.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert TofuLog.read(plain).utility == TofuLog.read(packed).utility > 0


def test_questions_about_the_world_need_no_paraphrase(tmp_path: Path):
    bare = TofuLog.read(written(tmp_path, eval_real_world_wo_options=table(avg_paraphrased_loss=None)))
    expected = np.exp([-1.5 + 0.5, -1.5 + 0.25])
    assert bare.world_facts.truth_ratio_N == pytest.approx(expected)


def test_a_number_that_is_zero_makes_the_utility_zero(tmp_path: Path):
    assert TofuLog.read(written(tmp_path, eval_log=table(rougeL_recall={"0": 0.0, "1": 0.0}))).utility == 0


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"rougeL_recall": {"0": 1.0}}, "not of the same examples"),
        ({"average_perturb_loss": {"0": [], "1": [1.0]}}, "length >= 1"),
        (
            {"avg_paraphrased_loss": None},
            "eval_log_forget.json of log.json has no avg_paraphrased_loss. .*`colmlm-lab evaluate tofu`",
        ),
        ({column: {} for column in table()}, "no examples"),
    ],
)
def test_a_table_that_is_none_is_refused_with_what_is_wrong(tmp_path: Path, columns: dict, said: str):
    with pytest.raises(EvaluationFileError, match=said):
        TofuLog.read(written(tmp_path, eval_log_forget=table(**columns)))


CUT_OFF = gzip.compress(b"{}" * 9, mtime=0)[
    :-9
]  # without the time, which would give the test another name each second


@pytest.mark.parametrize("data", [b"", b"{", b"[]", CUT_OFF, b"\x1f\x8bno"])
def test_a_file_that_is_no_log_is_refused(tmp_path: Path, data: bytes):
    file = tmp_path / "log.json"
    file.write_bytes(data)
    with pytest.raises(EvaluationFileError, match=r"log\.json is no evaluation log"):
        TofuLog.read(file)


def test_an_interval_narrows_with_the_examples_and_covers_the_mean():
    rng = np.random.default_rng(1)
    few, many = rng.normal(3, 1, 25), rng.normal(3, 1, 2500)
    found = [
        bootstrap(lambda draw, v=v: {"mean": float(v[draw(len(v))].mean())})["mean"] for v in (few, many)
    ]
    widths = [high - low for low, high in found]
    assert widths[0] == pytest.approx(2 * 1.96 * few.std() / 5, rel=0.1)
    assert widths[1] == pytest.approx(2 * 1.96 * many.std() / 50, rel=0.1)
    assert all(low < v.mean() < high for (low, high), v in zip(found, (few, many), strict=True))
