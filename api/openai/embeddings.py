"""`/v1/embeddings`: the vectors of questions, as lookups of the active keyset ask with them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from litestar import post
from litestar.params import JSONBody
from msgspec import Meta

from colmlm.api.door.auth import Lane, Right, needs
from colmlm.api.openai.errors import ROUTE, Unsupported
from colmlm.api.openai.fields import Text
from colmlm.api.openai.models import require_model
from colmlm.api.ports import FromPorts
from colmlm.api.wire.requests import Question, Request
from colmlm.kb.evidence.generation import Generator

MAX_INPUTS = 256
_TOKENS_REFUSED = (
    "token ids are of another tokenizer; send texts (LangChain: check_embedding_ctx_length=False)"
)

TokenIds = Annotated[list[int], Meta(extra_json_schema={"maxItems": 0})]
Inputs = Annotated[list[Question | int | TokenIds], Meta(min_length=1, max_length=MAX_INPUTS)]


class EmbeddingRequest(Request, frozen=True, kw_only=True):
    """Questions to encode. `dimensions` other than the keyset's, and token ids, are refused; `user` is read over."""

    model: Annotated[str, Meta(min_length=1, max_length=300)]
    input: Question | Inputs
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    user: Text | None = None

    def questions(self) -> list[str]:
        """Raises `Unsupported` for token ids."""
        if isinstance(self.input, str):
            return [self.input]
        texts = [one for one in self.input if isinstance(one, str)]
        if len(texts) < len(self.input):
            raise Unsupported("input", _TOKENS_REFUSED)
        return texts


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """The vector of the input `index`, as numbers, or as the base64 of little-endian floats of 32 bits."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingUsage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class Embeddings(msgspec.Struct, frozen=True, kw_only=True):
    """Unit vectors in the key space of the keyset `keyset_id`, whose keys the checkpoint `checkpoint_id` made.

    Only vectors of one checkpoint can be compared. Tokens are counted by a server that decodes.
    """

    data: list[Embedding]
    model: str
    keyset_id: int
    checkpoint_id: str
    usage: EmbeddingUsage | None
    object: str = "list"


@post("/embeddings", status_code=200, **ROUTE | {"opt": needs(Right.lookup, Lane.reading)})
def embed(ports: FromPorts, data: JSONBody[EmbeddingRequest]) -> Embeddings:
    """Encode questions.

    Gives for each text the vector that a lookup asks with, in the key space of the active keyset, which is named.
    """
    keyset = ports.kb.keysets.active()
    model = ports.need_model(keyset.checkpoint_id)
    name = require_model(model.checkpoint, data.model)
    if data.dimensions not in (None, keyset.dim):
        raise Unsupported("dimensions", f"these vectors have {keyset.dim} numbers; leave it out")
    questions = data.questions()
    return Embeddings(
        data=[
            Embedding(index=index, embedding=_told(row, data.encoding_format))
            for index, row in enumerate(model.encoder.encode_questions(questions))
        ],
        model=name,
        keyset_id=keyset.keyset_id,
        checkpoint_id=keyset.checkpoint_id,
        usage=_usage(model.generator, questions),
    )


def _usage(generator: Generator | None, questions: Sequence[str]) -> EmbeddingUsage | None:
    if generator is None:
        return None
    num_tokens = generator.count_tokens(questions)
    return EmbeddingUsage(prompt_tokens=num_tokens, total_tokens=num_tokens)


def _told(row: npt.NDArray[np.float32], form: str | None) -> list[float] | str:
    if form == "base64":
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    numbers: list[float] = row.tolist()
    return numbers
