"""Prompts of many threads in one run: each output is what it is alone, whoever joins, leaves, waits or fails."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.decoding.decoder import DecodedOutput, Decoder
from colmlm.model.decoding.together import DecoderFull, DecoderTogether, Pace, Room, Ticket, TicketQueue
from colmlm.model.lm.checkpoint import Checkpoint, load
from tests.model.lookups import FakeLookup, Result, by_direction
from tests.tiny import tiny_checkpoint

PROMPTS = [
    "The capital",
    "",
    "Question: Who was it, after all, that came?\nAnswer:",
    "é🏔️ x",
    "of " * 40,
    "<FACT>",
]
CONFIGS = [
    DecodeConfig(max_tokens=24),
    DecodeConfig(max_tokens=40, temperature=1.0, top_p=0.9, seed=7),
    DecodeConfig(max_tokens=9, mode="forced", stop=("\n", "e")),
    DecodeConfig(max_tokens=16, mode="off", repetition_penalty=1.0),
    DecodeConfig(max_tokens=30, on_miss="abstain", threshold=0.2),
]
LONG = DecodeConfig(max_tokens=400, mode="off", min_tokens=400)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A checkpoint that looks up often, in single precision."""
    path: Path = tmp_path_factory.mktemp("single")
    tiny_checkpoint(path / "tiny", eagerness=5.0)
    return load(path / "tiny", path, precision="fp32")


def test_an_output_is_to_the_last_bit_what_it_is_alone(single: Checkpoint):
    """Twenty threads ask at once, in five ways; queries are compared as they were sent."""
    together = DecoderTogether(Decoder(single, by_direction()), Room(rows=7))
    asked = [(prompt, config) for prompt in PROMPTS for config in CONFIGS]
    with ThreadPoolExecutor(20) as threads:
        said = list(threads.map(lambda one: together.generate([one[0]], one[1])[0], asked))
    for (prompt, config), output in zip(asked, said, strict=True):
        (alone,) = Decoder(single, by_direction()).generate([prompt], config)
        assert output == alone
        assert [s.query for s in output.splices] == [s.query for s in alone.splices]


def test_states_do_not_depend_on_who_is_beside(single: Checkpoint):
    forward = single.lm.inference
    ids = [[(7 * n + t) % 250 for t in range(length)] for n, length in enumerate((5, 40, 100, 1, 64))]
    from colmlm.model.lm.past import Piece

    with torch.inference_mode():
        beside = forward.feed([Piece(one, 0, forward.past()) for one in ids]).split([len(one) for one in ids])
        for one, states_TD in zip(ids, beside, strict=True):
            torch.testing.assert_close(
                forward.feed([Piece(one, 0, forward.past())]), states_TD, rtol=0, atol=0
            )
            past, parts = forward.past(), []
            for at in range(0, len(one), 32):
                parts.append(forward.feed([Piece(one[at : at + 32], at, past)]))
            torch.testing.assert_close(torch.cat(parts), states_TD, rtol=0, atol=0)
            expected = forward.states(torch.tensor([one]))[0]
            torch.testing.assert_close(states_TD, expected, rtol=1e-4, atol=1e-4)


def test_streams_give_the_pieces_of_their_output(single: Checkpoint):
    together = DecoderTogether(Decoder(single, by_direction()))

    def streamed(prompt: str) -> tuple[str, DecodedOutput]:
        *items, output = together.stream(prompt, CONFIGS[0])
        assert isinstance(output, DecodedOutput)
        return "".join(item for item in items if isinstance(item, str)), output

    with ThreadPoolExecutor(6) as threads:
        for said, output in threads.map(streamed, PROMPTS):
            assert said == output.output
            assert output == Decoder(single, by_direction()).generate([output.prompt], CONFIGS[0])[0]


def test_a_row_joins_while_another_is_decoded(single: Checkpoint):
    together = DecoderTogether(Decoder(single, None))
    with closing(together.stream("long", LONG)) as long:
        next(long)
        (short,) = together.generate(["short"], replace(LONG, max_tokens=3, min_tokens=3))
        assert short.content_tokens == 3 and together.run.live
        *_, last = long
    assert isinstance(last, DecodedOutput) and last.content_tokens == 400


