# SPDX-License-Identifier: Apache-2.0
"""Every error that a caller of the service can meet.

    CyborgError                 500
    ├── Invalid                 400
    ├── NotAuthenticated        401
    ├── Forbidden               403
    ├── NotFound                404
    ├── NotAcceptable           406
    ├── Conflict                409
    ├── TooLarge                413
    ├── UnsupportedMediaType    415
    ├── NotResolved             423
    ├── DeviceFailed            500   the card refused; says its reason
    ├── Unavailable             503   a service that we need does not answer
    │   └── PlacementUnavailable
    └── Timeout                 504

Each carries the HTTP status in `code` and a `slug` that names its kind to a
program.  The message is for people and reaches the client: no path, SQL,
secret or host of ours belongs in it.  Errors cross RPC as themselves, so
that each must be built from its message alone.
"""

from __future__ import annotations


class CyborgError(Exception):
    """The base: an error that carries its HTTP status."""

    code = 500
    slug = "internal"

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message


class Invalid(CyborgError):
    """What the client sent is wrong; the message names the field."""

    code = 400
    slug = "invalid"


class NotAuthenticated(CyborgError):
    """No token, or one that Keystone does not take."""

    code = 401
    slug = "not-authenticated"


class Forbidden(CyborgError):
    """The caller is known and may not do this."""

    code = 403
    slug = "forbidden"


class NotFound(CyborgError):
    """There is no such thing, or none that the caller may know of."""

    code = 404
    slug = "not-found"


class NotAcceptable(CyborgError):
    """A microversion or media type that is not served."""

    code = 406
    slug = "not-acceptable"


class Conflict(CyborgError):
    """Exists already, in use, in the wrong state, or nothing is free."""

    code = 409
    slug = "conflict"


class TooLarge(CyborgError):
    """A body above the limit."""

    code = 413
    slug = "too-large"


class UnsupportedMediaType(CyborgError):
    """A body that is not JSON by its content type."""

    code = 415
    slug = "unsupported-media-type"


class NotResolved(CyborgError):
    """An ARQ of the instance is still being bound."""

    code = 423
    slug = "not-resolved"


class DeviceFailed(CyborgError):
    """The card or its tool refused; the message is the driver's reason."""

    code = 500
    slug = "device-failed"


class Unavailable(CyborgError):
    """A service that this needs does not answer now; try again later."""

    code = 503
    slug = "unavailable"


class PlacementUnavailable(Unavailable):
    """Placement does not answer, or answers with an error of its own."""

    slug = "placement-unavailable"


class Timeout(CyborgError):
    """The answer did not come in time."""

    code = 504
    slug = "timeout"
