"""`Nouns`: the protocol of a whole knowledge base, on this machine or behind an API."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from colmlm.api.nouns.comparing import ComparisonVerbs
    from colmlm.api.nouns.contents import CorpusVerbs, DocumentVerbs, FactVerbs, OutputVerbs
    from colmlm.api.nouns.generation import DecoderVerbs
    from colmlm.api.nouns.log import LogVerbs
    from colmlm.api.nouns.lookups import LookupVerbs
    from colmlm.api.nouns.misses import MissVerbs
    from colmlm.api.nouns.questions import QuestionVerbs
    from colmlm.api.nouns.removal import ErasureVerbs, ForgetVerbs
    from colmlm.api.nouns.review import ReviewVerbs
    from colmlm.api.nouns.running import JobVerbs, KeysetVerbs, TokenVerbs
    from colmlm.api.nouns.upkeep import UpkeepVerbs
    from colmlm.api.nouns.webhooks import WebhookVerbs


class Nouns(Protocol):
    """A knowledge base. Its verbs raise leaves of `kb.errors.KBError`, wherever the base is."""

    @property
    def facts(self) -> FactVerbs: ...

    @property
    def comparisons(self) -> ComparisonVerbs: ...

    @property
    def documents(self) -> DocumentVerbs: ...

    @property
    def review(self) -> ReviewVerbs: ...

    @property
    def corpora(self) -> CorpusVerbs: ...

    @property
    def lookups(self) -> LookupVerbs: ...

    @property
    def decoder(self) -> DecoderVerbs:
        """Decodes with the model of the base: on this machine the checkpoint of the settings, else the server's."""
        ...

    @property
    def outputs(self) -> OutputVerbs: ...

    @property
    def misses(self) -> MissVerbs: ...

    @property
    def log(self) -> LogVerbs: ...

    @property
    def questions(self) -> QuestionVerbs: ...

    @property
    def keysets(self) -> KeysetVerbs: ...

    @property
    def forgetting(self) -> ForgetVerbs: ...

    @property
    def erasures(self) -> ErasureVerbs: ...

    @property
    def jobs(self) -> JobVerbs: ...

    @property
    def tokens(self) -> TokenVerbs: ...

    @property
    def webhooks(self) -> WebhookVerbs: ...

    @property
    def upkeep(self) -> UpkeepVerbs: ...

    def close(self) -> None:
        """Closes its connections."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
