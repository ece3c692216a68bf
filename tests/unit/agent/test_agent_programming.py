# SPDX-License-Identifier: Apache-2.0
"""One job writes a card once, whoever asks and however often."""

from __future__ import annotations

import dataclasses
import queue
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg import inventory
from cyborg.agent import discovery
from cyborg.agent import orders
from cyborg.agent import programming
from cyborg.drivers import base
from cyborg.hardware import pci
from cyborg.rpc import agent as rpc_agent

WAIT = 10
IMAGE = "0b5d3e4e-6d0c-4f0e-8f61-3a4f4b2f3f10"
CARD = inventory.pci_json("0000:0c:00.0")
OTHER = inventory.pci_json("0000:0d:00.0")


@dataclasses.dataclass
class Written:
    name: str
    controlpath: str
    content: bytes
    properties: Mapping[str, str]
    timeout: float
    image: Path


class Cards:
    """A programmable driver; `failure` is raised, `held` makes it wait."""

    def __init__(self, *controlpaths: str) -> None:
        self.name = "cards"
        self.controlpaths = controlpaths or (CARD, OTHER)
        self.written: list[Written] = []
        self.failure: BaseException | None = None
        self.busy: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.held = threading.Event()
        self.held.set()

    def __call__(self, host: base.DriverHost) -> Cards:
        return self

    def discover(self):
        for path in self.controlpaths:
            yield inventory.Device(
                controlpath=path,
                type=inventory.DeviceType.FPGA,
                vendor="abcd",
                model="card",
                driver=self.name,
            )

    def program(
        self, deployable_name, controlpath, image, properties, timeout
    ):
        self.busy.put(controlpath)
        assert self.held.wait(WAIT)
        if self.failure:
            raise self.failure
        self.written.append(
            Written(
                deployable_name,
                controlpath,
                image.read_bytes(),
                properties,
                timeout,
                image,
            )
        )


class CancellableCards(Cards):
    def cancel(self) -> None:
        self.failure = exception.DeviceFailed("cancelled")
        self.held.set()


class Fixed(Cards):
    """Cards that nobody can program."""

    program = None


@dataclasses.dataclass
class Picture:
    path: Path
    properties: Mapping[str, str]


class Store:
    """Images by uuid, and by function."""

    def __init__(self) -> None:
        self.images = {IMAGE: b"bits"}
        self.functions = {"adder": IMAGE}
        self.downloads = 0

    def download(self, image_uuid, directory, max_bytes, max_seconds):
        self.downloads += 1
        assert directory.stat().st_mode & 0o777 == 0o700
        assert max_seconds > 0
        try:
            content = self.images[image_uuid]
        except KeyError:
            raise exception.NotFound("no such image") from None
        if len(content) > max_bytes:
            raise exception.Invalid("too large")
        path = directory / "file"
        path.write_bytes(content)
        return Picture(path, {"board": "a10"})

    def find_by_function(self, function_id):
        try:
            return self.functions[function_id]
        except KeyError:
            raise exception.NotFound("no such function") from None


def an_order(**changes: object) -> rpc_agent.ProgramOrder:
    fields: dict = {
        "job_uuid": str(uuid.uuid4()),
        "driver": "cards",
        "controlpath": CARD,
        "deployable_name": "host_card",
        "image_uuid": IMAGE,
        "function_id": None,
        "timeout": WAIT,
    }
    return rpc_agent.ProgramOrder(**fields | changes)


class Setting:
    def __init__(self, directory: Path, names: tuple[str, ...], cards) -> None:
        self.store = Store()
        self.directory = directory
        self.finished: queue.SimpleQueue[bool] = queue.SimpleQueue()
        drivers = dict(zip(names, cards, strict=True))
        self.discovery = discovery.Discovery(
            names,
            base.DriverHost("host", pci.Sysfs(directory), cfg.ConfigOpts()),
            WAIT,
            drivers.__getitem__,
        )
        self.discovery.look()
        self.connect = lambda: self.store
        self.orders = orders.Orders(lambda: self.finished.put(True))
        self.programmer = programming.Programmer(
            self.discovery,
            self.orders,
            self._connect,
            programming.Workspace(str(directory), "ho/st"),
            max_image_bytes=1000,
            late=0,
        )

    def _connect(self) -> Store:
        return self.connect()

    def program(self, **changes: object) -> rpc_agent.ProgramResult:
        return self.programmer.program(an_order(**changes))

    def in_thread(self, order: rpc_agent.ProgramOrder) -> queue.SimpleQueue:
        """Program in a thread; what comes of it is put into the queue."""
        results: queue.SimpleQueue = queue.SimpleQueue()

        def run() -> None:
            try:
                results.put(self.programmer.program(order))
            except exception.CyborgError as error:
                results.put(error)

        threading.Thread(target=run, daemon=True).start()
        return results

    def left_over(self) -> list[Path]:
        return [path for path in self.directory.rglob("*") if path.is_file()]


