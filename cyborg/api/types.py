# SPDX-License-Identifier: Apache-2.0
"""What clients send in a query, and what they see of a row.

WSME parses the queries.  A view is a table of fields that renders a row
straight to a dict, which costs a third of WSME's own rendering, and says of
each field what it is, so that the API can be described from it.
"""

from __future__ import annotations

import dataclasses
import operator
import re
import urllib.parse
import uuid
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import wsme
from webob import multidict
from wsme import types as wsme_types
from wsme.rest import args as wsme_args

from cyborg import exception
from cyborg.api import body
from cyborg.api import microversions
from cyborg.db import query as db_query

_HEX = "[0-9A-Fa-f]"
_UUID = re.compile(
    rf"{_HEX}{{8}}(-?){_HEX}{{4}}\1{_HEX}{{4}}\1{_HEX}{{4}}\1{_HEX}{{12}}"
)
UUID_SCHEMA = {
    "type": "string",
    "format": "uuid",
    "pattern": f"^{_UUID.pattern}\\Z",
}

_DASHED = f"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}"
UUIDS = {"type": "string", "pattern": f"^{_DASHED}(?:,{_DASHED})*$"}
TEXT = {"type": "string"}
SOME_TEXT = {"type": "string", "minLength": 1}
UUID = {"type": "string", "format": "uuid"}
UUID_OR_NULL = {"type": ["string", "null"], "format": "uuid"}
TIME = {
    "type": ["string", "null"],
    "format": "date-time",
    "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00$",
}
"""Schemas of what is sent and shown."""


def one_of(words: Iterable[str]) -> Mapping[str, Any]:
    """The schema of a text that is one of these."""
    return {"type": "string", "enum": list(words)}


def links(*relations: str) -> Mapping[str, Any]:
    """The schema of links of these relations."""
    return {
        "type": "array",
        "minItems": len(relations),
        "maxItems": len(relations),
        "items": {
            "type": "object",
            "properties": {
                "href": {"type": "string", "format": "uri"},
                "rel": one_of(relations),
            },
            "required": ["href", "rel"],
            "additionalProperties": False,
        },
    }


_UNPARSED = (wsme.exc.ClientSideError, ValueError, TypeError, IndexError)
"""What WSME raises for pairs that are none."""

PAGE = ("limit", "marker", "sort_key", "sort_dir")
"""Parameters of every list."""


def as_uuid(text: object) -> str | None:
    """The canonical form of a uuid, None where it is none."""
    if isinstance(text, str) and _UUID.fullmatch(text):
        return str(uuid.UUID(text))
    return None


class Filter(wsme_types.Base):  # type: ignore[misc]
    """One pair `filters.field` and `filters.value`."""

    field = wsme.wsattr(wsme_types.text, mandatory=True)
    value = wsme.wsattr(wsme_types.text, mandatory=True)


_FILTERS = wsme_types.ArrayType(Filter)
_LIMIT = wsme_types.IntegerType(minimum=0)


@dataclasses.dataclass(frozen=True)
class Parameters:
    """The query parameters that an endpoint knows.

    `own` are its own and their schemas, `columns` what a list may be
    filtered and sorted by (with the parameters of paging and the older
    `filters`); some of them only `since` a version.
    """

    own: Mapping[str, Mapping[str, Any]] = dataclasses.field(
        default_factory=dict
    )
    columns: Mapping[str, Any] | None = None
    since: Mapping[str, microversions.Version] = dataclasses.field(
        default_factory=dict
    )

    def parse(
        self,
        text: str,
        version: microversions.Version = microversions.MAXIMUM,
    ) -> Query:
        """The query string's values.  Raises Invalid."""
        if not text:
            return Query()
        pairs = _pairs(text)
        values = _Values()
        filters = []
        for name, value in pairs:
            if name == "filters" or name.startswith(("filters.", "filters[")):
                filters.append((name, value))
            else:
                values.add(name, value)
        for pair in self._filters(filters):
            values.add(pair.field, pair.value)
        return self._sort(values, version)

    def _filters(self, pairs: list[tuple[str, str]]) -> list[Filter]:
        if not pairs or self.columns is None:
            if pairs:
                raise exception.Invalid("filters: unknown parameter")
            return []
        hit: set[str] = set()
        try:
            found = wsme_args.from_params(
                _FILTERS, multidict.MultiDict(pairs), "filters", hit
            )
        except _UNPARSED as error:
            raise _no_pairs() from error
        if found is wsme_types.Unset or {name for name, _ in pairs} - hit:
            raise _no_pairs()
        if not all(
            isinstance(pair, Filter)
            and isinstance(pair.field, str)
            and isinstance(pair.value, str)
            for pair in found
        ):
            raise _no_pairs()
        return list(found)

    def _known(self, version: microversions.Version) -> frozenset[str]:
        """The columns that a client of this version knows."""
        return frozenset(
            name
            for name in self.columns or ()
            if self.since.get(name, microversions.MINIMUM) <= version
        )

    def _sort(
        self, values: Mapping[str, str], version: microversions.Version
    ) -> Query:
        own, page, filters = {}, {}, {}
        known = self._known(version)
        for name, value in values.items():
            if name in self.own:
                own[name] = value
            elif self.columns is not None and name in PAGE:
                page[name] = value
            elif name in known:
                filters[name] = value
            else:
                raise exception.Invalid(f"{name[:64]!r}: unknown parameter")
        key = page.get("sort_key")
        if key is not None and key not in known:
            raise exception.Invalid(f"sort_key: unknown field {key[:64]!r}")
        return Query(
            own,
            db_query.Page(
                limit=_limit(page.get("limit")),
                marker=_marker(page.get("marker")),
                sort_key=page.get("sort_key"),
                sort_dir=page.get("sort_dir"),
                filters=filters,
            ),
        )


