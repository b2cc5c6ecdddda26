"""The decoder with a model that follows a script: splices, offsets, misses, stops and budgets, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from colmlm.model.decoding.decoder import DecodedOutput, Decoder
from tests.model.lookups import (
    CHECKPOINT_ID,
    LOOK,
    NOTHING,
    FakeLookup,
    Hit,
    Script,
    ScriptedLM,
    answering,
    config,
    say,
    scripted,
    spliced,
)
from tests.tiny import byte_tokenizer

HOSTILE = ["Lima", "é", "e\u0301\u0327", "🏔️👩‍👩‍👧", "שלום", "\u202eabc", "a\r\nb", "\ufffd", "x\ufffd", "\u200b",
           "<FACT>", "</FACT>", "<FACT-q>", "<|endoftext|>", "a</FACT>b<FACT>c", "\t", "  two  ", "\0"]  # fmt: skip


@pytest.mark.parametrize("space_inside", [True, False])
@pytest.mark.parametrize("value", HOSTILE)
def test_a_value_stands_in_the_output_exactly_where_its_record_says(value: str, space_inside: bool):
    said, lm = say(f"né 🏔️:{LOOK}, 東京{LOOK}.", answering(value, "x"), space_inside=space_inside)
    assert spliced(said) == [value, "x"]
    gap = " " if space_inside else ""
    assert said.output == f"né 🏔️:{gap}{value}, 東京{gap}x."
    assert said.finish == "end" and said.content_tokens == len("né 🏔️:, 東京.".encode())
    tokenizer = lm.tokenizer
    assert lm.seen[-1].count(tokenizer.fact) == lm.seen[-1].count(tokenizer.fact_end) == 2


def test_a_record_tells_which_fact_in_which_version_at_what_score():
    said, _ = say(f"a{LOOK}b{LOOK}c", answering("one", None))
    first, second = said.splices
    assert (first.output_start, first.output_end, first.outcome) == (2, 5, "hit")
    assert (first.fact_id, first.version, first.score) == (1, 11, 0.01)
    assert (second.output_start, second.output_end, second.outcome) == (6, 6, "no_match")
    assert (second.fact_id, second.version, second.score) == (None, None, 0.3)
    assert (said.output, said.seq, said.mode, said.prompt) == ("a onebc", 5, "auto", "P:")


def test_a_query_that_points_at_a_forgotten_fact_is_a_miss_of_its_own_kind():
    missed, lm = say(f"a{LOOK}b", FakeLookup(lambda query: None, abstained=7))
    never, plain = say("ab")
    assert missed.output == never.output and lm.seen[-1] == plain.seen[-1]
    (splice,) = missed.splices
    assert (splice.outcome, splice.fact_id, splice.output_start, splice.output_end) == (
        "abstained",
        None,
        1,
        1,
    )


def test_what_was_asked_is_kept_with_each_record():
    asked: list[np.ndarray] = []

    def answer(query: np.ndarray) -> Hit | None:
        asked.append(query)
        return None if len(asked) == 2 else Hit(1, "one")

    said, _ = say(f"a{LOOK}b{LOOK}c", FakeLookup(answer))
    kept = [np.frombuffer(splice.query or b"", dtype="<f2") for splice in said.splices]
    np.testing.assert_array_equal(kept, np.stack(asked).astype(np.float16))


@pytest.mark.parametrize("prompt, script, output", [
    ("P:", f"{LOOK}.", " Lima."),
    ("P: ", f"{LOOK}.", "Lima."),
    ("P\n", f"{LOOK}.", "Lima."),
    ("", f"{LOOK}.", "Lima."),
    ("P", f" is {LOOK}.", " is Lima."),
    ("P", f" ({LOOK})", " (Lima)"),
    ("P", f' "{LOOK}"', ' "Lima"'),
    ("P", f' x"{LOOK}', ' x" Lima'),
    ("P", f"{LOOK}{LOOK}", " Lima Lima"),
    ("P", f"{LOOK} {LOOK}", " Lima Lima"),
])  # fmt: skip
def test_a_value_is_parted_from_a_word_before_it_and_from_nothing_else(prompt: str, script: str, output: str):
    said, _ = say(script, FakeLookup(lambda query: Hit(1, "Lima")), prompt=prompt)
    assert said.output == output
    assert set(spliced(said)) == {"Lima"}


def test_a_splice_inside_a_character_keeps_its_place():
    """Half a character comes before a value: the replacement shown for it stays, and offsets count it."""
    half = byte_tokenizer().encode("🏔")[:2]
    said, _ = say(["a", *half, LOOK, "b"], answering("Lima"))
    assert said.output == "a\ufffd Limab" and spliced(said) == ["Lima"]


def test_a_value_with_tags_in_it_is_spliced_as_characters_and_asks_for_nothing():
    value = "<FACT>a</FACT><FACT-q><|endoftext|>"
    lookup = answering(value)
    said, lm = say(f"x{LOOK}y", lookup)
    assert said.output == f"x {value}y" and lookup.calls == [1] and said.finish == "end"
    assert lm.seen[-1].count(lm.tokenizer.fact) == lm.seen[-1].count(lm.tokenizer.fact_end) == 1
    assert lm.seen[-1].count(lm.tokenizer.fact_q) == 0 and lm.seen[-1].count(lm.tokenizer.end_of_text) == 1


def test_a_prompt_with_tags_in_it_asks_for_nothing():
    said, lm = say("yes", prompt="<FACT>x</FACT><FACT>")
    assert said.output == "yes" and said.splices == ()
    assert lm.tokenizer.fact not in lm.seen[-1]


def test_a_miss_is_taken_back_and_never_seen_again():
    asked, lm = say(f"one{LOOK} two", NOTHING)
    never, plain = say("one two")
    assert asked.output == never.output == "one two"
    assert lm.seen[-1] == plain.seen[-1]
    with_fact = [seen for seen in lm.seen if lm.tokenizer.fact in seen]
    assert len(with_fact) == 1 and with_fact[0][-1] == lm.tokenizer.fact
    assert [seen for seen in lm.seen if seen not in with_fact] == plain.seen


def test_after_a_miss_the_next_eight_tokens_are_no_lookups():
    lookup = FakeLookup(lambda query: None)
    said, _ = say("".join(f"{LOOK}{letter}" for letter in "abcdefghijklmnopqrst"), lookup)
    assert said.output == "abcdefghijklmnopqrst"
    assert [s.output_start for s in said.splices] == [0, 8, 16]
    assert lookup.calls == [1, 1, 1]


def test_after_a_hit_the_next_token_may_be_a_lookup_again():
    said, _ = say(f"a{LOOK}{LOOK}{LOOK}b", answering("x", "y", "z"))
    assert said.output == "a x y zb" and spliced(said) == ["x", "y", "z"]


def test_a_miss_after_a_hit_goes_on_behind_the_hit():
    said, lm = say(f"a{LOOK}{LOOK}b", answering("x", None))
    assert said.output == "a xb" and [s.outcome for s in said.splices] == ["hit", "no_match"]
    assert said.splices[1].output_start == 3
    assert lm.seen[-1].count(lm.tokenizer.fact) == 1


def test_off_looks_nothing_up_even_with_a_knowledge_base():
    lookup = FakeLookup(lambda query: Hit(1, "x"))
    said, lm = say(f"{LOOK}a{LOOK}b", lookup, mode="off")
    assert said.output == "ab" and lookup.calls == [] and said.seq is None and said.splices == ()
    assert lm.tokenizer.fact not in lm.seen[-1]


def test_forced_looks_up_before_the_first_token_and_auto_does_not():
    for mode, output in (("forced", " Lima is it"), ("auto", " is it")):
        lookup = FakeLookup(lambda query: Hit(1, "Lima"))
        said, _ = say(" is it", lookup, mode=mode)
        assert said.output == output and lookup.calls == [1] * (mode == "forced")


def test_a_forced_miss_goes_on_as_if_it_had_not_been_asked_and_forbids_another():
    asked, lm = say(f"{LOOK}a{LOOK}b", NOTHING, mode="forced")
    never, plain = say("ab")
    assert asked.output == never.output == "ab"
    assert [s.outcome for s in asked.splices] == ["no_match"]
    assert lm.seen[-1] == plain.seen[-1]


class Babbler(ScriptedLM):
    """A model that prefers a forbidden token, then <FACT>, then one letter."""

    def logits(self, states_ND: Any) -> Any:
        logits = super().logits(states_ND)
        logits.zero_()
        logits[:, self.tokenizer.fact_end] = 3000.0
        logits[:, self.tokenizer.fact_q] = 2000.0
        logits[:, self.tokenizer.fact] = 1000.0
        logits[:, self.tokenizer.encode("a")[0]] = 1.0
        return logits

    def _wanted(self, visible: tuple[int, ...]) -> list[int]:
        return [self.tokenizer.end_of_text]


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_special_tokens_are_never_said(mode: str):
    for seed in range(5):
        checkpoint, inner = scripted({"P": ""})
        lm = Babbler(inner.tokenizer, inner.scripts)
        decoder = Decoder(replace(checkpoint, lm=lm), NOTHING)
        (said,) = decoder.generate(["P"], config(temperature=1e4, max_tokens=100, seed=seed, mode=mode))
        assert not {lm.tokenizer.fact_end, lm.tokenizer.fact_q} & set(lm.seen[-1])
        assert lm.tokenizer.fact not in lm.seen[-1] or mode == "auto"
        assert said.content_tokens <= 100


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_that_wants_only_lookups_still_comes_to_an_end(temperature: float):
    checkpoint, scripted_lm = scripted({"P": ""})
    lm = Babbler(scripted_lm.tokenizer, scripted_lm.scripts, context=64)
    decoder = Decoder(replace(checkpoint, lm=lm), FakeLookup(lambda query: None))
    (missed,) = decoder.generate(["P"], config(max_tokens=20, temperature=temperature, top_p=0.9))
    assert missed.finish == "length" and missed.content_tokens == 20 and len(missed.splices) == 3
    lm = Babbler(scripted_lm.tokenizer, scripted_lm.scripts, context=64)
    decoder = Decoder(replace(checkpoint, lm=lm), FakeLookup(lambda query: Hit(1, "")))
    (found,) = decoder.generate(["P"], config(max_tokens=20, temperature=temperature, top_p=0.9))
    assert found.finish == "context" and found.content_tokens == 0


def test_a_budget_counts_what_is_said_and_not_what_is_spliced():
    said, _ = say(f"abc{LOOK}def{LOOK}ghi", FakeLookup(lambda query: Hit(1, "v" * 50)), max_tokens=5)
    assert said.output == "abc " + "v" * 50 + "de"
    assert (said.finish, said.content_tokens) == ("length", 5)


def test_the_budget_ends_a_row_before_a_lookup_that_would_follow():
    lookup = FakeLookup(lambda query: Hit(1, "x"))
    said, _ = say(f"abc{LOOK}def", lookup, max_tokens=3)
    assert said.output == "abc" and said.finish == "length" and lookup.calls == []


def test_a_lookup_that_misses_costs_nothing_of_the_budget():
    said, _ = say(f"a{LOOK}bcdef", NOTHING, max_tokens=4)
    assert said.output == "abcd" and said.content_tokens == 4


def test_the_context_ends_a_row_before_it_overflows():
    said, lm = say("x" * 100, context=20)
    assert said.finish == "context" and len(said.output) <= 20 - len("P:")
    assert max(map(len, lm.seen)) <= 20
    lookup = FakeLookup(lambda query: Hit(1, "v" * 50))
    said, lm = say(f"x{LOOK}y", lookup, context=20)
    assert said.finish == "context" and spliced(said) == [
        "v" * 50
    ]  # what was shown to the reader is recorded
    assert max(map(len, lm.seen)) <= 20


@pytest.mark.parametrize("prompt", ["P" * 19, "P" * 20, "P" * 50])
@pytest.mark.parametrize("mode", ["auto", "forced"])
def test_a_prompt_as_long_as_the_context_gives_no_output(prompt: str, mode: str):
    lookup = FakeLookup(lambda query: Hit(1, "x"))
    said, _ = say("abc", lookup, prompt=prompt, context=20, mode=mode)
    assert (said.output, said.finish, said.splices, lookup.calls) == ("", "context", (), [])


def test_every_step_makes_one_call_for_all_rows_that_ask():
    prompts = [f"{letter}:" for letter in "ABCD"]
    scripts: dict[str, Script | str] = {
        prompts[0]: f"xx{LOOK}yy{LOOK}z",
        prompts[1]: f"xx{LOOK}yy{LOOK}z",
        prompts[2]: f"xxx{LOOK}y",
        prompts[3]: "nothing at all",
    }
    checkpoint, _ = scripted(scripts)
    lookup = FakeLookup(lambda query: Hit(1, "v"))
    rows = Decoder(checkpoint, lookup).generate(prompts, config())
    assert [row.output for row in rows] == ["xx vyy vz", "xx vyy vz", "xxx vy", "nothing at all"]
    assert lookup.calls == [2, 1, 2]
    assert [row.seq for row in rows] == [5, 5, 5, None]


def test_rows_of_all_kinds_side_by_side_are_what_they_are_alone():
    scripts: dict[str, Script | str] = {
        "short": f"a{LOOK}b{LOOK}c",
        "a much longer prompt than the others": f"{LOOK}{LOOK}x",
        "": "plain words, no lookup, and on and on",
        "no": f"a{LOOK}b",
        "missing": f"ab{LOOK}cdefghi{LOOK}jk{LOOK}l",
    }

    def answer(lm: ScriptedLM) -> Callable[[np.ndarray], Hit | None]:
        def by_context(query: np.ndarray) -> Hit | None:
            context = lm.context_of(query)
            assert context.endswith("<FACT>")
            size = len(context)
            return (
                None
                if "no" in context or ("missing" in context and size % 2)
                else Hit(size, "é" * (size % 7))
            )

        return by_context

    for mode in ("auto", "forced", "off"):
        checkpoint, lm = scripted(scripts)
        together = Decoder(checkpoint, FakeLookup(answer(lm))).generate(list(scripts), config(mode=mode))
        alone: list[DecodedOutput] = []
        for prompt in scripts:
            checkpoint, lm = scripted(scripts)
            alone += Decoder(checkpoint, FakeLookup(answer(lm))).generate([prompt], config(mode=mode))
        assert together == alone


def test_a_lone_row_takes_a_whole_value_in_one_forward():
    _, lm = say(f"a{LOOK}b", answering("v" * 30))
    assert lm.widths == [3, 1, 1, 32, 1]  # the prompt, a, <FACT>, " vvv" and </FACT>, b


def test_the_lookup_is_told_the_checkpoint_the_threshold_and_the_change_to_wait_for():
    lookup = FakeLookup(lambda query: None)
    say(f"a{LOOK}b", lookup, threshold=0.4, min_seq=12)
    assert lookup.asked == [{"checkpoint_id": CHECKPOINT_ID, "k": 1, "threshold": 0.4, "min_seq": 12}]


def test_the_sequence_number_is_the_last_that_a_lookup_saw():
    lookup = answering("x", "y", None)
    original = lookup.answer

    def later(query: np.ndarray) -> Hit | None:
        lookup.seq += 10
        return original(query)

    lookup.answer = later
    said, _ = say(f"a{LOOK}b{LOOK}c{LOOK}d", lookup)
    assert said.seq == 35


def test_a_token_once_said_or_spliced_is_penalised():
    """With a penalty the second "a" is less likely than the other choice; values count as seen (transformers' rule)."""
    checkpoint, lm = scripted({"P": "xx"})

    class Wavering(ScriptedLM):
        def logits(self, states_ND: Any) -> Any:
            logits = super().logits(states_ND)
            logits.zero_()
            for token, score in zip(self.tokenizer.encode("abcd"), (10.0, 9.5, 9.0, 8.9), strict=True):
                logits[:, token] = score
            return logits

        def _wanted(self, visible: tuple[int, ...]) -> list[int]:
            return [0]

    def output(prompt: str, penalty: float, mode: str = "off") -> str:
        wavering = replace(checkpoint, lm=Wavering(lm.tokenizer, {prompt: []}))
        lookup = FakeLookup(lambda query: Hit(1, "c"))
        rows: Sequence[DecodedOutput] = Decoder(wavering, lookup).generate(
            [prompt], config(repetition_penalty=penalty, max_tokens=4, mode=mode)
        )
        return rows[0].output

    assert output("P", 1.0) == "aaaa"
    assert output("P", 1.5) == "abcd"
    assert output("b", 1.5) == "acda"
    assert output("P", 1.5, "forced") == " cabda"
