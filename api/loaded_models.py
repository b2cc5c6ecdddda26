"""The models that a server has loaded: of the keyset that answers, and of those that may answer next.

A request takes the model of the keyset that is active when it begins, and keeps it to its end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from colmlm.kb.errors import KeysetMismatch, NoActiveKeyset
from colmlm.kb.evidence.generation import Generator
from colmlm.kb.keys.records import CheckpointInfo
from colmlm.kb.keys.rekey import Encoder
from colmlm.kb.service import KnowledgeBase


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A loaded checkpoint: its encoder, and its generator if this server decodes."""

    encoder: Encoder
    generator: Generator | None = None

    @property
    def checkpoint(self) -> CheckpointInfo:
        return self.encoder.checkpoint


LOADED_SECONDS = 60.0  # for which a question waits for the model of a keyset that was just activated


class LoadedModels:
    """The loaded models of a server, by checkpoint. Threads read them while models are added and dropped.

    `refused` gives the reason for each checkpoint that should be loaded and is not. `is_kept_up` says that a
    loader adds the model of a keyset that becomes active.
    """

    def __init__(self, kb: KnowledgeBase, loaded: Sequence[LoadedModel] = ()) -> None:
        self.refused: Mapping[str, str] = {}
        self.is_kept_up = False
        self._kb = kb
        self._loaded = {model.checkpoint.checkpoint_id: model for model in loaded}
        self._changing = threading.Condition()

    @classmethod
    def of(
        cls, kb: KnowledgeBase, encoder: Encoder | None, generator: Generator | None = None
    ) -> LoadedModels:
        """Make the models of a server that loads no others: the one of these parts, or none without an encoder."""
        return cls(kb, [] if encoder is None else [LoadedModel(encoder, generator)])

    def __contains__(self, checkpoint_id: str) -> bool:
        return checkpoint_id in self._loaded

    def __bool__(self) -> bool:
        return bool(self._loaded)

    @property
    def checkpoints(self) -> frozenset[str]:
        return frozenset(self._loaded)

    def encoders(self) -> Mapping[str, Encoder]:
        """Give the encoders by checkpoint, that of the answering keyset first."""
        first, loaded = self.model_of_lookups(), self._loaded
        models = [first, *loaded.values()] if first else []
        return {model.checkpoint.checkpoint_id: model.encoder for model in models}

    def model_of_lookups(self) -> LoadedModel | None:
        """Give the model of the keyset whose index is open in this process, else any; None if none is loaded.

        It makes no query. A lookup with the model raises `KeysetMismatch` if another keyset was activated since.
        """
        loaded = self._loaded
        return loaded.get(self._kb.searcher.checkpoint_in_use or "") or next(iter(loaded.values()), None)

    def model_of_active_keyset(self) -> LoadedModel | None:
        """Give the active keyset's model; without an active keyset any model, or None if none is loaded.

        It waits for a model that is being loaded. Raises `KeysetMismatch` if the active keyset's model is missing then.
        """
        try:
            active = self._kb.keysets.active().checkpoint_id
        except NoActiveKeyset:
            return self.model_of_lookups()
        self.await_model(active)
        return self.model_of_checkpoint(active)

    def model_of_checkpoint(self, checkpoint_id: str) -> LoadedModel | None:
        """Give the model of this checkpoint; None if no model is loaded. Raises `KeysetMismatch` if only others are."""
        loaded = self._loaded
        if loaded and checkpoint_id not in loaded:
            raise KeysetMismatch(next(iter(loaded)), checkpoint_id)
        return loaded.get(checkpoint_id)

    def await_model(self, checkpoint_id: str) -> bool:
        """Wait until the model of the active keyset's checkpoint is loaded, a minute at most; say whether it is.

        Whoever activates a keyset before its model is loaded would else have every question refused meanwhile.
        """
        until = time.monotonic() + LOADED_SECONDS
        with self._changing:
            while self._loaded and checkpoint_id not in self._loaded:
                is_awaited = self.is_kept_up and checkpoint_id not in self.refused
                if not is_awaited or time.monotonic() > until:
                    break
                self._changing.wait(0.5)
        return checkpoint_id in self._loaded

    def add_model(self, model: LoadedModel) -> None:
        """Add a model that was loaded."""
        with self._changing:
            self._loaded = {**self._loaded, model.checkpoint.checkpoint_id: model}
            self._changing.notify_all()

    def keep(self, checkpoint_ids: Collection[str]) -> None:
        """Drop all models but those of these checkpoints. Requests that began with a dropped one still end with it."""
        with self._changing:
            self._loaded = {key: model for key, model in self._loaded.items() if key in checkpoint_ids}
