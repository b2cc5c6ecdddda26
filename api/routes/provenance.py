"""Traces as responses: as they are, or in the terms of W3C PROV where the request asks for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from litestar import Response

from colmlm.api.ports import Ports
from colmlm.api.routes.edits import WithToken, wanted, written
from colmlm.kb.evidence.provenance import MEDIA_TYPES, PROV, Provenance, write_prov

T = TypeVar("T")


def traced(
    ports: Ports, request: WithToken, trace: T, account: Callable[[T, str], Provenance]
) -> Response[T]:
    """Gives a trace in the form that the request wants; `account` tells it in the terms of PROV."""
    media_type = wanted(request, *MEDIA_TYPES.values())
    for form, named in MEDIA_TYPES.items():
        if media_type == named:
            told = write_prov(account(trace, ports.kb.log.database_id()), form)
            return written(told, media_type, link=f'<{PROV}>; rel="profile"')
    return written(trace)
