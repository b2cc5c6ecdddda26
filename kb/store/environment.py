"""Reads records of settings from an environment: the field `port` is the variable COLMLM_PORT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from colmlm.kb.errors import SettingsError

T = TypeVar("T")

Seconds = Annotated[float, Meta(ge=0, le=3600, description="a number of seconds from 0 to 3600")]
Port = Annotated[int, Meta(ge=1, le=65_535, description="a port from 1 to 65535")]


def read(kind: type[T], env: Mapping[str, str], prefix: str = "COLMLM_", **given: Any) -> T:
    """Reads a dataclass, of which some fields may be given. An empty variable counts as unset.

    A field that `repr` leaves out is a secret: it may stand in a file, which a variable with the suffix _FILE names,
    and no message repeats it. Raises `SettingsError`, which names the variable.
    """
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):  # type: ignore[arg-type]  # T is a dataclass
        variable, hint = f"{prefix}{field.name.upper()}", hints[field.name]
        if field.name in given:
            continue
        if is_dataclass(hint):
            given[field.name] = read(hint, env, prefix=f"{variable}_")  # type: ignore[arg-type]
        elif (text := env.get(variable) if field.repr else _secret(env, variable)) and text.strip():
            given[field.name] = _converted(variable, text.strip(), hint, is_secret=not field.repr)
    return kind(**given)


def _converted(variable: str, text: str, hint: Any, *, is_secret: bool) -> Any:
    inner = _without_none(hint)
    bare = get_args(inner)[0] if get_origin(inner) is Annotated else inner
    if bare is Path:
        return Path(text).expanduser()
    if bare is bool:
        inner, text = Literal["yes", "no"], text.lower()
    value: Any = text.lower() if get_origin(inner) is Literal else text
    if get_origin(bare) is tuple:
        value = [item.strip() for item in text.split(",") if item.strip()]
    try:
        found = msgspec.convert(value, inner, strict=False)
    except msgspec.ValidationError as error:
        said = "its value" if is_secret else repr(text)
        raise SettingsError(variable, f"{said} is not {_described(inner)}") from error
    return found == "yes" if bare is bool else found


def _without_none(hint: Any) -> Any:
    """The type of a field that may also be None."""
    if type(None) not in get_args(hint):
        return hint
    return Union[tuple(arg for arg in get_args(hint) if arg is not type(None))]  # noqa: UP007  made at run time


def _described(hint: Any) -> str:
    """What a value of this type is, for a message."""
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}"
    for one in (hint, *get_args(hint)):
        for meta in getattr(one, "__metadata__", ()):
            if isinstance(meta, Meta) and meta.description:
                return meta.description
    return f"a {getattr(hint, '__name__', hint)}"


def _secret(env: Mapping[str, str], variable: str) -> str | None:
    """The value of `variable`, or what the file says that its _FILE names, as containers hand out secrets."""
    value, in_file = env.get(variable, "").strip(), f"{variable}_FILE"
    if value and env.get(in_file):
        raise SettingsError(variable, f"{in_file} is set too")
    if not value and (file := env.get(in_file)):
        try:
            value = Path(file).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(in_file, f"{file} cannot be read") from error
        if not value:
            raise SettingsError(in_file, f"{file} is empty")
    return value or None
