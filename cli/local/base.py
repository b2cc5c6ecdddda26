"""`LocalBase`: the knowledge base of this process, with the settings' model where a verb needs one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.local.corpora import LocalCorpora
from colmlm.cli.local.erasures import LocalErasures
from colmlm.cli.local.forgetting import LocalForgetting
from colmlm.cli.local.keysets import LocalKeysets
from colmlm.cli.output import note, progress

if TYPE_CHECKING:
    from colmlm.cli.composition.generator import StoringGenerator
    from colmlm.kb.access.access import Access
    from colmlm.kb.evidence.log import Log
    from colmlm.kb.evidence.outputs import Outputs
    from colmlm.kb.facts.documents import Documents
    from colmlm.kb.facts.facts import Facts
    from colmlm.kb.jobs.queue import Jobs
    from colmlm.kb.records import Edit, Lookup
    from colmlm.kb.service import KnowledgeBase
    from colmlm.kb.upkeep.statistics import Statistics

MOST_TO_KEY_AT_ONCE = 256


class LocalBase:
    """See `cli.nouns.base.Base`. Opens the base on first use."""

    server = None

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    @property
    def kb(self) -> KnowledgeBase:
        return self.runtime.kb

    @property
    def facts(self) -> Facts:
        return self.kb.facts

    @property
    def outputs(self) -> Outputs:
        return self.kb.outputs

    @property
    def log(self) -> Log:
        return self.kb.log

    @property
    def documents(self) -> Documents:
        return self.kb.documents

    @property
    def jobs(self) -> Jobs:
        from colmlm.kb.jobs.queue import Jobs  # brings procrastinate, which other commands need not wait for

        return Jobs(self.kb)

    @property
    def keysets(self) -> LocalKeysets:
        return LocalKeysets(self.runtime)

    @property
    def keys(self) -> Access:
        return self.kb.access

    @property
    def forgetting(self) -> LocalForgetting:
        return LocalForgetting(self.runtime)

    @property
    def erasures(self) -> LocalErasures:
        return LocalErasures(self.runtime)

    @property
    def corpora(self) -> LocalCorpora:
        return LocalCorpora(self.runtime)

    def actor(self, named: str | None) -> str:
        return self.runtime.actor(named)

    def only_here(self, **given: object) -> None:
        """Everything can be heeded."""

    def use_checkpoint(self, path: Path | None) -> None:
        settings = self.runtime.settings
        self.runtime.settings = replace(settings, checkpoint=path or settings.checkpoint)

    def insert(
        self,
        question: str,
        value: str,
        *,
        answer: str | None,
        actor: str,
        reason: str,
        allow_erased: bool,
        is_keyed: bool,
    ) -> tuple[Edit, bool]:
        edit = self.kb.facts.add(
            question, value, answer=answer, actor=actor, reason=reason, allow_erased=allow_erased
        )
        try:
            return edit, is_keyed and self._key_at_once()
        except Exception:
            note(f"Fact {edit.fact_ids[0]} was added as change {edit.seq}, but could not be keyed.")
            raise

    def _key_at_once(self) -> bool:
        """Key what is unkeyed, unless that is a whole corpus somebody has yet to rekey."""
        encoder = self.runtime.encoder
        keyset = self.kb.keysets.create(encoder.checkpoint)
        if keyset.num_unkeyed > MOST_TO_KEY_AT_ONCE:
            note(f"{keyset.num_unkeyed} facts wait for keys; this is not done at once.")
            return False
        with progress("Keying") as advance:
            self.kb.keysets.rekey(encoder, on_facts=advance)
        return True

    def look_up(
        self, question: str, *, k: int, threshold: float | None, min_seq: int | None, as_of: int | None
    ) -> Lookup:
        self.kb.keysets.active()
        asked = self.kb.lookups if as_of is None else self.kb.lookups.as_of(as_of)
        encoder = self.runtime.encoder
        (found,) = asked.find(
            encoder.encode_questions([question]),
            checkpoint_id=encoder.checkpoint.checkpoint_id,
            k=k,
            threshold=threshold,
            min_seq=min_seq,
        )
        return found

    @contextmanager
    def generator(
        self, checkpoint: Path | None, as_of: int | None, *, there: bool
    ) -> Iterator[StoringGenerator]:
        if there:
            raise typer.BadParameter("name the server that decodes.", param_hint="--server")
        self.use_checkpoint(checkpoint)
        self.runtime.open()
        yield self.runtime.generator if as_of is None else self.runtime.generator_as_of(as_of)

    def statistics(self) -> Statistics:
        return self.kb.upkeep.statistics()
