# SPDX-License-Identifier: Apache-2.0
"""Notices go out in order, and never hold up who tells of them."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import threading
from typing import Any

import oslo_messaging
import pytest
from oslo_config import cfg

from cyborg import context
from cyborg.notification import AcceleratorRequestPayload
from cyborg.notification import DevicePayload
from cyborg.notification import Event
from cyborg.notification import Notice
from cyborg.rpc import notifications

SHAPES = {
    AcceleratorRequestPayload: ("1.0", "2cc23f8fb9d925a0"),
    DevicePayload: ("1.0", "77fb470f45cd148a"),
}
"""A changed shape needs a new version: then, and only then, a new hash."""


def notice(name: str, event: Event = Event.BOUND) -> Notice:
    values: dict[str, Any] = dict.fromkeys(
        field.name for field in dataclasses.fields(AcceleratorRequestPayload)
    )
    return Notice(event, AcceleratorRequestPayload(**{**values, "uuid": name}))


class Recorder:
    """Stands where oslo.messaging's notifier stands; `gate` holds it up."""

    def __init__(self) -> None:
        self.published: list[tuple[str, str, str]] = []
        self.requests: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.failing = False

    def _take(self, priority: str, ctxt: Any, event: str, body: Any) -> None:
        self.entered.set()
        assert self.gate.wait(30)
        if self.failing:
            raise oslo_messaging.MessageDeliveryFailure("secret@broker")
        self.requests.append(ctxt.request_id)
        data = body["cyborg_object.data"]
        self.published.append((priority, event, data["uuid"]))

    def info(self, ctxt: object, event_type: str, payload: object) -> None:
        self._take("info", ctxt, event_type, payload)

    def error(self, ctxt: object, event_type: str, payload: object) -> None:
        self._take("error", ctxt, event_type, payload)


@pytest.mark.parametrize("payload", SHAPES)
def test_a_payload_keeps_its_shape_within_a_version(payload: type) -> None:
    shape = [
        (field.name, str(field.type)) for field in dataclasses.fields(payload)
    ]
    found = hashlib.sha256(repr(shape).encode()).hexdigest()[:16]
    assert (payload.VERSION, found) == SHAPES[payload]  # type: ignore[attr-defined]


def test_all_that_is_told_goes_out_in_order_before_the_end() -> None:
    recorder = Recorder()
    sender = notifications.Sender(recorder)
    sender.start()
    with context.acting(context.RequestContext(request_id="req-1")):
        sender.send([notice("a"), notice("b", Event.BIND_FAILED)])
    with context.acting(context.RequestContext(request_id="req-2")):
        sender.send([notice("c", Event.UNBOUND)])
    sender.stop(30)
    assert recorder.published == [
        ("info", "accelerator_request.bind.end", "a"),
        ("error", "accelerator_request.bind.error", "b"),
        ("info", "accelerator_request.unbind.end", "c"),
    ]
    assert recorder.requests == ["req-1", "req-1", "req-2"]


def test_a_broker_that_is_away_holds_nobody_up_and_costs_what_has_no_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = Recorder()
    recorder.gate.clear()
    sender = notifications.Sender(recorder, room=2)
    sender.start()
    sender.send([notice("held")])
    assert recorder.entered.wait(30)
    sender.send([notice(name) for name in "abcd"])
    said = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert len(said) == 1
    assert "2 wait" in said[0].getMessage()
    recorder.gate.set()
    sender.stop(30)
    assert [uuid for _, _, uuid in recorder.published] == ["held", "a", "b"]
    assert "2 notifications were lost" in caplog.text


def test_a_stop_does_not_wait_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = Recorder()
    recorder.gate.clear()
    sender = notifications.Sender(recorder)
    sender.start()
    sender.send([notice("held"), notice("waiting")])
    assert recorder.entered.wait(30)
    sender.stop(0.05)
    recorder.gate.set()
    assert "2 notifications were not published" in caplog.text


def test_what_is_told_after_the_end_is_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sender = notifications.Sender(Recorder())
    sender.start()
    sender.stop(30)
    sender.send([notice("late")])
    assert "bind.end of late was not published" in caplog.text


def test_a_failure_is_one_line_and_the_next_goes_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = Recorder()
    recorder.failing = True
    sender = notifications.Sender(recorder)
    sender.start()
    recorder.gate.clear()
    sender.send([notice("lost")])
    assert recorder.entered.wait(30)
    recorder.gate.set()
    while not any("was not published" in r.message for r in caplog.records):
        recorder.entered.wait(0.01)
    recorder.failing = False
    sender.send([notice("after")])
    sender.stop(30)
    assert [uuid for _, _, uuid in recorder.published] == ["after"]
    shown = [
        r.getMessage() for r in caplog.records if r.levelno > logging.DEBUG
    ]
    assert shown == [
        "Notification accelerator_request.bind.end of lost was not published:"
        " MessageDeliveryFailure"
    ]


@pytest.mark.parametrize("drivers", [[], ["noop"], [""]])
def test_nobody_is_told_unless_a_driver_is_named(
    conf: cfg.ConfigOpts, drivers: list[str]
) -> None:
    conf.set_override("driver", drivers, "oslo_messaging_notifications")
    assert notifications.sender(conf, "cyborg-conductor") is None


@pytest.mark.parametrize(
    "url",
    [
        "kafka://user:canary@host:9092/",
        "nonsense://user:canary@h",
        "rabbit://user:can/ary@host:5672/",
        "rabbit:/user:canary@host:5672/",
        "%",
    ],
)
def test_a_transport_that_cannot_be_used_is_a_warning_without_its_password(
    conf: cfg.ConfigOpts, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    group = "oslo_messaging_notifications"
    conf.set_override("driver", ["messagingv2"], group)
    conf.set_override("transport_url", url, group)
    assert notifications.sender(conf, "cyborg-conductor") is None
    said = [
        record.getMessage()
        for record in caplog.records
        if record.levelno > logging.DEBUG
    ]
    assert sum("Notifications are off" in line for line in said) == 1
    assert not any("can" in line.split() or "ary" in line for line in said)
