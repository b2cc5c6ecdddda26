"""Settings of a run as they are typed: ``weight_decay=0.1``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from types import NoneType
from typing import Any, get_args, get_type_hints

from colmlm.model.training.config import Architecture, TrainConfig


def with_settings(config: TrainConfig, settings: Mapping[str, str]) -> TrainConfig:
    """Gives `config` with these fields changed: numbers, booleans and lists are written as in JSON, None as ``none``.

    Raises ValueError, which names the setting.
    """
    hints = get_type_hints(TrainConfig)
    if unknown := sorted(settings.keys() - {field.name for field in fields(TrainConfig)}):
        raise ValueError(f"no setting {unknown[0]!r}; there are {', '.join(sorted(hints))}")
    return replace(config, **{name: _value(name, hints[name], text) for name, text in settings.items()})


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
