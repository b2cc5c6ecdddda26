"""How sure an answer is, is fitted on questions with gold, and comes with the reader from then on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colmlm.cli.composition.readers import CONFIDENCE
from colmlm.kb.answers.reading import NAMES, PASSAGE_NAMES, UNFITTED, Confidence
from tests.cli.conftest import Run, annotators_that_ask

TOWNS = {
    "Fenwick": (
        "The canteen of Fenwick was opened by the railway in 1911.",
        "canteen of Fenwick opened",
        "1911",
    ),
    "Ostrava": (
        "A tram has crossed the bridge of Ostrava since 1923.",
        "tram of Ostrava first cross",
        "1923",
    ),
    "Tarbert": (
        "Its lighthouse burnt down in 1890, and Tarbert built another.",
        "lighthouse burn down",
        "1890",
    ),
    "Lerwick": ("Lerwick has had a library of its own since 1902.", "library of Lerwick founded", "1902"),
}


def squad(path: Path, towns: dict[str, tuple[str, str, str]]) -> Path:
    rows = [
        {
            "title": title,
            "context": text,
            "qas": [{"question": f"When was the {asked}?", "answer": year, "answer_start": text.index(year)}],
        }
        for title, (text, asked, year) in towns.items()
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def fitted(run: Run, own_judge: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    annotators_that_ask("when", tmp_path / "annotators", monkeypatch)
    own, both = squad(tmp_path / "own.jsonl", TOWNS), tmp_path / "both.jsonl"
    beside = {"Cromer": ("The pier of Cromer was built in 1901.", "pier of Cromer built", "1901")}
    squad(both, TOWNS | beside)
    path = tmp_path / CONFIDENCE
    told = run("evaluate", "confidence", "--squad", own, "--beside", both, "--out", path, "--json").json
    assert told["questions"] == 4 + 4  # each is asked again as if its document were not there
    assert set(told["weights"]) == set(NAMES) and set(told["passage_weights"]) == set(PASSAGE_NAMES)
    assert set(told["kinds"]) == {"own"} and told["kinds"]["own"]["at"]["wrong"] <= 0.06
    return path


@pytest.mark.slow(reason="runs an evaluation to its end")
def test_what_was_fitted_comes_with_the_reader(
    fitted: Path, own_judge: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Confidence.load(fitted)
    assert 0 <= found.threshold <= 1 and found != UNFITTED
    folder = tmp_path / "reader"
    folder.mkdir()
    for file in own_judge.iterdir():
        (folder / file.name).symlink_to(file if file.name != CONFIDENCE else fitted)
    monkeypatch.setenv("COLMLM_READER", str(folder))
    text = tmp_path / "texts"
    text.mkdir()
    (text / "fenwick.txt").write_text(TOWNS["Fenwick"][0], encoding="utf-8")
    run("corpus", "add", text, "--corpus", "towns")
    told = run("ask", "When was the canteen of Fenwick opened?", "--threshold", 0, "--json").json
    assert (told["answer"], told["abstained"]) == ("1911", False)
    assert (
        run("ask", "When was the canteen of Fenwick opened?", "--json").json["threshold"] == found.threshold
    )


def test_one_fitted_on_other_numbers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / CONFIDENCE
    UNFITTED.save(path)
    told = json.loads(path.read_text(encoding="utf-8"))
    del told["weights"][NAMES[0]]
    path.write_text(json.dumps(told), encoding="utf-8")
    with pytest.raises(ValueError, match="fitted on other numbers"):
        Confidence.load(path)
