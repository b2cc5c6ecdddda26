"""Stop strings and streaming with a scripted model: text that is cut is never shown, and shown text stays."""

from __future__ import annotations

import pytest

from colmlm.model.decoding.decoder import DecodedOutput, Decoder
from tests.model.lookups import LOOK, NOTHING, answering, config, say, scripted, spliced


@pytest.mark.parametrize(
    "script, stop, output",
    [
        ("one two three", (" two",), "one"),
        ("one two three", ("three", "two"), "one "),
        ("one two", ("e t", "one two"), "on"),
        ("one", ("one",), ""),
        ("a\nb", ("\n",), "a"),
        ("aé🏔️b", ("🏔️",), "aé"),
        ("aXb", ("",), "aXb"),
        ("abcabd", ("abd",), "abc"),
        ("aab", ("ab",), "a"),
        ("abcd", ("c", "bc"), "a"),
    ],
)
def test_the_output_is_cut_before_the_first_stop_string(script: str, stop: tuple[str, ...], output: str):
    said, _ = say(script, stop=stop)
    assert said.output == output
    assert said.finish == ("end" if output == script else "stop")


def test_a_stop_string_in_a_value_does_not_stop():
    said, _ = say(f"a{LOOK}b.c", answering("St. Louis."), stop=(".",))
    assert said.output == "a St. Louis.b" and said.finish == "stop" and spliced(said) == ["St. Louis."]


def test_a_stop_string_is_not_put_together_across_a_splice():
    said, _ = say(f"ab{LOOK}cd", answering("x"), stop=("b x", "xc", "b xc", "bc"))
    assert said.output == "ab xcd" and said.finish == "end"


def test_a_stop_string_after_a_splice_leaves_the_splice_alone():
    said, _ = say(f"a{LOOK}STOP more", answering("Lima"), stop=("STOP",))
    assert said.output == "a Lima" and spliced(said) == ["Lima"]


def test_a_lookup_that_missed_within_a_stop_string_stays_in_the_output():
    said, _ = say(f"a{LOOK}bc", NOTHING, stop=("ab",))
    assert said.output == "" and [(s.output_start, s.output_end) for s in said.splices] == [(0, 0)]


def test_a_row_that_is_stopped_by_its_stop_string_reports_no_lookup_beyond_it():
    said, _ = say(f"a{LOOK}b.{LOOK}", answering("x", "y"), stop=(".",))
    assert [s.output_end <= len(said.output) for s in said.splices] == [True]


@pytest.mark.parametrize("values", [("Lima", "\ufffd🏔️"), (None, "x"), ("", "STOP")])
@pytest.mark.parametrize("stop", [(), ("STOP",), ("now", "STO"), ("zzzzzz",), ("é",), ("\ufffd",)])
def test_what_is_streamed_is_never_taken_back(values: tuple[str | None, ...], stop: tuple[str, ...]):
    script = f"né 🏔️ {LOOK}ST and é{LOOK}12345678{LOOK}, STOP now 東"
    checkpoint, _ = scripted({"P": script})
    *pieces, generation = Decoder(checkpoint, answering(*values, "third")).stream("P", config(stop=stop))
    assert isinstance(generation, DecodedOutput)
    pieces = [piece for piece in pieces if isinstance(piece, str)]
    assert "".join(pieces) == generation.output
    checkpoint, _ = scripted({"P": script})
    (whole,) = Decoder(checkpoint, answering(*values, "third")).generate(["P"], config(stop=stop))
    assert whole == generation
    assert all("\ufffd" not in str(piece) for piece in pieces) or "\ufffd" in "".join(v or "" for v in values)


def test_streaming_shows_a_word_as_soon_as_no_stop_string_can_take_it():
    checkpoint, _ = scripted({"P": "abcdef"})
    pieces = list(Decoder(checkpoint, NOTHING).stream("P", config(stop=("xyz",))))
    assert pieces[:4] == ["a", "b", "c", "def"] or [len(str(p)) for p in pieces[:-1]] == [1, 1, 1, 1, 2]


def test_a_row_that_wants_one_value_ends_with_it_and_goes_on_without_one():
    found, _ = say(f"a{LOOK}bc", answering("Lima"), until_hit=True)
    assert (found.output, found.finish, spliced(found)) == ("a Lima", "hit", ["Lima"])
    missed, _ = say(f"a{LOOK}bc", NOTHING, until_hit=True)
    assert (missed.output, missed.finish) == ("abc", "end")
    later, _ = say(f"a{LOOK}bcdefghij{LOOK}k", answering(None, "Lima"), until_hit=True)
    assert later.output.endswith("Limak") and later.finish == "end"
