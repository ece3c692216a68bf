# SPDX-License-Identifier: Apache-2.0
"""Each kind of corruption is found by its name, and cured."""

from __future__ import annotations

from typing import Any

import pytest

from cyborg.audit import running
from cyborg.audit.findings import Kind
from cyborg.audit.healing import Result
from tests.functional.audit import corruptions
from tests.functional.audit.cloud import Clouds


def found(audit: running.Audit) -> set[tuple[Kind, str]]:
    return {(one.kind, one.uuid) for one in audit.findings}


@pytest.mark.parametrize(
    "spoil", corruptions.HEALED, ids=lambda one: one.__name__
)
def test_a_corruption_is_found_and_healed(clouds: Clouds, spoil: Any) -> None:
    cloud = clouds("sqlite", 2)
    cloud.sites[1].boot()
    assert cloud.audit().findings == ()
    subject = spoil(cloud.sites[0])
    expected = {(corruptions.HEALED[spoil], subject)}
    before = cloud.dump()

    audit = cloud.audit()

    assert expected <= found(audit), audit.findings
    planned = running.planned(audit, running.Choice())
    assert Result.WOULD_HEAL in {one.result for one in planned.outcomes}
    assert cloud.dump() == before

    healed = cloud.heal()

    assert {one.result for one in healed.outcomes} == {Result.HEALED}, healed
    assert healed.unchecked == ()
    assert cloud.audit().findings == ()
    after = cloud.dump()
    assert cloud.heal().outcomes == ()
    assert cloud.dump() == after


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_all_corruptions_at_once_are_healed(clouds: Clouds, kind: str) -> None:
    cloud = clouds(kind, len(corruptions.HEALED))
    expected = set()
    for site, (spoil, wrong) in zip(
        cloud.sites, corruptions.HEALED.items(), strict=True
    ):
        expected.add((wrong, spoil(site)))

    audit = cloud.audit()

    assert expected <= found(audit), expected - found(audit)
    healed = cloud.heal()
    assert {one.result for one in healed.outcomes} == {Result.HEALED}, healed
    assert cloud.audit().findings == ()


@pytest.mark.parametrize("kind", ["sqlite", "mariadb", "postgresql"])
def test_what_only_an_operator_can_cure_is_told_and_left(
    clouds: Clouds, kind: str
) -> None:
    cloud = clouds(kind, len(corruptions.REFUSED))
    expected = {
        (wrong, spoil(site))
        for site, (spoil, wrong) in zip(
            cloud.sites, corruptions.REFUSED.items(), strict=True
        )
    }
    before = cloud.dump()

    healed = cloud.heal(*corruptions.REFUSED.values())

    told = {
        (one.finding.kind, one.finding.uuid): one for one in healed.outcomes
    }
    assert expected <= told.keys(), expected - told.keys()
    assert {one.result for one in told.values()} == {Result.REFUSED}
    assert all(one.finding.refusal for one in told.values())
    assert cloud.dump() == before