@dataclasses.dataclass(frozen=True)
class Query:
    """A parsed query: the endpoint's own parameters, and the page."""

    own: Mapping[str, str] = dataclasses.field(default_factory=dict)
    page: db_query.Page = db_query.EVERYTHING


class _Values(dict[str, str]):
    """Parameters by name, each once."""

    def add(self, name: str, value: str) -> None:
        """Raises Invalid where the parameter is there already."""
        if name in self:
            raise exception.Invalid(f"{name[:64]!r}: given more than once")
        self[name] = value


def _no_pairs() -> exception.Invalid:
    return exception.Invalid(
        "filters: each filters.field needs one filters.value"
    )


def _pairs(text: str) -> list[tuple[str, str]]:
    """Names and values of a query string, strictly UTF-8."""
    try:
        pairs = urllib.parse.parse_qsl(
            text.encode("latin-1").decode("utf-8"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=1000,
        )
    except ValueError as error:
        raise exception.Invalid(
            "The query is not UTF-8, or too long."
        ) from error
    for name, value in pairs:
        if not body.storable(name + value):
            raise exception.Invalid(
                f"{name[:64]!r}: characters that cannot be stored"
            )
    return pairs


def _limit(value: str | None) -> int | None:
    if value is None:
        return None
    try:
        limit = wsme_args.from_param(_LIMIT, value)
    except (ValueError, wsme.exc.ClientSideError) as error:
        raise exception.Invalid("limit: not a number of 0 or more") from error
    return min(int(limit), db_query.MAX_INTEGER)


def _marker(value: str | None) -> str | None:
    if value is None:
        return None
    marker = as_uuid(value)
    if marker is None:
        raise exception.Invalid("marker: not a uuid")
    return marker


Render = Callable[[Any], object]


@dataclasses.dataclass(frozen=True)
class Field:
    """One key of a view.

    `read` takes it from the row (default: the attribute of its name);
    `kind` is its JSON schema, or only the type in it; it is shown from
    version `since`.
    """

    name: str
    read: Render | None = None
    kind: str | Sequence[str] | Mapping[str, Any] = ("string", "null")
    since: microversions.Version = microversions.MINIMUM


def time(
    name: str, since: microversions.Version = microversions.MINIMUM
) -> Field:
    """A moment in UTC, ISO 8601 without a fraction, or null."""
    read = operator.attrgetter(name)

    def text(row: object) -> str | None:
        moment: datetime | None = read(row)
        if moment is None:
            return None
        return moment.isoformat(timespec="seconds") + "+00:00"

    return Field(name, text, kind=TIME, since=since)


class View:
    """How rows of a collection are shown."""

    def __init__(
        self, collection: str, *fields: Field, bookmark: bool = False
    ) -> None:
        self.collection = collection
        self.fields = (*fields, time("created_at"), time("updated_at"))
        self.relations = ("self", "bookmark") if bookmark else ("self",)
        self._bookmark = bookmark
        self._readers: dict[
            microversions.Version, list[tuple[str, Render]]
        ] = {}

    def _reader(
        self, version: microversions.Version
    ) -> list[tuple[str, Render]]:
        found = self._readers.get(version)
        if found is None:
            found = self._readers[version] = [
                (field.name, field.read or operator.attrgetter(field.name))
                for field in self.fields
                if field.since <= version
            ]
        return found

    def render(
        self, rows: Iterable[Any], version: microversions.Version, base: str
    ) -> list[dict[str, object]]:
        """The rows as a client of `version` sees them.

        `base` is the URL of the service, without a slash at its end.
        """
        reader = self._reader(version)
        return [
            {
                **{name: read(row) for name, read in reader},
                "links": self._links(row.uuid, base),
            }
            for row in rows
        ]

    def _links(self, key: str, base: str) -> list[dict[str, str]]:
        links = [{"href": f"{base}/v2/{self.collection}/{key}", "rel": "self"}]
        if self._bookmark:
            links.append(
                {"href": f"{base}/{self.collection}/{key}", "rel": "bookmark"}
            )
        return links
