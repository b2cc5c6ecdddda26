"""The composition root: reads settings from the environment, and opens the knowledge base and the model when needed.

Only this module and the commands that own a model know both `kb` and `model`. Nothing of `model` is
imported before a command needs it, since importing torch takes seconds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Self

from colmlm.api.settings import ServerSettings
from colmlm.cli.options import program_options
from colmlm.cli.output import ON_STDERR
from colmlm.cli.settings import UserSettings
from colmlm.kb.progress import Telling
from colmlm.kb.store.settings import Settings

if TYPE_CHECKING:
    from colmlm.api.loaded_models import LoadedModel
    from colmlm.cli.composition.encoders import ModelEncoder
    from colmlm.cli.composition.generator import StoringGenerator
    from colmlm.kb.answers.answering import Answering
    from colmlm.kb.answers.ranked import RankedLookups
    from colmlm.kb.answers.reading import JudgedReader
    from colmlm.kb.evidence.answering_generator import AnsweringGenerator
    from colmlm.kb.lookup.likeness import SentenceEmbedder
    from colmlm.kb.service import KnowledgeBase
    from colmlm.model.lm.checkpoint import Checkpoint

RELEASED = Path("released", "co-lmlm-135m")
# Commands on an existing base. In a home without one they would make an empty base, and find nothing wrong.
ON_EXISTING_BASE = re.compile(
    r"(ask|backup|erase|forget|generate|hold|log|lookup|misses|questions|review|trace)\b"
    r"|facts (compare|delete|edit|list|restore|show|undo|verify)\b|corpus (delete|documents|export|retain)\b"
    r"|keysets (activate|check|retire|rollback|threshold)\b|checkpoint info\b"
)


def _is_on_existing_base() -> bool:
    return ON_EXISTING_BASE.match(" ".join(program_options().command)) is not None


class Runtime:
    """One process's knowledge base and model, each opened on first use and closed with the runtime.

    `application` is the name of its connections in the database; `telling` gets remarks and the progress of long work.
    """

    def __init__(
        self,
        settings: Settings,
        user: UserSettings | None = None,
        application: str = "colmlm",
        telling: Telling = ON_STDERR,
    ) -> None:
        self.settings, self.user = settings, user or UserSettings()
        self.application, self.telling = application, telling

    @classmethod
    def from_environment(
        cls, *, home: Path | None = None, checkpoint: Path | None = None, telling: Telling = ON_STDERR
    ) -> Self:
        """Make a runtime of the variables `COLMLM_*`, which the arguments override. Opens nothing yet."""
        settings = Settings.from_environment(os.environ)
        user = UserSettings.from_environment(os.environ)
        return cls(
            replace(settings, home=home.expanduser().absolute() if home else settings.home),
            replace(user, checkpoint=checkpoint or user.checkpoint),
            telling=telling,
        )

    @cached_property
    def serving(self) -> ServerSettings:
        """The settings with which this process serves the API."""
        return ServerSettings.from_environment(os.environ)

    @cached_property
    def kb(self) -> KnowledgeBase:
        from colmlm.kb.errors.refusals import no_knowledge_base
        from colmlm.kb.service import KnowledgeBase
        from colmlm.kb.store.embedded_server import EmbeddedServer

        if self.user.server is not None:
            self.telling.note("COLMLM_SERVER is set, but this works with the knowledge base of this machine.")
        server = EmbeddedServer.of(self.settings)
        if server is not None and not server.data.exists() and _is_on_existing_base():
            raise no_knowledge_base(str(self.settings.home))
        return KnowledgeBase.open(self.settings, self.application)

    @property
    def database_url(self) -> str | None:
        """The URL of the base with its password, for processes that this one starts; None if no base is open."""
        return self.kb.engine.url.render_as_string(hide_password=False) if "kb" in self.__dict__ else None

    def open(self) -> None:
        """Open the knowledge base now, so that one that is out of reach is noticed before a model is loaded."""
        self.kb  # noqa: B018

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint of the settings; else, if a base is open, that of the active keyset at its registered path;
        else the released one. Loading it takes seconds.
        """
        from colmlm.model.lm.checkpoint import load

        return load(
            self.user.checkpoint or self._active_checkpoint_path() or released_checkpoint(),
            self.settings.home / "models",
        )

    def _active_checkpoint_path(self) -> Path | None:
        """Give the directory of the active keyset's checkpoint; None if it is gone, or no keyset or base is there."""
        from colmlm.kb.errors import NoActiveKeyset

        if "kb" not in self.__dict__:
            return None
        try:
            path = self.kb.keysets.checkpoint(self.kb.keysets.active().keyset_id).path
        except NoActiveKeyset:
            return None
        return Path(path) if path is not None and Path(path).is_dir() else None

    def refresh(self) -> None:
        """Drop a loaded checkpoint that is not the active keyset's any more, unless the settings name it."""
        if self.user.checkpoint is None and "checkpoint" in self.__dict__:
            found = self._active_checkpoint_path()
            if found is not None and found != self.checkpoint.path:
                for part in ("checkpoint", "encoder", "generator", "answers"):
                    self.__dict__.pop(part, None)

    @cached_property
    def encoder(self) -> ModelEncoder:
        from colmlm.cli.composition.encoders import ModelEncoder

        return ModelEncoder(self.checkpoint)

    def model_at(
        self,
        path: Path | None,
        check: Callable[[], None],
        asker: Callable[[], str],
        wide_threads: int | None = None,
    ) -> LoadedModel:
        """Load the model of the checkpoint at `path` (None: that of the settings) for a server, which may load others.

        Its lookups keep serving an output that began before another keyset was activated. `check` is called at every
        step of decoding. Prompts are decoded together, in turns between the callers that `asker` names. A step of
        many tokens is computed by `wide_threads` threads.
        """
        from colmlm.api.loaded_models import LoadedModel
        from colmlm.cli.composition.encoders import GatheringEncoder, ModelEncoder
        from colmlm.cli.composition.generator import LocalOutputs, StoringGenerator
        from colmlm.kb.errors import refusals
        from colmlm.model.decoding.decoder import Decoder
        from colmlm.model.decoding.together import DecoderTogether, Room
        from colmlm.model.lm.checkpoint import load

        checkpoint = self.checkpoint if path is None else load(path, self.settings.home / "models")
        lookups = replace(self.lookups, steady=True)
        room = Room(
            rows=self.serving.decoding_rows,
            waiting=self.serving.decoding_queue,
            seconds=self.serving.decoding_wait_seconds,
            wide_threads=wide_threads,
        )
        generator = StoringGenerator(
            checkpoint,
            LocalOutputs(self.kb),
            lookups,
            prompt_max_tokens=self.serving.prompt_max_tokens,
            ranking=self.serving.ranking,
            check=check,
            together=DecoderTogether(Decoder(checkpoint, lookups), room, asker, refusals.decoder_busy),
        )
        encoder = self.encoder if path is None else ModelEncoder(checkpoint)
        return LoadedModel(GatheringEncoder(encoder), generator)

    def encoder_at(self, path: Path | None) -> ModelEncoder:
        """Give the encoder of the checkpoint at `path` (None: that of the settings)."""
        if path is None:
            return self.encoder
        from colmlm.cli.composition.encoders import ModelEncoder
        from colmlm.model.lm.checkpoint import load

        return ModelEncoder(load(path, self.settings.home / "models"))

    @cached_property
    def answers(self) -> Answering:
        """Give the service that answers questions, with the checkpoint and the reader of the settings."""
        return self.answering(self.reader)

    @cached_property
    def reader(self) -> JudgedReader:
        """The reader of passages of the settings, by default the released one."""
        from colmlm.cli.composition.readers import reader, reader_at

        return reader(reader_at(self.user, None), self.settings.home / "models")

    def answering(self, reader: JudgedReader, *, keys: bool = True) -> Answering:
        """Make the service that answers with this reader; without `keys`, by sentences found by words alone."""
        from colmlm.kb.answers.answering import Answering
        from colmlm.kb.lookup.questions import Questions

        questions = Questions(self.kb, [self.encoder]) if keys else None
        return Answering(self.kb, questions, reader, self.sentence_encoder)

    @cached_property
    def sentence_encoder(self) -> SentenceEmbedder:
        """The encoder that ranks sentences by how near they are to a question in meaning."""
        from colmlm.model.lm.encoder import MeanSentenceEncoder

        return MeanSentenceEncoder.load()

    @property
    def lookups(self) -> RankedLookups:
        """Lookups as of now, by any ranking. That by the reader loads the reader and the encoder of sentences."""
        from colmlm.kb.answers.ranked import RankedLookups

        return RankedLookups(self.kb, lambda: self.reader, lambda: self.sentence_encoder)

    @cached_property
    def generator(self) -> StoringGenerator:
        from colmlm.cli.composition.generator import LocalOutputs, StoringGenerator

        self.open()  # the active keyset decides on the checkpoint
        most, ranking = self.serving.prompt_max_tokens, self.serving.ranking
        return StoringGenerator(
            self.checkpoint, LocalOutputs(self.kb), self.lookups, prompt_max_tokens=most, ranking=ranking
        )

    @property
    def answering_generator(self) -> AnsweringGenerator:
        """The generator, which answers prompts that are questions as `answers` does, loading the reader when needed."""
        from colmlm.kb.evidence.answering_generator import AnsweringGenerator

        return AnsweringGenerator(self.generator, lambda: self.answers, self.kb.outputs.record_traced)

    def generator_as_of(self, seq: int) -> StoringGenerator:
        """Give a generator whose lookups find facts as of change `seq`, which is stored with its outputs."""
        from colmlm.cli.composition.generator import LocalOutputs, StoringGenerator
        from colmlm.kb.lookup.options import KEY

        self.open()
        return StoringGenerator(
            self.checkpoint, LocalOutputs(self.kb), self.kb.lookups.as_of(seq), seq, ranking=KEY
        )

    def use_ray(self, address: str | None, workers: int | None) -> None:
        """Set the address of Ray and the number of its workers for bulk work; None keeps what the settings say."""
        user = self.user
        self.user = replace(user, ray=address or user.ray, ray_workers=workers or user.ray_workers)

    def actor(self, named: str | None) -> str:
        return named or self.settings.actor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if "kb" in self.__dict__:
            self.kb.close()


def released_checkpoint() -> Path:
    """Give the directory of the checkpoint that comes with the program."""
    spec = find_spec("colmlm.model")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0], RELEASED)
