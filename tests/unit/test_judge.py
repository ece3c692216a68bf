# SPDX-License-Identifier: Apache-2.0
"""The judge of the fault tests sees what must not happen."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.integration import judge

TAKE, FREE = (None, True), (None, False)


def _misuse(*changes: tuple[int | None, bool]) -> list[str]:
    """What is wrong with these changes (ARQ, gain) of one handle."""
    return list(
        judge._misuse(
            SimpleNamespace(
                id=number, happened="now", handle_id=1, arq_id=arq, gain=gain
            )
            for number, (arq, gain) in enumerate(changes)
        )
    )


def test_a_handle_that_goes_from_one_to_another_is_well() -> None:
    assert not _misuse(
        TAKE, (7, True), (7, False), FREE, TAKE, (8, True), (8, False), FREE
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ((TAKE, (7, True), (8, True)), "7 has it"),
        ((TAKE, (7, True), FREE), "is free while"),
        (((7, True),), "not taken"),
        ((TAKE, TAKE), "once more"),
        ((TAKE, (7, True), (8, False)), "which has it not"),
    ],
)
def test_a_handle_that_two_have_is_seen(
    changes: tuple[tuple[int | None, bool], ...], said: str
) -> None:
    assert any(said in one for one in _misuse(*changes))
