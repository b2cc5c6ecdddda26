"""A decoder that abstains says nothing that does not end in a fact, whole and streamed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.decoding.decoder import DecodedOutput, Decoder
from colmlm.model.decoding.rows import SpliceRecord
from colmlm.model.text.markup import ASKER
from tests.model.lookups import (
    ASKED,
    LOOK,
    NOTHING,
    FakeLookup,
    FakeWords,
    answering,
    config,
    say,
    scripted,
    spliced,
)


@pytest.mark.parametrize(
    "script, values, output, finish",
    [
        (f"It was {LOOK} in Rome.", (None,), "", "miss"),
        (f"{LOOK} in Rome.", ("Lima", None), " Lima", "end"),
        (f"It is {LOOK} and so{LOOK} on", ("Lima", None), "It is Lima", "miss"),
        (f"It is {LOOK} and {LOOK}, both", ("Lima", "Cusco"), "It is Lima and Cusco", "end"),
        (f"It is {LOOK}. Stop here", ("Lima",), "It is Lima", "stop"),
        ("It was in Rome.", (), "", "end"),
    ],
)
def test_an_answer_goes_as_far_as_its_last_fact(
    script: str, values: tuple[str | None, ...], output: str, finish: str
):
    said, _ = say(script, answering(*values), on_miss="abstain", stop=("Stop",))
    assert (said.output, said.finish) == (output, finish)
    assert all(splice.output_end <= len(output) for splice in said.splices)


def test_the_first_lookup_that_finds_nothing_ends_the_decoding():
    lookup = answering(None, "Lima")
    said, lm = say(f"a{LOOK}bcdefghijkl{LOOK}", lookup, on_miss="abstain")
    assert lookup.calls == [1] and said.output == "" and said.content_tokens == 1
    (missed,) = said.splices
    assert (missed.outcome, missed.output_start, missed.score) == ("no_match", 0, 0.3)
    assert lm.seen[-1][-1] == lm.tokenizer.fact, "nothing was read after it"


def test_a_forced_lookup_and_one_at_a_forgotten_fact_end_it_too():
    forced, _ = say("Rome", NOTHING, on_miss="abstain", mode="forced")
    assert (forced.output, forced.finish) == ("", "miss")
    forgotten, _ = say(f"{LOOK}Rome", FakeLookup(lambda query: None, abstained=7), on_miss="abstain")
    assert forgotten.output == "" and [s.outcome for s in forgotten.splices] == ["abstained"]


def test_a_query_without_words_is_a_miss_like_any_other():
    said, _ = say(f"a{LOOK}{ASKED}b", NOTHING, markup=ASKER, words=FakeWords(), on_miss="abstain")
    assert (said.output, said.finish) == ("", "miss")


def test_rows_that_abstain_leave_the_others_alone():
    scripts = {"P": f"a{LOOK}b", "QQ": f"cd{LOOK}e{LOOK}f"}
    checkpoint, _ = scripted(dict(scripts))
    rows = Decoder(checkpoint, answering(None, "x", "y")).generate(list(scripts), config(on_miss="abstain"))
    assert [(row.output, row.finish) for row in rows] == [("", "miss"), ("cd xe y", "end")]


@given(
    st.lists(st.tuples(st.text("ab .", max_size=10), st.sampled_from(["Lima", "\ufffd", None])), max_size=5),
    st.sampled_from([(), ("a",), (". ",)]),
)
def test_what_is_streamed_is_what_is_said_and_ends_in_a_fact(
    parts: list[tuple[str, str | None]], stop: tuple[str, ...]
):
    script, values = "".join(f"{text}{LOOK}" for text, _ in parts) + "end", [value for _, value in parts]
    settings = config(on_miss="abstain", stop=stop)
    checkpoint, _ = scripted({"P": script})
    *pieces, whole = Decoder(checkpoint, answering(*values)).stream("P", settings)
    assert isinstance(whole, DecodedOutput)
    assert "".join(piece for piece in pieces if isinstance(piece, str)) == whole.output
    assert [piece for piece in pieces if isinstance(piece, SpliceRecord)] == list(whole.splices)
    said = spliced(whole)
    assert whole.output.endswith(said[-1]) if said else whole.output == ""
    continued, _ = say(script, answering(*values), prompt="P", stop=stop)
    assert continued.output.startswith(whole.output)


def test_what_follows_a_miss_is_one_of_two():
    with pytest.raises(ValueError, match="on_miss"):
        DecodeConfig(on_miss="guess")
