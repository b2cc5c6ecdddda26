"""Working stand-ins around the decoder: knowledge bases that answer by the query, and a model that follows a script."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.decoding.decoder import DecodedOutput, Decoder
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.lm.config import CheckpointConfig
from colmlm.model.lm.past import Piece
from colmlm.model.text.markup import CO_LMLM, Markup
from colmlm.model.text.tokens import FactTokenizer
from tests.tiny import bare_tokenizer

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
    """A lookup that answers with `answer(query)`: a hit, or None for no match. It records its calls."""

    answer: Callable[[np.ndarray], Hit | None]
    seq: int = 5
    calls: list[int] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    abstained: int | None = None

    def find(self, queries_BD: np.ndarray, **options: Any) -> list[Result]:
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
    """Makes a lookup whose value depends on the query's largest entry; `misses` of every eight have no match."""

    def answer(query: np.ndarray) -> Hit | None:
        at = int(np.abs(query).argmax())
        return Hit(at, VALUES[at % 8], version=at % 3 + 1) if at % 8 >= misses else None

    return FakeLookup(answer)


Script = Sequence[str | int]


@dataclass
class Slots:
    """The tokens that a row was fed, by position, as its past holds them."""

    ids: list[int]


@dataclass
class ScriptedLM:
    """A model that gives a row's script token by token, from only what that row can see.

    It wants a lookup where the script has one; if that was taken back (or forbidden) the script continues after it. If
    a lookup is forced where the script has none, a model that asks in words asks `unasked`.
    """

    tokenizer: FactTokenizer
    scripts: dict[str, list[int]]
    context: int = 1000
    unasked: str = "what?"
    seen: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    widths: list[int] = field(default_factory=list)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def inference(self) -> ScriptedLM:
        return self

    @property
    def causal(self) -> SimpleNamespace:
        return SimpleNamespace(config=SimpleNamespace(eos_token_id=self.tokenizer.end_of_text))

    def past(self) -> Slots:
        return Slots([])

    def feed(self, pieces: Sequence[Piece]) -> Tensor:
        """Gives states that name what each token sees."""
        self.widths.append(max(len(piece.ids) for piece in pieces))
        states = []
        for piece in pieces:
            past: Any = piece.past
            assert piece.start <= len(past.ids) and piece.start + len(piece.ids) <= self.context
            past.ids = past.ids[: piece.start]
            for token in piece.ids:
                past.ids.append(token)
                self.seen.append(tuple(past.ids))
                states.append(torch.tensor([len(self.seen) - 1.0, 1.0]))
        return torch.stack(states)

    def logits(self, states_ND: Tensor) -> Tensor:
        logits = torch.zeros(len(states_ND), self.tokenizer.vocabulary_size)
        for row, state in zip(logits, states_ND, strict=True):
            first, *then = self._wanted(self.seen[int(state[0])])
            row[[token for token in self.tokenizer.added if token != self._opens]] = 900.0
            row[first] = 1000.0
            for token in then:
                row[token] = 500.0
        return logits

    def context_of(self, query: np.ndarray) -> str:
        """Gives the text that was visible to the row that sent this query, tags included."""
        ids = self.seen[round(float(query[0] / query[1]))]
        return str(self.tokenizer.tokenizer.decode(list(ids), skip_special_tokens=False))

    def _wanted(self, visible: tuple[int, ...]) -> list[int]:
        """Gives the next token and, if that opens a lookup, the one to use if lookups are forbidden."""
        script, said = self._script(visible)
        at = number = 0
        while number < len(said):
            if said[number] == self._opens:
                at, number, waiting = self._looked_up(script, at, said, number)
                if waiting:
                    return waiting
                continue
            while script[at] == self._opens:  # taken back, or forbidden
                at = self._behind(script, at)
            assert script[at] == said[number], f"said {said[number]} where the script has {script[at]}"
            at, number = at + 1, number + 1
        following = [*script[at:], self.tokenizer.end_of_text]
        plain = 0
        while following[plain] == self._opens:
            plain = self._behind(following, plain)
        return [following[0], following[plain]] if plain else [following[0]]

    def _looked_up(
        self, script: list[int], at: int, said: tuple[int, ...], number: int
    ) -> tuple[int, int, list[int]]:
        """Gives the places in script and row after a lookup, or the row's next token inside it."""
        asks, closes = self._asks, self.tokenizer.fact_end
        wanted = [*self.tokenizer.encode(self.unasked), *asks] if asks else []
        if at < len(script) and script[at] == self._opens:
            wanted, at = script[at + 1 : self._behind(script, at)], self._behind(script, at)
        number += 1
        for position, token in enumerate(wanted):
            if number + position == len(said):
                return at, number, [token]
            assert said[number + position] == token
        number += len(wanted)
        if closes in said[number:]:
            return at, said.index(closes, number) + 1, []
        return (
            at,
            len(said),
            [self.tokenizer.end_of_text],
        )  # the value is being fed, so the next token is not used

    @property
    def _opens(self) -> int | None:
        opens = self.tokenizer.markup.opens
        return None if opens is None else self.tokenizer.id_of(opens)

    @property
    def _asks(self) -> list[int]:
        asks = self.tokenizer.markup.asks
        return [] if asks is None else [self.tokenizer.id_of(asks)]

    def _behind(self, script: list[int], at: int) -> int:
        """Gives the place in a script after the lookup that begins at `at`."""
        return script.index(self._asks[0], at) + 1 if self._asks else at + 1

    def _script(self, visible: tuple[int, ...]) -> tuple[list[int], tuple[int, ...]]:
        prompts = {tuple(self.tokenizer.prompt(prompt)): script for prompt, script in self.scripts.items()}
        fitting = [prompt for prompt in prompts if visible[: len(prompt)] == prompt]
        longest = max(fitting, key=len)
        return prompts[longest], visible[len(longest) :]


