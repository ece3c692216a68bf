# SPDX-License-Identifier: Apache-2.0
"""`pytest -p cyborg.drivers.testing`, with the package installed."""

from __future__ import annotations

from cyborg.drivers.testing.abilities import Cleans
from cyborg.drivers.testing.cards import Card
from cyborg.drivers.testing.conformance import Conformance
from cyborg.drivers.testing.tree import SysfsTree


class TestAcme(Cleans, Conformance):
    driver = "acme_driver"
    wrong_options = (
        ("[acme_driver] grade", {"acme_driver": {"grade": "tin"}}),
    )

    def plug(self, tree: SysfsTree) -> None:
        for address in ("0000:3b:00.0", "0000:5e:00.0"):
            tree.add_function(Card(address, "1234:abcd", "120000"))
