"""`colmlm-lab evaluate paper`: every row has a state and its figures, and the paper's numbers are equal or admitted."""

from __future__ import annotations

import os
import random
import re
from collections import Counter

import pytest

from colmlm.lab.paper import rows as paper
from colmlm.model.text.markup import ASKER, CO_LMLM
from colmlm.model.text.tokens import FactTokenizer
from tests.cli.conftest import Ran, invoke
from tests.kb.corpora import PERU
from tests.places import ROOT
from tests.tiny import bare_tokenizer

PAGE = ROOT / "docs" / "explanation" / "paper.md"
TEX = ROOT.parent / "shared" / "paper" / "co-lmlm.tex"
DRAWN = 25
FIGURE = re.compile(r"(?<![\w.])\d+\.\d+(?:e-\d+)?")


def printed(*words: str) -> Ran:
    ran = invoke("evaluate", "paper", *words, "--json")
    assert ran.code == 0, ran.err
    return ran


def test_all_rows_are_printed_with_a_state_and_its_reason() -> None:
    rows = printed("--rows").json["rows"]
    assert [row["row"] for row in rows] == list(range(1, 66))
    states = {"shown", "refuted at our size", "cannot be run here"}
    assert {row["state"] for row in rows} == states
    assert [row["row"] for row in rows if not all(row[n] for n in ("item", "ours", "paper", "why"))] == []
    counts = printed().json
    assert counts["rows"] == dict(Counter(row["state"] for row in rows))
    assert set(counts["deviations"]) == {"mended", "admitted"} and sum(counts["deviations"].values()) == 22
    assert "unequal" not in counts["settings"]
    shown = invoke("evaluate", "paper", "--settings")
    assert shown.code == 0 and "NPO: beta" in shown.out


@pytest.mark.parametrize("row", paper.list_rows(), ids=lambda row: str(row.row))
def test_each_figure_of_ours_stands_in_what_the_row_names(row: paper.PaperRow) -> None:
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file in row.evidence}
    assert texts, "name the entry or the test"
    entries = "".join(text for file, text in texts.items() if file.endswith(".md"))
    if entries:
        missing = [one for one in FIGURE.findall(row.ours) if not is_in(one, entries)]
        assert missing == []


def is_in(figure: str, text: str) -> bool:
    """Say whether a text has a figure, as it is or as a share of one."""
    share = f"{float(figure) / 100:.3f}"
    return any(re.search(rf"(?<![\d.]){re.escape(one)}(?!\d)", text) for one in (figure, share))


def test_every_deviation_is_mended_or_admitted_where_a_reader_meets_it() -> None:
    found = paper.list_deviations()
    assert [one.name for one in found] == [f"D{number}" for number in range(1, 23)]
    assert {one.state for one in found} == {"mended", "admitted"}
    lost = [one.name for one in found if one.says not in " ".join((ROOT / one.where).read_text().split())]
    assert lost == []


def test_the_page_has_the_table_of_today() -> None:
    page = PAGE.read_text(encoding="utf-8")
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(paper.redraw(page), encoding="utf-8")
    else:
        assert page == paper.redraw(page), "run: UPDATE_DOCS=1 pytest tests/lab/evaluate/test_paper.py"


@pytest.mark.parametrize("setting", paper.list_settings(), ids=lambda setting: setting.setting)
def test_a_number_is_the_papers_or_its_difference_is_on_the_page(setting: paper.PaperSetting) -> None:
    assert setting.state in ("equal", "admitted")
    if setting.state == "admitted":
        assert f"| {setting.setting} | {setting.paper:,g} |" in PAGE.read_text(encoding="utf-8")
    else:
        assert setting.why is None, "it is equal, so there is nothing to admit"


def test_numbers_that_are_drawn_stand_in_the_papers_text_and_are_equal_or_admitted() -> None:
    """The draw is another one each day of the notebook: by the number of its entries."""
    seed = len(list((ROOT / "lab" / "notebook").glob("*.md")))
    printed_now = {one["setting"]: one for one in printed("--settings").json["settings"]}
    drawn = random.Random(seed).sample(sorted(printed_now), DRAWN)
    right = [name for name in drawn if printed_now[name]["state"] in ("equal", "admitted")]
    assert len(right) == DRAWN
    if TEX.is_file():
        text = TEX.read_text(encoding="utf-8")
        assert [name for name in drawn if printed_now[name]["place"] not in text] == []


def test_a_lookup_takes_as_many_tokens_as_the_papers_table_says() -> None:
    """K(Lq + La + 3) for LMLM-Asker and K(La + 2) for Co-LMLM, beside the tokens of the text."""
    added = {}
    for markup in (ASKER, CO_LMLM):
        tokenizer = FactTokenizer(bare_tokenizer(), markup=markup)
        plain = sum(map(len, (tokenizer.encode(piece) for piece in outside(PERU))))
        added[markup.method] = (
            len(tokenizer.document(PERU, with_title=False)) - plain - 2
        )  # begin and end of text
    answers = sum(len(tokenizer.encode(fact.value)) for fact in PERU.facts)
    questions = sum(len(tokenizer.encode(fact.question or "")) for fact in PERU.facts)
    count = len(PERU.facts)
    assert added["co-lmlm"] == answers + 2 * count
    assert added["asker"] == questions + answers + 3 * count


def outside(document) -> list[str]:
    at, pieces = 0, []
    for fact in document.facts:
        pieces.append(document.text[at : fact.start])
        at = fact.end
    return [*pieces, document.text[at:]]
