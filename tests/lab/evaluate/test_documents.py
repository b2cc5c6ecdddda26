"""`colmlm-lab evaluate documents` asks people's questions of raw texts, beside baselines and with parts left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from colmlm.kb.answers.reading import Confidence
from colmlm.kb.answers.records import PASSAGE
from colmlm.kb.errors import InvalidValue
from colmlm.lab.methods.ablations import RANKINGS, WHOLE, format_ranking
from colmlm.lab.methods.answer_shares import (
    RawAnswer,
    RawQuestion,
    answering_as_many,
    curve,
    num_answered,
    read_wild,
    report,
    report_shipped,
    shares_at_wrong,
)
from colmlm.lab.methods.generating_baseline import CHATS, END_OF_TURN, TURN, judge_output
from colmlm.model.lm.checkpoint import DIGESTS, WEIGHTS, WHEEL_BASE
from colmlm.model.lm.config import file_digest
from colmlm.model.text.markup import STANDARD
from colmlm.model.text.tokens import FactTokenizer
from tests.cli.conftest import Annotators, Run
from tests.lab.evaluate.test_confidence import TOWNS, squad
from tests.tiny import bare_tokenizer, tiny_llama

CONTRACT = {
    "questions", "exact", "right", "near", "wrong", "abstained", "made_up", "right_ci", "false_alarm",
    "coverage", "facts_per_100_words", "milliseconds", "baselines",
}  # fmt: skip
OUTCOMES = ("right", "near", "wrong", "abstained", "made_up")


@pytest.fixture
def base_model(home: Path) -> Path:
    """A tiny base model that knows the form of a chat, where the converted base would be."""
    tokenizer, folder = bare_tokenizer(), home / "models" / WHEEL_BASE
    tokenizer.add_special_tokens([AddedToken(turn, special=True) for turn in (TURN, END_OF_TURN)])
    folder.mkdir(parents=True)
    tiny_llama(tokenizer.get_vocab_size()).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    digests = {name: file_digest(folder / name) for name in ("config.json", "tokenizer.json", WEIGHTS)}
    (folder / DIGESTS).write_text(json.dumps(digests))
    return folder


@pytest.fixture
def ask(run: Run, light: Annotators, base_model: Path, tmp_path: Path) -> Any:
    """Asks the questions of three of the four towns, whose years are facts, and that of the fourth."""
    file = squad(tmp_path / "towns.jsonl", TOWNS)

    def asked(*words: object) -> Any:
        return run("evaluate", "documents", "--squad", file, "--documents", 3, "--json", *words)

    return asked


def answers(*outcomes: tuple[str, float]) -> list[RawAnswer]:
    return [
        RawAnswer(RawQuestion("?", (), "a", None), None if what == "abstained" else "x", score, what, 0.0)
        for what, score in outcomes
    ]


@pytest.mark.slow(reason="runs an evaluation to its end")
def test_a_run_reports_shares_of_the_answerable_questions_and_baselines_of_the_same_ones(ask: Any) -> None:
    told = ask("--generated", 2).json
    assert set(told) >= CONTRACT
    assert set(told["baselines"]) == {"reader", "paper", "rag", "rag_refusing"}
    assert (told["questions"], told["unanswerable"], told["coverage"]) == (3, 1, 1.0)
    for of in (told, told["no_threshold"], told["at_5_wrong"], *told["baselines"].values()):
        assert sum(of[name] for name in OUTCOMES) == pytest.approx(1, abs=1e-3)
    low, high = told["right_ci"]
    assert low <= told["right"] <= high and told["intervals"]["right"] == told["right_ci"]
    assert told["made_up"] == told["baselines"]["reader"]["made_up"] == 0
    assert told["baselines"]["rag"]["questions"] == 2 and told["baselines"]["rag"]["right"] == 0


@pytest.mark.slow(reason="runs an evaluation to its end")
def test_without_a_threshold_every_question_is_answered(ask: Any, tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    told = ask("--no-threshold", "--no-baselines", "--out", out).json
    assert (told["abstained"], told["false_alarm"], told["threshold"]) == (0, 1, None)
    assert {name: told[name] for name in told["no_threshold"]} == told["no_threshold"]
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["answerable"] for row in rows] == [True, True, True, False]
    for row in rows:
        document, start, end = row["cited"]
        text = next(text for text, _, year in TOWNS.values() if row["said"] in text)
        assert text[start:end] == row["said"] and document


@pytest.mark.slow(reason="runs an evaluation to its end")
def test_parts_are_left_out_on_the_same_base_and_right_against_wrong_is_drawn(
    ask: Any, tmp_path: Path
) -> None:
    plot = tmp_path / "curve.png"
    told = ask("--ablations", "--decoded", "--generated", 0, "--plot", plot).json
    assert list(told["decoded"]) == ["key", "words", "reader"]
    assert all(of["questions"] == told["questions"] for of in told["decoded"].values())
    assert set(told["ablations"]) == {*map(format_ranking, RANKINGS), "any span"}
    assert told["ablations"][format_ranking(WHOLE)]["no_threshold"] == told["no_threshold"]
    assert (
        told["ablations"]["key"]["no_threshold"]["right"]
        == told["baselines"]["paper"]["no_threshold"]["right"]
    )
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow(reason="runs an evaluation to its end")
def test_a_base_that_was_kept_is_taken_again_and_one_of_other_texts_is_refused(
    ask: Any, light: Annotators, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    first = ask("--base", base, "--no-baselines").json
    with light.gone():  # what is marked is not marked again
        again = ask("--base", base, "--no-baselines").json
    assert {**first, "milliseconds": 0} == {**again, "milliseconds": 0}
    refused = ask("--base", base, "--spans", 0.3)
    assert refused.code == 2 and "name another directory" in refused.err


@pytest.mark.slow(reason="runs an evaluation to its end")
@pytest.mark.parametrize(
    ("words", "ways"),
    [(["--keys", "none"], {"words,reader", "any span"}), (["--ranking", "key,words"], None)],
)
def test_one_part_can_be_left_out_of_a_run(ask: Any, words: Sequence[str], ways: set[str] | None) -> None:
    told = ask(*words, "--ablations", "--generated", 0, "--no-threshold").json
    assert ways is None or (set(told["ablations"]) == ways and set(told["baselines"]) == {"reader"})
    assert sum(told[name] for name in OUTCOMES) == pytest.approx(1, abs=1e-3)


@pytest.mark.slow(reason="runs an evaluation to its end")
def test_the_papers_mode_is_measured_at_the_threshold_of_the_keys(ask: Any) -> None:
    told = ask("--mode", "paper", "--generated", 0).json
    assert told["no_threshold"] == told["baselines"]["paper"]["no_threshold"]
    assert -1 <= told["threshold"] <= 1


@pytest.mark.parametrize(
    "words",
    [["--mode", "other"], ["--ranking", "reader"], ["--keys", "none", "--ranking", "key"], ["--spans", "2"]],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_filled(ask: Any, words: list[str]) -> None:
    assert ask(*words).code == 2


def test_the_point_of_five_percent_wrong_is_the_least_threshold_with_no_more() -> None:
    asked = answers(*[("exact", 0.9)] * 18, ("wrong", 0.8), ("near", 0.7), ("made_up", 0.6), ("exact", 0.5))
    found = shares_at_wrong(asked, answers(("wrong", 0.75)), 0.05)
    assert found["threshold"] == 0.7 and found["wrong"] == pytest.approx(1 / 22)
    assert found["right"] == pytest.approx(18 / 22) and found["false_alarm"] == 1
    tied = answers(("exact", 0.9), ("wrong", 0.9))
    assert shares_at_wrong(tied, [], 0.05)["abstained"] == 1


def test_who_answers_as_many_is_compared_at_equal_numbers() -> None:
    asked = answers(("exact", 0.9), ("wrong", 0.5), ("abstained", 0.4), ("near", 0.1))
    assert [num_answered(asked, answering_as_many(asked, number)) for number in (0, 1, 2, 4)] == [0, 1, 2, 3]


def test_a_curve_rises_to_what_is_said_without_a_threshold() -> None:
    asked = answers(("exact", 0.9), ("wrong", 0.5), ("exact", 0.4))
    found = report(asked, [], 0.5, 0)
    assert found["curve"] == curve(asked, [])
    assert {name: found["curve"][0][name] for name in found["no_threshold"]} == found["no_threshold"]


def test_shares_at_the_shipped_thresholds_are_of_what_is_said_there_and_the_curve_of_all() -> None:
    asked = answers(("exact", 0.9), ("wrong", 0.5), ("exact", 0.4))
    said = [
        asked[0],
        replace(asked[1], outcome="holds", score=0.3, grain=PASSAGE),
        answers(("abstained", 0.4))[0],
    ]
    whole = report(asked, [], 0.8, 0)
    found = report_shipped(said, [], whole, 0)
    assert (found["exact"], found["right"], found["abstained"], found["passage"]) == pytest.approx(
        (1 / 3, 2 / 3, 1 / 3, 1 / 3)
    )
    assert (found["threshold"], found["curve"], found["no_threshold"]) == (
        0.8,
        whole["curve"],
        whole["no_threshold"],
    )


@pytest.mark.parametrize(
    ("said", "may_refuse", "outcome"),
    [
        ("In 1911", True, "holds"),
        ("1923", True, "wrong"),
        ("1999", True, "made_up"),
        ("Not in the passages", True, "abstained"),
        ("Not in the passages", False, "made_up"),
        (None, False, "abstained"),
    ],
)
def test_what_a_model_writes_is_made_up_where_no_passage_says_it(
    said: str | None, may_refuse: bool, outcome: str
) -> None:
    assert judge_output(said, ["1911"], ["A tram of 1923."], may_refuse=may_refuse)[1] == outcome


def test_a_refusal_that_is_the_answer_is_right() -> None:
    assert judge_output("not guilty", ["Not guilty"], [], may_refuse=True) == ("not guilty", "exact")


def test_the_base_model_is_asked_in_the_form_of_its_chats() -> None:
    tokenizer = bare_tokenizer()
    tokenizer.add_special_tokens([AddedToken(turn, special=True) for turn in (TURN, END_OF_TURN)])
    loaded = FactTokenizer(tokenizer, markup=STANDARD)
    heads, tails = zip(
        *(form.prompt(loaded, f"Who {TURN}?", ["Lima"]) for form in CHATS.values()), strict=True
    )
    assert heads[0] == heads[1] and loaded.decode(heads[0]).endswith("user\nLima")
    assert ["Not in" in loaded.decode(tail) for tail in tails] == [False, True]
    for head, tail in zip(heads, tails, strict=True):
        ids = [*head, *tail]
        assert ids.count(loaded.id_of(TURN)) == 2 and ids.count(loaded.id_of(END_OF_TURN)) == 1
        assert loaded.decode(ids).endswith("assistant\n")


@pytest.fixture
def wild(tmp_path: Path) -> Path:
    """The towns as files of a folder, with a question of each, one in keywords and one that nothing answers."""
    folder = tmp_path / "wild"
    (folder / "files" / "towns").mkdir(parents=True)
    questions = []
    for number, (title, (text, asked, year)) in enumerate(TOWNS.items()):
        (folder / "files" / "towns" / f"{title}.txt").write_text(f"{title}\n\n{text}\n", encoding="utf-8")
        form, question = ("keyword", asked) if number == 1 else ("plain", f"When was the {asked}?")
        questions.append(
            {"question": question, "form": form, "file": f"towns/{title}.txt", "answers": [year]}
        )
    questions.append(
        {"question": "When was the pier built?", "form": "unanswerable", "file": None, "answers": []}
    )
    rows = [json.dumps(one | {"id": number, "kind": "towns"}) for number, one in enumerate(questions)]
    (folder / "questions.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"question": "Why?", "kind": "k", "form": "plain"}', "line 2 is no question.*answers"),
        ('{"question": "Why?", "kind": "k", "form": "plain", "answers": [], "file": "a.txt"}', "'a.txt'"),
        ("{", "line 2 is no question"),
    ],
)
def test_a_question_of_another_form_is_refused_with_its_line(wild: Path, line: str, said: str) -> None:
    first = '{"question": "When?", "kind": "towns", "form": "plain", "answers": []}'
    (wild / "questions.jsonl").write_text(f"{first}\n", encoding="utf-8")
    assert [one.id for one in read_wild(wild).questions] == [1]
    (wild / "questions.jsonl").write_text(f"{first}\n{line}\n", encoding="utf-8")
    with pytest.raises(InvalidValue, match=said):
        read_wild(wild)


@pytest.mark.slow(reason="runs an evaluation to its end")
def test_documents_of_an_organisation_are_asked_by_kind_and_form(
    run: Run, light: Annotators, base_model: Path, wild: Path, tmp_path: Path
) -> None:
    out = tmp_path / "answers.jsonl"
    told = run("evaluate", "documents", "--wild", wild, "--keys", "none", "--out", out, "--json").json
    assert told["questions"] == 5 and set(told["baselines"]) >= {"bm25_reader"}
    for way in (told["colmlm"], told["no_threshold"], *told["baselines"].values()):
        by_form = way["form"]
        assert set(by_form) >= {"plain", "keyword"} and by_form["plain"]["questions"] == 3
    assert told["no_threshold"]["all"]["all"]["made_up"] == 0
    assert len(out.read_text(encoding="utf-8").splitlines()) == 5


@pytest.mark.slow(reason="runs an evaluation to its end")
def test_confidence_is_fitted_on_documents_of_an_organisation_without_keys(
    run: Run, light: Annotators, own_judge: Path, wild: Path, tmp_path: Path
) -> None:
    path = tmp_path / "fitted.json"
    words = ("evaluate", "confidence", "--wild", wild, "--keys", "none", "--out", path, "--json")
    told = run(*words).json
    assert told["questions"] == 4 + 4 + 1 and set(told["kinds"]) == {"towns"}
    found = Confidence.load(path)
    assert found.passage is not None and found.passage.threshold == told["passage_threshold"]