def test_who_leaves_frees_the_row_at_once(single: Checkpoint):
    together = DecoderTogether(Decoder(single, None), Room(rows=1, seconds=60))
    stream = together.stream("long", replace(LONG, max_tokens=450, min_tokens=450))
    next(stream)
    stream.close()
    (after,) = together.generate(["next"], replace(LONG, max_tokens=2, min_tokens=2))
    assert after.content_tokens == 2 and not together.run.live


def test_a_long_prompt_is_read_between_the_steps_of_others(single: Checkpoint):
    run = Decoder(single, None).new_run()
    short = run.join("x", replace(LONG, max_tokens=100, min_tokens=100), 0)
    run.step()
    long = run.join("y" * 300, replace(LONG, max_tokens=2, min_tokens=2), 0)
    for _ in range(9):
        before = short.content
        run.step()
        assert short.content == before + 1 and not long.content
    run.step()
    assert long.content == 1


def test_beginnings_that_repeat_are_not_read_again(single: Checkpoint):
    together = DecoderTogether(Decoder(single, by_direction()))
    template = "Question: Who came?\nAnswer: Nobody.\n\n" * 4
    config = DecodeConfig(max_tokens=12)
    fed: list[int] = []
    feed = together.run.forward.feed

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(single.lm.inference, name)

        def feed(self, pieces: Any) -> Any:
            fed.append(sum(len(piece.ids) for piece in pieces))
            return feed(pieces)

    together.run.forward = Counting()  # type: ignore[assignment]
    for mode in ("auto", "forced"):
        for question in ("Where?", "When?"):
            fed.clear()
            prompt = f"{template}{question}"
            own = replace(config, mode=mode)
            (said,) = together.generate([prompt], own)
            (alone,) = Decoder(single, by_direction()).generate([prompt], own)
            assert said == alone and [s.query for s in said.splices] == [s.query for s in alone.splices]
        assert fed[0] < 40
    assert 0 < together.prefixes.num_bytes <= together.prefixes.most_bytes


def test_a_full_queue_refuses_and_says_when_to_come_again(single: Checkpoint):
    together = DecoderTogether(Decoder(single, None), Room(rows=1, waiting=0))
    with closing(together.stream("long", LONG)) as long:
        next(long)
        with pytest.raises(DecoderFull) as refused:
            together.generate(["x"], LONG)
    assert refused.value.retry_after >= 1


def test_who_waits_too_long_is_refused(single: Checkpoint):
    together = DecoderTogether(Decoder(single, None), Room(rows=1, seconds=0.0))
    with closing(together.stream("long", LONG)) as long:
        next(long)
        with pytest.raises(DecoderFull):
            together.generate(["x"], LONG)
        assert long is not None


def test_an_error_between_steps_is_told_and_the_next_prompt_is_decoded(single: Checkpoint):
    def refusal(*_: object) -> Exception:
        raise RuntimeError("no words for it")

    together = DecoderTogether(Decoder(single, None), Room(rows=1, seconds=0.0), refusal=refusal)
    with closing(together.stream("long", LONG)) as long:
        next(long)
        with pytest.raises(RuntimeError, match="no words"):
            together.generate(["x"], LONG)
        with pytest.raises(RuntimeError, match="no words"):
            list(long)
    short = DecodeConfig(max_tokens=2, mode="off")
    assert together.generate(["x"], short) == Decoder(single, None).generate(["x"], short)


def ticket(asker: str, prompt: str, max_tokens: int = 20) -> Ticket:
    config = DecodeConfig(max_tokens=max_tokens, mode="off")
    return Ticket(asker, prompt, config, 0, 1, streams=False, until=0.0)


def queue_of(**waiting: int) -> TicketQueue:
    queue = TicketQueue()
    for asker, count in waiting.items():
        for n in range(count):
            queue.put(ticket(asker, f"{asker} {n}"))
    return queue


def prompts_of(tickets: Sequence[Ticket]) -> list[str]:
    return [str(one.prompt) for one in tickets]


def test_tokens_take_turns():
    """One token has sent five prompts when others send theirs."""
    queue = queue_of(many=5, b=1, c=1)
    queue.put(ticket("b", "b 1"))
    assert prompts_of(queue.drop(lambda one: one.prompt == "many 1")) == ["many 1"]
    taken = prompts_of([queue.take() for _ in range(len(queue))])
    assert taken == ["many 0", "b 0", "c 0", "many 2", "b 1", "many 3", "many 4"]


