"""`evaluate judge-answers`, `biographies`, `judge-biographies`: from kept outputs to figures, and on after a stop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run, invoke
from tests.model.annotate.chat_server import ChatServer, chat_server

KEY = "sk-of-the-judge"
ANSWERS = {"Which city rules Peru?": "Lima", "Which lake is great?": "Titicaca", "Who wrote Emma?": "Austen"}


def judging(messages: list[dict[str, str]], command: str) -> str:
    """Correct is what holds a reference; a claim is a sentence, and supported where a passage holds its last word."""
    told = json.loads(messages[1]["content"])
    if command == "nonsense":
        return "well, correct"
    if "references" in told:
        said = told["answer"]
        right = any(one in said for one in told["references"])
        return json.dumps({"verdict": "correct" if right else "incorrect" if said else "not_attempted"})
    if "claim" in told:
        word = told["claim"].split()[-1]
        return json.dumps({"supported": any(word in passage for passage in told["passages"])})
    return json.dumps({"claims": [one.strip() for one in told["text"].split(".") if one.strip()]})


@pytest.fixture
def chats() -> Iterator[ChatServer]:
    with chat_server() as running:
        running.says = judging
        yield running


@pytest.fixture
def judge(chats: ChatServer, tmp_path: Path) -> tuple[object, ...]:
    key = tmp_path / "judge.key"
    key.write_text(f"{KEY}\n")
    return "--judge-url", chats.url, "--judge-model", "large", "--judge-key-file", key, "--concurrency", 1


def kept(tmp_path: Path, *said: str) -> Path:
    file = tmp_path / "answers.jsonl"
    rows: list[dict[str, Any]] = [{"run": {"method": "co-lmlm", "mode": "auto"}}]
    for n, ((question, answer), output) in enumerate(zip(ANSWERS.items(), said, strict=False)):
        rows.append({"row": f"q{n}", "question": question, "answers": [answer], "output": output})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_answers_are_judged_and_a_stopped_run_goes_on(
    chats: ChatServer, judge: tuple[object, ...], tmp_path: Path
) -> None:
    file = kept(tmp_path, "It is Lima.", "Baikal", "")
    words = ("evaluate", "judge-answers", file, *judge, "--json")
    planned = invoke(*words, "--dry-run").json
    assert planned["estimate"]["requests"] == 3 and planned["judged"] == 0 and not chats.requests
    unasked = invoke(*words)
    assert unasked.code == 2 and "--yes" in unasked.err and not chats.requests
    chats.commands += ["behave", "401"]
    ended = invoke(*words, "--yes")
    assert ended.code == 7 and "go on from there" in ended.err and KEY not in ended.err
    assert "--judge-key-file" in ended.err
    told = invoke(*words, "--yes")
    assert len(chats.requests) == 4 and "1 verdicts are there already" in told.err
    report = told.json
    assert report["counts"] == {"correct": 1, "incorrect": 1, "not_attempted": 1}
    assert (report["judged"], report["unjudged"], report["comparable"]) == (3, 0, True)
    assert report["correct"] == pytest.approx(1 / 3) and report["correct_given_attempted"] == 0.5
    assert report["answers_of"] == {"method": "co-lmlm", "mode": "auto"} and report["usage"]["requests"] == 2
    lines = (tmp_path / "answers.judged.jsonl").read_text().splitlines()
    assert len(lines) == 4 and KEY not in "".join(lines)
    again = invoke(
        "evaluate", "judge-answers", kept(tmp_path, "It is Lima.", "Titicaca", ""), *judge, "--yes"
    )
    assert len(chats.requests) == 5 and "0.6667" in again.out  # only what was said anew is judged anew


def test_a_judge_that_talks_nonsense_leaves_a_row_unjudged_until_the_next_run(
    chats: ChatServer, judge: tuple[object, ...], tmp_path: Path
) -> None:
    words = ("evaluate", "judge-answers", kept(tmp_path, "Lima", "Titicaca"), *judge, "--yes", "--json")
    chats.commands += ["nonsense"] * 3
    report = invoke(*words).json
    assert (report["judged"], report["unjudged"], report["correct"]) == (1, 1, 1.0)
    assert report["usage"]["repairs"] == 2
    assert (report := invoke(*words).json)["unjudged"] == 0 and report["usage"]["requests"] == 1


def test_strings_alone_are_labelled_as_not_comparable(tmp_path: Path) -> None:
    file = kept(tmp_path, "the lima!", "Baikal", "")
    words = ("evaluate", "judge-answers", file, "--judge", "local")
    report = invoke(*words, "--json").json
    assert report["comparable"] is False and report["judge"] == "local" and report["usage"] is None
    assert report["counts"] == {"correct": 1, "incorrect": 1, "not_attempted": 1}
    assert "comparable" in invoke(*words).out
    other = invoke(
        "evaluate", "judge-answers", file, "--judge-url", "http://127.0.0.1:9", "--judge-model", "m", "--yes"
    )
    assert other.code == 2 and "another run" in other.err  # a file has verdicts of one judge


@pytest.mark.parametrize("text", ["", "{}\n", '{"run": {}}\n{"row": "x"}\n', '{"run": {}}\nno\n'])
def test_a_file_without_answers_is_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(text)
    for command in (("judge-answers",), ("judge-answers", "--judge", "local")):
        ran = invoke("evaluate", command[0], file, *command[1:])
        assert ran.code == 2 and ran.err.count("\n") == 1


@pytest.mark.slow(reason="runs an evaluation to its end")
def test_biographies_are_written_split_and_checked(
    run: Run, keyed: list[int], chats: ChatServer, judge: tuple[object, ...], tmp_path: Path
) -> None:
    names, out = tmp_path / "names.txt", tmp_path / "bios.jsonl"
    names.write_text("Peru\n\nZora\nPeru\n")
    write = ("evaluate", "biographies", names, "--mode", "off", "--max-tokens", 8, "--out", out, "--json")
    assert run(*write, "--limit", 1).json["biographies"] == 1
    told = run(*write)
    assert told.json["biographies"] == 2 and "1 biographies are there already" in told.err
    assert [json.loads(line).get("row") for line in out.read_text().splitlines()] == [None, "Peru", "Zora"]

    rows = [json.loads(line) for line in out.read_text().splitlines()]
    for row, said in zip(rows[1:], (" is a country. Its capital is Lima. It rules Mars", "  "), strict=True):
        row["output"] = said
    out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("evaluate", "judge-biographies", out, "--corpus", "atlas", *judge, "--json")
    planned = run(*words, "--dry-run").json
    assert planned["estimate"]["requests"] >= 2 and not chats.requests
    chats.commands += ["behave", "behave", *["nonsense"] * 3]
    first = run(*words, "--yes").json
    assert (first["claims_unjudged"], first["score"], first["covered"]) == (1, 0.5, 0.5)
    before = len(chats.requests)
    report = run(*words, "--yes").json
    assert len(chats.requests) - before == 1  # the one claim that is left
    assert report["score"] == pytest.approx(2 / 3) and report["abstained"] == 0.5
    assert report["claims"] == 3 and report["claims_unjudged"] == 0
    assert report["score_with_length_penalty"] < report["score"] and report["comparable"] is True
    local = run(*words[:5], "--judge", "local", "--out", tmp_path / "local.jsonl", "--json").json
    assert local["comparable"] is False and local["judged"] == 2
