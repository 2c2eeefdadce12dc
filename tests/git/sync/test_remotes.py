from __future__ import annotations

import pytest

from osmosis.errors import ValidationError
from osmosis.platform.gitsync.repositories import internal_name, parse_repository_url


@pytest.mark.parametrize(
    ("url", "identity", "local"),
    [
        ("https://github.com/Ann/Demo.git", "ann/demo", False),
        ("https://github.com/ann/demo", "ann/demo", False),
        ("https://git.example:8443/group/sub/demo.git", "sub/demo", False),
        ("ssh://git@host:2222/ann/demo.git", "ann/demo", False),
        ("git@github.com:ann/demo.git", "ann/demo", False),
        ("host:ann/demo", "ann/demo", False),
        ("git://host/ann/demo", "ann/demo", False),
        ("file:///srv/git/ann/demo.git", "ann/demo", True),
        ("/srv/git/ann/demo.git/", "ann/demo", True),
        ("/demo.git", "local/demo", True),
    ],
)
def test_every_usual_form(url: str, identity: str, local: bool) -> None:
    remote = parse_repository_url(url)
    assert (remote.identity, remote.local) == (identity, local)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "demo",
        "-u/x/y",
        "--upload-pack=/bin/sh x/y",
        "ext::sh -c x",
        "ext::sh/x/y",
        "ftp://host/a/b",
        "javascript://host/a/b",
        "https:///a/b",
        "https://host/only",
        "https://host/a\n/b",
        "https://host/a b/c",
        "../relative/repo",
        "~/repo/x",
        "https://host/a/..",
    ],
)
def test_what_cannot_be_fetched_from(url: str) -> None:
    with pytest.raises(ValidationError):
        parse_repository_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://ann:hunter2@host/a/b",
        "https://hunter2@host/a/b",
        "https://host/a/b.git?access_token=hunter2",
        "ssh://g:hunter2@h/a/b",
        "git:hunter2@host:a/b",
    ],
)
def test_a_credential_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ValidationError) as caught:
        parse_repository_url(url)
    assert "hunter2" not in str(caught.value.to_wire())


def test_internal_names_are_safe_path_segments() -> None:
    assert internal_name("Ann", "My Work/space") == "ann/my-work-space"
    assert internal_name("..", "..") == "local/local"
