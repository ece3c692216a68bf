# SPDX-License-Identifier: Apache-2.0
"""The Glance client against a server on loopback."""

from __future__ import annotations

import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from keystoneauth1 import adapter

from cyborg import exception
from cyborg.clients import glance as client
from tests.glance_stand_in import GlanceStandIn

Adapters = Callable[..., adapter.Adapter]

CONTENT = bytes(range(256)) * 200  # 51,200 bytes
LIMIT = 1 << 20


@pytest.fixture
def ours(
    glance_stand_in: GlanceStandIn, adapter_for: Adapters
) -> client.Glance:
    return client.Glance(adapter_for("glance", glance_stand_in.url))


@pytest.mark.parametrize("say_length", [True, False])
def test_an_image_comes_whole_into_a_private_file_with_its_properties(
    glance_stand_in: GlanceStandIn,
    ours: client.Glance,
    tmp_path: Path,
    say_length: bool,
) -> None:
    glance_stand_in.say_length = say_length
    image_uuid = glance_stand_in.add(CONTENT, {"bs-uuid": "b", "vendor": "v"})

    image = ours.download(image_uuid, tmp_path, LIMIT)

    assert image.path.read_bytes() == CONTENT
    assert image.path.parent == tmp_path
    assert stat.S_IMODE(image.path.stat().st_mode) == 0o600
    assert image.properties["bs-uuid"] == "b"
    assert image.properties["vendor"] == "v"
    assert all(isinstance(v, str) for v in image.properties.values())


def test_an_endpoint_that_ends_in_v2_works_too(
    glance_stand_in: GlanceStandIn, adapter_for: Adapters, tmp_path: Path
) -> None:
    image_uuid = glance_stand_in.add(CONTENT)
    ours = client.Glance(adapter_for("glance", glance_stand_in.url + "/v2/"))

    assert ours.download(image_uuid, tmp_path, LIMIT).path.exists()


def _nothing_left(directory: Path) -> bool:
    return list(directory.iterdir()) == []


@pytest.mark.parametrize("say_length", [True, False])
@pytest.mark.parametrize("size", [len(CONTENT), None, 10])
def test_an_image_above_the_limit_is_refused_whatever_it_says_of_itself(
    glance_stand_in: GlanceStandIn,
    ours: client.Glance,
    tmp_path: Path,
    say_length: bool,
    size: int | None,
) -> None:
    glance_stand_in.say_length = say_length
    image_uuid = glance_stand_in.add(CONTENT, {"size": size})

    with pytest.raises(exception.Invalid, match="max_image_bytes"):
        ours.download(image_uuid, tmp_path, len(CONTENT) - 1)

    assert _nothing_left(tmp_path)


def test_an_image_of_exactly_the_limit_is_taken(
    glance_stand_in: GlanceStandIn, ours: client.Glance, tmp_path: Path
) -> None:
    image_uuid = glance_stand_in.add(CONTENT)

    assert ours.download(image_uuid, tmp_path, len(CONTENT)).path.exists()


@pytest.mark.parametrize(
    "properties",
    [
        {"os_hash_value": "00"},
        {"os_hash_value": None, "os_hash_algo": None, "checksum": "00"},
        {"os_hash_algo": "of the future", "checksum": "00"},
        {"os_hash_value": None, "checksum": None},
    ],
)
def test_an_image_that_its_checksum_does_not_prove_is_refused(
    glance_stand_in: GlanceStandIn,
    ours: client.Glance,
    tmp_path: Path,
    properties: dict[str, str | None],
) -> None:
    image_uuid = glance_stand_in.add(CONTENT, properties)

    with pytest.raises(exception.Invalid, match=image_uuid):
        ours.download(image_uuid, tmp_path, LIMIT)

    assert _nothing_left(tmp_path)


def test_an_older_image_is_proven_by_its_md5(
    glance_stand_in: GlanceStandIn, ours: client.Glance, tmp_path: Path
) -> None:
    image_uuid = glance_stand_in.add(
        CONTENT, {"os_hash_algo": None, "os_hash_value": None}
    )

    assert ours.download(image_uuid, tmp_path, LIMIT).path.exists()


def test_an_absent_image_is_not_found(
    ours: client.Glance, tmp_path: Path
) -> None:
    with pytest.raises(exception.NotFound, match="no-such-image"):
        ours.download("no-such-image", tmp_path, LIMIT)

    assert _nothing_left(tmp_path)


