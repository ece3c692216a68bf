# SPDX-License-Identifier: Apache-2.0
"""What oslo.messaging logs that is no fault of ours."""

from __future__ import annotations

import logging

import pytest

import cyborg.rpc.transport  # noqa: F401 - it sets the filter


@pytest.mark.parametrize(
    ("said", "traced"),
    [
        ("Can not send reply for message", False),
        ("Exception during message handling", True),
    ],
)
def test_a_reply_that_cannot_be_sent_is_one_line(
    caplog: pytest.LogCaptureFixture, said: str, traced: bool
) -> None:
    logger = logging.getLogger("oslo_messaging.rpc.server")
    try:
        raise OSError("the broker is away")
    except OSError:
        logger.exception(said)
    (record,) = caplog.records
    assert bool(record.exc_info) is traced
