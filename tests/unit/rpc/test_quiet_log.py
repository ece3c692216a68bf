# SPDX-License-Identifier: Apache-2.0
"""What oslo.messaging logs that is no fault of ours."""

from __future__ import annotations

import logging

import oslo_messaging
import pytest

import cyborg.rpc.transport  # noqa: F401 - it sets the filter


@pytest.mark.parametrize(
    ("name", "said", "traced"),
    [
        ("rpc.server", "Can not send reply for message", False),
        ("_drivers.amqpdriver", "ignoring duplicate message %s", False),
        (
            "_drivers.amqpdriver",
            "Failed to process incoming message, retrying..",
            False,
        ),
        ("rpc.server", "Exception during message handling", True),
    ],
)
def test_what_is_seen_to_is_one_line(
    caplog: pytest.LogCaptureFixture, name: str, said: str, traced: bool
) -> None:
    logger = logging.getLogger(f"oslo_messaging.{name}")
    try:
        raise OSError("the broker is away")
    except OSError:
        logger.exception(said)
    (record,) = caplog.records
    assert bool(record.exc_info) is traced


@pytest.mark.parametrize(
    ("error", "traced"),
    [
        (oslo_messaging.MessageDeliveryFailure("no way to host:5672"), False),
        (KeyError("a fault"), True),
    ],
)
def test_that_a_listener_lost_the_broker_is_one_line_with_the_reason(
    caplog: pytest.LogCaptureFixture, error: Exception, traced: bool
) -> None:
    try:
        raise error
    except type(error):
        logging.getLogger("oslo_utils.excutils").exception(
            "Unexpected exception occurred %d time(s)... retrying.", 1
        )
    (record,) = caplog.records
    assert bool(record.exc_info) is traced
    assert traced or "no way to host:5672" in record.getMessage()
