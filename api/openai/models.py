"""`/v1/models`: lists the one model that this server decodes with."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import get
from litestar.params import PathParameter

from colmlm.api.openai.errors import ROUTE, ModelNotFound
from colmlm.api.ports import FromPorts
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
    """Gives the served model's name if `asked` is its name, its digest or `SERVED`. Raises `ModelNotFound`."""
    if asked not in (SERVED, served.name, served.checkpoint_id):
        raise ModelNotFound(asked, served.name)
    return served.name


def _model(generator: Generator) -> Model:
    return Model(id=generator.model.name, checkpoint_id=generator.model.checkpoint_id)
