"""Working stand-ins around the decoder: knowledge bases that answer by the query, and a model that says its lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model.checkpoint import Checkpoint
from model.config import CheckpointConfig
from model.decoding.decoder import DecodeConfig, Decoder, Generation
from model.tokens import FactTokenizer
from tests.tiny import byte_tokenizer

CHECKPOINT_ID = "scripted"


@dataclass(frozen=True)
class Hit:
    fact_id: int
    value: str
    version: int = 1
    score: float = 0.9


@dataclass(frozen=True)
class Result:
    hits: tuple[Hit, ...]
    runner_up: float | None
    seq: int = 5
    abstained: int | None = None


@dataclass
class FakeLookup:
    """Answers by `answer(query)`: a hit, or None for no match. Notes how each call was made."""

    answer: Callable[[np.ndarray], Hit | None]
    seq: int = 5
    calls: list[int] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    abstained: int | None = None

    def lookup(self, queries_BD: np.ndarray, **options: Any) -> list[Result]:
        assert queries_BD.dtype == np.float32 and queries_BD.ndim == 2
        np.testing.assert_allclose(np.linalg.norm(queries_BD, axis=1), 1, atol=1e-5)
        self.calls.append(len(queries_BD))
        self.asked.append(options)
        found = [self.answer(query) for query in queries_BD]
        return [
            Result((hit,), None, self.seq) if hit else Result((), 0.3, self.seq, self.abstained)
            for hit in found
        ]


VALUES = (
    "Lima",
    "naïve 🏔️ café",
    "<FACT>trap</FACT>",
    "x",
    "שלום",
    "e\u0301 " * 9,
    "</FACT><|endoftext|>",
    "1981",
)


def by_direction(misses: int = 3) -> FakeLookup:
    """A hit whose value the query's largest entry picks; no match for `misses` of every eight of them."""

    def answer(query: np.ndarray) -> Hit | None:
        at = int(np.abs(query).argmax())
        return Hit(at, VALUES[at % 8], version=at % 3 + 1) if at % 8 >= misses else None

    return FakeLookup(answer)


Script = Sequence[str | int]


@dataclass
class ScriptedLM:
    """Says a row's script, token by token, from what the row can see and nothing else.

    It keeps, as a cache does, all it was ever fed, and looks only at the slots that `advance` says are attended.
    A ``<FACT>`` in the script wants a lookup; where it was taken back (or forbidden) the script goes on behind it.
    That what a row sees stands at positions 0, 1, 2 ... is checked at every step.
    """

    tokenizer: FactTokenizer
    scripts: dict[str, list[int]]
    context: int = 1000
    seen: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    widths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slots: list[list[tuple[int, int]]] = []

    @property
    def causal(self) -> SimpleNamespace:
        return SimpleNamespace(
            config=SimpleNamespace(
                max_position_embeddings=self.context, eos_token_id=self.tokenizer.end_of_text
            )
        )

    def advance(self, ids_BT: Tensor, attended_BS: Tensor, positions_BT: Tensor, cache: Any) -> Tensor:
        rows, width = ids_BT.shape
        self.widths.append(width)
        self.slots = self.slots or [[] for _ in range(rows)]
        states = torch.ones(rows, width, 2)
        for row in range(rows):
            self.slots[row] += zip(positions_BT[row].tolist(), ids_BT[row].tolist(), strict=True)
            assert len(self.slots[row]) == attended_BS.shape[1]
            for t in range(width):
                upto = attended_BS.shape[1] - width + t + 1
                attended = attended_BS[row, :upto].tolist()
                if attended[-1]:
                    visible = [slot for slot, see in zip(self.slots[row], attended, strict=False) if see]
                    assert [position for position, _ in visible] == list(range(len(visible)))
                    assert len(visible) <= self.context
                    self.seen.append(tuple(token for _, token in visible))
                    states[row, t, 0] = len(self.seen) - 1
        return states

    def logits(self, states_ND: Tensor) -> Tensor:
        logits = torch.zeros(len(states_ND), self.tokenizer.vocabulary_size)
        for row, state in zip(logits, states_ND, strict=True):
            first, *then = self._wanted(self.seen[int(state[0])])
            row[first] = 1000.0
            for token in then:
                row[token] = 500.0
            row[[self.tokenizer.fact_end, self.tokenizer.fact_q]] = 900.0
        return logits

    def context_of(self, query: np.ndarray) -> str:
        """What the row that sent this query sees, tags included."""
        ids = self.seen[round(float(query[0] / query[1]))]
        return str(self.tokenizer.tokenizer.decode(list(ids), skip_special_tokens=False))

    def _wanted(self, visible: tuple[int, ...]) -> list[int]:
        fact, end = self.tokenizer.fact, self.tokenizer.fact_end
        script, said = self._script(visible)
        at, inside = 0, False
        for token in said:
            if inside:
                inside = token != end
                continue
            while script[at] == fact and token != fact:
                at += 1
            inside = token == fact
            if inside and script[at] != fact:
                continue  # a forced lookup, which the script does not know of
            assert script[at] == token, f"said {token} where the script has {script[at]}"
            at += 1
        following = script[at:] or [self.tokenizer.end_of_text]
        plain = next((token for token in following if token != fact), self.tokenizer.end_of_text)
        return [following[0], plain] if following[0] == fact else [following[0]]

    def _script(self, visible: tuple[int, ...]) -> tuple[list[int], tuple[int, ...]]:
        prompts = {tuple(self.tokenizer.prompt(prompt)): script for prompt, script in self.scripts.items()}
        fitting = [prompt for prompt in prompts if visible[: len(prompt)] == prompt]
        longest = max(fitting, key=len)
        return prompts[longest], visible[len(longest) :]


