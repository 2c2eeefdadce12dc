from __future__ import annotations

import base64

import pytest

from osmosis.errors import AuthRequired, Forbidden, NotFound
from osmosis.platform.git.routes import parse_address, parse_credential, parse_service


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("owner", "name", "expected"),
    [("ann", "demo.git", "ann/demo"), ("Ann", "Demo", "ann/demo"), ("a-b", "x.y_z.git", "a-b/x.y_z")],
)
def test_a_name_with_or_without_suffix(owner: str, name: str, expected: str) -> None:
    assert parse_address(owner, name) == expected


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("..", "demo.git"),
        ("ann", ".."),
        ("ann", "..git"),
        ("ann", ".git"),
        ("ann", "a/b"),
        ("ann", "a\\b"),
        ("-x", "demo"),
        ("ann", "de mo"),
        ("ann", "demo\x00"),
        ("ann", "demo\n"),
        ("", "demo"),
        ("ann", "x" * 200),
    ],
)
def test_anything_that_is_no_name_is_not_found(owner: str, name: str) -> None:
    with pytest.raises(NotFound):
        parse_address(owner, name)


@pytest.mark.parametrize("service", [None, "", "git-upload-archive", "upload-pack", "git-upload-pack;ls"])
def test_only_two_services(service: str | None) -> None:
    with pytest.raises(Forbidden):
        parse_service(service)
    assert parse_service("git-receive-pack") == "git-receive-pack"


@pytest.mark.parametrize(
    "header", ["Bearer osm_t", "bearer  osm_t ", basic("osmosis:osm_t"), basic("osm_t:"), basic("osm_t")]
)
def test_a_token_in_every_form_git_tools_send(header: str) -> None:
    assert parse_credential(header) == "osm_t"


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic !!", basic(":"), "Digest x", "Basic 4pyTw="])
def test_no_token_asks_for_a_login(header: str | None) -> None:
    with pytest.raises(AuthRequired):
        parse_credential(header)
