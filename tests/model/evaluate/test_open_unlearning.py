"""A log in open-unlearning's layout has that project's names, and gives the published numbers."""

from __future__ import annotations

import gzip
import json
from typing import Any

import numpy as np
import pytest

from colmlm.model.evaluate.tofu import evaluation, summary
from tests.places import SHARED_DATA

GOLDEN = SHARED_DATA / "tofu" / "golden"
OF_BOTH = ("Q_A_Prob", "Q_A_PERT_Prob", "Q_A_ROUGE")
HALF, QUARTER, EIGHTH = np.log([2, 4, 8]).tolist()


def log() -> dict[str, Any]:
    """Makes two examples per table: right answers of 1/2 and 1/4, a paraphrase of 1/4, wrong ones of 1/4 and 1/8."""
    table = {
        "avg_gt_loss": {"0": HALF, "1": QUARTER},
        "avg_paraphrased_loss": {"0": QUARTER, "1": QUARTER},
        "average_perturb_loss": {"0": [QUARTER, EIGHTH], "1": [QUARTER, EIGHTH]},
        "rougeL_recall": {"0": 1.0, "1": 0.5},
        "generated_text": {"0": ["Question: Who?\n", "Answer: Ann Lee or Bo", "Ann Lee"]},
    }
    named = {name: column for name, column in table.items() if name != "avg_paraphrased_loss"}
    files = {
        "log": table,
        "real_author_wo_options": named,
        "real_world_wo_options": named,
        "log_forget": table,
    }
    return {f"eval_{name}.json": one for name, one in files.items()}


def test_metrics_have_the_names_and_the_structure_of_that_project() -> None:
    found = evaluation(log(), log())
    named = {f"{table}_{name}" for table in ("retain", "forget", "ra", "wf") for name in OF_BOTH}
    named |= {f"{table}_Q_A_PARA_Prob" for table in ("retain", "forget")}
    named |= {f"{table}_Q_A_Prob_normalised" for table in ("ra", "wf")}
    named |= {"forget_truth_ratio", "retain_Truth_Ratio", "ra_Truth_Ratio", "wf_Truth_Ratio"}
    assert set(found) == named | {"model_utility", "forget_quality"}
    assert list(found) == sorted(found)
    assert found["forget_Q_A_Prob"]["value_by_index"]["0"] == pytest.approx({"prob": 0.5, "avg_loss": HALF})
    several = found["ra_Q_A_PERT_Prob"]["value_by_index"]["1"]
    assert several["prob"] == pytest.approx([0.25, 0.125]) and several["avg_loss"] == [QUARTER, EIGHTH]
    assert set(found["forget_quality"]) == set(found["model_utility"]) == {"agg_value"}
    json.dumps(found, allow_nan=False)


def test_numbers_worked_out_by_hand() -> None:
    found = summary(evaluation(log()))
    wrong = (1 / 32) ** 0.5  # the geometric mean of 1/4 and 1/8
    assert "forget_quality" not in found
    assert found["forget_Q_A_PERT_Prob"] == pytest.approx(3 / 16)
    assert found["ra_Q_A_Prob_normalised"] == pytest.approx((0.5 / 0.875 + 0.25 / 0.625) / 2)
    assert found["forget_truth_ratio"] == pytest.approx(wrong / 0.25)
    assert found["retain_Truth_Ratio"] == pytest.approx(1 - wrong / 0.25)
    assert found["ra_Truth_Ratio"] == pytest.approx(1 - (wrong / 0.5 + wrong / 0.25) / 2)
    said = evaluation(log())["retain_Q_A_ROUGE"]["value_by_index"]
    assert said["0"]["rougeL_f1"] == pytest.approx(2 / 3) and said["0"]["generation"] == "Ann Lee or Bo"
    assert said["1"] == {"rougeL_recall": 0.5}


@pytest.mark.slow(reason="computes what was published")
@pytest.mark.shared_data
@pytest.mark.skipif(not GOLDEN.is_dir(), reason="the shared data are not beside the project")
def test_published_logs_come_to_the_published_numbers() -> None:
    full, retained = (
        json.loads(gzip.decompress((GOLDEN / f"phi_{name}.json.gz").read_bytes())) for name in ("full", "retain90")
    )  # fmt: skip
    reference = json.loads((GOLDEN / "reference.json").read_text())
    expected = reference["metrics"]["ft_epoch5_lr2e-05_phi_full_wd0.01"]
    ((_, quality),) = reference["forget_quality"].values()
    found = summary(evaluation(full, retained))
    names = {
        "forget_truth_ratio": "forget_truth_ratio",
        "forget_Q_A_Prob": "forget_prob",
        "model_utility": "model_utility",
    }
    names |= {f"{t}_Q_A_Prob_normalised": f"{t}_prob" for t in ("ra", "wf")}
    names |= {f"{t}_Q_A_ROUGE": f"{t}_rougeL_recall" for t in ("retain", "ra", "wf", "forget")}
    names |= {f"{t}_Truth_Ratio": f"{t}_truth_ratio" for t in ("retain", "ra", "wf")}
    for theirs, ours in names.items():
        assert found[theirs] == pytest.approx(expected[ours], abs=1e-9, rel=0), theirs
    assert found["forget_quality"] == pytest.approx(quality, rel=1e-9)