@pytest.fixture
def cards():
    return Cards()


@pytest.fixture
def setting(tmp_path, cards):
    return Setting(tmp_path, ("cards",), [cards])


def test_the_image_reaches_the_card_and_goes(setting, cards):
    result = setting.program()
    assert result == rpc_agent.ProgramResult(bitstream_id=IMAGE)
    (written,) = cards.written
    assert written.name == "host_card"
    assert written.content == b"bits"
    assert written.properties == {"board": "a10"}
    assert 0 < written.timeout <= WAIT
    assert not written.image.exists()
    assert setting.left_over() == []
    assert setting.finished.get(timeout=WAIT)


def test_a_function_is_looked_up_and_its_image_named(setting, cards):
    result = setting.program(image_uuid=None, function_id="adder")
    assert result.bitstream_id == IMAGE
    assert cards.written[0].content == b"bits"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"image_uuid": "missing"}, exception.NotFound),
        (
            {"image_uuid": None, "function_id": "missing"},
            exception.NotFound,
        ),
        ({"image_uuid": None}, exception.Invalid),
        ({"driver": "somebody_else"}, exception.Conflict),
        ({"driver": "card"}, exception.Conflict),
        (
            {"controlpath": inventory.pci_json("0000:ff:00.0")},
            exception.Conflict,
        ),
    ],
)
def test_an_order_that_cannot_be_done_is_refused(
    setting, cards, changes, error
):
    with pytest.raises(error):
        setting.program(**changes)
    assert cards.written == []
    assert setting.left_over() == []


def test_an_image_above_the_limit_is_refused(setting, cards):
    setting.store.images["large"] = b"x" * 1001
    with pytest.raises(exception.Invalid, match="too large"):
        setting.program(image_uuid="large")
    assert cards.written == []


@pytest.mark.parametrize(
    ("failure", "error", "words"),
    [
        (exception.DeviceFailed("no power"), exception.DeviceFailed, "power"),
        (exception.Conflict("not this one"), exception.Conflict, "this one"),
        (ValueError("bug"), exception.DeviceFailed, "bug"),
        (KeyError("x"), exception.DeviceFailed, "KeyError"),
        (SystemExit(1), exception.DeviceFailed, "without an answer"),
    ],
)
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)
def test_what_the_driver_raises_reaches_the_caller_in_its_words(
    setting, cards, failure, error, words
):
    cards.failure = failure
    with pytest.raises(error, match=words):
        setting.program()
    assert setting.left_over() == []
    cards.failure = None
    setting.program()


def test_a_second_order_for_a_busy_card_is_refused(setting, cards):
    cards.held.clear()
    first = setting.in_thread(an_order())
    assert cards.busy.get(timeout=WAIT) == CARD
    with pytest.raises(exception.Conflict, match="being programmed"):
        setting.program()
    other = setting.in_thread(an_order(controlpath=OTHER))
    assert cards.busy.get(timeout=WAIT) == OTHER
    cards.held.set()
    assert first.get(timeout=WAIT).bitstream_id == IMAGE
    assert other.get(timeout=WAIT).bitstream_id == IMAGE


def test_the_same_job_asked_again_joins_the_one_that_runs(setting, cards):
    cards.held.clear()
    order = an_order()
    results = [setting.in_thread(order) for _ in range(3)]
    cards.busy.get(timeout=WAIT)
    cards.held.set()
    for result in results:
        assert result.get(timeout=WAIT).bitstream_id == IMAGE
    assert len(cards.written) == 1


def test_the_same_job_asked_later_gets_the_same_result(setting, cards):
    order = an_order()
    first = setting.programmer.program(order)
    setting.store.images.clear()
    assert setting.programmer.program(order) == first
    assert len(cards.written) == 1


def test_the_same_job_asked_later_gets_the_same_failure(setting, cards):
    cards.failure = exception.DeviceFailed("no power")
    order = an_order()
    for _ in range(3):
        with pytest.raises(exception.DeviceFailed, match="no power"):
            setting.programmer.program(order)
    assert setting.store.downloads == 1


def test_that_glance_was_away_is_no_result_to_keep(setting, cards):
    def away(*_arguments: object) -> Picture:
        raise exception.Unavailable("Glance does not answer")

    there, setting.store.download = setting.store.download, away
    order = an_order()
    with pytest.raises(exception.Unavailable):
        setting.programmer.program(order)
    setting.store.download = there
    assert setting.programmer.program(order).bitstream_id == IMAGE


def test_results_are_kept_for_the_last_jobs_only(setting):
    first = an_order()
    setting.programmer.program(first)
    for _ in range(orders.KEPT_RESULTS):
        setting.program()
    assert setting.orders.known(first.job_uuid) is None


def test_a_driver_that_hangs_past_the_limit_times_out_and_keeps_its_card(
    setting, cards
):
    cards.held.clear()
    order = an_order(timeout=0.2)
    with pytest.raises(exception.Timeout):
        setting.programmer.program(order)
    with pytest.raises(exception.Conflict, match="being programmed"):
        setting.program()
    cards.held.set()
    setting.finished.get(timeout=WAIT)
    setting.program()


