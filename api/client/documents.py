"""Documents of a remote knowledge base."""

from __future__ import annotations

from dataclasses import dataclass

from colmlm.api.client.api import Api
from colmlm.api.wire.answers import DocumentText
from colmlm.kb.facts.records import DocumentRecord


@dataclass(frozen=True, slots=True)
class RemoteDocuments:
    """The verbs of `api.nouns.contents.DocumentVerbs` over the API."""

    api: Api

    def find(
        self, *, corpus: str | None = None, replaced: bool = False, after: int = 0, limit: int = 50
    ) -> list[DocumentRecord]:
        return self.api.listed(
            "/documents",
            DocumentRecord,
            "documents",
            after=after,
            limit=limit,
            corpus=corpus,
            replaced=replaced or None,
        )

    def read(self, document_id: int) -> tuple[DocumentRecord, str]:
        found = self.api.get(f"/documents/{document_id}", DocumentText)
        return found.document, found.text
