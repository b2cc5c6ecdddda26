"""The methods that lm_eval calls on a model, on requests made here, so that lm_eval need not be installed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from colmlm.model.decoding.decoder import Decoder
from colmlm.model.decoding.scoring import score_tokens
from colmlm.model.evaluate.continuations import HarnessResponder, Item, WithLookups, choose, encode_pair
from colmlm.model.lm.checkpoint import Checkpoint
from tests.model.lookups import FakeLookup, Hit, by_direction, config

ITEMS = [
    Item("Question: Which city rules Peru?\nAnswer:", ("Lima", "the old city of Cusco", "x"), 0),
    Item("Water", ("is wet.", "burns well. "), 1),
]


@dataclass(frozen=True)
class Asked:
    args: tuple[Any, ...]


def test_the_likelihoods_are_those_that_choices_are_scored_by(checkpoint: Checkpoint) -> None:
    harness = HarnessResponder(Decoder(checkpoint, None), batch=2)
    asked = [Asked((item.context, f" {choice}")) for item in ITEMS for choice in item.choices]
    told = [logprob for logprob, _ in harness.loglikelihood(asked)]
    chosen = choose(checkpoint, ITEMS)
    assert told == pytest.approx([logprob for one in chosen for logprob in one.logprobs], abs=1e-5)
    right = [one.is_right for one in chosen]
    assert right == [told[:3].index(max(told[:3])) == 0, told[3:].index(max(told[3:])) == 1]


def test_with_the_knowledge_base_they_are_those_with_lookups(eager: Checkpoint) -> None:
    lookup = FakeLookup(lambda query: Hit(1, "Lima"))
    harness = HarnessResponder(Decoder(eager, lookup), "auto", threshold=0.4)
    asked = [Asked((item.context, f" {choice}")) for item in ITEMS for choice in item.choices]
    told = [logprob for logprob, _ in harness.loglikelihood(asked)]
    assert {one["threshold"] for one in lookup.asked} == {0.4}
    chosen = choose(eager, ITEMS, WithLookups(eager, lookup, threshold=0.4))
    assert told == pytest.approx([logprob for one in chosen for logprob in one.logprobs])
    alone = HarnessResponder(Decoder(eager, None)).loglikelihood(asked)
    assert told != pytest.approx([logprob for logprob, _ in alone])


def test_a_long_text_is_scored_in_windows_each_token_once(checkpoint: Checkpoint) -> None:
    harness, tokenizer = HarnessResponder(Decoder(checkpoint, None)), checkpoint.tokenizer
    room = checkpoint.lm.inference.context - 1
    texts = ["short", "y" * room, "".join(chr(97 + n % 26) for n in range(2 * room + 40))]
    told = harness.loglikelihood_rolling([Asked((text,)) for text in texts])
    for text, logprob in zip(texts[:2], told, strict=False):
        (whole,) = score_tokens(checkpoint, [tokenizer.prompt(text)])
        assert len(whole) == len(text) and logprob == pytest.approx(sum(s.logprob for s in whole), abs=1e-3)
    ids, expected, done = tokenizer.encode(texts[2]), 0.0, 0
    while done < len(ids):
        end = min(done + (room - 1 if done else room), len(ids))
        (scored,) = score_tokens(checkpoint, [tokenizer.prompt(ids[max(0, end - room) : end])])
        expected, done = expected + sum(s.logprob for s in scored[done - end :]), end
    assert told[2] == pytest.approx(expected, abs=1e-3)


def test_a_context_that_is_too_long_loses_its_beginning(checkpoint: Checkpoint) -> None:
    harness, tokenizer = HarnessResponder(Decoder(checkpoint, None)), checkpoint.tokenizer
    long = "".join(chr(97 + n % 26) for n in range(600))
    ((logprob, _),) = harness.loglikelihood([Asked((long, " end"))])
    before, after = encode_pair(tokenizer, long, " end")
    (kept,) = score_tokens(checkpoint, [tokenizer.prompt([*before, *after][-511:])])
    assert logprob == pytest.approx(sum(one.logprob for one in kept[-4:]), abs=1e-4)


def test_texts_are_generated_up_to_a_stop_string(eager: Checkpoint) -> None:
    decoder = Decoder(eager, by_direction())
    harness, seen = HarnessResponder(decoder, "auto", batch=2), []
    harness.advance = lambda done, total: seen.append((done, total))
    options = {"until": ["\n\n"], "max_gen_toks": 12, "do_sample": False, "temperature": 0.0}
    asked = [Asked((text, options)) for text in ("One", "Two", "Three")]
    asked.append(Asked(("One", {**options, "max_gen_toks": 3})))
    said = harness.generate_until(asked)
    same = config(mode="auto", max_tokens=12, stop=("\n\n",))
    assert said[:3] == [one.output for one in decoder.generate(["One", "Two", "Three"], same)]
    assert said[3] == decoder.generate(["One"], replace(same, max_tokens=3))[0].output
    assert seen == [(2, 4), (3, 4), (4, 4)]
    with pytest.raises(ValueError, match="num_beams"):
        harness.generate_until([Asked(("One", {"num_beams": 4}))])
    with pytest.raises(ValueError, match="no room"):
        harness.generate_until([Asked(("One", {"max_gen_toks": 511}))])


def test_what_cannot_be_scored_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(ValueError, match="forced"):
        HarnessResponder(Decoder(checkpoint, None), "forced")
    with pytest.raises(ValueError, match="this decoder has no lookups; give it some"):
        HarnessResponder(Decoder(checkpoint, None), "auto")
