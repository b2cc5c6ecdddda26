"""The judge of answers and biographies: the options that the commands share, the judge they name, and its cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from colmlm.cli.asking import require_somebody
from colmlm.cli.output import note
from colmlm.model.evaluate.judge import ChatJudge, Judge, rubric
from colmlm.model.evaluate.local_judge import LocalJudge
from colmlm.model.lm.chat_endpoint import Chat, Endpoint


class JudgeSort(StrEnum):
    chat = "chat"
    local = "local"


JudgeKind = Annotated[
    JudgeSort,
    typer.Option("--judge", help="A large model at an endpoint, or strings alone (not comparable)."),
]
JudgeUrl = Annotated[
    str | None, typer.Option("--judge-url", help="An endpoint that speaks OpenAI's chat protocol, to /v1.")
]
JudgeModel = Annotated[str | None, typer.Option("--judge-model", help="The model's name there.")]
JudgeKey = Annotated[
    Path | None,
    typer.Option(
        "--judge-key-file", exists=True, dir_okay=False, help="Holds the key for it. Default: none."
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option("--temperature", min=0, max=2, help="The judge's. Default: the endpoint's own."),
]
Concurrency = Annotated[
    int, typer.Option("--concurrency", min=1, max=256, help="Conversations at once with the judge.")
]
JudgedOut = Annotated[
    Path | None,
    typer.Option(
        "--out",
        dir_okay=False,
        help="Keep each verdict here, as JSON Lines, and go on from there. Default: FILE with .judged before its end.",
    ),
]
CostOnly = Annotated[bool, typer.Option("--dry-run", help="Say how much there is to ask, and stop.")]
MayCost = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask whether it may cost that.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeOptions:
    kind: JudgeSort
    url: str | None
    model: str | None
    key_file: Path | None
    temperature: float | None
    concurrency: int

    @property
    def run(self) -> dict[str, Any]:
        """Gives what identifies the judge to a later run."""
        if self.kind is JudgeSort.local:
            return {"judge": "local", "comparable": False}
        return {"judge": self.model, "comparable": True, "temperature": self.temperature, "rubric": rubric()}

    def require(self) -> None:
        """Refuses options that name no judge, before anything is read or opened."""
        if self.kind is JudgeSort.chat and not (self.url and self.model):
            raise typer.BadParameter(
                "name the endpoint and its model, or take --judge local.",
                param_hint="--judge-url and --judge-model",
            )


@dataclass(frozen=True, slots=True)
class Cost:
    """What is still to be asked. Tokens are estimates, without answers that must be asked for again."""

    requests: int
    tokens_in: int
    tokens_out: int

    def __str__(self) -> str:
        return f"about {self.requests} requests, {self.tokens_in} tokens sent and {self.tokens_out} received"


def agreed(cost: Cost, options: JudgeOptions, *, yes: bool, as_json: bool) -> None:
    """Tells what it may cost, and asks for consent on a terminal. Raises `Abort` or `BadParameter` without consent."""
    if options.kind is JudgeSort.local or cost.requests == 0:
        return
    note(f"{cost}; what must be asked again comes on top.")
    if yes:
        return
    require_somebody(yes, as_json, "let it cost that")
    if not typer.confirm(f"Send {cost.requests} requests to {options.url}?", err=True):
        raise typer.Abort


@dataclass(frozen=True, slots=True)
class OpenedJudge:
    """A judge, and its chat endpoint to close (None: the local judge)."""

    judge: Judge
    chat: Chat | None

    def stop(self) -> None:
        if self.chat is not None:
            self.chat.stop()

    @property
    def usage(self) -> dict[str, int] | None:
        return asdict(self.judge.usage) if isinstance(self.judge, ChatJudge) else None


@contextmanager
def opened(options: JudgeOptions, out: Path) -> Iterator[OpenedJudge]:
    """Yields the judge of these options. If it fails, tells what is stored."""
    if options.kind is JudgeSort.local:
        yield OpenedJudge(LocalJudge(), None)
        return
    assert options.url is not None and options.model is not None
    endpoint = Endpoint(
        base_url=options.url, model=options.model, api_key=_key(options.key_file), temperature=options.temperature,
        options=("--judge-url", "--judge-model"), key_from="--judge-key-file",
    )  # fmt: skip
    with Chat(endpoint) as chat:
        try:
            yield OpenedJudge(ChatJudge(chat), chat)
        except (Exception, KeyboardInterrupt):
            note(f"What was judged is in {out}. Run the same command again to go on from there.")
            raise


def judged_beside(file: Path, out: Path | None) -> Path:
    return out or file.with_name(f"{file.name.removesuffix('.jsonl')}.judged.jsonl")


def _key(file: Path | None) -> str | None:
    if file is None:
        return None
    if not (key := file.read_text(encoding="utf-8").strip()):
        raise typer.BadParameter("the file holds no key.", param_hint="--judge-key-file")
    return key
