"""Defines the options that several evaluations share."""

from __future__ import annotations

from typing import Annotated

import typer

FromTheFirst = Annotated[
    int | None, typer.Option("--limit", min=1, help="How many, from the first. Default: all.")
]
AnswerTokens = Annotated[
    int, typer.Option("--max-tokens", min=1, help="Content tokens of an answer; spliced ones are free.")
]
AnsweredTogether = Annotated[int, typer.Option("--batch", min=1, help="Questions answered together.")]
