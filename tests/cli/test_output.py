from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from colmlm.cli.errors import one_line
from colmlm.cli.output import _Lines, note, plain, print_json, print_table, progress, say, say_values, shorten
from colmlm.kb.errors import count_of
from colmlm.kb.lookup.records import Hit, Lookup


def test_dataclasses_and_times_become_json() -> None:
    found = Lookup((Hit(1, 1, "Lima", 0.5, 7),), 0.5, 0.2, 3)
    assert plain({"found": found, "at": datetime(2026, 1, 2, tzinfo=UTC)}) == {
        "found": {
            "hits": [
                {
                    "fact_id": 1,
                    "version": 1,
                    "value": "Lima",
                    "score": 0.5,
                    "key_id": 7,
                    "review": "accepted",
                    "approximate": False,
                }
            ],
            "runner_up": 0.5,
            "threshold": 0.2,
            "seq": 3,
            "abstained": None,
        },
        "at": "2026-01-02T00:00:00+00:00",
    }


def test_a_number_that_json_has_not_is_not_printed_as_one() -> None:
    with pytest.raises(ValueError, match="JSON"):
        print_json({"score": float("nan")})


def test_short_work_passes_in_silence_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("Keying") as advance:
        advance(1, 2)
    assert capsys.readouterr() == ("", "")


def test_long_work_says_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    advance = _Lines("Keying", seconds=0)
    advance(1, 2)
    advance(3, None)
    assert capsys.readouterr().err == "Keying: 1 of 2, about 10 seconds left\nKeying: 3\n"


def test_values_are_written_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = {
        "done": True,
        "of_all": 1.5,
        "kept": None,
        "names": [],
        "ids": [3, 4],
        "pairs": [{"a": 1, "b": False}],
    }
    say_values({"num_keys": 2, "run": seconds})
    assert capsys.readouterr().out.splitlines() == [
        "  num keys: 2",
        "  run:",
        "    done: yes",
        "    of all: 1.5",
        "    kept: –",
        "    names: –",
        "    ids: 3, 4",
        "    pairs: (a 1, b no)",
    ]


def test_a_table_without_rows_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("id", "name"), [], "No tokens.")
    print_table(("id", "name"), [])
    assert capsys.readouterr().out == "No tokens.\n"


def test_a_shortened_text_is_one_line() -> None:
    assert shorten("a\nb  c", 10) == "a b c"
    assert len(shorten("x" * 100, 10)) == 10


HOSTILE = "a\x1b[2Jb\x9b\u202ec\u200bd[red]\U000e0041"


def test_nothing_that_is_printed_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    say(HOSTILE)
    note(HOSTILE)
    print_table(("name",), [(HOSTILE,)])
    print_json({"value": HOSTILE})
    told = capsys.readouterr()
    shown = r"a\x1b[2Jb\x9b\u202ec\u200bd[red]\U000e0041"
    line, _, row, as_json = told.out.splitlines()
    assert line == told.err.strip() == row.strip() == one_line(HOSTILE) == shown
    assert json.loads(as_json) == {"value": HOSTILE} and as_json.isascii()


@pytest.mark.parametrize(
    ("number", "noun", "verb", "said"),
    [
        (0, "fact", "", "0 facts"),
        (1, "fact", "", "1 fact"),
        (12_000, "fact", "", "12,000 facts"),
        (1, "prefix", "", "1 prefix"),
        (2, "prefix", "", "2 prefixes"),
        (2, "miss", "are", "2 misses are"),
        (1, "miss", "are", "1 miss is"),
        (1, "fact", "have", "1 fact has"),
        (1, "later fact", "match", "1 later fact matches"),
        (2, "later fact", "match", "2 later facts match"),
        (2, "query", "", "2 queries"),
        (3, "entry", "", "3 entries"),
    ],
)
def test_a_number_agrees_with_its_noun_and_verb(number: int, noun: str, verb: str, said: str) -> None:
    assert count_of(number, noun, verb) == said
