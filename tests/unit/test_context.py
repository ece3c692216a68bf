# SPDX-License-Identifier: Apache-2.0
"""The identity of a request outlives its way over RPC."""

from __future__ import annotations

import pytest

from cyborg import context


@pytest.mark.parametrize("vouched", [True, False])
def test_a_context_survives_being_written_down(vouched: bool) -> None:
    asker = context.RequestContext(
        user_id="u",
        project_id="p",
        roles=["member", "reader"],
        service_request=vouched,
    )
    again = context.RequestContext.from_dict(asker.to_dict())
    assert again.service_request is vouched
    assert again.project_id == "p"
    assert again.roles == ["member", "reader"]
    assert again.request_id == asker.request_id


def test_a_context_of_an_older_release_was_vouched_for_by_nobody() -> None:
    values = context.RequestContext(project_id="p").to_dict()
    del values["service_request"]
    again = context.RequestContext.from_dict(values)
    assert again.service_request is False


def test_work_of_the_service_itself_may_do_everything() -> None:
    asker = context.admin_context()
    assert asker.is_admin
    assert asker.service_request is False
