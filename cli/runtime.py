"""The composition root: settings from the environment, the knowledge base, and the model when it is needed.

Only this module and the commands that own a model know both `kb` and `model`. Nothing of `model` is
imported before a command asks for it: torch costs seconds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from kb.corpus import AnnotatedDocument
from kb.records import CheckpointInfo, NewGeneration, OutputTrace, Splice
from kb.settings import Settings

if TYPE_CHECKING:
    from api.ports import GenerationRequest
    from kb.service import KnowledgeBase
    from model.checkpoint import Checkpoint
    from model.decoding.config import DecodeConfig
    from model.decoding.decoder import Decoder, Generation
    from model.decoding.lookup import Lookup

RELEASED = Path("released", "co-lmlm-135m")


class Runtime:
    """One process's knowledge base and model, each opened on first use and closed with the runtime."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @classmethod
    def from_environment(cls, *, home: Path | None = None, checkpoint: Path | None = None) -> Self:
        """A runtime on `COLMLM_*`, where the arguments given override them. Opens nothing yet."""
        settings = Settings.from_environment(os.environ)
        return cls(
            replace(
                settings,
                home=home.expanduser().absolute() if home else settings.home,
                checkpoint=checkpoint or settings.checkpoint,
            )
        )

    @cached_property
    def kb(self) -> KnowledgeBase:
        from kb.service import KnowledgeBase

        return KnowledgeBase.open(self.settings)

    def open(self) -> None:
        """Open the knowledge base now: one that is out of reach should not cost the seconds of loading a model."""
        self.kb  # noqa: B018

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint of the settings, by default the released one. Seconds on first use."""
        from model.checkpoint import load

        return load(self.settings.checkpoint or released_checkpoint(), self.settings.home / "models")

    @cached_property
    def encoder(self) -> ModelEncoder:
        return ModelEncoder(self.checkpoint)

    def encoder_at(self, path: Path | None) -> ModelEncoder:
        """The encoder of another checkpoint; None is the settings' own."""
        if path is None:
            return self.encoder
        from model.checkpoint import load

        return ModelEncoder(load(path, self.settings.home / "models"))

    @cached_property
    def generator(self) -> StoringGenerator:
        return StoringGenerator(self.checkpoint, self.kb)

    def generator_as_of(self, seq: int) -> StoringGenerator:
        """A generator whose lookups find what was true at change `seq`, and whose outputs are dated by it."""
        from kb.history import kb_as_of

        past = kb_as_of(self.kb, seq)
        return StoringGenerator(self.checkpoint, self.kb, lookup=past, seq=seq)

    def actor(self, named: str | None) -> str:
        return named or self.settings.actor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if "kb" in self.__dict__:
            self.kb.close()


def released_checkpoint() -> Path:
    """Where the checkpoint that comes with the program lies."""
    spec = find_spec("model")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0], RELEASED)


def describe(checkpoint: Checkpoint) -> CheckpointInfo:
    """What the knowledge base remembers of a checkpoint."""
    trained_on = checkpoint.config.training.get("data_sha256")
    return CheckpointInfo(
        checkpoint_id=checkpoint.checkpoint_id,
        name=checkpoint.config.name,
        dim=checkpoint.config.dim,
        path=str(checkpoint.path) if checkpoint.path else None,
        tokenizer_hash=checkpoint.tokenizer_hash,
        trained_on=str(trained_on) if trained_on else None,
    )


class ModelEncoder:
    """A checkpoint's keys, as `kb.rekey.Encoder` and `api.ports.QuestionEncoder` want them."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        from model.encoder import KeyEncoder

        self.checkpoint = describe(checkpoint)
        self._keys = KeyEncoder(checkpoint)

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[NDArray[np.float32]]:
        return self._keys.encode_documents(documents)

    def encode_questions(self, questions: Sequence[str]) -> NDArray[np.float32]:
        return self._keys.encode_questions(questions)

    def encode_contexts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self._keys.encode_contexts(texts)


@dataclass(slots=True)
class StoringGenerator:
    """Decodes and stores every output with its attribution, as `api.ports.Generator` wants it.

    `lookup` is the knowledge base, or something that stands before it. `seq` dates an output that looked nothing up:
    by default the last change.
    """

    checkpoint: Checkpoint
    kb: KnowledgeBase
    lookup: Lookup | None = None
    seq: int | None = None

    def generate(self, request: GenerationRequest) -> OutputTrace:
        (generation,) = self._decoder().generate([request.prompt], decode_config(request))
        return self._store(generation)

    def stream(self, request: GenerationRequest) -> Iterator[str | OutputTrace]:
        """The output piece by piece, then its stored trace."""
        for item in self._decoder().stream(request.prompt, decode_config(request)):
            yield item if isinstance(item, str) else self._store(item)

    def _decoder(self) -> Decoder:
        from model.decoding.decoder import Decoder

        return Decoder(self.checkpoint, self.lookup or self.kb)

    def _store(self, generation: Generation) -> OutputTrace:
        generation_id = self.kb.record(
            NewGeneration(
                prompt=generation.prompt,
                output=generation.output,
                checkpoint_id=self.checkpoint.checkpoint_id,
                mode=generation.mode,
                seq=self._seq() if generation.seq is None else generation.seq,
                splices=tuple(
                    Splice(s.output_start, s.output_end, s.outcome, s.fact_id, s.version, s.score, s.query)
                    for s in generation.splices
                ),
            )
        )
        return self.kb.trace_output(generation_id)

    def _seq(self) -> int:
        """What dates an output without a lookup, which depends on no change."""
        return self.kb.head_seq() if self.seq is None else self.seq


def decode_config(request: GenerationRequest) -> DecodeConfig:
    from model.decoding.config import DecodeConfig

    return DecodeConfig(
        mode=request.mode,
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        repetition_penalty=request.repetition_penalty,
        stop=request.stop,
        seed=request.seed,
        threshold=request.threshold,
        min_seq=request.min_seq,
        fact_bias=request.fact_bias,
    )
