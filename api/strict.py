"""Bodies read strictly: a number in quotes is no number, and 0 is not false.

Litestar reads a body with the leniency that a query string needs, where everything is a string.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from litestar import Request
from litestar.exceptions import ValidationException

_PLACE = re.compile(r" - at `\$\.?(?P<place>[^`]*)`$")


class StrictRequest(Request[Any, Any, Any]):
    """A request whose body is exactly what its route says, or refused with the place of the fault."""

    async def json(self) -> Any:
        field = self.route_handler.parsed_data_field
        if field is None:
            return await super().json()
        try:
            return msgspec.json.decode(await self.body(), type=field.annotation)
        except msgspec.ValidationError as error:
            raise ValidationException("The body is not as it must be.", extra=[_fault(str(error))]) from error
        except msgspec.DecodeError as error:
            raise ValidationException(f"The body is no JSON: {error}.", extra=[]) from error


def _fault(said: str) -> dict[str, str]:
    found = _PLACE.search(said)
    place = found["place"] if found else ""
    return {"message": said[: found.start()] if found else said, "key": place, "source": "body"}
