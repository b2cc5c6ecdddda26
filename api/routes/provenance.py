"""Traces as responses: as they are, or in the terms of W3C PROV where the request asks for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from litestar import Response

from colmlm.api.ports import Ports
from colmlm.api.routes.edits import WithToken
from colmlm.api.routes.forms import wanted, written
from colmlm.kb.evidence import prov_forms
from colmlm.kb.evidence.prov_forms import MEDIA_TYPES
from colmlm.kb.evidence.provenance import Provenance

T = TypeVar("T")


def traced(
    ports: Ports, request: WithToken, trace: T, account: Callable[[T, str], Provenance]
) -> Response[T]:
    """Gives a trace in the form that the request wants; `account` tells it in the terms of PROV."""
    media_type = wanted(request, *MEDIA_TYPES.values())
    for form, named in MEDIA_TYPES.items():
        if media_type == named:
            told = prov_forms.written(account(trace, ports.kb.log.database_id()), form)
            return written(told, media_type, link=f'<{prov_forms.PROV}>; rel="profile"')
    return written(trace)