@pytest.mark.parametrize(
    ("entry_point", "stored"),
    [
        ("fake_driver", "fake"),
        ("fake_driver", "fake_driver"),
        ("nvidia_gpu_driver", "NVIDIA"),
        ("intel_fpga_driver", "intel"),
        ("inspur_fpga_driver", "INSPUR"),
        ("xilinx_fpga_driver", "XILINX"),
        ("xilinx_fpga_driver", "Xilinx_FPGA_Driver"),
        ("huawei_ascend_driver", "huawei"),
    ],
)
def test_a_driver_is_found_by_every_name_that_databases_hold(
    tmp_path, entry_point, stored
):
    cards = Cards()
    Setting(tmp_path, (entry_point,), [cards]).program(driver=stored)
    assert len(cards.written) == 1


def test_of_two_drivers_of_a_vendor_the_one_with_the_card_is_taken(tmp_path):
    fpga, network = Cards(CARD), Cards(OTHER)
    Setting(
        tmp_path, ("intel_nic_driver", "intel_fpga_driver"), [network, fpga]
    ).program(driver="intel")
    assert len(fpga.written) == 1
    assert network.written == []


def test_a_card_of_a_driver_that_cannot_program_is_a_conflict(tmp_path):
    setting = Setting(tmp_path, ("fixed",), [Fixed()])
    with pytest.raises(exception.Conflict, match="cannot program"):
        setting.program(driver="fixed")


def test_the_card_is_named_as_its_driver_spells_it(setting, cards):
    bare = '{"domain": "0", "bus": "c", "device": "0", "function": "0"}'
    setting.program(controlpath=bare)
    assert cards.written[0].controlpath == CARD


def test_without_glance_programming_fails_with_the_option_named(
    setting, cards
):
    def unconfigured():
        raise cfg.Error("[glance] auth_type is not set")

    setting.connect = unconfigured
    with pytest.raises(exception.DeviceFailed, match=r"\[glance\] auth_type"):
        setting.program()
    assert cards.written == []


def test_without_glance_a_simulated_card_takes_an_empty_image(setting, cards):
    def unconfigured():
        raise cfg.Error("[glance] auth_type is not set")

    setting.connect = unconfigured
    cards.simulated = True
    assert setting.program().bitstream_id == IMAGE
    assert cards.written[0].content == b""


def test_a_stop_waits_for_a_card_that_is_nearly_done(setting, cards):
    cards.held.clear()
    result = setting.in_thread(an_order())
    cards.busy.get(timeout=WAIT)
    threading.Timer(0.1, cards.held.set).start()
    setting.orders.stop(WAIT, 0)
    assert result.get(timeout=WAIT).bitstream_id == IMAGE
    with pytest.raises(exception.Unavailable):
        setting.program()


def test_a_stop_does_not_wait_for_ever(setting, cards):
    cards.held.clear()
    result = setting.in_thread(an_order())
    cards.busy.get(timeout=WAIT)
    setting.orders.stop(0.1, 0.1)
    assert isinstance(result.get(timeout=WAIT), exception.Unavailable)
    cards.held.set()


def test_a_stop_lets_a_driver_give_up(tmp_path):
    cards = CancellableCards()
    setting = Setting(tmp_path, ("cards",), [cards])
    cards.held.clear()
    result = setting.in_thread(an_order())
    cards.busy.get(timeout=WAIT)
    setting.orders.stop(0.05, WAIT)
    assert result.get(timeout=WAIT).message == "cancelled"


def test_what_a_killed_agent_left_is_removed_at_the_next_start(tmp_path):
    workspace = programming.Workspace(str(tmp_path), "host")
    with workspace.directory() as directory:
        (directory / "file").write_bytes(b"bits")
        programming.Workspace(str(tmp_path), "host").clear()
        assert not directory.exists()
        directory.mkdir()


def test_another_host_on_the_same_disk_keeps_its_images(tmp_path):
    with programming.Workspace(str(tmp_path), "one").directory() as directory:
        programming.Workspace(str(tmp_path), "two").clear()
        assert directory.exists()


@pytest.mark.parametrize("state_path", [None, "", "/proc/nowhere"])
def test_without_a_writable_state_path_a_temporary_directory_does(state_path):
    workspace = programming.Workspace(state_path, "host")
    workspace.clear()
    with workspace.directory() as directory:
        assert directory.stat().st_mode & 0o777 == 0o700
    assert not directory.exists()


def test_a_directory_of_another_user_is_replaced_by_a_temporary_one(tmp_path):
    # Root may write anywhere but to proc.
    (tmp_path / "images-host").symlink_to("/proc/self/fdinfo")
    workspace = programming.Workspace(str(tmp_path), "host")
    with workspace.directory() as directory:
        assert tmp_path not in directory.parents
        (directory / "file").write_bytes(b"bits")
