# SPDX-License-Identifier: Apache-2.0
"""What the API needs does not answer: it says so, and when to come back."""

from __future__ import annotations

import pytest
import webob
from oslo_config import cfg

from cyborg import service
from cyborg.api import app
from tests.functional.api import lab as lab_module


def test_a_database_that_is_down_is_a_503(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    conf = cfg.ConfigOpts()
    service.prepare(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    conf.set_override("transport_url", "fake://")
    conf.set_override("auth_strategy", "noauth")
    conf.set_override(
        "connection",
        "mysql+pymysql://secret-user:secret@127.0.0.1:9/cyborg",
        "database",
    )
    conf.set_override("max_retries", 0, "database")
    application = app.make_app(conf)
    request = webob.Request.blank("/v2/devices")
    answer = request.get_response(application)
    lab_module.check(request, answer)
    assert answer.status_int == 503
    assert int(answer.headers["Retry-After"]) > 0
    assert "secret" not in answer.text


def test_a_conductor_that_does_not_answer_is_a_504(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with lab_module.running(
        tmp_path_factory.mktemp("lab"), rpc_response_timeout=1
    ) as lab:
        device = lab.call("GET", "/v2/devices").json["devices"][0]["uuid"]
        lab._service.stop()
        answer = lab.call("POST", f"/v2/devices/{device}/disable")
        assert answer.status_int in {503, 504}
        assert int(answer.headers["Retry-After"]) > 0
        assert lab.call("GET", "/v2/devices").status_int == 200
