"""`LocalBase`: the knowledge base of this machine, with the models that its verbs need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, cast

from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.progress import Telling

if TYPE_CHECKING:
    from colmlm.cli.bases.local_contents import LocalCorpora, LocalFacts
    from colmlm.cli.bases.local_lookups import LocalKeysets, LocalLookups, LocalMisses, LocalQuestions
    from colmlm.cli.bases.local_removal import LocalErasures, LocalForgetting, LocalHolds
    from colmlm.kb.access.access import Access
    from colmlm.kb.evidence.answering_generator import AnsweringGenerator
    from colmlm.kb.evidence.generation import StoringDecoder
    from colmlm.kb.evidence.log import Log
    from colmlm.kb.evidence.outputs import Outputs
    from colmlm.kb.facts.comparisons import Comparisons
    from colmlm.kb.facts.corpora import StoredDocuments
    from colmlm.kb.jobs.queue import Jobs
    from colmlm.kb.removal.holds import Retention
    from colmlm.kb.review.review import FactReview
    from colmlm.kb.service import KnowledgeBase
    from colmlm.kb.upkeep.upkeep import Upkeep
    from colmlm.kb.webhooks.webhooks import Webhooks

T = TypeVar("T")


class LocalBase:
    """A knowledge base in this process, opened on first use. Its verbs raise subclasses of `kb.errors.KBError`.

    `cli.bases.remote.RemoteBase` has the same resources and verbs. The class of a resource is imported when the
    resource is used, since some import NumPy.
    """

    server: str | None = None  # the address of its API, where it is not on this machine

    def __init__(self, runtime: Runtime, *, alone: bool = True) -> None:
        """Make the base of a runtime. Unless it is `alone`, a server that runs on this home may answer in its place."""
        self.runtime, self.alone = runtime, alone

    @property
    def kb(self) -> KnowledgeBase:
        return self.runtime.kb

    @property
    def facts(self) -> LocalFacts:
        from colmlm.cli.bases.local_contents import LocalFacts

        return LocalFacts(self.kb, self.runtime, self.alone)

    @property
    def comparisons(self) -> Comparisons:
        return self.kb.comparisons

    @property
    def documents(self) -> StoredDocuments:
        return self.kb.documents

    @property
    def review(self) -> FactReview:
        return self.kb.review

    @property
    def corpora(self) -> LocalCorpora:
        from colmlm.cli.bases.local_contents import LocalCorpora

        return LocalCorpora(self.runtime)

    @property
    def lookups(self) -> LocalLookups:
        from colmlm.cli.bases.local_lookups import LocalLookups

        return LocalLookups(self.kb, self.kb.searcher, self.runtime)

    @property
    def decoder(self) -> AnsweringGenerator:
        self.runtime.open()
        return self.runtime.answering_generator

    @property
    def outputs(self) -> Outputs:
        return self.kb.outputs

    @property
    def misses(self) -> LocalMisses:
        from colmlm.cli.bases.local_lookups import LocalMisses

        return LocalMisses.of(self.runtime)

    @property
    def log(self) -> Log:
        return self.kb.log

    @property
    def questions(self) -> LocalQuestions:
        from colmlm.cli.bases.local_lookups import LocalQuestions

        return LocalQuestions(self.kb, self.runtime)

    @property
    def keysets(self) -> LocalKeysets:
        from colmlm.cli.bases.local_lookups import LocalKeysets

        return LocalKeysets(self.runtime)

    @property
    def forgetting(self) -> LocalForgetting:
        from colmlm.cli.bases.local_removal import LocalForgetting

        return LocalForgetting(self.runtime)

    @property
    def erasures(self) -> LocalErasures:
        from colmlm.cli.bases.local_removal import LocalErasures

        return LocalErasures(self.runtime)

    @property
    def holds(self) -> LocalHolds:
        from colmlm.cli.bases.local_removal import LocalHolds

        return LocalHolds(self.runtime)

    @property
    def retention(self) -> Retention:
        from colmlm.kb.removal.holds import Retention

        return Retention(self.kb)

    @property
    def jobs(self) -> Jobs:
        from colmlm.kb.jobs.queue import Jobs

        return Jobs(self.kb)

    @property
    def tokens(self) -> Access:
        return self.kb.access

    @property
    def webhooks(self) -> Webhooks:
        return self.kb.webhooks

    @property
    def upkeep(self) -> Upkeep:
        return self.kb.upkeep

    def actor(self, named: str | None) -> str:
        """Give the actor to log: `named`, else the settings' actor. A `RemoteBase` gives "" for that of its token."""
        return self.runtime.actor(named)

    def only_here(self, **given: object) -> None:
        """Do nothing, since this base supports every option; a `RemoteBase` refuses those that its API lacks."""

    def use_checkpoint(self, path: Path | None) -> None:
        """Set the checkpoint that encodes questions and makes keys (None: that of the settings)."""
        user = self.runtime.user
        self.runtime.user = replace(user, checkpoint=path or user.checkpoint)

    def use_ray(self, address: str | None, workers: int | None) -> None:
        """Set the address of Ray and the number of its workers for bulk work (None: those of the settings)."""
        self.runtime.use_ray(address, workers)

    def ask_server_first(
        self, ask: Callable[[LocalBase], T], *, checkpoint: Path | None, as_of: int | None, verbose: bool
    ) -> T:
        """Call `ask` with the base of this home's server, or with this base if it is `alone` or no such server answers.

        With `as_of` this base is used: the server's token may lack the right. Errors after a sent request are raised.
        """
        from colmlm.cli.bases.nearby import near_base

        said = self.runtime.telling.note if verbose else Telling().note
        near = None if self.alone or as_of is not None else near_base(self.runtime, checkpoint)
        if near is not None:
            from colmlm.api.client.connection import RemoteError

            with near:
                try:
                    found = ask(cast(LocalBase, near))
                except RemoteError as error:
                    if error.was_sent:
                        raise
                    said(str(error))
                else:
                    said(f"Answered by the server at {near.server}.")
                    return found
        said("Answered by this process.")
        return ask(self)

    @contextmanager
    def generator(
        self, checkpoint: Path | None, as_of: int | None, *, there: bool
    ) -> Iterator[StoringDecoder]:
        """Give a decoder that runs here (if `there`: on the server), looks up in this base and stores outputs."""
        self.use_checkpoint(checkpoint)
        self.runtime.open()
        yield self.runtime.answering_generator if as_of is None else self.runtime.generator_as_of(as_of)

    def close(self) -> None:
        self.runtime.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


Base = LocalBase  # what commands take; a `RemoteBase` is used in its place
