# SPDX-License-Identifier: Apache-2.0
"""Filters, sorting and paging that mean the same on every database.

A list is one statement: filters, order and the place of the marker are all
part of it.  Strings are compared byte by byte, though the collations of
MariaDB ignore case and trailing spaces; null sorts before every value.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import re
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext import compiler
from sqlalchemy.sql import functions

from cyborg import exception
from cyborg.db import models

MAX_INTEGER = 2**31 - 1
"""The largest value of an integer column."""


@dataclasses.dataclass(frozen=True)
class Page:
    """What part of a list is wanted, and in which order.

    `filters` compares columns by name: a string, an int or digits for a
    number, ISO 8601 for a time, None for null.
    """

    limit: int | None = None
    marker: str | None = None
    sort_key: str | None = None
    sort_dir: str | None = None
    filters: Mapping[str, object] = dataclasses.field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether this is every row, in whatever order."""
        return self.limit is None and not (self.marker or self.filters)


EVERYTHING = Page()


@dataclasses.dataclass(frozen=True)
class Source:
    """What can be listed: a table, joined to what `fields` needs.

    `fields` are the names a caller may filter and sort by.
    """

    model: type[models.Base]
    fields: Mapping[str, Any]
    origin: Any = None

    @property
    def uuid(self) -> Any:
        return self.fields["uuid"]

    def select(self, *columns: Any) -> sa.Select[Any]:
        """A statement over the source, joins included."""
        origin = self.model if self.origin is None else self.origin
        return sa.select(*columns).select_from(origin)


def fields(model: type[models.Base], *names: str) -> dict[str, Any]:
    """Columns of a model by name, with those that every table has."""
    every = ("id", "uuid", *names, "created_at", "updated_at")
    return {name: getattr(model, name) for name in every}


class _Bytes(functions.GenericFunction[str]):
    """A string column as bytes where the database would fold its case."""

    type = sa.String()
    inherit_cache = True


@compiler.compiles(_Bytes)
def _plain(element: _Bytes, visitor: Any, **options: Any) -> str:
    return str(visitor.process(element.clauses, **options))


@compiler.compiles(_Bytes, "mysql", "mariadb")
def _cast(element: _Bytes, visitor: Any, **options: Any) -> str:
    return f"CAST({visitor.process(element.clauses, **options)} AS BINARY)"


def storable(text: str) -> bool:
    """Whether any database can hold the text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


_UNSTORABLE = re.compile("[\0\ud800-\udfff\U00010000-\U0010ffff]")


def storable_part(text: str, length: int = 1000) -> str:
    """The beginning of a text that others wrote, as any column of any
    database holds it."""
    return _UNSTORABLE.sub("?", text[:length])


def shown(text: object, length: int = 255) -> str:
    """Text of a client as a message may repeat it."""
    return str(text)[:length].encode(errors="replace").decode()


def _indexable(values: Iterable[str]) -> bool:
    """Whether MariaDB can compare them with columns of its short utf8."""
    return all(ord(max(value, default=" ")) <= 0xFFFF for value in values)


def same(column: Any, value: str) -> sa.ColumnElement[bool]:
    """The column holds exactly this string, on every database."""
    return one_of(column, (value,))


def one_of(column: Any, values: Iterable[str]) -> sa.ColumnElement[bool]:
    """The column holds exactly one of these strings.

    The plain comparison beside the exact one lets an index be used.
    """
    wanted = sorted({value for value in values if storable(value)})
    if not wanted:
        return sa.false()
    if len(wanted) == 1:
        exact, plain = _Bytes(column) == wanted[0], column == wanted[0]
    else:
        exact, plain = _Bytes(column).in_(wanted), column.in_(wanted)
    return sa.and_(plain, exact) if _indexable(wanted) else exact


def has_uuid(source: Source) -> sa.ColumnElement[bool]:
    """The uuid is exactly the parameter `uuid`, for what `can_be_uuid`."""
    wanted: sa.BindParameter[str] = sa.bindparam("uuid")
    return sa.and_(source.uuid == wanted, _Bytes(source.uuid) == wanted)


def can_be_uuid(text: str) -> bool:
    """Whether it is worth asking for: every uuid is plain ASCII."""
    return text.isascii() and text.isprintable()


def _time(name: str, value: object) -> datetime.datetime:
    try:
        moment = datetime.datetime.fromisoformat(
            str(value).replace("Z", "+00:00")
        )
        if moment.tzinfo is not None:
            moment = moment.astimezone(datetime.timezone.utc)
    except (ValueError, OverflowError) as error:
        raise exception.Invalid(
            f"{name}: not a time in ISO 8601: {shown(value, 64)!r}"
        ) from error
    return moment.replace(tzinfo=None)


def _integer(name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value[:20])
    raise exception.Invalid(f"{name}: not a number: {shown(value, 64)!r}")


def json_type(column: Any) -> tuple[str, str | None]:
    """JSON schema's type and format of what `equals` compares with it."""
    if isinstance(column.type, sa.Integer):
        return "integer", None
    if isinstance(column.type, sa.DateTime):
        return "string", "date-time"
    return "string", None