def test_an_image_that_is_not_active_is_refused(
    glance_stand_in: GlanceStandIn, ours: client.Glance, tmp_path: Path
) -> None:
    image_uuid = glance_stand_in.add(CONTENT, {"status": "queued"})

    with pytest.raises(exception.Invalid, match="queued"):
        ours.download(image_uuid, tmp_path, LIMIT)


@pytest.mark.parametrize("say_length", [True, False])
def test_a_download_that_breaks_off_is_unavailable_and_leaves_nothing(
    glance_stand_in: GlanceStandIn,
    ours: client.Glance,
    tmp_path: Path,
    say_length: bool,
) -> None:
    glance_stand_in.say_length = say_length
    glance_stand_in.cut_after = 8192
    image_uuid = glance_stand_in.add(CONTENT)

    with pytest.raises(exception.Unavailable, match="broke off"):
        ours.download(image_uuid, tmp_path, LIMIT)

    assert _nothing_left(tmp_path)


def test_a_download_that_stops_coming_is_given_up_in_time(
    glance_stand_in: GlanceStandIn, adapter_for: Adapters, tmp_path: Path
) -> None:
    glance_stand_in.pause_after = 8192
    image_uuid = glance_stand_in.add(CONTENT)
    ours = client.Glance(adapter_for("glance", glance_stand_in.url, 1))

    with pytest.raises(exception.Unavailable):
        ours.download(image_uuid, tmp_path, LIMIT)

    assert _nothing_left(tmp_path)


@pytest.mark.parametrize("say_length", [True, False])
@pytest.mark.parametrize(
    "way", [{"pause_after": 1}, {"pause_between": 0.2, "chunk_bytes": 1}]
)
def test_a_download_holds_nobody_longer_than_it_may(
    glance_stand_in: GlanceStandIn,
    ours: client.Glance,
    tmp_path: Path,
    way: dict[str, float],
    say_length: bool,
) -> None:
    for name, value in way.items():
        setattr(glance_stand_in, name, value)
    glance_stand_in.say_length = say_length
    image_uuid = glance_stand_in.add(CONTENT)
    began = time.monotonic()

    with pytest.raises(exception.Unavailable):
        ours.download(image_uuid, tmp_path, LIMIT, max_seconds=1)

    assert time.monotonic() - began < 3
    assert _nothing_left(tmp_path)


def test_a_download_that_takes_too_long_in_all_is_given_up(
    glance_stand_in: GlanceStandIn, ours: client.Glance, tmp_path: Path
) -> None:
    image_uuid = glance_stand_in.add(CONTENT)

    with pytest.raises(exception.Unavailable, match="too slowly"):
        ours.download(image_uuid, tmp_path, LIMIT, max_seconds=-1)

    assert _nothing_left(tmp_path)


@pytest.mark.parametrize("status", [500, 503, 401])
def test_a_fault_of_glance_is_unavailable(
    glance_stand_in: GlanceStandIn,
    ours: client.Glance,
    tmp_path: Path,
    status: int,
) -> None:
    image_uuid = glance_stand_in.add(CONTENT)
    glance_stand_in.failure = status

    with pytest.raises(exception.Unavailable, match="Glance"):
        ours.download(image_uuid, tmp_path, LIMIT)


def test_a_directory_that_is_not_there_is_said_in_words(
    glance_stand_in: GlanceStandIn, ours: client.Glance, tmp_path: Path
) -> None:
    image_uuid = glance_stand_in.add(CONTENT)

    with pytest.raises(exception.Unavailable, match="cannot be kept"):
        ours.download(image_uuid, tmp_path / "absent", LIMIT)


@pytest.mark.parametrize("name", client.FUNCTION_PROPERTIES)
def test_an_image_is_found_by_the_function_it_gives(
    glance_stand_in: GlanceStandIn, ours: client.Glance, name: str
) -> None:
    glance_stand_in.add(CONTENT, {name: "another"})
    image_uuid = glance_stand_in.add(CONTENT, {name: "f/1 &x"})

    assert ours.find_by_function("f/1 &x") == image_uuid
    with pytest.raises(exception.NotFound):
        ours.find_by_function("absent")
    glance_stand_in.add(CONTENT, {name: "f/1 &x"})
    with pytest.raises(exception.Conflict):
        ours.find_by_function("f/1 &x")
