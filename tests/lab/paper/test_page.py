"""The page and the plots of `colmlm evaluate paper` say what the results say, beside the paper's figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from colmlm.lab.paper.page import page
from colmlm.lab.paper.plots import _tofu, draw


def share(middle: float) -> dict[str, float]:
    return {"share": middle, "low": middle - 0.1, "high": middle + 0.1}


SAID = {"says": share(0.5), "splices": share(0.4), "wrong_neighbour": share(0.3)}
READINGS = {
    "dynamic": 18.04, "dynamic, pq4": 19.0, "standard-135m, all tokens": 22.0, "standard-135m, same tokens": 20.5,
}  # fmt: skip
PROBES = {"probes": 50, "leaks": 2, "value_leaks": 0, "wrong_neighbours": 7, "abstained": 0, "no_match": 41}
RUN = {
    "policy": "successor", "radius": 0.85, "forgotten": 23, "probes": PROBES, "said": SAID, "others": share(0.6),
    "wrong_neighbour": share(0.45),
    "others_lost": share(0.15), "neighbours_lost": share(0.25),
    "probe_rates": {name: n / 50 for name, n in PROBES.items() if name != "probes"},
}  # fmt: skip
ABSTAIN = {"policy": "abstain", "others_lost": None, "neighbours_lost": None, "said": None}
MEASURED: dict[str, dict[str, Any]] = {
    "perplexity": {
        "checkpoint": "tiny", "documents": 4, "lookups": 9, "right_nearest": 3, "matched_gated": 5, "right_gated": 2,
        "perplexity": {
            name: {"perplexity": value, "low": value - 1, "high": value + 1, "tokens": 100}
            for name, value in READINGS.items()
        },
    },
    "answers": {
        "checkpoint": "tiny", "questions": 40, "covered": 0.775, "exact_match": share(0.525), "looked_up": share(0.9),
        "right_value": share(0.45),
    },
    "deletion": {
        "full": SAID, "off": SAID, "null": SAID, "runs": [RUN, RUN | ABSTAIN], "survivors": [
            {"kind": "value", "policy": "abstain", "radius": 0.85, "planted": 20, "found": share(0.1),
             "by_question": share(0.7), "by_wording": share(0.8)}
        ],
    },
    "understanding": {"checkpoint": "tiny", "items": 500, "acc": 0.3, "acc_norm": 0.4, "intervals": {
        "acc": [0.2, 0.35], "acc_norm": [0.3, 0.5],
    }},
    "updates": {
        "records": 5, "live_facts": 987, "found": share(0.8), "efficacy": share(0.75), "old_value": share(0.2),
        "efficacy_where_found": share(0.85), "locality": share(0.7), "undone": share(0.6),
        "paraphrase_found": share(0.5), "paraphrase": share(0.4), "paraphrase_where_found": None,
    },
    "growth": {"sizes": [
        {"facts": 1000, "exact_match": share(0.6), "right_value": share(0.5), "lookup_p50_ms": 1.234,
         "lookup_p99_ms": 5.678, "search_p50_ms": 0.5, "context_tokens_per_lookup": 4.9,
         "database_bytes_per_fact": 1886, "index_bytes_per_fact": 2312, "process_bytes_per_fact": 600},
    ]},
    "cost": {"threads": 1, "asker": {
        "sites": 100, "query_tokens_mean": 13.5, "decode_ms": 715.5, "encode_ms": 17.9, "total_ms": 732.5,
        "state_ms": 37.5, "vs_state": 19.53,
    }},
    "something-new": {"checkpoint": "tiny", "efficacy": share(0.95), "rows": [{"mean_ms": 1.2345}]},
}  # fmt: skip
LABELS = {"answers": "PopQA, auto", "understanding": "PIQA"}


@pytest.fixture
def results() -> dict[str, Any]:
    common = {
        "data": "made-up data", "shows": "", "home": "none", "command": "colmlm evaluate", "state": "done",
        "missing": [], "seconds": 1.0, "at": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    steps = [
        common | {"name": name, "section": name, "label": LABELS.get(name, name), "result": result}
        for name, result in MEASURED.items()
    ]
    waiting = common | {
        "name": "later",
        "section": "something-new",
        "label": "",
        "state": "not run",
        "seconds": None,
    }
    return {
        "variant": "quick", "counts": {"questions": 40}, "at": "now", "version": "1", "machine": {"cores": 2},
        "checkpoint": "tiny", "places": {"$OUT": "/out"}, "plots": [], "preparations": [], "steps": [*steps, waiting],
    }  # fmt: skip


def test_numbers_stand_with_their_intervals_beside_the_papers(results: dict[str, Any]) -> None:
    told = page(results)
    assert "| PopQA, auto | tiny | 40 | 52.5 [42.5, 62.5] |" in told and "47.3 (Co-LMLM-135M) |" in told
    assert "| dynamic | 18.04 [17.04, 19.04] | 100 | 11.8 (Co-LMLM-135M) |" in told
    assert "Dynamic over standard-135m, same tokens: 0.880." in told and "0.819" in told
    assert "Dynamic over dynamic" not in told
    assert "| forgotten, successor | 0.85 | 23 | 2 of 50 | 7 of 50 | 50.0 [40.0, 60.0] |" in told
    abstain = "| 7 of 50 | - | - | - | 45.0 [35.0, 55.0] | 60.0 [50.0, 70.0] | - | - |"
    planted = "| value | abstain | 0.85 | 20 | 10.0 [0.0, 20.0] | 70.0 [60.0, 80.0] | 80.0 [70.0, 90.0] |"
    assert abstain in told and planted in told
    assert "| PIQA | tiny | 500 | 30.0 [20.0, 35.0] | 40.0 [30.0, 50.0] | 56 (Co-LMLM-135M) |" in told


def test_a_section_without_a_table_of_its_own_shows_every_number(results: dict[str, Any]) -> None:
    told = page(results)
    assert "## Something new" in told
    assert "| efficacy, % | 95.0 [85.0, 105.0] |" in told and "| rows 1 mean ms | 1.234 |" in told
    assert "`later`: not run." in told


def test_steps_that_lack_the_same_are_told_in_one_line(results: dict[str, Any]) -> None:
    waiting = results["steps"][-1]
    lacking = {"a": ["$DATA/x"], "b": ["$DATA/x"], "c": ["$DATA/x", "$DATA/y"]}
    results["steps"] += [waiting | {"name": "last"}] + [
        waiting | {"name": name, "state": "no data", "missing": missing} for name, missing in lacking.items()
    ]
    told = page(results).splitlines()
    assert "- `later`, `last`: not run." in told
    assert "- `a`, `b`: passed over, as there is no $DATA/x." in told
    assert "- `c`: passed over, as there is no $DATA/x, $DATA/y." in told


def test_edits_and_costs_have_tables_of_their_own(results: dict[str, Any]) -> None:
    told = page(results)
    found = "| updates, 5 records | 987 | 80.0 [70.0, 90.0] | 75.0 [65.0, 85.0] | 85.0 [75.0, 95.0] |"
    assert (
        found in told
        and "| in other words | - | 50.0 [40.0, 60.0] | 40.0 [30.0, 50.0] | - | - | - | - |" in told
    )
    assert "| 1,000 | 60.0 [50.0, 70.0] | 50.0 [40.0, 60.0] | 1.23 | 5.68 | 0.50 | 4.9 | 1.9 kB |" in told
    assert "| asker | 100 | 13.5 | 715.5 | 17.9 | 732.5 | 37.5 | 19.53 |" in told


def test_the_variant_is_told(results: dict[str, Any]) -> None:
    told = page(results)
    assert "quick variant: few examples, so wide intervals (questions 40)" in told


@pytest.mark.slow(reason="runs an experiment to its end")
def test_each_plot_that_has_results_is_drawn_and_an_old_one_goes(
    results: dict[str, Any], tmp_path: Path
) -> None:
    drawn = draw(results["steps"], tmp_path)
    assert sorted(drawn) == ["answers.png", "deletion.png", "growth.png", "perplexity.png"]
    for name in drawn:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert draw([one for one in results["steps"] if one["section"] != "answers"], tmp_path) == [
        "perplexity.png", "deletion.png", "growth.png",
    ]  # fmt: skip
    assert not (tmp_path / "answers.png").exists()


def trade_off(label: str, utility: float, quality: float | None) -> dict[str, Any]:
    report = {
        "model_utility": utility,
        "intervals": {"model_utility": [utility - 0.1, utility + 0.1]},
    } | ({} if quality is None else {"forget_quality": quality})
    return {"label": label, "result": {"none": report}}


def test_the_epochs_of_a_run_are_one_line_of_their_forget_sets_plot() -> None:
    figure = Figure()
    assert _tofu(
        figure,
        [
            trade_off("forget05, standard-retain", 0.6, None),
            trade_off("forget05, npo-0", 0.3, 0.1),
            trade_off("forget05, npo-0-epoch-10", 0.4, 0.1),
            trade_off("forget05, npo-0-epoch-2", 0.5, 0.01),
            trade_off("forget01, npo-0", 0.4, 1.0),
        ],
    )
    first, second = figure.axes
    assert (first.get_title(), second.get_title()) == ("forget05", "forget01")
    lines = {str(line.get_label()): line.get_xydata() for line in first.containers[0].lines[:1]}
    drawn = next(iter(lines.values()))
    assert drawn is not None and np.allclose(drawn, [[0.5, -2], [0.4, -1], [0.3, -1]])
    assert "standard-retain, none: reference" in first.get_legend_handles_labels()[1]


def test_a_model_that_fell_apart_leaves_the_others_room() -> None:
    figure = Figure()
    runs = [("forget05, npo-0", 1e-3), ("forget10, npo-0", 1e-3), ("forget10, grad-diff", 1e-239)]
    assert _tofu(figure, [trade_off(label, 0.2, quality) for label, quality in runs])
    near, far = figure.axes
    assert (near.get_yscale(), far.get_yscale()) == ("linear", "symlog")
    bottom, middle, top = far.transData.transform([(0.2, -239), (0.2, -3), (0.2, 0)])[:, 1]
    assert (top - middle) / (top - bottom) > 0.1  # on a linear axis: 3 of 239
