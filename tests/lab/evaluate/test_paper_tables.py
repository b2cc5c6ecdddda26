"""The Makefile of the paper's tables names commands that exist, and excerpts are the same each time."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from colmlm.kb import interpreter
from colmlm.kb.corpus.format import check_spans, parse_line
from colmlm.lab.paper import excerpts
from tests.places import ROOT
from tests.test_docs import refusal_of

NAMED = ("triviaqa", "tofu-forget05-npo-42", "understanding-siqa", "judged-biographies-off", "perplexity-all")


@pytest.mark.parametrize(("variant", "least"), [("quick", 40), ("full", 180), ("further", 70), ("rates", 10)])
def test_every_command_is_one_of_the_command_line(variant: str, least: int, tmp_path: Path) -> None:
    (tmp_path / "data" / "tofu").mkdir(parents=True)
    for name in ("full", "retain90", "retain95", "retain99", "forget01", "forget05", "forget10"):
        (tmp_path / "data" / "tofu" / f"{name}.jsonl").write_text("{}\n")
    shown = subprocess.run(
        ["make", "-n", "-f", ROOT / "lab" / "paper" / "Makefile", variant,
         "COLMLM=colmlm", "LABORATORY=colmlm-lab"],
        env={"PATH": "/usr/bin:/bin", "DATA": str(tmp_path / "data"), "OUT": str(tmp_path / "out")},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    typed = [
        shlex.split(line.partition(" > ")[0])
        for line in re.findall(r" (colmlm(?:-lab)? .*)", shown.replace("\\\n", " "))
    ]
    assert len(typed) >= least
    assert [f"{words}: {fault}" for words in typed if (fault := refusal_of(words))] == []
    if variant == "full":
        assert [name for name in NAMED if name not in shown] == []


def test_an_excerpt_takes_rows_at_even_distances(tmp_path: Path) -> None:
    (tmp_path / "squad").mkdir()
    rows = [{"title": str(number)} for number in range(10)]
    (tmp_path / "squad" / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    taken = list(excerpts.spread(tmp_path / "squad" / "dev.jsonl", 5))
    assert [row["title"] for row in taken] == ["0", "2", "4", "6", "8"]
    asked = interpreter.command("-m", "colmlm.lab.paper.excerpts", "squad", str(tmp_path))
    subprocess.run([*asked, str(tmp_path / "out.jsonl"), "--rows", "5"], check=True)
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == taken
    missing = subprocess.run(
        [*asked[:-2], "vital", *asked[-1:], "x"], capture_output=True, text=True, check=False
    )
    assert missing.returncode == 2 and "name the folder of the evaluation data" in missing.stderr


CALLED = (
    "Peru_(land): The capital is [dblookup('Peru_(land)', 'Capital') -> Lima] Lima, and "
    "[dblookup('Peru_(land)', 'Rule') -> 1535] it was made so in 1535 by [dblookup('Peru_(land)', 'Founder') -> X] him."
)
PLAIN = "The capital is Lima, and it was made so in 1535 by him."


@pytest.fixture
def called(tmp_path: Path) -> Path:
    """A folder of data with two paragraphs that have calls; people ask about the first."""
    examples = [
        {"annotated_text": CALLED, "text": f"Peru_(land): {PLAIN}"},
        {"annotated_text": "Chile: It is long.", "text": "Chile: It is long."},
    ]
    (tmp_path / "rel_lmlm").mkdir()
    (tmp_path / "rel_lmlm" / excerpts.CALLED).write_text(json.dumps({"examples": examples}))
    (tmp_path / "squad").mkdir()
    asked = {"title": "Peru", "context": PLAIN.replace(" and", "  and"), "qas": []}
    other = {"title": "Spain", "context": "It is sunny.", "qas": []}
    (tmp_path / "squad" / "train.jsonl").write_text(f"{json.dumps(asked)}\n{json.dumps(other)}\n")
    return tmp_path


def test_paragraphs_with_calls_are_given_as_each_method_reads_them(called: Path) -> None:
    (peru,), (chile,) = (excerpts.calls(called, None, asked=asked) for asked in (True, False))
    assert peru["id"].startswith("asked-") and chile["id"].startswith("read-")
    assert [fact["question"] for fact in peru["facts"]] == [
        f"Peru_(land)\n{relation}" for relation in ("Capital", "Rule", "Founder")
    ]
    plain = list(excerpts.plain_of_calls(called, None))
    assert plain[0] == {"id": peru["id"], "title": "Peru (land)", "text": PLAIN}
    spans, _ = excerpts.spans_of_calls(called, None)
    assert [PLAIN[fact["start"] : fact["end"]] for fact in spans["facts"]] == ["Lima", "1535"]
    assert [row["title"] for row in excerpts.questions_of_calls(called, None)] == ["Peru"]

    words = spans | {
        "facts": [fact | {"question": f"What is {fact['value']}?"} for fact in spans["facts"][:1]]
    }
    (called / "spans.jsonl").write_text(json.dumps(spans))
    (called / "asked.jsonl").write_text(json.dumps(words))
    (quiz,) = excerpts.quiz_of_calls(called, None)
    (fact,) = quiz["facts"]
    assert "What is Lima?" in quiz["text"] and quiz["text"][fact["start"] :] == "Lima"
    assert fact["question"] == "Peru_(land)\nCapital"
    read = parse_line(json.dumps(quiz), "quiz").document
    assert read is not None and check_spans("quiz", read.text, read.facts) == (read.facts, ())


def test_statements_and_facts_that_a_base_can_answer_are_chosen(tmp_path: Path) -> None:
    leads = {
        "a": {"title": "Peru", "extract": "Lima is its capital."},
        "b": {"title": "Chile", "extract": "Santiagos."},
    }
    (tmp_path / "leads.json").write_text(json.dumps(leads))
    (tmp_path / "P36.jsonl").write_text(
        "".join(
            json.dumps({"sub_label": land, "obj_label": town}) + "\n"
            for land, town in (("Peru", "Lima"), ("Chile", "Santiago"), ("Spain", "Madrid"))
        )
    )
    (row,) = excerpts.statements_covered(tmp_path, None, by=tmp_path / "leads.json")
    assert row == {"relation": "P36", "sub_label": "Peru", "obj_label": "Lima"}
    assert [
        one["id"] for one in excerpts.leads_of_statements(tmp_path, None, by=tmp_path / "leads.json")
    ] == ["a"]

    article = {"title": "PERU", "facts": [{"value": "lima"}, {"value": "Cusco"}]}
    (tmp_path / "articles.jsonl").write_text(
        f"{json.dumps(article)}\n{json.dumps(article | {'title': 'Chile'})}\n"
    )
    (tmp_path / "leads.jsonl").write_text(json.dumps({"title": "Peru", "facts": [{"value": "Lima"}]}))
    assert list(excerpts.answerable(tmp_path, None)) == [article | {"facts": [{"value": "lima"}]}]


def test_marks_are_added_where_no_fact_is(tmp_path: Path) -> None:
    fact, beside, over = {"start": 0, "end": 4}, {"start": 8, "end": 9}, {"start": 3, "end": 6}
    (tmp_path / "texts.jsonl").write_text(json.dumps({"id": 7, "text": "Lima is it.", "facts": [fact]}))
    (tmp_path / "texts.marked.jsonl").write_text(json.dumps({"id": "7", "facts": [over, beside]}))
    (row,) = excerpts.facts_and_marks(tmp_path, None)
    assert row["facts"] == [fact, beside]
    (learnt,) = excerpts.vocabulary(tmp_path, None)
    assert Tokenizer.from_str(json.dumps(learnt)).encode("Lima is it.").tokens
