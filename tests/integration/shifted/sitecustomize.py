# SPDX-License-Identifier: Apache-2.0
"""A process whose clock a test can step: on its PYTHONPATH, this runs first.

`CYBORG_TEST_CLOCK` names a file of eight bytes, the seconds (a double) by
which the process's clock is ahead.  Monotonic time is as it was, as it is
where an operator or NTP steps a machine's clock.
"""

import datetime
import mmap
import os
import pathlib
import struct
import time

_real_time = time.time
_real_datetime = datetime.datetime

with pathlib.Path(os.environ["CYBORG_TEST_CLOCK"]).open("rb") as _file:
    _shared = mmap.mmap(_file.fileno(), 8, prot=mmap.PROT_READ)


def _ahead():
    return struct.unpack("d", _shared[:8])[0]


def _time():
    return _real_time() + _ahead()


def _time_ns():
    return int(_time() * 1e9)


class _Meta(type):
    def __instancecheck__(cls, value):
        return isinstance(value, _real_datetime)

    def __subclasscheck__(cls, other):
        return issubclass(other, _real_datetime)


class _DateTime(_real_datetime, metaclass=_Meta):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(_time(), tz)

    @classmethod
    def utcnow(cls):
        return cls.now(datetime.timezone.utc).replace(tzinfo=None)

    @classmethod
    def today(cls):
        return cls.now()


_DateTime.__name__ = _DateTime.__qualname__ = "datetime"
time.time = _time
time.time_ns = _time_ns
datetime.datetime = _DateTime
