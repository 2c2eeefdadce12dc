"""GitUrl URLs: every form gives the same identity; no credential survives in anything that can be shown."""

from __future__ import annotations

import random
import string

import pytest

from osmosis.base.git_url import parse_git_url, web_address
from osmosis.errors import ValidationError


@pytest.mark.parametrize(
    ("url", "identity", "display"),
    [
        ("https://github.com/Owner/Repo", "owner/repo", "https://github.com/Owner/Repo"),
        ("https://github.com/owner/repo.git", "owner/repo", "https://github.com/owner/repo.git"),
        ("https://github.com/owner/repo/", "owner/repo", "https://github.com/owner/repo/"),
        ("https://gitlab.example/group/sub/repo.git", "sub/repo", "https://gitlab.example/group/sub/repo.git"),
        ("https://person:s3cret@host.example/o/r.git", "o/r", "https://host.example/o/r.git"),
        ("https://token@host.example:8443/o/r", "o/r", "https://host.example:8443/o/r"),
        ("https://host.example:443/o/r", "o/r", "https://host.example/o/r"),
        ("https://host.example/o/r.git?access_token=abc", "o/r", "https://host.example/o/r.git"),
        ("http://127.0.0.1:7575/git/local/demo.git", "local/demo", "http://127.0.0.1:7575/git/local/demo.git"),
        ("ssh://git@host.example/o/r.git", "o/r", "ssh://git@host.example/o/r.git"),
        ("ssh://git:pw@host.example:2222/o/r.git", "o/r", "ssh://git@host.example:2222/o/r.git"),
        ("ssh://git@[::1]:22/o/r", "o/r", "ssh://git@[::1]/o/r"),
        ("git+ssh://git@host.example/o/r", "o/r", "ssh://git@host.example/o/r"),
        ("git://host.example/o/r.git", "o/r", "git://host.example/o/r.git"),
        ("git@github.com:Owner/Repo.git", "owner/repo", "git@github.com:Owner/Repo.git"),
        ("github.com:owner/repo", "owner/repo", "github.com:owner/repo"),
        ("git:pw@host.example:o/r.git", "o/r", "git@host.example:o/r.git"),
        ("[::1]:o/r.git", "o/r", "[::1]:o/r.git"),
        ("host.example:/srv/git/o/r.git", "o/r", "host.example:/srv/git/o/r.git"),
        ("/srv/git/o/r.git", "o/r", "/srv/git/o/r.git"),
        ("/srv/git/o/r/.git", "o/r", "/srv/git/o/r/.git"),
        ("/repo.git", "local/repo", "/repo.git"),
        ("../o/r.git", "o/r", "../o/r.git"),
        ("file:///srv/git/o/r.git", "o/r", "file:///srv/git/o/r.git"),
        ("file://localhost/srv/o/r", "o/r", "file:///srv/o/r"),
        ("C:\\git\\o\\r.git", "o/r", "C:/git/o/r.git"),
        ("https://host.example/only.git", None, "https://host.example/only.git"),
    ],
)
def test_each_form_of_a_url(url: str, identity: str | None, display: str) -> None:
    remote = parse_git_url(url)
    assert (remote.identity, remote.display) == (identity, display)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "is empty"),
        (" https://h/o/r", "whitespace at its ends"),
        ("https://h/o/r\n", "whitespace at its ends"),
        ("https://h/o\x00/r", "control characters"),
        ("https://h/o%2fr", "an encoded separator"),
        ("https://h/o/r%0a", "an encoded separator"),
        ("ftp://h/o/r", "uses ftp://"),
        ("https:///o/r", "has no host"),
        ("https://h/", "has no repository path"),
        ("https://h:99999/o/r", "host or port"),
        ("https://[::1/o/r", "host or port"),
        ("file://other.example/o/r", "names a host"),
        ("ext::sh -c id", "runs a git helper program"),
        ("://h/o/r", "is neither a URL nor host:path"),
    ],
)
def test_what_is_no_remote(url: str, why: str) -> None:
    with pytest.raises(ValidationError, match=why) as caught:
        parse_git_url(url)
    assert "git remote set-url" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://person:hunter2@h/o/r",
        "https://person:hunter2@h:99999/o/r",
        "https://hunter2@[bad/o/r",
        "https://person:hunter2@h/o%2fr",
        "https://h:99999/o/r?token=hunter2",
    ],
)
def test_a_refusal_never_quotes_the_credential(url: str) -> None:
    with pytest.raises(ValidationError) as caught:
        parse_git_url(url)
    assert "hunter2" not in str(caught.value.to_wire())


def test_random_urls_give_a_remote_or_one_clear_error() -> None:
    draw = random.Random(20261121)
    pieces = ["https://", "ssh://", "git@", "file://", "host", ":", "/", "o", "r.git", "%", "%2f", "@", "[", "]", "::1"]
    pieces += ["..", "~", "\\", "?", "#", " ", "\t", "é", ":22", ":x", "s3cret@", "u:s3cret@", *string.punctuation]
    for _ in range(4000):
        url = "".join(draw.choice(pieces) for _ in range(draw.randint(1, 9)))
        try:
            remote = parse_git_url(url)
        except ValidationError:
            continue  # any other exception fails the test
        if "://" in url and url.startswith(("https://", "ssh://")) and "s3cret@" in url.split("/")[2]:
            assert "s3cret@" not in remote.display.replace("ssh://s3cret@", "")


def test_a_repository_is_read_in_a_browser_on_hosts_that_are_known() -> None:
    for url in (
        "git@github.com:Ada/Agents.git",
        "https://token@github.com/Ada/Agents",
        "ssh://git@github.com/Ada/Agents",
    ):
        assert web_address(url) == "https://github.com/Ada/Agents"
    for url in ("https://git.example.com/ada/agents", "/srv/agents.git", "ext::sh -c x", ""):
        assert web_address(url) == ""
