"""Settings of a run as they are typed: ``weight_decay=0.1``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from colmlm.model.training.config import Architecture

Config = TypeVar("Config")


def with_settings(config: Config, settings: Sequence[str], **given: Any) -> Config:
    """Gives `config`, a dataclass, with these fields changed: each is typed as NAME=VALUE.

    Numbers, booleans and lists are written as in JSON, None as ``none``. Fields that are `given` as values are changed
    with them, at once, since one may be possible only beside another. Raises ValueError, which names the setting.
    """
    hints, changes = get_type_hints(type(config)), dict(given)
    for name, text in map(_pair, settings):
        if name not in hints:
            raise ValueError(f"no setting {name!r}; there are {', '.join(sorted(hints))}")
        changes[name] = _value(name, hints[name], text)
    return replace(config, **changes)  # type: ignore[type-var]  # any dataclass will do


def _pair(setting: str) -> tuple[str, str]:
    name, equals, value = setting.partition("=")
    if not equals:
        raise ValueError(f"{setting!r} is not NAME=VALUE")
    return name.strip().replace("-", "_"), value.strip()


def _value(name: str, hint: Any, text: str) -> Any:
    kinds = get_args(hint) if NoneType in get_args(hint) else (hint,)
    if NoneType in kinds and text == "none":
        return None
    kind = kinds[0]
    if kind is str:
        return text
    try:
        value = json.loads(text)
        if kind is Architecture:
            return Architecture(**value)
        if get_args(kind):  # a tuple of numbers
            return tuple(_number(float, each) for each in value)
        return _number(kind, value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {text!r} does not fit ({error})") from error


def _number(kind: type, value: Any) -> Any:
    """Checks that `value`, read from JSON, is of this kind: an integer is also a float, but true is no integer."""
    if type(value) is int and kind is float:
        return float(value)
    if type(value) is not kind:
        raise TypeError(f"it must be {kind.__name__}")
    return value
