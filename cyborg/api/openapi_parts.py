# SPDX-License-Identifier: Apache-2.0
"""Pieces of an OpenAPI document that have nothing to do with endpoints."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from cyborg.api import envelope
from cyborg.api import microversions
from cyborg.api import types
from cyborg.db import query as db_query

Json = dict[str, Any]

INFO: Json = {
    "title": "OpenStack accelerator management (Cyborg)",
    "version": str(microversions.MAXIMUM),
    "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    "description": (
        "A path without /v2 is served as if it had it; a slash at the end"
        " changes nothing; HEAD works where GET does, any other method that"
        " a path does not know is 405 with Allow. Lists also take repeated"
        " pairs of filters.field and filters.value, which say the same as"
        " the parameter of that name. Text holds no NUL and no character"
        " beyond U+FFFF. What is not HTTP as the server knows it never"
        " reaches the API and is answered with 400, 408, 413, 414, 431, 501"
        " or 505 in the same form."
    ),
}

SECURITY: Json = {
    "token": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Auth-Token",
        "description": "A token of Keystone, scoped to a project.",
    },
    "serviceToken": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Service-Token",
        "description": (
            "A service's own token, with a role of [keystone_authtoken]"
            " service_token_roles: needed to bind, to unbind, to delete what"
            " is bound and to delete by instance."
        ),
    },
}

_ERRORS = {
    400: "The body or the query is wrong; the text names the field.",
    401: "No token, or a bad one.",
    403: "The policy, or the missing service token, forbids it.",
    404: "There is no such thing, or none that the caller may know of.",
    406: "A microversion that is not served, or Accept excludes JSON.",
    409: "Exists already, in use, in the wrong state, or nothing is free.",
    413: "The body is too large.",
    415: "The body is not JSON by its content type.",
    423: "An accelerator request of the instance is not resolved yet.",
    500: "The device refused; the text is the driver's reason.",
    503: "Something that is needed does not answer.",
    504: "Something that is needed did not answer in time.",
}
_ERROR_HEADERS = {
    401: {"WWW-Authenticate": "Where to get a token."},
    503: {"Retry-After": "After how many seconds to try again."},
    504: {"Retry-After": "After how many seconds to try again."},
}

_PLAIN_TEXT = r"^[\u0001-\ud7ff\ue000-\uffff]*$"


def reference(kind: str, name: str) -> Json:
    """A reference to a component."""
    return {"$ref": f"#/components/{kind}/{name}"}


def told(schema: Any) -> Any:
    """A schema in the dialect of OpenAPI: patterns of ECMA, and of texts
    that they hold only what can be stored."""
    if isinstance(schema, (list, tuple)):
        return [told(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    result = {
        key: value.replace(r"\Z", "$")
        if key == "pattern" and isinstance(value, str)
        else told(value)
        for key, value in schema.items()
    }
    if result.get("type") == "string" and result.keys().isdisjoint(
        {"pattern", "enum", "format"}
    ):
        result["pattern"] = _PLAIN_TEXT
    return result


def page(names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """The parameters of every list, of rows with these columns."""
    return {
        "limit": {"type": "integer", "minimum": 0},
        "marker": types.UUID_SCHEMA,
        "sort_key": types.one_of(names),
        "sort_dir": types.one_of(("asc", "desc")),
    }


def column(value: Any) -> Mapping[str, Any]:
    """What a column can be compared with."""
    kind, form = db_query.json_type(value)
    schema: Json = {"type": kind}
    if form is not None:
        schema["format"] = form
    if kind == "integer":
        schema["minimum"] = 0
    return schema


def outline(path: Iterable[str]) -> tuple[str, ...]:
    """A path without the names of its placeholders."""
    return tuple("{}" if part.startswith("{") else part for part in path)


class Path:
    """A path of OpenAPI, for endpoints whose paths have one outline."""

    def __init__(self, paths: Iterable[Sequence[str]]) -> None:
        self.segments: list[str] = []
        for choices in zip(*paths, strict=True):
            self.segments.append(self._segment(sorted(set(choices))))
        self.text = "/" + "/".join(self.segments)

    def _segment(self, choices: Sequence[str]) -> str:
        if not choices[0].startswith("{"):
            return choices[0]
        plain = "_or_".join(choice.strip("{}") for choice in choices)
        for number in itertools.count(1):
            name = f"{{{plain}}}" if number == 1 else f"{{{plain}_{number}}}"
            if name not in self.segments:
                return name
        raise AssertionError

    def parameters(self, paths: Iterable[Sequence[str]]) -> list[Json]:
        """The parameters of the path, for endpoints at these."""
        found = []
        for name, choices in zip(
            self.segments, zip(*paths, strict=True), strict=True
        ):
            if name.startswith("{"):
                kinds = [_PLACEHOLDERS[kind] for kind in sorted(set(choices))]
                found.append(
                    {
                        "name": name.strip("{}"),
                        "in": "path",
                        "required": True,
                        "schema": kinds[0]
                        if len(kinds) == 1
                        else {"anyOf": kinds},
                    }
                )
        return found


_PLACEHOLDERS: dict[str, Json] = {
    "{uuid}": types.UUID,
    "{name}": {
        "type": "string",
        "pattern": r"^[\u0001-\u002e\u0030-\ud7ff\ue000-\uffff]{1,255}$",
    },
}
"""What a segment of a path may be."""


def version_parameter() -> Json:
    """The header that asks for a microversion."""
    numbers = "|".join(
        str(version).replace(".", r"\.") for version in microversions.HISTORY
    )
    return {
        "name": microversions.HEADER,
        "in": "header",
        "description": (
            "The microversion; without it "
            f"{microversions.SERVICE_TYPE} {microversions.MINIMUM}."
        ),
        "schema": {
            "type": "string",
            "pattern": (
                f"^(?:{microversions.SERVICE_TYPE} (?:latest|{numbers}))?$"
            ),
        },
    }


def headers() -> Json:
    """The headers that answers have."""
    text = {"type": "string"}
    return {
        microversions.HEADER: {
            "description": "The microversion of the answer.",
            "required": True,
            "schema": {
                **text,
                "pattern": rf"^{microversions.SERVICE_TYPE} \d+\.\d+$",
            },
        },
        "OpenStack-API-Minimum-Version": {
            "required": True,
            "schema": {"const": str(microversions.MINIMUM)},
        },
        "OpenStack-API-Maximum-Version": {
            "required": True,
            "schema": {"const": str(microversions.MAXIMUM)},
        },
        "Vary": {"required": True, "schema": text},
        "X-OpenStack-Request-ID": {
            "description": "What the service's logs name the request by.",
            "required": True,
            "schema": {**text, "pattern": "^req-[0-9a-f-]{36}$"},
        },
    }


def answer_headers(versioned: bool) -> Json:
    """References to the headers of an answer, those of errors included."""
    return {
        name: reference("headers", name)
        for name in headers()
        if versioned or name == "X-OpenStack-Request-ID"
    }


def schemas() -> Json:
    """The shape that every error has."""
    error: Json = {
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "title": {"type": "string"},
        "detail": {"type": "string"},
        "request_id": {"type": "string", "pattern": "^req-[0-9a-f-]{36}$"},
        "code": {"type": "string", "pattern": r"^accelerator\.[a-z-]+$"},
    }
    body: Json = {
        "error_message": {
            "type": "string",
            "contentMediaType": "application/json",
        },
        "errors": {
            "type": "array",
            "minItems": 1,
            "maxItems": 1,
            "items": {
                "type": "object",
                "properties": error,
                "required": list(error),
                "additionalProperties": False,
            },
        },
    }
    return {
        "Error": {
            "type": "object",
            "properties": body,
            "required": list(body),
            "additionalProperties": False,
        }
    }


def errors() -> Json:
    """A response for each status that an error can have."""
    return {f"Error{code}": _error(code) for code in _ERRORS}


def _error(code: int) -> Json:
    own = {
        name: {
            "required": True,
            "description": text,
            "schema": {"type": "string"},
        }
        for name, text in _ERROR_HEADERS.get(code, {}).items()
    }
    status = {"properties": {"status": {"const": code}}}
    return {
        "description": f"{envelope.status_line(code)}. {_ERRORS[code]}",
        "headers": {**answer_headers(False), **own},
        "content": {
            "application/json": {
                "schema": {
                    "allOf": [
                        reference("schemas", "Error"),
                        {"properties": {"errors": {"items": status}}},
                    ]
                }
            }
        },
    }