def equals(name: str, column: Any, value: object) -> sa.ColumnElement[bool]:
    """The condition of one filter.  Raises Invalid for a wrong type."""
    condition: sa.ColumnElement[bool]
    if value is None:
        condition = column.is_(None)
    elif isinstance(column.type, sa.Integer):
        number = _integer(name, value)
        known = abs(number) <= MAX_INTEGER
        condition = column == number if known else sa.false()
    elif isinstance(column.type, sa.DateTime):
        condition = column == _time(name, value)
    elif not isinstance(value, str):
        raise exception.Invalid(f"{name}: not a string")
    elif isinstance(column.type, sa.Enum):
        known = value in column.type.enums
        condition = column == value if known else sa.false()
    else:
        condition = same(column, value)
    return condition


@dataclasses.dataclass(frozen=True)
class _Order:
    """A sort that is total (`id` breaks ties) and the same everywhere."""

    column: Any
    identifier: Any
    descending: bool
    nullable: bool

    @functools.cached_property
    def value(self) -> Any:
        """What is compared: MariaDB sorts an enum by its position but
        compares it by name."""
        if isinstance(self.column.type, sa.Enum):
            return sa.cast(self.column, sa.String(64))
        return self.column

    @functools.cached_property
    def presence(self) -> Any:
        """0 for null, 1 for a value; None where there is no null."""
        if not self.nullable:
            return None
        return sa.case((self.column.is_(None), 0), else_=1)

    def clauses(self) -> list[Any]:
        keys = [self.presence, self.value, self.identifier]
        if self.column is self.identifier:
            keys = [self.identifier]
        present = [key for key in keys if key is not None]
        return [key.desc() if self.descending else key for key in present]

    def after(self, marker: Any) -> sa.ColumnElement[bool]:
        """Rows that come after the marker's row."""

        def beyond(key: Any, place: Any) -> Any:
            return key < place if self.descending else key > place

        later: sa.ColumnElement[bool] = beyond(self.identifier, marker.c.id)
        if self.column is self.identifier:
            return later
        tie = self.value == marker.c.value
        more = beyond(self.value, marker.c.value)
        if self.presence is None:
            return sa.or_(more, sa.and_(tie, later))
        tie = sa.or_(tie, self.presence == 0)
        return sa.or_(
            beyond(self.presence, marker.c.presence),
            sa.and_(
                self.presence == marker.c.presence,
                sa.or_(more, sa.and_(tie, later)),
            ),
        )

    def place(self, source: Source) -> sa.Select[Any]:
        """The marker's row: its place in this order."""
        presence = sa.literal(1) if self.presence is None else self.presence
        return source.select(
            self.identifier.label("id"),
            self.value.label("value"),
            presence.label("presence"),
        )


def _order(source: Source, page: Page) -> _Order:
    if page.sort_dir not in (None, "asc", "desc"):
        raise exception.Invalid("sort_dir: neither asc nor desc")
    name = "id" if page.sort_key is None else page.sort_key
    if name not in source.fields:
        raise exception.Invalid(f"sort_key: unknown field {shown(name, 64)!r}")
    column = source.fields[name]
    return _Order(
        column,
        source.fields["id"],
        page.sort_dir == "desc",
        getattr(column, "nullable", True) or column.class_ is not source.model,
    )


def _conditions(source: Source, page: Page) -> list[sa.ColumnElement[bool]]:
    conditions = []
    for name, value in page.filters.items():
        if name not in source.fields:
            raise exception.Invalid(f"unknown field {shown(name, 64)!r}")
        conditions.append(equals(name, source.fields[name], value))
    return conditions


def _limited(statement: sa.Select[Any], limit: int | None) -> sa.Select[Any]:
    if limit is None:
        return statement
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise exception.Invalid("limit: not a number of 0 or more")
    return statement if limit > MAX_INTEGER else statement.limit(limit)


def rows(
    bind: orm.Session | sa.Connection,
    statement: sa.Select[Any],
    source: Source,
    page: Page,
    *visible: sa.ColumnElement[bool],
) -> Sequence[sa.Row[Any]]:
    """The page of a list, in one statement.

    `statement` selects every row of the source; `visible` are the
    conditions of what the caller may know of, for the marker too.
    Raises Invalid for an unknown field, a value of the wrong type or an
    unknown marker (which alone costs a second statement, asked when the
    page comes out empty).
    """
    order = _order(source, page)
    wanted = statement.where(*visible, *_conditions(source, page)).order_by(
        *order.clauses()
    )
    wanted = _limited(wanted, page.limit)
    place = None
    if page.marker is not None:
        place = order.place(source).where(
            same(source.uuid, page.marker), *visible
        )
        wanted = wanted.where(order.after(place.subquery("marker")))
    found = bind.execute(wanted).all()
    if place is not None and not found and not bind.execute(place).first():
        raise exception.Invalid("marker: there is no such row")
    return found
