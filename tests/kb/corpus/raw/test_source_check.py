"""A source is read again: it still says a thing, says something else, is gone, or cannot be reached."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from colmlm.kb.corpus.raw.files import find_files
from colmlm.kb.corpus.raw.reading import read_raw
from colmlm.kb.corpus.raw.source_check import (
    GONE,
    SAYS_OTHERWISE,
    STILL_SAYS,
    UNREACHABLE,
    SourceCheck,
    SourcedStatement,
    check_source,
    find_statement,
)
from tests.kb.corpus.raw.pages import Page, site

SAID = "Opening hours. The museum opens at nine on weekdays. Guided tours cost 12 euros each."


def statement(value: str, text: str = SAID, uri: str | None = None) -> SourcedStatement:
    start = text.index(value)
    return SourcedStatement(
        external_id="hours.txt", uri=uri, text=text, start=start, end=start + len(value), value=value
    )


def outcome(found: SourceCheck) -> tuple[str, str | None]:
    return found.outcome, found.says


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (SAID, (STILL_SAYS, "nine")),
        (f"New: we have a café.\n\n{SAID}", (STILL_SAYS, "nine")),
        ("The museum   opens at\nnine on weekdays.", (STILL_SAYS, "nine")),
        ("The museum opens at ten on weekdays.", (SAYS_OTHERWISE, "ten")),
        ("The museum opens at half past ten on weekdays.", (SAYS_OTHERWISE, "half past ten")),
        ("The museum is closed.", (SAYS_OTHERWISE, None)),
        ("", (SAYS_OTHERWISE, None)),
    ],
)
def test_a_sentence_is_found_again_by_its_words(now: str, expected: tuple[str, str | None]) -> None:
    found = find_statement(statement("nine"), now, "file:///hours.txt")
    assert outcome(found) == expected
    if found.place is not None:
        assert " ".join(now[found.place.start : found.place.end].split()) == expected[1]


def test_of_several_places_the_one_nearest_to_the_old_one_counts() -> None:
    text = "It costs 5 euros for children. " * 2
    said = replace(statement("5", text), start=text.rindex("5"), end=text.rindex("5") + 1)
    found = find_statement(said, text, "file:///x")
    assert found.place is not None and found.place.start == text.rindex("5")


def test_a_redacted_neighbour_may_say_anything() -> None:
    said = statement("nine", SAID.replace("weekdays", "████████"))
    assert outcome(find_statement(said, SAID, "file:///x")) == (STILL_SAYS, "nine")


def test_a_value_that_somebody_corrected_is_what_the_source_has_to_say() -> None:
    said = replace(statement("nine"), value="ten")
    assert outcome(find_statement(said, SAID, "file:///x")) == (SAYS_OTHERWISE, "nine")
    assert outcome(find_statement(said, SAID.replace("nine", "ten"), "file:///x")) == (STILL_SAYS, "ten")


def test_a_value_alone_is_no_sentence_to_know_again() -> None:
    assert outcome(find_statement(statement("Nine", "Nine."), "Ten.", "file:///x")) == (SAYS_OTHERWISE, None)


def test_a_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "notes on hours.txt"
    file.write_text(SAID, encoding="utf-8")
    (parsed,) = read_raw(find_files([tmp_path]).files)
    assert parsed.document is not None
    said = statement("nine", parsed.document.text, parsed.document.uri)
    assert outcome(check_source(said)) == (STILL_SAYS, "nine")
    file.write_text(SAID.replace("nine", "eleven"), encoding="utf-8")
    assert outcome(check_source(said)) == (SAYS_OTHERWISE, "eleven")
    file.write_bytes(b"\xff\xfe\x00")
    assert check_source(said).outcome == UNREACHABLE
    file.unlink()
    assert check_source(said).outcome == GONE
    assert check_source(replace(said, uri=None)).outcome == UNREACHABLE
    assert check_source(replace(said, uri="ftp://example.org/x")).outcome == UNREACHABLE


def test_of_a_file_of_records_the_same_document_is_read(tmp_path: Path) -> None:
    file = tmp_path / "pages.jsonl"
    records = [{"id": "a", "text": "Nothing here."}, {"id": "hours", "text": SAID}]
    file.write_text("".join(f"{json.dumps(one)}\n" for one in records), encoding="utf-8")
    said = replace(statement("nine", uri=file.as_uri()), external_id="hours")
    assert outcome(check_source(said)) == (STILL_SAYS, "nine")
    file.write_text(json.dumps(records[0]) + "\n", encoding="utf-8")
    found = check_source(said)
    assert found.outcome == GONE and found.cause is not None and "'hours'" in found.cause


def test_a_page_is_fetched_again_and_a_private_one_only_where_that_is_meant() -> None:
    pages = {"/hours": Page(f"<p>{SAID}</p>".encode(), "text/html"), "/gone": Page(status=410)}
    with site(pages) as here:
        said = statement("nine", uri=f"{here.address}/hours")
        assert outcome(check_source(said, allow_private=True)) == (STILL_SAYS, "nine")
        assert check_source(said).outcome == UNREACHABLE
        assert check_source(replace(said, uri=f"{here.address}/gone"), allow_private=True).outcome == GONE
        pages["/hours"] = Page(f"<p>{SAID.replace('nine', 'ten')}</p>".encode(), "text/html")
        assert outcome(check_source(said, allow_private=True)) == (SAYS_OTHERWISE, "ten")
    assert check_source(said, allow_private=True).outcome == UNREACHABLE
