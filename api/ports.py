"""What the composition root plugs in: who turns prompts into stored outputs, and questions into queries.

The API knows no model. It asks these two, and answers 503 where one is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from threading import BoundedSemaphore
from typing import Protocol

import numpy as np
import numpy.typing as npt
from litestar.di import NamedDependency
from litestar.params import SkipValidation

from api.errors import ModelMissing
from kb.errors import NoSuchChange
from kb.records import CheckpointInfo, OutputTrace
from kb.rekey import Encoder
from kb.service import KnowledgeBase

MAX_FEEDS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """How to decode. `mode` is "auto" (the model decides when to look up), "forced" (at once) or "off".

    `threshold` None is the keyset's own; `min_seq` makes lookups wait for that change; temperature 0 is greedy;
    `fact_bias` is added to the logit of a lookup in "auto" (None: the checkpoint's own).
    """

    prompt: str
    mode: str = "auto"
    max_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    repetition_penalty: float = 1.2
    stop: tuple[str, ...] = ()
    seed: int = 0
    threshold: float | None = None
    min_seq: int | None = None
    fact_bias: float | None = None


class Generator(Protocol):
    """Decodes, stores what was said and on what evidence, and gives the stored trace. Called from several threads."""

    def generate(self, request: GenerationRequest) -> OutputTrace: ...

    def stream(self, request: GenerationRequest) -> Iterator[str | OutputTrace]:
        """Pieces of text as they are decoded, which joined are the output; then, last, the stored trace."""
        ...


class QuestionEncoder(Protocol):
    """The part of `kb.rekey.Encoder` that lookups need."""

    @property
    def checkpoint(self) -> CheckpointInfo: ...

    def encode_questions(self, questions: Sequence[str]) -> npt.NDArray[np.float32]:
        """[n, d] unit rows: the queries at `<FACT-q>`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """What the routes work with. Raises `ModelMissing` where a route needs a part that is not there.

    Decoding keeps a thread for long; `generation_slots` leaves threads for everybody else.
    """

    kb: KnowledgeBase
    encoder: Encoder | None
    generator: Generator | None
    generation_slots: BoundedSemaphore
    feed_slots: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(MAX_FEEDS))

    def need_encoder(self) -> QuestionEncoder:
        if self.encoder is None:
            raise ModelMissing("an encoder")
        return self.encoder

    def need_generator(self) -> Generator:
        if self.generator is None:
            raise ModelMissing("a generator")
        return self.generator


FromPorts = NamedDependency[SkipValidation[Ports]]  # converting would copy what must be shared


def require_seen(ports: Ports, seq: int | None) -> None:
    """Raise `NoSuchChange` where a request waits for a change that nobody made: it would wait in vain."""
    if seq is not None and seq > (head := ports.kb.head_seq()):
        raise NoSuchChange(seq, head)
