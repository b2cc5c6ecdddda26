"""The options of the commands of `colmlm forget`: the parts of a selector, and how a plan is made."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

import typer

from colmlm.cli.options import MAX_BIGINT, finite, some_text, time


class Policy(StrEnum):
    abstain = "abstain"
    successor = "successor"


class Equivalents(StrEnum):
    include = "include"
    only_list = "only-list"
    exclude = "exclude"


RunId = Annotated[int, typer.Argument(metavar="RUN", min=1, max=MAX_BIGINT, help="See `colmlm forget list`.")]

Facts = Annotated[
    list[int] | None, typer.Option("--fact", min=1, max=MAX_BIGINT, help="A fact's id; may be repeated.")
]
OfDocument = Annotated[
    str | None, typer.Option("--document", callback=some_text, help="A document's id, or corpus/name.")
]
OfCorpus = Annotated[str | None, typer.Option("--corpus", callback=some_text, help="Facts of this corpus.")]
OfUri = Annotated[
    str | None, typer.Option("--uri", callback=some_text, help="Facts of documents with this address.")
]
UriPrefix = Annotated[
    str | None,
    typer.Option("--uri-prefix", callback=some_text, help="Facts of documents whose address begins so."),
]
WithText = Annotated[
    str | None,
    typer.Option("--text", callback=some_text, help="Value or question holds this text, in either case."),
]
WithQuestion = Annotated[
    str | None, typer.Option("--question", callback=some_text, help="The question is exactly this.")
]
Licence = Annotated[
    str | None,
    typer.Option("--licence", callback=some_text, help="Facts of documents under this licence."),
]
FromSeq = Annotated[
    int | None,
    typer.Option("--from-seq", min=1, max=MAX_BIGINT, help="Added by this change or a later one."),
]
ToSeq = Annotated[
    int | None,
    typer.Option("--to-seq", min=1, max=MAX_BIGINT, help="Added by this change or an earlier one."),
]
Since = Annotated[
    datetime | None,
    typer.Option("--since", parser=time, metavar="TIME", help="Added at this time or later (ISO 8601; UTC)."),
]
Until = Annotated[
    datetime | None,
    typer.Option(
        "--until", parser=time, metavar="TIME", help="Added at this time or before (ISO 8601; UTC)."
    ),
]
Like = Annotated[
    int | None,
    typer.Option("--like", min=1, max=MAX_BIGINT, help="Facts whose key is near this fact's."),
]
Radius = Annotated[
    float | None,
    typer.Option(
        "--radius",
        min=-1,
        max=1,
        callback=finite,
        help="Least cosine for --like and for equivalents. Default: the keyset's threshold.",
    ),
]
Everything = Annotated[
    bool, typer.Option("--everything", help="Every live fact; leaves no room for other parts.")
]
AllowEmpty = Annotated[bool, typer.Option("--allow-empty", help="Matching nothing is no error.")]
WithEquivalents = Annotated[
    Equivalents, typer.Option("--equivalents", help="What to do with facts that say the same elsewhere.")
]
WithPolicy = Annotated[
    Policy, typer.Option("--policy", help="What a question gets: no match, or the next fact.")
]

NoModel = Annotated[
    bool, typer.Option("--no-model", help="Load no model: stored keys stand for the questions of facts.")
]
Sample = Annotated[
    int,
    typer.Option("--sample", min=1, max=100_000, help="How many facts to preview and ask about at most."),
]
WhyOrDefault = Annotated[
    str | None, typer.Option("--reason", callback=some_text, help="Why. Default: the plan's reason.")
]
