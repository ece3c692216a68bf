# SPDX-License-Identifier: Apache-2.0
"""How the configuration becomes a way to another service."""

from __future__ import annotations

from pathlib import Path

import pytest
from oslo_config import cfg

import cyborg.conf
from cyborg import service
from cyborg.clients import session

PASSWORD = """
auth_type = password
auth_url = http://127.0.0.1:5000/v3
username = cyborg
password = secret
project_name = service
user_domain_name = Default
project_domain_name = Default
"""


def configured(directory: Path, text: str) -> cfg.ConfigOpts:
    path = directory / "cyborg.conf"
    path.write_text(text)
    conf = cfg.ConfigOpts()
    cyborg.conf.register(conf)
    conf(["--config-file", str(path)], project="cyborg")
    return conf


@pytest.mark.parametrize("group", ["placement", "nova", "glance"])
def test_a_group_without_credentials_is_named_with_its_option(
    tmp_path: Path, group: str
) -> None:
    conf = configured(tmp_path, "")

    with pytest.raises(service.Mistake, match=rf"\[{group}\] auth_type"):
        session.adapter(conf, group)


def test_credentials_that_lack_an_option_name_it(tmp_path: Path) -> None:
    conf = configured(tmp_path, "[nova]\nauth_type = password\nusername = u\n")

    with pytest.raises(service.Mistake, match=r"\[nova\] lacks auth_url"):
        session.adapter(conf, "nova")


def test_an_unknown_plugin_is_named(tmp_path: Path) -> None:
    conf = configured(tmp_path, "[nova]\nauth_type = magic\n")

    with pytest.raises(service.Mistake, match=r"\[nova\] auth_type = magic"):
        session.adapter(conf, "nova")


def test_credentials_may_be_in_a_section_of_their_own(tmp_path: Path) -> None:
    conf = configured(
        tmp_path,
        "[placement]\nauth_section = shared\nregion_name = R\n"
        f"[shared]\n{PASSWORD}",
    )

    made = session.adapter(conf, "placement")

    assert made.region_name == "R"
    assert made.session.auth.auth_url == "http://127.0.0.1:5000/v3"


def test_a_mistake_in_a_section_of_their_own_names_that_section(
    tmp_path: Path,
) -> None:
    conf = configured(tmp_path, "[placement]\nauth_section = shared\n")

    with pytest.raises(service.Mistake, match=r"\[shared\] auth_type"):
        session.adapter(conf, "placement")


@pytest.mark.parametrize(
    ("lines", "interfaces"),
    [
        ("", ["internal", "public"]),
        ("valid_interfaces = admin", ["admin"]),
        ("valid_interfaces = internal,public", ["internal", "public"]),
        ("interface = public", ["public"]),
        ("endpoint_type = internal", ["internal"]),
        ("endpoint_type = internalURL", ["internal"]),
        ("valid_interfaces = admin\ninterface = public", ["admin"]),
    ],
)
def test_older_names_of_the_interface_count_where_the_new_one_is_unset(
    tmp_path: Path, lines: str, interfaces: list[str]
) -> None:
    conf = configured(tmp_path, f"[nova]\n{PASSWORD}\n{lines}\n")

    assert session.adapter(conf, "nova").interface == interfaces


def test_an_interface_that_there_is_not_is_named(tmp_path: Path) -> None:
    conf = configured(tmp_path, f"[nova]\n{PASSWORD}\ninterface = outer\n")

    with pytest.raises(service.Mistake, match=r"\[nova\] .*'outer'"):
        session.adapter(conf, "nova")


@pytest.mark.parametrize(
    ("group", "service_type"),
    [("placement", "placement"), ("nova", "compute"), ("glance", "image")],
)
def test_service_type_and_bounded_patience_are_the_default(
    tmp_path: Path, group: str, service_type: str
) -> None:
    conf = configured(tmp_path, f"[{group}]\n{PASSWORD}\n")

    made = session.adapter(conf, group)

    assert made.service_type == service_type
    assert made.session.timeout == session.READ_SECONDS


def test_what_an_operator_configures_is_used(tmp_path: Path) -> None:
    conf = configured(
        tmp_path,
        f"[placement]\n{PASSWORD}\ntimeout = 7\nregion_name = R\n"
        "endpoint_override = http://127.0.0.1:1/placement\n"
        "cafile = /etc/ssl/ca.pem\n",
    )

    made = session.adapter(conf, "placement")

    assert made.session.timeout == 7
    assert made.session.verify == "/etc/ssl/ca.pem"
    assert made.get_endpoint() == "http://127.0.0.1:1/placement"
