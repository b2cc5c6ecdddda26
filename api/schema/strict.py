"""Parses request bodies strictly: a number in quotes is no number, and 0 is not false.

Litestar itself parses a body as leniently as a query string, where everything is a string.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from litestar import Request
from litestar.exceptions import ValidationException

from colmlm.api.errors import Unacceptable

_PLACE = re.compile(r" - at `\$\.?(?P<place>[^`]*)`$")


class StrictRequest(Request[Any, Any, Any]):
    """A request whose body must match its route's type exactly; a refusal names the place of the mistake."""

    async def json(self) -> Any:
        field = self.route_handler.parsed_data_field
        if field is None:
            return await super().json()
        body = await self.body()
        try:
            return _read(body, field.annotation)
        except msgspec.ValidationError as error:
            if isinstance(error.__cause__, ValueError):  # each field is valid, but not their combination
                raise Unacceptable(str(error.__cause__)) from error
            raise ValidationException("The body is not as it must be.", extra=[_fault(str(error))]) from error
        except msgspec.DecodeError as error:
            raise ValidationException(f"The body is no JSON: {error}.", extra=[]) from error


def _read(body: bytes, kind: Any) -> Any:
    """Decodes the body into its type. 1.0 is accepted as an integer, as JSON has it."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        if "got `float`" not in str(error):
            raise
        return msgspec.convert(_whole(msgspec.json.decode(body)), kind)


def _whole(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_whole(item) for item in value]
        case dict():
            return {name: _whole(item) for name, item in value.items()}
    return value


def _fault(said: str) -> dict[str, str]:
    found = _PLACE.search(said)
    place = found["place"] if found else ""
    return {"message": said[: found.start()] if found else said, "key": place, "source": "body"}
