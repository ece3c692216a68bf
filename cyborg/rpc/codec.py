# SPDX-License-Identifier: Apache-2.0
"""Dataclasses to and from what a message can hold, by their type hints.

The reader may be older or newer than the writer: a key that it does not
know is passed over, one that is missing takes the field's default.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import TypeVar

from cyborg import exception

Dataclass = TypeVar("Dataclass")
Reader = Callable[[Any], Any]

_SCALARS = (str, int, float, bool, type(None))


def encode(value: Any) -> Any:
    """`value` as dicts, lists and scalars; a dataclass becomes a dict."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, _SCALARS):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            name: encode(getattr(value, name))
            for name in _field_names(type(value))
        }
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return [encode(item) for item in sorted(value)]
    raise TypeError(f"{type(value).__name__} cannot cross RPC")


def decode(cls: type[Dataclass], data: Any) -> Dataclass:
    """The `cls` that `encode` wrote as `data`.

    Raises exception.Invalid, which names the field, where it cannot be one.
    """
    hint: Any = cls
    result: Dataclass = _reader(hint)(data)
    return result


def shape(cls: type) -> dict[str, str]:
    """The fields of `cls` and of all dataclasses in it, as text.

    Two releases whose shapes are equal understand each other's messages.
    """
    result: dict[str, str] = {}
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        optional = "" if _is_required(field) else " = default"
        result[f"{cls.__name__}.{field.name}"] = f"{hint}{optional}"
        for part in _dataclasses_in(hint):
            result.update(shape(part))
    return result


def _dataclasses_in(hint: Any) -> list[type]:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return [hint]
    return [
        part
        for argument in typing.get_args(hint)
        for part in _dataclasses_in(argument)
    ]


@functools.cache
def _field_names(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return (
        field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    )


@functools.cache
def _reader(hint: Any) -> Reader:
    """A function that turns a message's value into a `hint`."""
    origin = typing.get_origin(hint)
    if origin in {typing.Union, types.UnionType}:
        return _union_reader(hint)
    if origin is not None:
        return _container_reader(origin, typing.get_args(hint))
    if isinstance(hint, type):
        if dataclasses.is_dataclass(hint):
            return _dataclass_reader(hint)
        if issubclass(hint, enum.Enum):
            return _enum_reader(hint)
        if issubclass(hint, _SCALARS):
            return _scalar_reader(hint)
    if hint is Any:
        return _as_it_is
    raise TypeError(f"{hint} cannot cross RPC")


def _as_it_is(value: Any) -> Any:
    return value


def _scalar_reader(cls: type) -> Reader:
    accepted = (int, float) if cls is float else cls

    def read(value: Any) -> Any:
        if not isinstance(value, accepted):
            raise exception.Invalid(
                f"expected {cls.__name__}, not {type(value).__name__}"
            )
        return value

    return read


def _enum_reader(cls: type[enum.Enum]) -> Reader:
    def read(value: Any) -> Any:
        try:
            return cls(value)
        except ValueError:
            raise exception.Invalid(
                f"{value!r} is not a {cls.__name__}"
            ) from None

    return read


def _union_reader(hint: Any) -> Reader:
    """Of unions, only `X | None` crosses: others could not be told apart."""
    parts = [part for part in typing.get_args(hint) if part is not type(None)]
    if len(parts) != 1:
        raise TypeError(f"{hint} cannot cross RPC")
    inner = _reader(parts[0])
    return lambda value: None if value is None else inner(value)


def _container_reader(origin: Any, arguments: tuple[Any, ...]) -> Reader:
    if issubclass(origin, Mapping):
        inner = _reader(arguments[1])
        return lambda value: {
            key: inner(item) for key, item in _expect(dict, value).items()
        }
    if origin is tuple and Ellipsis not in arguments:
        readers = tuple(_reader(argument) for argument in arguments)
        return lambda value: _fixed(readers, value)
    make = origin if origin in {tuple, set, frozenset} else list
    inner = _reader(arguments[0])
    return lambda value: make([inner(item) for item in _expect(list, value)])


def _fixed(readers: tuple[Reader, ...], value: Any) -> tuple[Any, ...]:
    items = _expect(list, value)
    if len(items) != len(readers):
        raise exception.Invalid(f"expected {len(readers)} items")
    return tuple(read(item) for read, item in zip(readers, items, strict=True))


def _expect(cls: type, value: Any) -> Any:
    if cls is list and isinstance(value, tuple):
        return value  # the in-process transport leaves tuples alone
    if not isinstance(value, cls):
        raise exception.Invalid(
            f"expected {cls.__name__}, not {type(value).__name__}"
        )
    return value


def _dataclass_reader(cls: type) -> Reader:
    hints = typing.get_type_hints(cls)
    # Readers are looked up at the first use: a dataclass may hold itself.
    fields = [
        (field.name, hints[field.name], _is_required(field))
        for field in dataclasses.fields(cls)
    ]

    def read(value: Any) -> Any:
        data = _expect(dict, value)
        arguments = {}
        for name, hint, required in fields:
            if name in data:
                arguments[name] = _read_field(name, hint, data[name])
            elif required:
                raise exception.Invalid(f"{name}: missing")
        return cls(**arguments)

    return read


def _read_field(name: str, hint: Any, value: Any) -> Any:
    try:
        return _reader(hint)(value)
    except exception.Invalid as error:
        raise exception.Invalid(f"{name}: {error.message}") from None
