"""Where bulk work is done: by Ray on this machine's cores, or on a cluster that runs; and the options that say so."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from typing import Annotated

import typer

from colmlm.kb.errors import refusals

AUTO = "auto"
_ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\]):[0-9]{1,5}")
_LAST_PORT = 65_535
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_REACHED_IN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class RayPlace:
    """The address of a running cluster (None: Ray is started on this machine's cores and ends with the work).

    `workers` is how many processes work, each with a model of its own; by default one for each GPU, or else core.
    """

    address: str | None = None
    workers: int | None = None

    @classmethod
    def named(cls, address: str, workers: int | None = None) -> RayPlace:
        """Read HOST:PORT, or `auto`: the cluster of RAY_ADDRESS, else this machine. Raises `ValueError`."""
        found = os.environ.get("RAY_ADDRESS", "") if address == AUTO else address
        if found in ("", AUTO, "local"):
            return cls(None, workers)
        if not _ADDRESS.fullmatch(found) or int(found.rpartition(":")[2]) > _LAST_PORT:
            raise ValueError(
                f"{found!r} is neither {AUTO} nor HOST:PORT of a cluster's head, as 10.0.0.5:6379"
            )
        return cls(found, workers)


def require_cluster(address: str) -> None:
    """Raise `ClusterUnavailable` where nobody listens at the address, for which Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    # A head may listen at its machine's own address alone. Ray takes that in place of the loopback.
    hosts = [host, socket.gethostname()] if host in _LOOPBACK else [host]
    causes: list[OSError] = []
    for tried in hosts:
        try:
            socket.create_connection((tried, int(port)), _REACHED_IN_SECONDS).close()
        except OSError as error:
            causes.append(error)
        else:
            return
    raise refusals.cluster_unavailable(address, causes[0].strerror or str(causes[0]))


def _address(value: str | None) -> str | None:
    if value is not None:
        try:
            RayPlace.named(value)
        except ValueError as error:
            raise typer.BadParameter(f"{error}.") from None
    return value


Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="auto|ADDRESS",
        callback=_address,
        help="Do the bulk of it on Ray: on this machine's cores (auto; or the cluster in RAY_ADDRESS), or on the "
        "cluster at HOST:PORT. Default: COLMLM_RAY. Needs the extra ray.",
    ),
]
RayWorkers = Annotated[
    int | None,
    typer.Option(
        "--ray-workers",
        min=1,
        max=10_000,
        help="How many processes work there. Default: one for each GPU, or else core.",
    ),
]
