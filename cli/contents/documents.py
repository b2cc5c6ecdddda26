"""`colmlm corpus documents`, `corpus document` and `db stats`: list and show documents, and count everything."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.protocol import Base
from colmlm.cli.options import MAX_BIGINT, After, Limit, examples, wants_json
from colmlm.cli.output import note, print_json, print_table, say, shorten
from colmlm.kb.texts.characters import numbered

STATS_EXAMPLES = examples("colmlm db stats", "colmlm db stats --json")


DOCUMENTS_EXAMPLES = examples(
    "colmlm corpus documents --corpus demo", "colmlm corpus documents --replaced --json"
)


@anywhere
def list_documents(
    base: Base,
    corpus: Annotated[str | None, typer.Option("--corpus", help="Only documents of this corpus.")] = None,
    replaced: Annotated[
        bool, typer.Option("--replaced", help="Those that a newer text replaced, not the current ones.")
    ] = False,
    after: After = 0,
    limit: Limit = 50,
) -> None:
    """List documents in the order of their ids, without their texts."""
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


DOCUMENT_EXAMPLES = examples("colmlm corpus document 3", "colmlm corpus document 3 --json")


@anywhere
def show_document(
    base: Base,
    document_id: Annotated[int, typer.Argument(metavar="DOCUMENT_ID", min=1, max=MAX_BIGINT)],
) -> None:
    """Show a document's text as it was ingested, and where it came from. It may be one that was replaced."""
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


@anywhere
def stats(base: Base) -> None:
    """Count everything as of one change: corpora, documents, facts, outputs, keysets and forget runs."""
    found = base.upkeep.statistics()
    if wants_json():
        print_json(found)
        return
    print_table(("what", "number"), [(name.replace("_", " "), n) for name, n in asdict(found).items()])
