"""Loads the models of the keysets that answer or may answer next while a server runs, and frees those of retired ones.

So activating a keyset of another checkpoint needs no restart. The active keyset's model comes first, then that of the
newest keyset that passed its gate, then that of the keyset which a rollback leads to.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import psutil

from colmlm.api.loaded_models import LoadedModel, LoadedModels
from colmlm.kb.keys.activation import Succession
from colmlm.kb.store import waits

if TYPE_CHECKING:
    from colmlm.kb.keys.records import CheckpointInfo
    from colmlm.kb.service import KnowledgeBase

LOOK_SECONDS = 1.0
AGAIN_SECONDS = 60.0  # after which a checkpoint that could not be loaded is tried once more
ROOM = 3  # times the bytes of its weights' files: what a model takes while it is loaded

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ModelKeeper:
    """Keeps `models` as the keysets want them, in a thread of its own, in a `with` block.

    `load` loads the checkpoint in a directory, `weigh` gives the bytes of its weights, and both raise `ValueError`
    where it is none. `available` gives the bytes of memory that can be had.
    """

    kb: KnowledgeBase
    models: LoadedModels
    load: Callable[[Path], LoadedModel]
    weigh: Callable[[Path], int]
    available: Callable[[], int] = lambda: int(psutil.virtual_memory().available)
    look_seconds: float = LOOK_SECONDS
    again_seconds: float = AGAIN_SECONDS
    _failed: dict[str, tuple[float, str]] = field(default_factory=dict)
    _former: tuple[int, int | None] | None = None
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="model keeper", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self.look_seconds):
            try:
                self.keep_up()
            except Exception as error:  # noqa: BLE001 - else no later keyset would get its model
                waits.log_outage(_log, "cannot see which models are wanted, will try again", error)

    def keep_up(self) -> None:
        """Load what is wanted and not there, and frees what is not wanted, as the keysets are now."""
        line = self.kb.keysets.line()
        if line.active is None:
            return
        wanted = [self.kb.keysets.checkpoint(keyset_id) for keyset_id in self._wanted(line, line.active)]
        for checkpoint in wanted:
            if checkpoint.checkpoint_id not in self.models and not self._stopping.is_set():
                self._take(checkpoint)
        there = {checkpoint.checkpoint_id for checkpoint in wanted}
        if wanted[0].checkpoint_id in self.models:
            self.models.keep(there)
        self.models.refused = {
            key: said for key, (_, said) in self._failed.items() if key in there - self.models.checkpoints
        }

    def _wanted(self, line: Succession, active: int) -> Iterator[int]:
        """Give the keysets whose models are wanted, the most important first."""
        if self._former is None or self._former[0] != active:  # the log is asked once for each activation
            self._former = active, self.kb.keysets.former(active)
        in_line = (active, line.next, self._former[1])
        yield from dict.fromkeys(one for one in in_line if one is not None and one in line.answering)

    def _take(self, checkpoint: CheckpointInfo) -> None:
        """Load one checkpoint, or note why not, and tries the same again no sooner than after a minute."""
        failed = self._failed.get(checkpoint.checkpoint_id)
        if failed is not None and time.monotonic() < failed[0] + self.again_seconds:
            return
        try:
            model = self._loaded(checkpoint)
        except Exception as error:  # noqa: BLE001 - files of a model may be broken in more ways than can be listed
            self._failed[checkpoint.checkpoint_id] = time.monotonic(), waits.cause_of(error)
            _log.warning("the model %s is not loaded: %s", checkpoint.name, waits.cause_of(error))
            return
        self._failed.pop(checkpoint.checkpoint_id, None)
        self.models.put(model)
        _log.info("loaded the model %s", checkpoint.name)

    def _loaded(self, checkpoint: CheckpointInfo) -> LoadedModel:
        """Raise `ValueError` where the checkpoint is not where it was registered, or has no room in memory."""
        if checkpoint.path is None or not Path(checkpoint.path).is_dir():
            raise ValueError(f"its files are not at {checkpoint.path}, where it was registered")
        path = Path(checkpoint.path)
        if (free := self.available()) < (needed := ROOM * self.weigh(path)):
            raise ValueError(f"it needs {needed >> 20} MB of memory, and {free >> 20} MB are free")
        model = self.load(path)
        if model.checkpoint.checkpoint_id != checkpoint.checkpoint_id:
            raise ValueError(f"what is at {path} now is another checkpoint than was registered")
        return model
