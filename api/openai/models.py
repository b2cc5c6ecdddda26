"""`/v1/models` and `/v1/embeddings`: name the model that this server decodes with, and encode texts by it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from litestar import get, post
from litestar.params import JSONBody, PathParameter
from msgspec import Meta

from colmlm.api.middleware.auth import CorpusLimit, Limiter, Right, needs
from colmlm.api.openai.fields import ROUTE, Text, Unsupported, model_not_found
from colmlm.api.ports import FromPorts
from colmlm.api.wire import Question, Request
from colmlm.kb.evidence.generation import Generator
from colmlm.kb.keys.records import CheckpointInfo

SERVED = "colmlm"  # names whichever model answers, also after another keyset was activated

ModelId = Annotated[str, PathParameter(max_length=300)]


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The model. `id` is the checkpoint's name and `checkpoint_id` its digest.

    A request may name either, or `colmlm`, which is whichever model answers.
    """

    id: str
    checkpoint_id: str
    object: str = "model"
    created: int = 0  # a checkpoint does not hold when it was made
    owned_by: str = "colmlm"


class Models(msgspec.Struct, frozen=True, kw_only=True):
    data: list[Model]
    object: str = "list"


@get("/models", **ROUTE)
def list_models(ports: FromPorts) -> Models:
    """List models.

    The list holds the one model that `/v1/completions` and `/v1/chat/completions` accept.
    """
    return Models(data=[_model(ports.need_generator())])


@get("/models/{model_id:str}", **ROUTE)
def read_model(ports: FromPorts, model_id: ModelId) -> Model:
    """Read a model.

    `model_id` is its name, its digest, or `colmlm`.
    """
    generator = ports.need_generator()
    require_model(generator.model, model_id)
    return _model(generator)


def require_model(served: CheckpointInfo, asked: str) -> str:
    """Give the served model's name if `asked` is its name, its digest or `SERVED`. Raise `ModelNotFound`."""
    if asked not in (SERVED, served.name, served.checkpoint_id):
        raise model_not_found(asked, served.name)
    return served.name


def _model(generator: Generator) -> Model:
    return Model(id=generator.model.name, checkpoint_id=generator.model.checkpoint_id)


# `/v1/embeddings`: the vectors of questions, as lookups of the active keyset ask with them.

MAX_INPUTS = 256
_TOKENS_REFUSED = (
    "token ids come from another tokenizer. Send texts (LangChain: check_embedding_ctx_length=False)"
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
        """Give the texts to encode. Raise `Unsupported` for token ids."""
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


@post(
    "/embeddings",
    status_code=200,
    **ROUTE | {"opt": needs(Right.lookup, Limiter.reading, scoped=CorpusLimit.filter)},
)
def embed(ports: FromPorts, data: JSONBody[EmbeddingRequest]) -> Embeddings:
    """Encode questions.

    Gives for each text the vector that a lookup asks with, in the key space of the active keyset, which is named.
    """
    keyset = ports.kb.keysets.active()
    model = ports.need_model(keyset.checkpoint_id)
    name = require_model(model.checkpoint, data.model)
    if data.dimensions not in (None, keyset.dim):
        raise Unsupported("dimensions", f"these vectors have {keyset.dim} numbers. Leave dimensions out")
    questions = data.questions()
    return Embeddings(
        data=[
            Embedding(index=index, embedding=_encode_embedding(row, data.encoding_format))
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


def _encode_embedding(row: npt.NDArray[np.float32], form: str | None) -> list[float] | str:
    if form == "base64":
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    numbers: list[float] = row.tolist()
    return numbers


HANDLERS = (embed, list_models, read_model)
