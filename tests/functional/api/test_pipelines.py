# SPDX-License-Identifier: Apache-2.0
"""Deployers' checks 5 and 6: pipelines that they write, and servers that
they run us under.
"""

from __future__ import annotations

import logging
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import webob
from oslo_config import cfg
from paste import deploy

import cyborg.wsgi
from cyborg import service
from cyborg.api import app
from cyborg.db import engine
from cyborg.db import models
from tests.functional.api import lab as lab_module

SECTIONS = """
[app:api_v2]
paste.app_factory = cyborg.api.app:app_factory
[filter:authtoken]
acl_public_routes = /, /v2
paste.filter_factory = {auth}
[filter:osprofiler]
paste.filter_factory = cyborg.common.profiler:WsgiMiddleware.factory
[filter:request_id]
paste.filter_factory = oslo_middleware:RequestId.factory
[filter:cors]
paste.filter_factory = oslo_middleware.cors:filter_factory
oslo_config_project = cyborg
[filter:http_proxy_to_wsgi]
paste.filter_factory = {proxy}
oslo_config_project = cyborg
""".format(
    auth="cyborg.api.middleware.auth_token:AuthTokenMiddleware.factory",
    proxy="oslo_middleware.http_proxy_to_wsgi:HTTPProxyToWSGI.factory",
)
PIPELINES = {
    "kolla": "cors request_id authtoken api_v2",
    "debian": "cors http_proxy_to_wsgi request_id authtoken api_v2",
    "bare": "authtoken api_v2",
}

DEPLOYERS = Path(__file__).parents[2] / "integration" / "deployers"

CONFIGURATION = """
[DEFAULT]
transport_url = fake://
auth_strategy = {strategy}
[database]
connection = sqlite:///{directory}/cyborg.sqlite
[keystone_authtoken]
auth_type = password
auth_url = http://127.0.0.1:9
{more}
[api]
api_paste_config = {directory}/api-paste.ini
"""


