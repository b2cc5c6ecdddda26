"""A worker process of Ray: does the rows of one errand, and tells a failure in a line instead of a traceback."""

from __future__ import annotations

import msgspec

from colmlm.cli.bulk.errands import ERRANDS, Errand
from colmlm.cli.bulk.messages import RowOutcome
from colmlm.cli.errors import explain


class RayWorker:
    """The class of Ray's actors. A row is a text in, and a text out."""

    def __init__(self, errand: str, given: str) -> None:
        self.name, self.given = errand, given
        self.errand: Errand | None = None

    def __call__(self, row: dict[str, str]) -> dict[str, str]:
        return {"told": msgspec.json.encode(self._told(row["row"]), enc_hook=str).decode()}

    def _told(self, row: str) -> RowOutcome:
        try:
            if self.errand is None:
                self.errand = ERRANDS[self.name](msgspec.json.decode(self.given))
            return RowOutcome(self.errand.run(msgspec.json.decode(row)))
        except Exception as error:  # noqa: BLE001 - an exception that Ray carries loses its class and gains a traceback
            return RowOutcome(None, *explain(error))