LOOK = "<LOOK>"


def scripted(
    scripts: dict[str, Script | str], *, space_inside: bool = True, context: int = 1000
) -> tuple[Checkpoint, ScriptedLM]:
    """A checkpoint that answers each prompt with its script; ``<LOOK>`` in one stands for the ``<FACT>`` token."""
    tokenizer = byte_tokenizer(space_inside=space_inside)

    def ids(script: Script | str) -> list[int]:
        made: list[int] = []
        for part in [script] if isinstance(script, str) else script:
            if isinstance(part, int):
                made.append(part)
            else:
                for number, text in enumerate(part.split(LOOK)):
                    made += [tokenizer.fact] * (number > 0) + tokenizer.encode(text)
        return made

    lm = ScriptedLM(tokenizer, {prompt: ids(script) for prompt, script in scripts.items()}, context)
    config = CheckpointConfig(name="scripted", kind="full", base=None, dim=2, space_inside=space_inside)
    return Checkpoint(CHECKPOINT_ID, config, lm, tokenizer, None), lm  # type: ignore[arg-type]


NOTHING = FakeLookup(lambda query: None)


def config(**options: Any) -> DecodeConfig:
    return DecodeConfig(**{"repetition_penalty": 1.0, "max_tokens": 200, **options})


def answering(*values: str | None) -> FakeLookup:
    """Answers in the order of the questions: facts 1, 2, 3 ..., None for no match."""
    following = iter(enumerate(values, start=1))

    def answer(_: np.ndarray) -> Hit | None:
        number, value = next(following)
        return None if value is None else Hit(number, value, version=number + 10, score=number / 100)

    return FakeLookup(answer)


def say(
    script: Script | str,
    lookup: FakeLookup = NOTHING,
    *,
    prompt: str = "P:",
    context: int = 1000,
    space_inside: bool = True,
    **options: Any,
) -> tuple[Generation, ScriptedLM]:
    """The one row's generation, and the model that spoke."""
    checkpoint, lm = scripted({prompt: script}, space_inside=space_inside, context=context)
    (generation,) = Decoder(checkpoint, lookup).generate([prompt], config(**options))
    return generation, lm


def spliced(generation: Generation) -> list[str]:
    return [
        generation.output[s.output_start : s.output_end] for s in generation.splices if s.outcome == "hit"
    ]
