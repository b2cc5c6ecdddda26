"""TOFU's rows become documents and examples with marked facts, and examples become a log's tables."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from colmlm.kb.corpus.format import AnnotatedDocument, check_spans
from colmlm.model.evaluate.run_log import EvaluationFileError
from colmlm.model.evaluate.tofu import TofuLog, TofuQuestion, columns, documents, examples, read_rows, table
from tests.places import SHARED_DATA

SHARED = SHARED_DATA / "tofu"


class Capitals:
    """Marks every capitalised word, also those of the question."""

    def spans(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        return [[m.span() for m in re.finditer(r"\b[A-Z]\w+", text)] for text in texts]


ROW = TofuQuestion(
    "Who wrote Emma?", "It was Jane Austen.", "Austen wrote it.", ["It was Bram Stoker.", "nobody"]
)


def values(document: AnnotatedDocument) -> list[str]:
    return [span.value for span in document.facts]


def test_a_row_is_a_document_whose_answer_alone_has_facts() -> None:
    (one,) = documents([ROW], Capitals())
    assert one.text == "Question: Who wrote Emma?\nAnswer: It was Jane Austen."
    assert values(one) == ["Jane", "Austen"]
    assert [span.question for span in one.facts] == ["Who wrote Emma?", None]
    assert check_spans(one.external_id, one.text, one.facts) == (one.facts, ())


def test_what_the_question_names_is_no_fact_of_its_answer() -> None:
    (one,) = documents(
        [TofuQuestion("Where was Jane Austen born?", "Jane Austen was born in Steventon.")], Capitals()
    )
    assert values(one) == ["Steventon"]


def test_a_row_is_the_same_document_in_every_split() -> None:
    other = TofuQuestion("Who wrote Dune?", "Frank Herbert.")
    first, second = documents([other, ROW], Capitals()), documents([ROW], Capitals())
    assert first[1] == second[0] and first[0].external_id != first[1].external_id


def test_an_example_has_its_answers_by_themselves() -> None:
    done: list[int] = []
    one, bare = examples([ROW, TofuQuestion("Who?", "Herbert", None, ["Austen"])], Capitals(), done.append)
    assert (one.answer.text, values(one.answer)) == ("It was Jane Austen.", ["Jane", "Austen"])
    assert values(one.stated) == ["Austen"] and [values(w) for w in one.wrong] == [
        ["Bram", "Stoker"],
        [],
    ]
    assert bare.stated == bare.answer and sum(done) == 7


def test_without_a_finder_nothing_is_marked() -> None:
    done: list[int] = []
    (one,) = examples([ROW], None, done.append)
    answers = (one.answer, one.stated, *one.wrong)
    assert [answer.text for answer in answers] == [ROW.answer, ROW.paraphrased, *ROW.wrong]
    assert not any(answer.facts for answer in answers) and sum(done) == len(answers)


def test_examples_become_tables_that_a_log_is_read_from(tmp_path: Path) -> None:
    rows = [
        columns(
            one,
            " It was Jane of Chawton",
            [(float(len(answer.text)), 1 + len(answer.facts)) for answer in one.answers],
        )
        for one in examples([ROW, ROW], Capitals())
    ]
    assert rows[0]["avg_gt_loss"] == 19 / 3 and rows[0]["avg_paraphrased_loss"] == 16 / 2
    assert rows[0]["average_perturb_loss"] == [19 / 3, 6.0]
    assert rows[0]["rougeL_recall"] == 3 / 4
    names = ("eval_log", "eval_real_author_wo_options", "eval_real_world_wo_options", "eval_log_forget")
    file = tmp_path / "log.json"
    file.write_text(json.dumps({f"{name}.json": table(rows) for name in names}))
    assert TofuLog.read(file).kept_scores["retain"].rouge == 3 / 4


@pytest.mark.parametrize("text", ["", '{"question": "Who?"}\n', "no\n"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "rows.jsonl").write_text(text)
    with pytest.raises(EvaluationFileError, match=r"rows\.jsonl"):
        read_rows(tmp_path / "rows.jsonl")


@pytest.mark.shared_data
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not beside the project")
@pytest.mark.parametrize(
    ("name", "count"),
    [("full", 4000), ("retain95", 3800), ("forget05_perturbed", 200), ("world_facts_perturbed", 117)],
)
def test_published_files_are_read_whole(name: str, count: int) -> None:
    assert len(read_rows(SHARED / f"{name}.jsonl")) == count
