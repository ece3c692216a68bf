# SPDX-License-Identifier: Apache-2.0
"""The checks of a driver on fake hardware, which they break, pull out and
plug in."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from cyborg.drivers import base
from cyborg.drivers.testing import abilities
from cyborg.drivers.testing import breaking
from cyborg.drivers.testing.host import Options
from cyborg.drivers.testing.kernel import Kernel
from cyborg.drivers.testing.parts import Devices
from cyborg.drivers.testing.parts import card_of
from cyborg.drivers.testing.parts import cards_of
from cyborg.drivers.testing.parts import functions_of
from cyborg.drivers.testing.parts import victims_of
from cyborg.drivers.testing.parts import without
from cyborg.drivers.testing.reports import Reports
from cyborg.drivers.testing.reports import assert_same
from cyborg.drivers.testing.reports import seen
from cyborg.drivers.testing.reports import warnings
from cyborg.drivers.testing.tools import RecordedTools
from cyborg.drivers.testing.tree import SysfsTree
from cyborg.hardware.pci import Sysfs

LOOK_SECONDS = 20
"""A look at two cards that takes longer hangs."""

TREE = pytest.StashKey[SysfsTree]()
"""Where a class keeps the host that none of its checks changes."""

WrongOption = tuple[str, Options]
"""What the error has to name (`[group] option`), and the options."""


class Conformance(Reports):
    """Subclass it as `Test…` with those of `abilities` that the driver has,
    say `driver`, and plug cards in.

    `plug` has to plug in at least two cards of the driver, so that one can
    break while the other works.  `wrong_options` holds each option of the
    driver in each way that it can be wrong.  `tree_class` is the kind of
    tree that `plug` gets.
    """

    tree_class: ClassVar[type[SysfsTree]] = SysfsTree
    wrong_options: ClassVar[Sequence[WrongOption]] = ()

    def plug(self, tree: SysfsTree) -> None:
        """Put the driver's cards into a host that has none."""
        raise NotImplementedError

    def unplug(self, tree: SysfsTree, addresses: Sequence[str]) -> None:
        """Pull these functions, which are one card, out of the host."""
        for address in addresses:
            tree.unplug(address)

    def tools(self) -> RecordedTools:
        """The tools of a host on which none is installed; where discovery
        needs one, this says what it answers."""
        return RecordedTools()

    @pytest.fixture
    def tree(
        self,
        request: pytest.FixtureRequest,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> SysfsTree:
        """A host that all checks look at, and leave as it is.

        Kept by the class: pytest 10 has no fixtures of a class that are
        methods of its instances.
        """
        keeper = request.node.getparent(pytest.Class)
        assert keeper is not None
        if TREE not in keeper.stash:
            keeper.stash[TREE] = self._planted(
                tmp_path_factory.mktemp("hardware")
            )
        found: SysfsTree = keeper.stash[TREE]
        return found

    @pytest.fixture
    def own_tree(self, tmp_path: Path) -> SysfsTree:
        """A host for a check that changes it."""
        return self._planted(tmp_path)

    @pytest.fixture
    def root(self, tree: SysfsTree) -> Path:
        return tree.root

    def _planted(self, directory: Path) -> SysfsTree:
        tree = self.tree_class(directory / "sys")
        self.plug(tree)
        return tree

    # Discovery -----------------------------------------------------------

    def test_every_card_that_is_plugged_in_is_found(
        self, tree: SysfsTree
    ) -> None:
        devices = self.look(self.host(tree.root))

        assert len(cards_of(tree, devices)) > 1, (
            "plug in at least two cards of the driver"
        )

    def test_discovery_writes_nothing_and_runs_what_it_declares(
        self, tree: SysfsTree
    ) -> None:
        kernel, tools = Kernel(tree), self.tools()

        self.look(self.host(tree.root, writer=kernel, tools=tools))

        assert kernel.writes == []
        names = {Path(command[0]).name for command in tools.commands}
        assert names <= self.discover_tools

    def test_discovery_works_without_any_tool(self, tree: SysfsTree) -> None:
        host = self.host(tree.root, tools=RecordedTools())

        assert len(cards_of(tree, self.look(host))) > 1

    def test_the_order_of_directories_does_not_count(
        self, tree: SysfsTree
    ) -> None:
        host = self.host(tree.root)
        with breaking.listed(backwards=False):
            before = self.look(host)
        with breaking.listed(backwards=True):
            after = self.look(_anew(host))

        assert_same(after, before)

    def test_a_host_without_its_cards_has_nothing_to_report(
        self, tmp_path: Path
    ) -> None:
        tree = self.tree_class(tmp_path / "sys")
        tree.add_port(tree.root / "devices" / "pci0000:00" / "0000:00:01.0")

        found = self.look(self.host(tree.root))

        assert found == ()

    # Bad hardware --------------------------------------------------------

    @pytest.mark.parametrize("way", breaking.WAYS)
    def test_one_bad_path_costs_at_most_its_card_and_one_warning(
        self, tree: SysfsTree, way: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        host = self.host(tree.root)
        before = self.look(host)
        victims = victims_of(tree, before)
        assert victims, "no card of this driver's is in sysfs"
        read = breaking.opened(lambda: self.look(_anew(host)))
        for address in victims:
            functions = functions_of(tree, card_of(tree, address))
            for path in breaking.places(tree.path(address)):
                if (
                    path.is_file()
                    and path not in read
                    and way not in breaking.OF_WHAT_NOBODY_READS
                ):
                    continue
                caplog.clear()
                with breaking.broken(path, way, tree.root.parent):
                    after = _in_time(lambda: self.look(_anew(host)), path)
                _check_loss(
                    without(before, functions),
                    without(after, functions),
                    warnings(caplog),
                    f"{path} is {way}",
                )
                if len(after) < len(before) and path in read:
                    assert address in "".join(warnings(caplog)), (
                        f"{path} is {way}: a device is gone without a warning"
                    )

    def test_a_card_that_goes_while_it_is_looked_at_is_no_fault(
        self, own_tree: SysfsTree
    ) -> None:
        before = self.look(self.host(own_tree.root))
        victims = victims_of(own_tree, before)
        assert victims, "no card of this driver's is in sysfs"
        gone = functions_of(own_tree, card_of(own_tree, victims[0]))
        others = without(before, gone)
        host = self.host(own_tree.root)
        driver = self.kind()(host)
        with host.sysfs.shared():
            host.sysfs.functions()
            self.unplug(own_tree, gone)
            stale = tuple(driver.discover())
        assert without(stale, gone) == others
        assert seen(driver, host) == others

    # Abilities -----------------------------------------------------------

    def test_each_ability_of_the_driver_is_checked(
        self, tree: SysfsTree
    ) -> None:
        host = self.host(tree.root, options=abilities.cleaning(self.options))
        driver = self.kind()(host)
        has = abilities.of_driver(driver, seen(driver, host))
        checked = {kind for kind in abilities.KINDS if isinstance(self, kind)}

        assert checked == has, (
            "the test has to inherit of cyborg.drivers.testing.abilities:"
            f" {sorted(kind.__name__ for kind in has)}"
        )

    # Options -------------------------------------------------------------

    def test_a_wrong_option_is_an_error_that_names_it(
        self, tree: SysfsTree
    ) -> None:
        for option, options in self.wrong_options:
            host = self.host(tree.root, options={**self.options, **options})
            with pytest.raises(base.OptionError) as caught:
                self.kind()(host)
            assert option in str(caught.value)


def _anew(host: base.DriverHost) -> base.DriverHost:
    """The host as an agent sees it that has just been started."""
    return dataclasses.replace(host, sysfs=Sysfs(host.sysfs.root))


def _in_time(look: Callable[[], Devices], path: Path) -> Devices:
    """What `look` answers; it fails where it waits for ever.

    A pipe at `path` is opened at last, so that who reads it is let go.
    """
    answers: list[Devices] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(look())
        except BaseException as error:  # noqa: BLE001 - it is raised below
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LOOK_SECONDS)
    if thread.is_alive():
        if path.is_fifo():
            os.close(os.open(path, os.O_RDWR))
        pytest.fail(f"discovery waits for {path}")
    if errors:
        raise errors[0]
    return answers[0]


def _check_loss(
    others: Devices, left: Devices, said: list[str], where: str
) -> None:
    """Something bad may cost its own card, and one warning."""
    assert left == others, where
    assert len(said) <= 1, f"{where}: {said}"
