# SPDX-License-Identifier: Apache-2.0
"""The API in the words of OpenAPI 3.1, made from what is declared.

`/v2/openapi.json` is for programs: clients made from it, checkers, fuzzers.
Nothing in it is written by hand for one endpoint: what an endpoint declares
is all that there is to know.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from cyborg.api import document
from cyborg.api import endpoint
from cyborg.api import microversions
from cyborg.api import openapi_parts as parts
from cyborg.api import types

Json = dict[str, Any]


class Description:
    """Serves what `describe` made."""

    def __init__(self) -> None:
        self._document: document.Document | None = None

    def describe(self, declared: Iterable[endpoint.Declaration]) -> None:
        """Write the description of these endpoints, once."""
        text = json.dumps(description(declared), sort_keys=True)
        self._document = document.Document(text.encode(), endpoint.JSON)

    @endpoint.endpoint(
        "GET", "/v2/openapi.json", None, shape={"type": "object"}
    )
    def show(self, _call: endpoint.Call) -> document.Document | None:
        """This description."""
        return self._document


def description(declared: Iterable[endpoint.Declaration]) -> Json:
    """All of an OpenAPI document."""
    paths: dict[str, dict[str, Json]] = {}
    schemas = parts.schemas()
    for method, path, same in _grouped(declared):
        operation = _operation(method, path, same)
        paths.setdefault(path.text, {})[method.lower()] = operation
        for one in same:
            if one.view is not None:
                schemas[one.view.collection] = view_schema(one.view)
    return {
        "openapi": "3.1.0",
        "info": parts.INFO,
        "servers": [{"url": ".."}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "headers": parts.headers(),
            "parameters": {"version": parts.version_parameter()},
            "responses": parts.errors(),
            "securitySchemes": parts.SECURITY,
        },
    }


def _grouped(
    declared: Iterable[endpoint.Declaration],
) -> list[tuple[str, parts.Path, list[endpoint.Declaration]]]:
    """Endpoints that differ only in what a segment may be are one."""
    kinds: dict[tuple[str, ...], list[endpoint.Declaration]] = {}
    for one in declared:
        kinds.setdefault(parts.outline(one.path), []).append(one)
    found = []
    for _, together in sorted(kinds.items()):
        path = parts.Path([one.path for one in together])
        for method in sorted({one.method for one in together}):
            same = [one for one in together if one.method == method]
            same.sort(key=lambda one: (one.since, one.path))
            found.append((method, path, same))
    return found


def _operation(
    method: str, path: parts.Path, same: list[endpoint.Declaration]
) -> Json:
    """What may be sent to a path by a method, and what comes back."""
    first = same[0]
    operation: Json = {
        "operationId": first.name.replace(".", "_"),
        "tags": [first.name.partition(".")[0]],
        "summary": " ".join(first.summary.split()),
        "description": "\n\n".join(map(_remark, same)),
        "parameters": _parameters(path, same),
        "responses": _responses(method, first, same),
        "security": _security(first),
        "x-openstack-min-version": str(first.since),
    }
    if first.rule is not None:
        operation["x-openstack-policy"] = first.rule
    if first.schema is not None:
        operation["requestBody"] = {
            "required": first.optional_body_since is None,
            "content": {
                endpoint.JSON: {"schema": parts.told(first.schema.told)}
            },
        }
    return operation


def _parameters(
    path: parts.Path, same: list[endpoint.Declaration]
) -> list[Json]:
    """Those of the path, of the query, and the microversion."""
    found = [
        *path.parameters([one.path for one in same]),
        *_query(same[0].parameters),
    ]
    if same[0].path:
        found.append(parts.reference("parameters", "version"))
    return found


def _remark(one: endpoint.Declaration) -> str:
    """What of an endpoint no schema can tell."""
    said = [f"{one.method} /{'/'.join(one.path)}: from {one.since}."]
    if one.rule is not None:
        said.append(f"Policy rule {one.rule}.")
    if one.service_token:
        said.append("Only with a service token.")
    if one.optional_body_since is not None:
        said.append(
            f"The body counts from {one.optional_body_since}; before, nobody"
            " looks at it."
        )
    for name, since in sorted(one.parameters.since.items()):
        said.append(f"{name} from {since}.")
    return " ".join(said)


def _query(known: types.Parameters) -> list[Json]:
    """The query parameters."""
    schemas: dict[str, Mapping[str, Any]] = dict(known.own)
    if known.columns is not None:
        names = sorted(known.columns)
        schemas |= parts.page(names)
        for name in names:
            schemas.setdefault(name, parts.column(known.columns[name]))
    return [
        {"name": name, "in": "query", "schema": parts.told(schema)}
        for name, schema in schemas.items()
    ]


def _security(one: endpoint.Declaration) -> list[Json]:
    if one.rule is None:
        return []
    if one.service_token:
        return [{"token": [], "serviceToken": []}]
    return [{"token": []}, {"token": [], "serviceToken": []}]


def _responses(
    method: str,
    first: endpoint.Declaration,
    same: list[endpoint.Declaration],
) -> Json:
    """What comes back: the good answer, and each error that can be."""
    versioned = bool(first.path)
    good: Json = {
        "description": "Done.",
        "headers": parts.answer_headers(versioned),
    }
    if first.status not in {202, 204}:
        good["content"] = {endpoint.JSON: {"schema": _shown(first)}}
    codes = set().union(*(errors_of(method, one) for one in same))
    return {
        str(first.status): good,
        **{
            str(code): parts.reference("responses", f"Error{code}")
            for code in sorted(codes)
        },
    }


def errors_of(method: str, one: endpoint.Declaration) -> set[int]:
    """Statuses of the errors that an endpoint can answer with."""
    codes = {406, *one.errors}
    if one.rule is not None:
        codes |= {400, 401, 403, 503}
        if method != "GET":
            codes.add(504)
    if any(part.startswith("{") for part in one.path):
        codes.add(404)
    if one.schema is not None:
        codes |= {400, 413, 415}
    return codes


def _shown(one: endpoint.Declaration) -> Json:
    """The schema of what an endpoint returns."""
    if one.view is None:
        return dict(parts.told(one.shape or {}))
    schema = parts.reference("schemas", one.view.collection)
    if one.many:
        schema = {"type": "array", "items": schema}
    if one.key is None:
        return schema
    return {
        "type": "object",
        "properties": {one.key: schema},
        "required": [one.key],
        "additionalProperties": False,
    }


def _kind(field: types.Field) -> Json:
    """The schema of a field's value."""
    if isinstance(field.kind, Mapping):
        return dict(field.kind)
    if isinstance(field.kind, str):
        return {"type": field.kind}
    return {"type": list(field.kind)}


def view_schema(view: types.View) -> Json:
    """The schema of a row, at whichever microversion: what a later one
    adds comes together with all that came before it."""
    properties: Json = {"links": types.links(*view.relations)}
    for field in view.fields:
        schema = _kind(field)
        if field.since > microversions.MINIMUM:
            schema["x-openstack-min-version"] = str(field.since)
        properties[field.name] = schema
    later = {
        field.name: [
            other.name
            for other in view.fields
            if microversions.MINIMUM < other.since <= field.since
            and other is not field
        ]
        for field in view.fields
        if field.since > microversions.MINIMUM
    }
    result: Json = {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in later],
        "additionalProperties": False,
    }
    if later:
        result["dependentRequired"] = later
    return result
