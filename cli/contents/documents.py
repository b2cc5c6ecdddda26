"""`colmlm corpus documents`: lists and shows documents."""

from __future__ import annotations

from typing import Annotated

import typer

from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.local_base import Base
from colmlm.cli.options import MAX_BIGINT, After, Limit, examples, wants_json
from colmlm.cli.output import note, print_json, print_table, say, shorten
from colmlm.kb.texts.characters import numbered

DOCUMENTS_EXAMPLES = examples(
    "colmlm corpus documents --corpus demo",
    "colmlm corpus documents --replaced --json",
    "colmlm corpus documents 3",
)


@anywhere
def list_documents(
    base: Base,
    document_id: Annotated[
        int | None,
        typer.Argument(metavar="[DOCUMENT_ID]", min=1, max=MAX_BIGINT, help="Show this one with its text."),
    ] = None,
    corpus: Annotated[str | None, typer.Option("--corpus", help="Only documents of this corpus.")] = None,
    replaced: Annotated[
        bool, typer.Option("--replaced", help="Those that a newer text replaced, not the current ones.")
    ] = False,
    after: After = 0,
    limit: Limit = 50,
) -> None:
    """List documents in the order of their ids, or show one: its text as it was ingested, and where it came from.

    The one may have been replaced by a newer text.
    """
    if document_id is not None:
        _show_document(base, document_id)
        return
    found = base.documents.find(corpus=corpus, replaced=replaced, after=after, limit=limit)
    more = found[-1].document_id if len(found) == limit else None
    if wants_json():
        print_json({"documents": found, "next_after": more})
        return
    rows = [
        (d.document_id, f"{d.corpus}/{d.external_id}", shorten(d.title), d.live_facts, d.characters)
        for d in found
    ]
    print_table(("id", "document", "title", "live facts", "characters"), rows)
    if more is not None:
        note(f"More documents: --after {more}")


def _show_document(base: Base, document_id: int) -> None:
    document, text = base.documents.read(document_id)
    if wants_json():
        print_json({"document": document, "text": text})
        return
    say(f"document {document.document_id}: {document.corpus}/{document.external_id}")
    about = {"title": document.title, "uri": document.uri, "licence": document.licence}
    for name, value in {**about, "revision": document.revision}.items():
        if value:
            say(f"{name}: {value}")
    if document.replaced_seq is not None:
        say(f"replaced by change {document.replaced_seq}")
    say(f"live facts: {document.live_facts}")
    say()
    say(numbered(text))
