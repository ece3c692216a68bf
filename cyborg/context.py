# SPDX-License-Identifier: Apache-2.0
"""Who asks: the identity that a request carries from the API to an agent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from oslo_context import context


class RequestContext(context.RequestContext):
    """oslo.context's, and whether another service vouches for the request.

    `service_request` is true where the request came with a valid service
    token of an accepted role; only then may the request take away what an
    instance uses.
    """

    def __init__(
        self, *args: Any, service_request: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.service_request = service_request

    def to_dict(self) -> dict[str, Any]:
        """What crosses RPC."""
        result: dict[str, Any] = super().to_dict()
        result["service_request"] = self.service_request
        return result

    @classmethod
    def from_dict(
        cls, values: Mapping[str, Any], **kwargs: Any
    ) -> RequestContext:
        """The context that `to_dict` wrote down."""
        kwargs.setdefault(
            "service_request", bool(values.get("service_request", False))
        )
        result: RequestContext = super().from_dict(dict(values), **kwargs)
        return result


def admin_context() -> RequestContext:
    """The context of work that nobody asked for: passes and reports."""
    return RequestContext(is_admin=True, overwrite=False)


def current() -> RequestContext:
    """The context that this thread works for; one of nobody's where it
    works for none."""
    found = context.get_current()
    if isinstance(found, RequestContext):
        return found
    return admin_context()


@contextlib.contextmanager
def acting(for_whom: RequestContext) -> Iterator[None]:
    """Has this thread work for that request meanwhile: the log, other
    services and whoever is notified are told its id."""
    before = context.get_current()
    for_whom.update_store()
    try:
        yield
    finally:
        if before is None:
            del context._request_store.context  # noqa: SLF001
        else:
            before.update_store()
