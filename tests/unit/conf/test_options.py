# SPDX-License-Identifier: Apache-2.0
"""Every option is described, and files of every deployer are taken."""

from __future__ import annotations

import functools
import logging
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from oslo_config import cfg

import cyborg.conf
from cyborg import service
from cyborg.conf import legacy

ROOT = Path(__file__).parents[3]

DEVSTACK_AFTER_AN_UPGRADE = """
    [DEFAULT]
    auth_strategy =
    state_path = {tmp}
    [api]
    ramdisk_heartbeat_timeout = soon
    [conductor]
    automated_clean =
    [keystone]
    region_name = RegionOne
    [service_catalog]
    auth_type = password
    password = secret-word
    [keystone_authtoken]
    auth_uri = http://127.0.0.1/identity
    memcache_servers = 127.0.0.1:11211
    [nova]
    endpoint_type = internal
    [placement]
    interface = public
    [oslo_messaging_rabbit]
    heartbeat_in_pthread = false
    rabbit_quorum_queues = perhaps
    [something_nobody_knows]
    colour = blue
"""

KOLLA = """
    [DEFAULT]
    auth_strategy = keystone
    log_dir = /var/log/kolla/cyborg
    log_file = /var/log/kolla/cyborg/cyborg-api.log
    debug = True
    transport_url = rabbit://u:p@127.0.0.1:5672,u:p@127.0.0.2:5672//
    [api]
    port = 6666
    host_ip = 127.0.0.1
    [database]
    connection = mysql+pymysql://u:p@127.0.0.1/cyborg?ssl_ca=/etc/ca.pem
    connection_recycle_time = 10
    max_pool_size = 1
    [keystone_authtoken]
    service_type = accelerator
    memcache_security_strategy = ENCRYPT
    memcache_secret_key = key
    memcached_servers = 127.0.0.1:11211
    memcache_servers = 127.0.0.1:11211
    www_authenticate_uri = http://127.0.0.1:5000
    project_domain_name = Default
    project_name = service
    user_domain_name = Default
    username = cyborg
    password = p
    auth_url = http://127.0.0.1:5000
    auth_type = password
    cafile =
    region_name = RegionOne
    [placement]
    auth_type = password
    auth_url = http://127.0.0.1:5000
    username = placement
    password = p
    user_domain_name = Default
    project_name = service
    project_domain_name = Default
    region_name = RegionOne
    cafile =
    valid_interfaces = internal
    [nova]
    auth_url = http://127.0.0.1:5000
    auth_type = password
    project_domain_id = default
    user_domain_id = default
    region_name = RegionOne
    project_name = service
    username = nova
    password = p
    endpoint_type = internal
    cafile =
    [oslo_policy]
    policy_file = policy.yaml
    [oslo_messaging_notifications]
    transport_url = rabbit://u:p@127.0.0.1:5672//
    driver = messagingv2
    topics = notifications
    [oslo_messaging_rabbit]
    use_queue_manager = true
    heartbeat_in_pthread = false
    ssl = true
    ssl_ca_file = /etc/ca.pem
    rabbit_quorum_queue = true
    rabbit_stream_fanout = true
    rabbit_qos_prefetch_count = 50
    rabbit_transient_quorum_queue = true
    [oslo_concurrency]
    lock_path = /var/lib/cyborg/tmp
"""

HELM = """
    [DEFAULT]
    use_syslog = false
    state_path = /var/lib/cyborg
    debug = true
    transport_url = rabbit://u:p@127.0.0.1:5672/cyborg
    [api]
    host_ip = 0.0.0.0
    api_workers = 3
    [database]
    connection = mysql+pymysql://u:p@127.0.0.1/cyborg
    [keystone_authtoken]
    auth_type = password
    auth_url = http://127.0.0.1:5000
    auth_uri = http://127.0.0.1:5000
    endpoint_type = internal
    service_type = accelerator
    region_name = RegionOne
    project_name = service
    project_domain_name = service
    user_domain_name = service
    username = cyborg
    password = p
    memcached_servers = 127.0.0.1:11211
    memcache_secret_key = key
    [service_catalog]
    auth_type = password
    auth_url = http://127.0.0.1:5000
    project_name = service
    project_domain_name = service
    user_domain_name = service
    username = cyborg
    password = p
    [placement]
    auth_type = password
    auth_url = http://127.0.0.1:5000
    project_name = service
    project_domain_name = service
    user_domain_name = service
    username = placement
    password = p
    [oslo_messaging_rabbit]
    rabbit_ha_queues = true
    amqp_durable_queues = false
    rabbit_quorum_queues = true
    rabbit_transient_quorum_queue = true
    use_queue_manager = true
    [oslo_concurrency]
    lock_path = /var/lock
    [agent]
    enabled_drivers = nvidia_gpu_driver
    [gpu_devices]
    enabled_vgpu_types =
    [cyborg_sys_admin]
    helper_command = /var/lib/openstack/bin/privsep-helper
"""


def _write(folder: Path, text: str) -> Path:
    path = folder / "cyborg.conf"
    path.write_text(textwrap.dedent(text).replace("{tmp}", str(folder)))
    return path


def test_every_option_says_what_it_is_for() -> None:
    silent = [
        f"[{group}] {option.name}"
        for group, options in cyborg.conf.own()
        for option in options
        if len(option.help or "") < 20
    ]
    assert silent == []


def test_registering_twice_is_harmless(conf: cfg.ConfigOpts) -> None:
    cyborg.conf.register(conf)
    assert conf.api.port == 6666


