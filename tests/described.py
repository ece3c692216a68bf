# SPDX-License-Identifier: Apache-2.0
"""Whether an answer is as the API's own description says."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import jsonschema
import referencing
import referencing.jsonschema

from cyborg.api import app
from cyborg.api import endpoint
from cyborg.api import envelope
from cyborg.api import openapi
from cyborg.api import types

URI = "urn:cyborg"


@functools.cache
def description() -> dict[str, Any]:
    """The description as a client reads it."""
    made = openapi.description(app.routes().declarations())
    result: dict[str, Any] = json.loads(json.dumps(made))
    return result


@functools.cache
def _registry() -> Any:
    resource = referencing.Resource.from_contents(
        description(),
        default_specification=referencing.jsonschema.DRAFT202012,
    )
    return referencing.Registry().with_resource(URI, resource)


@functools.cache
def _validator(pointer: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(
        {"$ref": f"{URI}#{pointer}"},
        registry=_registry(),
        format_checker=jsonschema.FormatChecker(),
    )


def _pointer(*steps: str) -> str:
    return "".join(
        "/" + step.replace("~", "~0").replace("/", "~1").replace("{", "%7B")
        for step in steps
    ).replace("}", "%7D")


def operation(method: str, path: str) -> tuple[str, ...] | None:
    """Where the description has it: the path's template and the method."""
    segments = [part for part in path.split("/") if part]
    best: tuple[int, str] | None = None
    for template in description()["paths"]:
        parts = [part for part in template.split("/") if part]
        if len(parts) != len(segments):
            continue
        pairs = list(zip(parts, segments, strict=True))
        if all(_fits(part, segment) for part, segment in pairs):
            variable = sum(part.startswith("{") for part, _ in pairs)
            if best is None or variable < best[0]:
                best = variable, template
    if best is None or method.lower() not in description()["paths"][best[1]]:
        return None
    return "paths", best[1], method.lower()


def _fits(part: str, segment: str) -> bool:
    if not part.startswith("{"):
        return part == segment
    return "name" in part or types.as_uuid(segment) is not None


def check(
    method: str,
    path: str,
    status: int,
    headers: Mapping[str, str],
    body: bytes,
) -> None:
    """Fails where the answer is not one that the description knows."""
    place = operation(method, envelope.path_of({"PATH_INFO": path}))
    if place is None:
        return
    where = f"{method} {path} -> {status}"
    answers = _at(*place)["responses"]
    if status == 304:
        assert body == b"", where
        return
    assert str(status) in answers, f"{where}: only {sorted(answers)} are told"
    found = (*place, "responses", str(status))
    answer = answers[str(status)]
    if "$ref" in answer:
        found = tuple(answer["$ref"].removeprefix("#/").split("/"))
        answer = _at(*found)
    for name in answer["headers"]:
        assert name in headers, f"{where}: no {name}"
        _check_header(name, answer["headers"][name], headers[name])
    if "content" not in answer:
        assert body == b"", where
        return
    assert headers["Content-Type"].split(";")[0] == endpoint.JSON, where
    pointer = _pointer(*found, "content", endpoint.JSON, "schema")
    errors = list(_validator(pointer).iter_errors(json.loads(body)))
    assert not errors, f"{where}: {errors[0]}"


def _check_header(name: str, told: Mapping[str, Any], value: str) -> None:
    schema = told
    if "$ref" in told:
        schema = _at(*told["$ref"].removeprefix("#/").split("/"))
    jsonschema.validate(value, schema["schema"])


def _at(*steps: str) -> Any:
    value: Any = description()
    for step in steps:
        value = value[step]
    return value