def test_a_full_queue_makes_room_for_who_has_fewer_waiting():
    queue = queue_of(many=5, some=3)
    assert prompts_of(queue.make_room("few", 2, 2) or []) == ["many 4", "many 3"]
    assert queue.make_room("few", 2, 3) is None and len(queue) == 6  # nobody gives up more than is fair
    assert queue.make_room("many", 1, 1) is None and queue.make_room("few", 9, 1) is None
    assert queue.make_room("many", 1, 0) == []


def test_who_has_fewer_waiting_comes_again_sooner():
    """Before another prompt of `many` come all, before one of `few` one of each, before one of `b` two."""
    queue = queue_of(many=4, b=1)
    assert [queue.tokens_before(asker) for asker in ("many", "few", "b")] == [100, 40, 60]


def test_the_pace_is_that_of_the_steps_and_of_what_outputs_use_of_their_most():
    pace = Pace()
    assert pace.seconds(100) == 0.0
    for _ in range(500):
        pace.note_step(0.1, 4)  # what an idle hour in between would not change
    assert pace.seconds(100) == pytest.approx(2.5)
    for _ in range(500):
        pace.note_output(written=10, asked=40)
    assert pace.seconds(100) == pytest.approx(0.625)
    for _ in range(500):
        pace.note_step(0.4, 4)
    assert pace.seconds(100) == pytest.approx(2.5, rel=0.01)


def test_a_refusal_says_how_long_what_waits_will_take(single: Checkpoint):
    """Its seconds grow with what waits, up to those after which nobody waits any more."""

    def told(waiting: int, seconds: float) -> int:
        room = Room(rows=1, waiting=waiting, seconds=seconds)
        together = DecoderTogether(Decoder(single, None), room)
        together._pace.note_step(1.0, 100)
        for n in range(waiting):
            together.queue.put(ticket("", f"{n}", max_tokens=400))
        with pytest.raises(DecoderFull) as refused:
            together.generate(["x", "y"], replace(LONG, min_tokens=0))
        return refused.value.retry_after

    assert [told(waiting, 60) for waiting in (0, 4, 9, 99)] == [4, 20, 40, 60]
    assert told(99, 7.5) == 8


def test_one_token_cannot_keep_others_out(single: Checkpoint):
    """One has filled the queue; another's prompt is answered, in place of the newest of the first."""

    def asker() -> str:
        return threading.current_thread().name.partition("_")[0]

    together = DecoderTogether(Decoder(single, None), Room(rows=1, waiting=3, seconds=60), asker)
    short = replace(LONG, max_tokens=2, min_tokens=2)
    with ThreadPoolExecutor(4, "many") as many, ThreadPoolExecutor(1, "few") as few:
        with closing(together.stream("long", LONG)) as long:
            next(long)
            asked = [many.submit(together.generate, [f"many {n}"], short) for n in range(3)]
            while len(together.queue) < 3:
                assert not any(one.done() for one in asked)
            with pytest.raises(DecoderFull):
                many.submit(together.generate, ["many 3"], short).result()
            served = few.submit(together.generate, ["few"], short)
            while not any(one.done() for one in asked):
                assert not served.done()
        refused = [one for one in asked if one.exception() is not None]
        assert len(refused) == 1 and isinstance(refused[0].exception(), DecoderFull)
        assert served.result()[0].content_tokens == 2


def test_a_lookup_that_fails_ends_only_those_who_asked(single: Checkpoint):
    class Failing(FakeLookup):
        def find(self, queries_BD: np.ndarray, **options: Any) -> list[Result]:
            if options["threshold"] == 0.5:
                raise ConnectionError("gone")
            return super().find(queries_BD, **options)

    together = DecoderTogether(Decoder(single, Failing(by_direction().answer)))
    config = DecodeConfig(max_tokens=30, mode="forced")
    with ThreadPoolExecutor(2) as threads:
        good = threads.submit(together.generate, ["The"], config)
        bad = threads.submit(together.generate, ["The"], replace(config, threshold=0.5))
        with pytest.raises(ConnectionError, match="gone"):
            bad.result()
        assert good.result() == Decoder(single, by_direction()).generate(["The"], config)


def test_lookups_of_a_step_are_one(single: Checkpoint):
    lookup = by_direction()
    config = DecodeConfig(max_tokens=2, mode="forced")
    Decoder(single, lookup).generate(PROMPTS[:4], config)
    assert lookup.calls[0] == 4
