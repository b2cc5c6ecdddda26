"""The decoder over a real tiny model: rows are independent, streams join to the output, seeds repeat it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList, RepetitionPenaltyLogitsProcessor

from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.decoding.decoder import DecodedOutput, Decoder
from colmlm.model.decoding.rows import SpliceRecord
from colmlm.model.lm.checkpoint import Checkpoint
from tests.model.lookups import FakeLookup, Hit, by_direction

PROMPTS = [
    "The capital",
    "",
    "Question: Who was it, after all, that came?\nAnswer:",
    "é🏔️ x",
    "The capital of",
    "<FACT>",
]
CONFIG = DecodeConfig(max_tokens=24)


@pytest.mark.parametrize("mode, misses", [*product(("auto", "forced"), (0, 3, 8)), ("off", 0)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_in_a_batch_is_what_it_is_alone(eager: Checkpoint, mode: str, misses: int, temperature: float):
    config = replace(CONFIG, mode=mode, temperature=temperature, top_p=0.95, stop=("\n",))
    together = Decoder(eager, by_direction(misses)).generate(PROMPTS, config)
    alone = [
        Decoder(eager, by_direction(misses)).generate([prompt], replace(config, seed=number))[0]
        for number, prompt in enumerate(PROMPTS)
    ]
    assert together == alone
    outcomes = {splice.outcome for row in together for splice in row.splices}
    expected = {0: {"hit"}, 3: {"hit", "no_match"}, 8: {"no_match"}}[misses]
    assert outcomes == (set() if mode == "off" else expected)


def test_rows_that_find_and_miss_side_by_side_keep_their_offsets(eager: Checkpoint):
    rows = Decoder(eager, by_direction()).generate(PROMPTS, replace(CONFIG, max_tokens=60))
    assert all({s.outcome for s in row.splices} == {"hit", "no_match"} for row in rows)
    for row in rows:
        reached = 0
        for splice in row.splices:
            assert splice.output_start >= reached
            reached = splice.output_end
            spliced = row.output[splice.output_start : splice.output_end]
            if splice.outcome == "hit":
                assert splice.fact_id is not None
                assert spliced == by_direction().answer(_towards(splice.fact_id)).value  # type: ignore[union-attr]
            else:
                assert spliced == "" and splice.fact_id is None and splice.score == 0.3
        assert row.content_tokens <= 60 and row.seq == (5 if row.splices else None)


def _towards(at: int) -> np.ndarray:
    query = np.zeros(64, np.float32)
    query[at] = 1
    return query


@pytest.mark.parametrize("mode", ["auto", "forced", "off"])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_streamed_pieces_join_to_the_output(eager: Checkpoint, mode: str, prompt: str):
    config = replace(CONFIG, mode=mode, stop=("\n", "zz"), max_tokens=40)
    *pieces, generation = Decoder(eager, by_direction()).stream(prompt, config)
    assert isinstance(generation, DecodedOutput)
    assert generation == Decoder(eager, by_direction()).generate([prompt], config)[0]
    shown = ""
    for item in pieces:
        if isinstance(item, SpliceRecord):
            assert item.outcome == "no_match" or item.output_end == len(shown), (
                "it comes with its last character"
            )
        else:
            assert isinstance(item, str) and item
            shown += item
    assert shown == generation.output
    assert tuple(item for item in pieces if isinstance(item, SpliceRecord)) == generation.splices


def test_a_prompt_of_token_ids_is_the_prompt_of_their_text(eager: Checkpoint):
    tokenizer, decoder = eager.tokenizer, Decoder(eager, by_direction())
    ids = tokenizer.encode(PROMPTS[0])
    by_text, by_ids, with_start = decoder.generate(
        [PROMPTS[0], ids, [tokenizer.end_of_text, *ids]], replace(CONFIG, temperature=0.0)
    )
    assert by_text == by_ids == replace(with_start, prompt_tokens=len(ids)) and by_text.splices
    assert (by_ids.prompt_tokens, with_start.prompt_tokens) == (len(ids), len(ids) + 1)
    for forged in (tokenizer.fact, tokenizer.vocabulary_size, -1):
        with pytest.raises(ValueError, match="cannot stand in a prompt"):
            decoder.generate([[*ids, forged]], CONFIG)


def test_what_no_database_keeps_as_text_is_not_said(checkpoint: Checkpoint):
    config = replace(
        CONFIG, mode="off", temperature=50.0, max_tokens=250
    )  # any byte, with about the same probability
    said = Decoder(checkpoint, None).generate([str(n) for n in range(8)], config)
    assert len({token for row in said for token in row.tokens}) > 200
    assert not any("\0" in row.output for row in said)


def test_a_seed_repeats_a_drawn_output_and_another_does_not(eager: Checkpoint):
    config = replace(CONFIG, temperature=1.0, repetition_penalty=1.0)
    decoder = Decoder(eager, by_direction())
    first, second, other = (decoder.generate(["The"], replace(config, seed=seed))[0] for seed in (1, 1, 2))
    assert first == second and first.output != other.output


def test_without_lookups_greedy_decoding_is_that_of_transformers(checkpoint: Checkpoint):
    tokenizer, prompt = checkpoint.tokenizer, "The capital of Peru"
    ours = Decoder(checkpoint, None).generate([prompt], replace(CONFIG, mode="off", max_tokens=30))[0]
    ids = tokenizer.prompt(prompt)
    penalty = RepetitionPenaltyLogitsProcessor(1.2)
    for _ in range(30):
        with torch.inference_mode():
            logits = checkpoint.lm.causal(torch.tensor([ids])).logits[:, -1]
        logits = LogitsProcessorList([penalty])(torch.tensor([ids[1:]]), logits)
        logits[0, [tokenizer.fact, tokenizer.fact_end, tokenizer.fact_q]] = float("-inf")
        ids.append(int(logits.argmax()))
        if ids[-1] == tokenizer.end_of_text:
            break
    assert ours.output == tokenizer.decode(ids[len(tokenizer.prompt(prompt)) :])
    assert ours.splices == () and ours.seq is None


def test_a_missed_lookup_leaves_no_trace_in_what_follows(checkpoint: Checkpoint):
    """If a forced lookup has no match, the row continues exactly as if it had never asked."""
    decoder = Decoder(checkpoint, FakeLookup(lambda query: None))
    asked, never = (
        decoder.generate(PROMPTS, replace(CONFIG, mode=mode, max_tokens=8)) for mode in ("forced", "off")
    )
    assert [row.output for row in asked] == [row.output for row in never]
    assert all([s.outcome for s in row.splices] == ["no_match"] for row in asked)


def test_a_prompt_that_fills_the_context_harms_no_other_row(eager: Checkpoint):
    prompts = ["x" * 600, "The capital", "y" * 511, "z" * 505]
    rows = Decoder(eager, by_direction()).generate(prompts, replace(CONFIG, mode="forced"))
    assert [row.finish for row in rows] == ["context", "length", "context", "context"]
    assert rows[0].output == rows[2].output == ""
    alone = Decoder(eager, by_direction()).generate([prompts[1]], replace(CONFIG, mode="forced"))[0]
    assert rows[1].output == alone.output


def test_the_query_of_a_forced_lookup_is_the_key_of_that_place(checkpoint: Checkpoint):
    from colmlm.model.lm.encoder import KeyEncoder
    from colmlm.model.training.steps import question_answer

    asked: list[np.ndarray] = []
    lookup = FakeLookup(lambda query: asked.append(query) or Hit(1, "Lima"))  # type: ignore[func-returns-value]
    Decoder(checkpoint, lookup).generate(
        ["Question: Where?\nAnswer:", "x"], replace(CONFIG, mode="forced", max_tokens=1)
    )
    ((key,),) = KeyEncoder(checkpoint).encode_documents([question_answer("Where?", "anything")])
    np.testing.assert_allclose(asked[0], key, atol=1e-5)


def test_no_prompts_are_no_generations(checkpoint: Checkpoint):
    assert Decoder(checkpoint, None).generate([], CONFIG) == []


@pytest.mark.parametrize("mode", ["auto", "forced"])
def test_lookups_without_a_knowledge_base_are_refused_before_anything_runs(checkpoint: Checkpoint, mode: str):
    with pytest.raises(ValueError, match="needs a knowledge base"):
        Decoder(checkpoint, None).generate(["x"], replace(CONFIG, mode=mode))


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "never"}, {"max_tokens": 0}, {"temperature": -0.1}, {"temperature": float("nan")},
        {"temperature": float("inf")}, {"top_p": 0.0}, {"top_p": 1.1}, {"top_p": float("nan")},
        {"repetition_penalty": 0.0}, {"repetition_penalty": float("nan")}, {"repetition_penalty": float("inf")},
        {"min_tokens": -1}, {"min_tokens": 9, "max_tokens": 8},
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(options: dict[str, object]):
    with pytest.raises(ValueError, match=r"mode|must be|min_tokens"):
        DecodeConfig(**options)  # type: ignore[arg-type]


def test_who_stops_waiting_ends_the_decoding_at_the_next_token(eager: Checkpoint):
    steps = 0

    def leave() -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            raise ConnectionError("gone")

    decoder, config = Decoder(eager, None), replace(CONFIG, mode="off", max_tokens=60)
    with pytest.raises(ConnectionError):
        decoder.generate(PROMPTS[:1], config, leave)
    assert steps == 3
    steps = 0
    with pytest.raises(ConnectionError):
        list(decoder.stream(PROMPTS[0], config, leave))
    assert steps == 3
