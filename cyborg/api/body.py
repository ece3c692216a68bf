# SPDX-License-Identifier: Apache-2.0
"""Bodies: from what a client sends to values that can be trusted.

Stricter than the json module: a key given twice, NaN, nesting that is too
deep and text that no database can hold are refused here, once for all.
"""

from __future__ import annotations

import json
import re
from typing import IO
from typing import TYPE_CHECKING
from typing import Any

import jsonschema
from jsonschema import validators

from cyborg import exception

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

MAX_DEPTH = 32
_SHOWN = 200
"""How many characters of a validator's message a client gets."""

_JSON_TYPE = re.compile(r"application/(?:[a-z0-9.+-]+\+)?json")
_UNSTORABLE = re.compile("[\0\ud800-\udfff\U00010000-\U0010ffff]")
"""NUL and halves of surrogates, which PostgreSQL refuses, and characters
beyond three bytes of UTF-8, which adopted tables cannot hold."""


def storable(text: str) -> bool:
    """Whether each database that we may meet can hold the text."""
    return _UNSTORABLE.search(text) is None


def read(environ: WSGIEnvironment, limit: int) -> bytes:
    """The whole body.  Raises TooLarge beyond `limit` bytes."""
    length = _length(environ)
    if length is not None and length > limit:
        raise _too_large(limit)
    if length is None:
        if not _chunked(environ):
            return b""
        data = _read(environ["wsgi.input"], limit + 1)
        if len(data) > limit:
            raise _too_large(limit)
        return data
    data = _read(environ["wsgi.input"], length)
    if len(data) < length:
        raise exception.Invalid("The body is shorter than Content-Length.")
    return data


def _too_large(limit: int) -> exception.TooLarge:
    return exception.TooLarge(f"The body is larger than {limit} bytes.")


def _length(environ: WSGIEnvironment) -> int | None:
    text = str(environ.get("CONTENT_LENGTH") or "").strip()
    if not text:
        return None
    if not text.isascii() or not text.isdigit():
        raise exception.Invalid("Content-Length is not a number.")
    return int(text[:18])


def _chunked(environ: WSGIEnvironment) -> bool:
    return bool(environ.get("wsgi.input_terminated")) or (
        "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "").lower()
    )


def _read(stream: IO[bytes], size: int) -> bytes:
    """Up to `size` bytes; raises Invalid where the client breaks off."""
    parts = []
    try:
        while size > 0:
            part = stream.read(size)
            if not part:
                break
            parts.append(part)
            size -= len(part)
    except (OSError, ValueError) as error:
        raise exception.Invalid("The body could not be read.") from error
    return b"".join(parts)


def check_content_type(value: str) -> None:
    """Raises UnsupportedMediaType where a body is said not to be JSON."""
    kind, *parameters = value.lower().split(";")
    if kind.strip() and not _JSON_TYPE.fullmatch(kind.strip()):
        raise exception.UnsupportedMediaType(
            "Content-Type: only application/json is taken."
        )
    for parameter in parameters:
        name, _, text = parameter.partition("=")
        if name.strip() == "charset" and text.strip(' "') not in {
            "utf-8",
            "utf8",
            "us-ascii",
        }:
            raise exception.UnsupportedMediaType(
                "Content-Type: only the charset utf-8 is taken."
            )


def parse(data: bytes) -> Any:
    """The JSON value of a body.  Raises Invalid."""
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_constant,
        )
    except UnicodeDecodeError as error:
        raise exception.Invalid("The body is not UTF-8.") from error
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        raise exception.Invalid("The body is not JSON.") from error
    _check_values(value)
    return value


def _too_deep() -> exception.Invalid:
    return exception.Invalid(
        f"The body is nested deeper than {MAX_DEPTH} levels."
    )


def _constant(name: str) -> Any:
    raise exception.Invalid(f"The body holds {name}, which is not JSON.")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise exception.Invalid(
                    f"The key {key[:64]!r} is given twice."
                )
            seen.add(key)
    return result


def _check_values(value: Any) -> None:
    """Depth, and text that cannot be stored; level by level, so that no
    nesting ends in a recursion."""
    level = _containers([value])
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise _too_deep()
        inner: list[Any] = []
        for item in level:
            inner.extend(item)
            if isinstance(item, dict):
                inner.extend(item.values())
        level = _containers(inner)


def _containers(items: list[Any]) -> list[Any]:
    """The lists and objects among the items; checks the strings."""
    found = []
    for item in items:
        if isinstance(item, (list, dict)):
            found.append(item)
        elif isinstance(item, str) and not storable(item):
            raise exception.Invalid(
                f"The text {item[:64]!r} has characters that cannot be stored."
            )
    return found


_extend: Any = validators.extend
_Validator = _extend(
    jsonschema.Draft202012Validator,
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine(
        "integer",
        lambda _, value: (
            isinstance(value, int) and not isinstance(value, bool)
        ),
    ),
)


class Schema:
    """What a body must look like; 1.0 is no integer here.

    `told` tells clients more, where code of ours judges what `definition`
    lets through.
    """

    def __init__(
        self, definition: dict[str, Any], told: dict[str, Any] | None = None
    ) -> None:
        self.told = definition if told is None else told
        self._validator = _Validator(definition)

    def check(self, value: Any) -> None:
        """Raises Invalid, which names the field."""
        error = jsonschema.exceptions.best_match(
            self._validator.iter_errors(value)
        )
        if error is not None:
            raise exception.Invalid(_explain(error))


def _explain(error: jsonschema.ValidationError) -> str:
    place = ""
    for step in error.absolute_path:
        place += f"[{step}]" if isinstance(step, int) else f".{step}"
    text = error.message
    schema: Any = error.schema
    if error.validator == "pattern" and "format" in schema:
        text = f"{error.instance!r} is not a {schema['format']}"
    if len(text) > _SHOWN:
        text = f"does not satisfy {error.validator}: {text[-_SHOWN:]}"
    return f"{place.lstrip('.')[:_SHOWN] or 'body'}: {text}"