@dataclass
class FakeWords:
    """Encodes queries in words, each as an axis that depends on the words, and records the batches."""

    asked: list[list[str]] = field(default_factory=list)
    checkpoint_id: str = "words"

    def encode_questions(self, questions: Sequence[str]) -> np.ndarray:
        self.asked.append(list(questions))
        axes = [zlib.crc32(question.encode()) % 64 for question in questions]
        return np.eye(64, dtype=np.float32)[axes]


LOOK, ASKED = "<LOOK>", "<ASKED>"


def scripted(
    scripts: dict[str, Script | str],
    *,
    space_inside: bool = True,
    context: int = 1000,
    markup: Markup = CO_LMLM,
) -> tuple[Checkpoint, ScriptedLM]:
    """Makes a checkpoint that answers each prompt with its script.

    In a script ``<LOOK>`` stands for the token that opens a lookup and ``<ASKED>`` for the one that ends its words.
    """
    tokenizer = FactTokenizer(bare_tokenizer(), markup=markup, space_inside=space_inside)
    signs = {LOOK: markup.opens, ASKED: markup.asks}

    def ids(script: Script | str) -> list[int]:
        made: list[int] = []
        for part in [script] if isinstance(script, str) else script:
            if isinstance(part, int):
                made.append(part)
                continue
            for text in re.split(f"({LOOK}|{ASKED})", part):
                made += [tokenizer.id_of(signs[text])] if text in signs else tokenizer.encode(text)
        return made

    lm = ScriptedLM(tokenizer, {prompt: ids(script) for prompt, script in scripts.items()}, context)
    config = CheckpointConfig(
        name="scripted", kind="full", base=None, dim=2, space_inside=space_inside, method=markup.method
    )
    return Checkpoint(CHECKPOINT_ID, config, lm, tokenizer, None), lm  # type: ignore[arg-type]


NOTHING = FakeLookup(lambda query: None)


def config(**options: Any) -> DecodeConfig:
    return DecodeConfig(**{"repetition_penalty": 1.0, "max_tokens": 200, **options})


def answering(*values: str | None) -> FakeLookup:
    """Makes a lookup that gives these values in order, as facts 1, 2, 3 ..., or no match for None."""
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
    markup: Markup = CO_LMLM,
    words: FakeWords | None = None,
    **options: Any,
) -> tuple[DecodedOutput, ScriptedLM]:
    """Decodes one script; gives the generation and the model."""
    checkpoint, lm = scripted({prompt: script}, space_inside=space_inside, context=context, markup=markup)
    (generation,) = Decoder(checkpoint, lookup, words).generate([prompt], config(**options))
    return generation, lm


def spliced(generation: DecodedOutput) -> list[str]:
    return [
        generation.output[s.output_start : s.output_end] for s in generation.splices if s.outcome == "hit"
    ]