def test_defaults_are_those_of_the_contract(conf: cfg.ConfigOpts) -> None:
    assert conf.auth_strategy == "keystone"
    assert conf.control_exchange == "cyborg"
    assert conf.periodic_interval == 60
    assert conf.api.host_ip == "127.0.0.1"
    assert conf.agent.enabled_drivers == ["fake_driver"]
    assert conf.database.mysql_engine == "InnoDB"
    assert conf.placement.service_type == "placement"
    assert conf.nova.service_type == "compute"
    assert conf.glance.service_type == "image"


def test_old_options_are_one_line_each_and_stop_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = _write(tmp_path, DEVSTACK_AFTER_AN_UPGRADE)
    conf = cfg.ConfigOpts()
    service.prepare(conf)
    conf(
        args=["--config-file", str(path)],
        project="cyborg",
        default_config_dirs=[],
    )
    service.validate(conf)
    with caplog.at_level(logging.WARNING):
        found = legacy.report(conf)
    assert set(found) == {
        "[api] ramdisk_heartbeat_timeout",
        "[conductor] automated_clean",
        "[keystone] region_name",
        "[service_catalog] auth_type",
        "[service_catalog] password",
        "[keystone_authtoken] auth_uri",
        "[oslo_messaging_rabbit] heartbeat_in_pthread",
        "[oslo_messaging_rabbit] rabbit_quorum_queues",
    }
    lines = [
        record.getMessage()
        for record in caplog.records
        if "auth_uri" in record.getMessage()
    ]
    assert len(lines) == 1
    assert "www_authenticate_uri" in lines[0]
    assert "secret-word" not in caplog.text
    assert conf.placement.interface == "public"
    assert conf.nova.endpoint_type == "internal"


DYNAMIC = """
    [agent]
    enabled_drivers = nvidia_gpu_driver, intel_nic_driver
    [gpu_devices]
    enabled_vgpu_types = nvidia-222
    [vgpu_nvidia-222]
    device_addresses = 0000:84:00.0, 0000:85:00.0
    [nic_devices]
    enabled_nic_types = x710_static
    [x710_static]
    physical_device_mappings = physnet1:eth2|eth3
    function_device_mappings = GTPv1:eth3|eth2
    device_addresses = 0000:05:00.0
"""


@pytest.mark.parametrize(
    "text", [KOLLA, HELM, DYNAMIC], ids=["kolla", "helm", "dynamic"]
)
def test_the_validator_has_nothing_to_say(tmp_path: Path, text: str) -> None:
    path = _write(tmp_path, text)
    generator = ROOT / "tools" / "config" / "cyborg-config-generator.conf"
    script = "from oslo_config import validator; validator.main()"
    result = subprocess.run(
        [sys.executable, "-c", script]
        + ["--config-file", generator, "--input-file", path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "ERROR" not in result.stderr


def test_a_sample_file_can_be_made(tmp_path: Path) -> None:
    generator = ROOT / "tools" / "config" / "cyborg-config-generator.conf"
    sample = tmp_path / "cyborg.conf.sample"
    script = "from oslo_config import generator; generator.main()"
    subprocess.run(
        [sys.executable, "-c", script]
        + ["--config-file", generator, "--output-file", sample],
        capture_output=True,
        check=True,
    )
    text = sample.read_text()
    for word in ("#enabled_drivers", "#www_authenticate_uri", "#connection"):
        assert word in text
    assert "#policy_file = policy.yaml" in text
    assert "[vgpu_nvidia-222]" in text
    assert "[x710_static]" in text


def _parsed(tmp_path: Path, text: str) -> cfg.ConfigOpts:
    conf = cfg.ConfigOpts()
    service.prepare(conf)
    conf(
        args=["--config-file", str(_write(tmp_path, text))],
        project="cyborg",
        default_config_dirs=[],
    )
    return conf


@pytest.mark.parametrize(
    ("group", "line", "reason"),
    [
        ("nvme", "cleanup_timeout = soon", "invalid literal"),
        ("nvme", "cleanup_timeout = 5", "Should be greater than"),
        ("nvme", "cleanup_timeout =", "must not be empty"),
        ("fake", "program_seconds = nan", "must be a finite number"),
        ("fake", "devices =", "must not be empty"),
        ("gpu_devices", "filter_sriov_vfs = x", "Unexpected boolean"),
        ("gpu_devices", "enabled_vgpu_types = $none", "is written `$$`"),
        ("agent", "clean_timeouts = nvme_driver", "NAME:VALUE"),
        ("agent", "spdk_socket = $none", "is written `$$`"),
    ],
)
def test_a_drivers_option_that_cannot_be_used_is_told_in_few_words(
    tmp_path: Path, group: str, line: str, reason: str
) -> None:
    conf = _parsed(tmp_path, f"[{group}]\n{line}\n")
    with pytest.raises(ValueError, match=re.escape(reason)) as caught:
        cyborg.conf.driver_option(conf, group, line.partition(" =")[0])
    assert "LocationInfo" not in str(caught.value)


def test_a_drivers_option_that_can_be_used_is_its_value(
    tmp_path: Path,
) -> None:
    conf = _parsed(tmp_path, "[nvme]\ncleanup_timeout = 60\n")
    read = functools.partial(cyborg.conf.driver_option, conf)
    assert read("nvme", "cleanup_timeout") == 60
    assert read("fake", "inventory_file") is None
    assert read("agent", "clean_on_release") is None
