"""Stores outputs that were decoded on other machines, with their attributions, so that audits include them."""

from __future__ import annotations

import base64
from typing import Annotated, Literal

import msgspec
from litestar import post
from litestar.params import JSONBody
from msgspec import Meta

from colmlm.api.door.auth import Right, needs
from colmlm.api.errors import PROBLEMS
from colmlm.api.ports import FromPorts
from colmlm.api.wire.requests import Id, RankingName, Request, Seq
from colmlm.kb.errors import InvalidValue
from colmlm.kb.evidence.records import NewOutput, OutputTrace, Splice

MAX_CHARACTERS = 500_000
MAX_SPLICES = 2000
MAX_QUERY = 2 * 16_384  # bytes of the widest query in fp16

Text = Annotated[str, Meta(max_length=MAX_CHARACTERS)]
Offset = Annotated[int, Meta(ge=0, le=MAX_CHARACTERS)]


class SpliceMade(Request, frozen=True, kw_only=True):
    """One lookup of the decoder, as `kb.evidence.records.Splice`. `query` is base64 of little-endian fp16.

    Its fields are that record's, with a limit for each, since others send it.
    """

    output_start: Offset
    output_end: Offset
    outcome: Literal["hit", "no_match", "abstained"]
    fact_id: Id | None = None
    version: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    score: Annotated[float, Meta(ge=-2, le=2)] | None = None
    query: Annotated[str, Meta(max_length=2 * MAX_QUERY)] | None = None


class OutputMade(Request, frozen=True, kw_only=True):
    """An output of a decoder on another machine. `seq` is the last change that its lookups had seen."""

    prompt: Text
    output: Text
    checkpoint_id: Annotated[str, Meta(min_length=1, max_length=200)]
    mode: Literal["auto", "forced", "off"]
    seq: Seq
    splices: Annotated[list[SpliceMade], Meta(max_length=MAX_SPLICES)] = msgspec.field(default_factory=list)
    ranking: RankingName = "key"
    accepted_only: bool = False

    def generation(self) -> NewOutput:
        return NewOutput(
            prompt=self.prompt,
            output=self.output,
            checkpoint_id=self.checkpoint_id,
            mode=self.mode,
            seq=self.seq,
            splices=tuple(
                Splice(**{**msgspec.structs.asdict(made), "query": _bytes(made.query)})
                for made in self.splices
            ),
            ranking=self.ranking,
            accepted_only=self.accepted_only,
        )


@post(
    "/generations/records",
    opt=needs(Right.lookup),
    responses=PROBLEMS,
    sync_to_thread=True,
)
def record(ports: FromPorts, data: JSONBody[OutputMade]) -> OutputTrace:
    """Keep an output that was decoded elsewhere.

    Gives its trace: the evidence of each splice. A splice is refused unless its span is the value of that version of
    the fact. The present state of the facts is left out, since it needs the right `read`.
    """
    return ports.kb.outputs.record_from_elsewhere(data.generation())


def _bytes(query: str | None) -> bytes | None:
    try:
        return None if query is None else base64.b64decode(query, validate=True)
    except ValueError as error:  # binascii.Error is a ValueError; text that is not ASCII raises a plain one
        raise InvalidValue("query", "it is no base64") from error
