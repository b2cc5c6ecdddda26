"""The parts that the composition root hands to the routes, above all the generator and the encoder.

The API imports no model. The generator turns prompts into stored outputs, the encoder questions into queries; where
one of them is missing, the routes that need it answer 503.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from litestar.di import NamedDependency
from litestar.params import SkipValidation

from colmlm.api.errors import model_missing
from colmlm.api.loaded_models import LoadedModel, LoadedModels
from colmlm.api.middleware.limiters import Batcher, Limiters, Tuning
from colmlm.api.middleware.sign_on import SignOn
from colmlm.api.settings import ServerSettings
from colmlm.api.watch.operations import Readiness
from colmlm.kb.answers.calibrations import AnswerCalibrations
from colmlm.kb.answers.ranked import RankedLookups
from colmlm.kb.answers.reading import JudgedReader
from colmlm.kb.errors import KBError, KeysetMismatch
from colmlm.kb.evidence.answering_generator import AnsweringGenerator
from colmlm.kb.evidence.attribution import StoredAnswers
from colmlm.kb.evidence.generation import Generator
from colmlm.kb.keys.records import CheckpointInfo
from colmlm.kb.keys.rekey import Encoder
from colmlm.kb.lookup.likeness import SentenceEmbedder
from colmlm.kb.lookup.questions import ATTEMPTS
from colmlm.kb.lookup.records import Lookup
from colmlm.kb.lookup.replica import Found, KeyLookup
from colmlm.kb.service import KnowledgeBase

T = TypeVar("T")


class QuestionEncoder(Protocol):
    """The part of `kb.keys.rekey.Encoder` that lookups need."""

    @property
    def checkpoint(self) -> CheckpointInfo: ...

    def encode_questions(self, questions: Sequence[str]) -> npt.NDArray[np.float32]:
        """Give [n, d] unit rows, the queries at `<FACT-q>`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The parts that routes work with. Raises `ModelMissing` where a route needs a part that the server lacks.

    Authentication and probes use `auth_kb`, the same base on connections of their own. So requests that wait for a lock
    cannot exhaust the connections that they need.
    """

    kb: KnowledgeBase
    models: LoadedModels
    observed: Callable[[Generator], Generator]
    answers: StoredAnswers | None
    auth_kb: KnowledgeBase
    key_lookups: Batcher[KeyLookup, Found]
    limiters: Limiters
    readiness: Readiness
    metrics_text: Callable[[], bytes]
    tuning: Tuning
    settings: ServerSettings
    sign_on: SignOn | None = None

    @property
    def reader(self) -> JudgedReader | None:
        """The reader that answers questions; None if the server has none."""
        return self.answers.reader if self.answers else None

    @property
    def sentences(self) -> SentenceEmbedder | None:
        """The encoder that ranks sentences for answers; None if the server answers no questions."""
        return self.answers.answering.sentences if self.answers else None

    def need_calibrations(self) -> AnswerCalibrations:
        reader = self.need_answers().reader
        return AnswerCalibrations(self.kb, reader.digest, reader.confidence.threshold)

    async def find_by_key(self, asked: KeyLookup) -> list[Lookup]:
        """Find live facts by key, in one batch with other requests' lookups. Raise what `Lookups.find` does."""
        found = await self.key_lookups.ask(asked)
        if isinstance(found, KBError):
            raise found
        return found

    @property
    def lookups(self) -> RankedLookups:
        """Lookups of the present state by any ranking. The one by the reader raises `ModelMissing` without a reader."""
        return RankedLookups(
            self.kb, lambda: self.need_answers().reader, lambda: self.need_answers().answering.sentences
        )

    @property
    def encoder(self) -> Encoder | None:
        """The encoder of the keyset whose index this process has open, else any; None if no model is loaded."""
        model = self.models.model_of_lookups()
        return model.encoder if model else None

    @property
    def generator_loaded(self) -> bool:
        model = self.models.model_of_lookups()
        return model is not None and model.generator is not None

    def ask_with_encoder(self, ask: Callable[[QuestionEncoder], T]) -> T:
        """Call `ask` with the active keyset's encoder; call it again where another keyset was activated meanwhile."""
        for _ in range(ATTEMPTS):
            encoder = self.need_encoder()
            try:
                return ask(encoder)
            except KeysetMismatch as refused:
                if not self.models.await_model(refused.active) or self.encoder is encoder:
                    raise
        return ask(self.need_encoder())

    def need_encoder(self) -> QuestionEncoder:
        """Give the encoder of questions. Raises `ModelMissing` where no model is loaded."""
        if (encoder := self.encoder) is None:
            raise model_missing("encoder of questions")
        return encoder

    def need_model(self, checkpoint_id: str) -> LoadedModel:
        """Give the loaded model of this checkpoint. Raise `KeysetMismatch` if only others are loaded."""
        if (model := self.models.model_of_checkpoint(checkpoint_id)) is None:
            raise model_missing("encoder of questions")
        return model

    def need_answers(self) -> StoredAnswers:
        if self.answers is None:
            raise model_missing("reader that answers questions")
        return self.answers

    def need_decoder(self) -> Generator:
        """Give the generator of the active keyset. An output that is begun with it also ends with it.

        Raise `KeysetMismatch` where that keyset's model is not loaded.
        """
        return self.observed(self._generator())

    def _generator(self) -> Generator:
        model = self.models.model_of_active_keyset()
        if model is None or model.generator is None:
            raise model_missing("generator of text")
        return model.generator

    def need_generator(self) -> Generator:
        """Give a generator that answers questions as `need_answers` does, where there is a reader, and decodes every
        other text as `need_decoder` does.
        """
        if self.answers is None:
            return self.need_decoder()
        answering = self.answers.answering
        return self.observed(
            AnsweringGenerator(self._generator(), lambda: answering, self.kb.outputs.record_traced)
        )


FromPorts = NamedDependency[SkipValidation[Ports]]  # converting would copy what must be shared


def await_seen(ports: Ports, seq: int | None) -> None:
    """Wait until lookups see change `seq`. Called before decoding, while an error status can still be sent.

    Raise `NoSuchChange` and `IndexBehind`, as a lookup does.
    """
    if seq is not None:
        ports.kb.searcher.await_change(seq)