@pytest.fixture(autouse=True)
def fresh_process() -> Iterator[None]:
    """The process has no configuration, before and after."""
    kept = logging.getLogger().handlers[:]
    service._process_configuration = None
    yield
    service._process_configuration = None
    logging.getLogger().handlers[:] = kept


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the process finds its configuration."""
    write(tmp_path)
    monkeypatch.setenv(service.FILES_VARIABLE, str(tmp_path / "cyborg.conf"))
    return tmp_path


def write(directory: Path, strategy: str = "", more: str = "") -> None:
    file = directory / "cyborg.conf"
    file.write_text(
        CONFIGURATION.format(directory=directory, strategy=strategy, more=more)
    )
    conf = cfg.ConfigOpts()
    service.prepare(conf)
    conf([], default_config_files=[str(file)], default_config_dirs=[])
    database = engine.Database(conf)
    models.Base.metadata.create_all(database.engine)
    database.dispose()


def paste(directory: Path, pipeline: str) -> Path:
    file = directory / "api-paste.ini"
    file.write_text(f"[pipeline:main]\npipeline = {pipeline}\n{SECTIONS}")
    return file


def get(application: Any, path: str, **environ: Any) -> webob.Response:
    request = webob.Request.blank(path)
    request.environ.update(environ)
    response = request.get_response(application)
    lab_module.check(webob.Request.blank(path), response)
    return response


def answers_as_it_must(application: Any) -> None:
    """Public paths without a token or a Host; 401 elsewhere."""
    for path in ("/", "/v2", "/v2/", "/healthcheck"):
        request = webob.Request.blank(path)
        del request.environ["HTTP_HOST"]
        request.environ["SERVER_PROTOCOL"] = "HTTP/1.0"
        assert request.get_response(application).status_int == 200, path
    for path in ("/v2/devices", "/devices", "/v2/nothing"):
        answer = get(application, path)
        assert answer.status_int == 401
        assert answer.headers["WWW-Authenticate"].startswith("Keystone uri=")
    assert len(answer.headers.getall("x-openstack-request-id")) == 1


@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=list(PIPELINES))
@pytest.mark.parametrize("parsed_before", [True, False])
def test_a_deployers_pipeline_serves(
    pipeline: str, parsed_before: bool, directory: Path
) -> None:
    if parsed_before:
        service.configuration()
    file = paste(directory, pipeline)
    answers_as_it_must(deploy.loadapp(f"config:{file}"))


@pytest.mark.parametrize("parsed_before", [True, False])
@pytest.mark.parametrize(
    "file", sorted(DEPLOYERS.glob("*-paste.ini")), ids=lambda file: file.stem
)
def test_a_deployers_own_file_serves(
    file: Path, parsed_before: bool, directory: Path
) -> None:
    if parsed_before:
        service.configuration()
    answers_as_it_must(deploy.loadapp(f"config:{file}"))


def test_without_a_paste_file_the_built_in_pipeline_serves(
    directory: Path,
) -> None:
    answers_as_it_must(app.load_app(service.configuration()))


def test_the_paste_file_is_found_through_the_configuration(
    directory: Path,
) -> None:
    paste(directory, "request_id authtoken api_v2")
    application = app.load_app(service.configuration())
    answers_as_it_must(application)
    assert type(application).__module__.startswith("oslo_middleware")


def test_a_keystone_that_is_down_is_a_503(directory: Path) -> None:
    application = app.load_app(service.configuration())
    answer = get(application, "/v2/devices", HTTP_X_AUTH_TOKEN="some-token")
    assert answer.status_int == 503
    assert answer.headers["Retry-After"]


def test_headers_cannot_forge_an_identity(directory: Path) -> None:
    conf = service.configuration()
    forged = {
        "HTTP_X_IDENTITY_STATUS": "Confirmed",
        "HTTP_X_ROLES": "admin",
        "HTTP_X_PROJECT_ID": "x",
    }
    for application in (app.load_app(conf), app.make_app(conf)):
        assert get(application, "/v2/devices", **forged).status_int == 401


def test_without_authentication_everybody_is_administrator(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(directory, strategy="noauth")
    application = app.load_app(service.configuration())
    assert get(application, "/v2/devices").status_int == 200
    assert get(application, "/").status_int == 200
    played = get(application, "/v2/devices", HTTP_X_ROLES="reader")
    assert played.status_int == 403


def test_without_authentication_only_this_machine_is_served(
    directory: Path,
) -> None:
    write(directory, strategy="noauth")
    application = app.load_app(service.configuration())
    for address in ("127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"):
        answer = get(application, "/v2/devices", REMOTE_ADDR=address)
        assert answer.status_int == 200
    for address in ("192.0.2.7", "2001:db8::7", "::ffff:192.0.2.7"):
        answer = get(application, "/v2/devices", REMOTE_ADDR=address)
        assert answer.status_int == 403
        assert "noauth_anywhere" in answer.text
        assert get(application, "/", REMOTE_ADDR=address).status_int == 200


def test_without_authentication_anybody_is_served_where_that_is_meant(
    directory: Path,
) -> None:
    write(directory, strategy="noauth")
    conf = service.configuration()
    conf.set_override("noauth_anywhere", True, "api")
    answer = get(app.load_app(conf), "/v2/devices", REMOTE_ADDR="192.0.2.7")
    assert answer.status_int == 200


def test_an_unset_up_database_is_a_503(directory: Path) -> None:
    write(directory, strategy="noauth")
    (directory / "cyborg.sqlite").unlink()
    application = app.load_app(service.configuration())
    answer = get(application, "/v2/devices")
    assert answer.status_int == 503
    assert str(directory) not in answer.text


@pytest.mark.parametrize(
    ("environ", "base"),
    [
        ({"SCRIPT_NAME": "/accelerator"}, "http://localhost/accelerator"),
        ({"HTTP_HOST": "cloud:8080"}, "http://cloud:8080"),
        ({"HTTP_HOST": "[::1]:6666"}, "http://[::1]:6666"),
        ({"HTTP_X_FORWARDED_PROTO": "https"}, "http://localhost"),
    ],
)
def test_links_begin_where_the_request_came_in(
    environ: dict[str, str], base: str, directory: Path
) -> None:
    application = app.load_app(service.configuration())
    for path in ("/", ""):
        answer = get(application, "/", PATH_INFO=path, **environ)
        version = answer.json["versions"][0]
        assert version["links"][0]["href"] == f"{base}/v2"


@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=list(PIPELINES))
def test_a_trusted_proxys_address_is_in_the_links_once(
    pipeline: str, directory: Path
) -> None:
    write(
        directory,
        more="[oslo_middleware]\nenable_proxy_headers_parsing = true\n",
    )
    application = deploy.loadapp(f"config:{paste(directory, pipeline)}")
    answer = get(
        application,
        "/",
        HTTP_X_FORWARDED_PROTO="https",
        HTTP_X_FORWARDED_HOST="cloud.example",
        HTTP_X_FORWARDED_PREFIX="/accelerator",
    )
    href = answer.json["versions"][0]["links"][0]["href"]
    assert href == "https://cloud.example/accelerator/v2"


@pytest.mark.parametrize(
    "argv",
    [
        ["uwsgi"],
        ["mod_wsgi"],
        ["gunicorn", "-w", "2", "--bind", "[::]:1", "cyborg.wsgi.api"],
        ["uwsgi", "--config-file", "FILE"],
        ["uwsgi", "--config-file=FILE", "--debug-of-somebody-else"],
        ["x", "--config-dir"],
    ],
    ids=lambda argv: " ".join(argv)[:40],
)
def test_the_wsgi_file_runs_under_foreign_arguments(
    argv: list[str], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(directory / "cyborg.conf")
    monkeypatch.setattr(
        sys, "argv", [word.replace("FILE", file) for word in argv]
    )
    script = Path(next(iter(cyborg.wsgi.__path__))) / "api.py"
    answers_as_it_must(runpy.run_path(str(script))["application"])


def test_public_endpoint_begins_every_link(directory: Path) -> None:
    conf = service.configuration()
    conf.set_override("public_endpoint", "https://cloud/x/", "api")
    answer = get(app.load_app(conf), "/v2", SCRIPT_NAME="/other")
    assert answer.json["links"][0]["href"] == "https://cloud/x/v2/"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            "[oslo_middleware]\nmax_request_body_size =",
            r"\[oslo_middleware\] max_request_body_size: must be",
        ),
        (
            "[oslo_middleware]\nmax_request_body_size = 0",
            r"\[oslo_middleware\] max_request_body_size: must be",
        ),
        (
            "[oslo_middleware]\nmax_request_body_size = x",
            r"\[oslo_middleware\] max_request_body_size: ",
        ),
        (
            "[oslo_policy]\nremote_timeout = x",
            r"\[oslo_policy\] remote_timeout",
        ),
        ("[healthcheck]\ndetailed = x", r"\[healthcheck\] detailed: "),
        ("[cors]\nmax_age = x", r"\[cors\] max_age: "),
        ("token_cache_time = x", r"\[keystone_authtoken\] token_cache_time: "),
    ],
)
def test_a_bad_value_of_a_library_stops_at_start(
    more: str, expected: str, directory: Path
) -> None:
    write(directory, more=more)
    with pytest.raises(service.Mistake, match=expected):
        app.load_app(service.configuration())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[pipeline:main\n",
        "[app:main]\npaste.app_factory = nowhere.at_all:factory\n",
        "[pipeline:main]\npipeline = one two\n",
        "[app:main]\nuse = egg:nothing-of-this-name\n",
    ],
)
def test_a_bad_pipeline_is_one_line_at_start(
    text: str, directory: Path
) -> None:
    (directory / "api-paste.ini").write_text(text)
    with pytest.raises(service.Mistake) as caught:
        app.load_app(service.configuration())
    assert str(caught.value).startswith("[api] api_paste_config: ")
    assert "\n" not in str(caught.value)
