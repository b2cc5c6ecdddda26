"""Queries in words are written by the model, shown to nobody, encoded together, and taken back without a match."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.decoding.decoder import Decoder
from colmlm.model.decoding.rows import MAX_QUERY_TOKENS
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.lm.config import CheckpointConfig
from colmlm.model.lm.language_model import FactLM
from colmlm.model.text.markup import ASKER, REL_LMLM, STANDARD, Markup
from colmlm.model.text.tokens import FactTokenizer
from tests.model.lookups import (
    ASKED,
    CHECKPOINT_ID,
    LOOK,
    NOTHING,
    FakeLookup,
    FakeWords,
    Hit,
    Script,
    answering,
    by_direction,
    config,
    say,
    scripted,
    spliced,
)
from tests.tiny import bare_tokenizer, tiny_llama


def asker(script: Script | str, lookup: FakeLookup = NOTHING, words: FakeWords | None = None, **options):
    words = words or FakeWords()
    generation, lm = say(script, lookup, markup=ASKER, words=words, **options)
    return generation, lm, words


@pytest.mark.parametrize("space_inside", [True, False])
def test_a_query_is_asked_and_only_its_answer_is_said(space_inside: bool):
    lookup = answering("Lima")
    said, lm, words = asker(f"in{LOOK} who? {ASKED}.", lookup, space_inside=space_inside)
    assert words.asked == [["who?"]] and lookup.calls == [1]
    assert said.output == ("in Lima." if space_inside else "inLima.") and spliced(said) == ["Lima"]
    assert said.content_tokens == len("in.")
    assert said.splices[0].words == "who?"
    np.testing.assert_array_equal(
        np.frombuffer(said.splices[0].query or b"", "<f2"), FakeWords().encode_questions(["who?"])[0]
    )
    seen = lm.tokenizer.tokenizer.decode(list(lm.seen[-1]), skip_special_tokens=False)
    gap = " " if space_inside else ""
    assert seen.endswith(f"P:in<QUESTION> who? </QUESTION>{gap}Lima</FACT>.")


def test_the_keyset_asked_is_that_of_the_encoder():
    lookup = answering("Lima")
    asker(f"{LOOK}who?{ASKED}", lookup)
    assert [options["checkpoint_id"] for options in lookup.asked] == ["words"] != [CHECKPOINT_ID]


def test_what_found_nothing_is_taken_back_whole():
    asked, lm, words = asker(f"one{LOOK}who is it?{ASKED} two", NOTHING)
    never, plain, _ = asker("one two")
    assert asked.output == never.output == "one two" and lm.seen[-1] == plain.seen[-1]
    assert words.asked == [["who is it?"]]
    (splice,) = asked.splices
    assert (splice.outcome, splice.output_start, splice.words, splice.score) == (
        "no_match",
        3,
        "who is it?",
        0.3,
    )


def test_after_a_miss_the_next_eight_tokens_are_no_lookups():
    lookup = FakeLookup(lambda query: None)
    said, _, _ = asker("".join(f"{LOOK}?{ASKED}{letter}" for letter in "abcdefghijklmnopqrst"), lookup)
    assert said.output == "abcdefghijklmnopqrst"
    assert [s.output_start for s in said.splices] == [0, 8, 16] and lookup.calls == [1, 1, 1]


@pytest.mark.parametrize("query", ["", "  ", "x" * MAX_QUERY_TOKENS, "x" * 500])
def test_a_query_without_words_or_end_is_a_miss_that_asks_nobody(query: str):
    lookup = answering()
    said, lm, words = asker(f"a{LOOK}{query}{ASKED}b", lookup)
    _, plain, _ = asker("ab")
    assert said.output == "ab" and lm.seen[-1] == plain.seen[-1]
    assert lookup.calls == [] and words.asked == [] and said.seq is None
    (splice,) = said.splices
    assert (splice.outcome, splice.query, splice.words) == ("no_match", None, None)


def test_a_query_of_the_greatest_length_is_asked():
    said, _, words = asker(f"a{LOOK}{'x' * (MAX_QUERY_TOKENS - 1)}{ASKED}b", answering("Lima"))
    assert said.output == "a Limab" and words.asked == [["x" * (MAX_QUERY_TOKENS - 1)]]


def test_a_text_that_ends_inside_its_query_never_asked():
    end = FactTokenizer(bare_tokenizer(), markup=ASKER).end_of_text
    said, _, words = asker([f"a{LOOK}wh", end, f"{ASKED}b"], answering())
    assert said.output == "ab" and words.asked == [] and said.finish == "end"


def test_a_query_costs_nothing_of_the_budget_and_stops_nothing():
    said, _, _ = asker(f"a{LOOK}stop.{ASKED}bcdef", answering("Lima"), max_tokens=4, stop=("stop",))
    assert said.output == "a Limabcd" and said.content_tokens == 4


def test_words_of_the_text_may_be_repeated_in_a_query_and_are_not_held_against_the_text():
    """With a penalty this strong, a query would repeat no token if it were penalised."""
    script = f"abc{LOOK}abcc{ASKED}xyz"
    said, _, words = asker(script, answering("Lima"), repetition_penalty=1000.0)
    assert words.asked == [["abcc"]] and said.output == "abc Limaxyz"


def test_forced_has_the_model_write_a_query_first():
    said, _, words = asker(" is it", answering("Lima"), mode="forced")
    assert said.output == " Lima is it" and words.asked == [["what?"]]
    missed, lm, _ = asker(" is it", NOTHING, mode="forced")
    never, plain, _ = asker(" is it", mode="off")
    assert missed.output == never.output and lm.seen[-1] == plain.seen[-1]


def test_off_asks_nothing():
    said, lm, words = asker(f"a{LOOK}who?{ASKED}b", answering("Lima"), mode="off")
    assert said.output == "ab" and words.asked == [] and lm.tokenizer.fact not in lm.seen[-1]


def test_a_context_that_fills_up_inside_a_query_ends_the_row():
    said, lm, words = asker(f"abc{LOOK}{'x' * 40}{ASKED}", answering("Lima"), context=20)
    assert said.finish == "context" and said.output == "abc" and words.asked == []
    assert max(map(len, lm.seen)) <= 20


def test_the_parts_of_a_relational_query_stand_on_lines_of_their_own():
    tokenizer = FactTokenizer(bare_tokenizer(), markup=REL_LMLM)
    between = tokenizer.id_of(REL_LMLM.parts)
    words = FakeWords()
    said, lm = say(
        [f"a{LOOK}Peru ", between, f" capital{ASKED}b"], answering("Lima"), markup=REL_LMLM, words=words
    )
    assert words.asked == [["Peru\ncapital"]] and said.output == "a Limab"
    seen = tokenizer.tokenizer.decode(list(lm.seen[-1]), skip_special_tokens=False)
    assert "<|db_entity|>Peru <|db_relationship|> capital<|db_return|> Lima<|db_end|>b" in seen


def test_rows_that_come_to_ask_in_one_step_are_encoded_and_answered_together():
    scripts: dict[str, Script | str] = {
        "A:": f"x{LOOK}one?{ASKED}y",
        "B:": f"x{LOOK}two?{ASKED}y",
        "C:": f"x{LOOK}three{ASKED}y",
        "D:": "nothing",
    }
    checkpoint, _ = scripted(scripts, markup=ASKER)
    words, lookup = FakeWords(), FakeLookup(lambda query: Hit(1, "v"))
    rows = Decoder(checkpoint, lookup, words).generate(list(scripts), config())
    assert [row.output for row in rows] == ["x vy", "x vy", "x vy", "nothing"]
    assert words.asked == [["one?", "two?"], ["three"]] and lookup.calls == [2, 1]


def wordy(markup: Markup, seed: int = 3) -> Checkpoint:
    """A checkpoint with random weights, in double precision, that asks in words again and again."""
    tokenizer = FactTokenizer(bare_tokenizer(), markup=markup)
    model = tiny_llama(tokenizer.vocabulary_size, seed, tied=False, spread=0.2)
    with torch.no_grad():
        for token in (markup.opens, markup.asks):
            model.lm_head.weight[tokenizer.id_of(token)] *= 5.0
    lm = FactLM(model.double(), compute=torch.float32).requires_grad_(False)
    told = CheckpointConfig(name="wordy", kind="full", base=None, dim=64, method=markup.method)
    return Checkpoint("wordy", told, lm, tokenizer, None)


PROMPTS = ["The capital", "", "Question: Who was it, after all, that came?\nAnswer:", "é🏔️ x", "<QUESTION>"]


@pytest.mark.parametrize("markup", [ASKER, REL_LMLM], ids=lambda markup: markup.method)
@pytest.mark.parametrize("mode", ["auto", "forced"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_in_a_batch_is_what_it_is_alone(markup: Markup, mode: str, temperature: float):
    checkpoint = wordy(markup)
    settings = DecodeConfig(mode=mode, temperature=temperature, top_p=0.95, max_tokens=24, stop=("\n",))
    together = Decoder(checkpoint, by_direction(), FakeWords()).generate(PROMPTS, settings)
    alone = [
        Decoder(checkpoint, by_direction(), FakeWords()).generate([prompt], replace(settings, seed=number))[0]
        for number, prompt in enumerate(PROMPTS)
    ]
    assert together == alone
    splices = [splice for row in together for splice in row.splices]
    assert {splice.outcome for splice in splices} == {"hit", "no_match"}
    assert any(splice.words for splice in splices)


def test_a_standard_model_looks_nothing_up():
    with pytest.raises(ValueError, match="method standard never looks anything up"):
        say("ab", answering(), markup=STANDARD)
    said, _ = say("ab", answering(), markup=STANDARD, mode="off")
    assert said.output == "ab"


def test_a_model_that_asks_in_words_is_refused_without_their_encoder():
    with pytest.raises(ValueError, match="method asker asks in words"):
        say("ab", answering(), markup=ASKER)
