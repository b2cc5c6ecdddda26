"""The lines of a text say what stands under what: headings, questions, lead-ins, table headers and terms."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from colmlm.kb.texts.searched import MOST_SAID, searched_sentences
from colmlm.kb.texts.structure import is_section_number, structure_of
from tests.strategies import characters, texts

HANDBOOK = """Leave

Annual leave

Full-time staff get 25 days a year. Ask your manager first.

Sick leave

Call before ten o'clock. A note is needed from the fourth day on.
"""
FAQ = """I have lost my badge. What do I do?

Tell the reception at once. They block it within minutes.
A new one costs 5 euros.

Who may park here?

Everybody with a permit.
"""
EXPENSES = """Expenses

The following are paid back:
train tickets in second class
hotels up to 120 euros a night
taxis after 10 pm

Nothing else is.
"""
RATES = """Rates

Zone | Letter | Parcel
Europe | 1.10 | 9.50
World | 1.70 | 19.00
"""
MANUAL = """OPTIONS

--amend
    Replace the tip of the branch by a new commit.

    The old one stays for two weeks.
"""


def led(text: str, part: str) -> list[str]:
    """The lines that lead the sentence with this part."""
    (found,) = (one for one in searched_sentences(text) if part in text[one.start : one.end])
    return [text[start:end] for start, end in found.led_by]


def read_text(text: str, part: str) -> str:
    (found,) = (one for one in searched_sentences(text) if part in text[one.start : one.end])
    return text[found.read_from : found.end]


def passage(text: str, part: str) -> str:
    (found,) = (one for one in searched_sentences(text) if part in text[slice(*one.own)])
    return text[slice(*found.passage)]


def test_a_sentence_is_led_by_its_headings() -> None:
    assert led(HANDBOOK, "Ask your manager") == ["Leave", "Annual leave"]
    assert led(HANDBOOK, "A note") == ["Leave", "Sick leave"]


def test_a_heading_belongs_to_the_sentence_below_it_and_nothing_is_read_across_one() -> None:
    assert read_text(HANDBOOK, "Call before").startswith("Sick leave\n\nCall")
    assert read_text(HANDBOOK, "A note").startswith("Sick leave")
    assert passage(HANDBOOK, "A note") == "Call before ten o'clock. A note is needed from the fourth day on."


def test_an_answer_is_read_with_the_question_of_its_faq() -> None:
    assert led(FAQ, "A new one costs") == ["I have lost my badge. What do I do?"]
    assert read_text(FAQ, "A new one costs").startswith("I have lost my badge.")
    assert read_text(FAQ, "Everybody").startswith("Who may park here?")
    assert passage(FAQ, "They block it").endswith("A new one costs 5 euros.")


def test_items_are_led_by_the_line_before_their_list_and_said_together() -> None:
    text = EXPENSES.replace("taxis", f"{'very ' * 60}cheap taxis")
    assert led(text, "cheap taxis") == ["Expenses", "The following are paid back:"]
    assert passage(EXPENSES, "hotels").splitlines()[-1] == "taxis after 10 pm"


def test_rows_are_led_by_the_header_of_their_table() -> None:
    rows = "\n".join(f"Zone {n} | {n}.10 | {n}.50" for n in range(40))
    assert led(f"{RATES}{rows}", "Zone 39") == ["Rates", "Zone | Letter | Parcel"]


def test_paragraphs_are_led_by_the_term_that_they_explain() -> None:
    text = MANUAL.replace("    Replace", f"    {'Really. ' * 5}Replace")
    assert led(text, "Replace the tip") == ["OPTIONS", "--amend"]


def test_underlined_marked_and_numbered_lines_are_headings() -> None:
    text = (
        "Git\n===\n\nIt keeps versions.\n\n== Use\n\nType it.\n\n"
        "2.1 Undo\n\nType reset. Then look.\n\n2.2 Redo\n\nType it again.\n"
    )
    assert led(text, "Then look") == ["Git", "== Use", "2.1 Undo"]
    assert led(text, "again") == ["Git", "== Use", "2.2 Redo"]


def test_many_short_lines_in_a_row_are_no_headings() -> None:
    text = (
        "\n\n".join(["Bring with you", "A pen", "A passport", "A friend", "Some money"])
        + "\n\nThat is all there is to it."
    )
    assert led(text, "That is all") == []


def test_the_number_of_a_section_is_told_from_other_numbers() -> None:
    for text, said in (
        ("5.4 Refunds are made.", "5.4"),
        ("See section 12 for more.", "12"),
        ("1. Stop.", "1."),
    ):
        at = text.index(said)
        assert is_section_number(text, at, at + len(said)), text
    for text, said in (
        ("It costs 5.4 million.", "5.4"),
        ("12 people came.", "12"),
        ("In 1990 it began.", "1990"),
    ):
        at = text.index(said)
        assert not is_section_number(text, at, at + len(said)), text


@given(texts | st.text(characters) | st.text(st.sampled_from("abA1 .?:|-=\n"), max_size=300))
def test_what_is_found_stands_in_the_text(text: str) -> None:
    structure = structure_of(text)
    assert all(text[start:end].strip() == text[start:end] != "" for start, end in structure.headings)
    for one in searched_sentences(text):
        assert one.read_from <= one.start <= one.own[0] < one.own[1] <= one.end
        assert one.passage[0] <= one.own[0] and one.own[1] <= one.passage[1]
        assert one.passage == one.own or one.passage[1] - one.passage[0] <= MOST_SAID
        assert all(start < end for start, end in one.led_by)
