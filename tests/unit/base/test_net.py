"""Addresses of hosts and of repositories, and how long to wait for a server."""

import random
import string
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import pytest

from osmosis.base.git import find_web_page, parse_git_url
from osmosis.base.net import backoff_delay, is_http, is_loopback, is_public, parse_retry_after
from osmosis.errors import ValidationError

HERE = [
    "localhost", "LOCALHOST", "localhost.", "x.localhost", "a.b.localhost", "127.0.0.1", "127.0.0.2", "127.255.255.254",
    "::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1",
]  # fmt: skip
ELSEWHERE = [
    "0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "127.evil.example", "localhost.evil.example", "xlocalhost", "127.1",
    "example.com", "::ffff:10.0.0.1", "fe80::1", "127.0.0.1@evil.example",
]  # fmt: skip


def spellings(host: str) -> list[str]:
    """The host alone, with a port, and in URLs."""
    inside = f"[{host}]" if ":" in host else host
    return [host, inside, f"{inside}:8000", f"http://{inside}/v1", f"https://user:pw@{inside}:1"]


@pytest.mark.parametrize("text", [each for host in HERE for each in spellings(host)])
def test_every_spelling_of_this_machine(text: str) -> None:
    assert is_loopback(text)


@pytest.mark.parametrize(
    "text", [*(each for host in ELSEWHERE for each in spellings(host)), "", None, "http://[::1", "http://"]
)
def test_everything_else_is_not(text: str | None) -> None:
    assert not is_loopback(text)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "0.0.0.0", "10.0.0.1", "169.254.169.254", "100.100.100.200", "192.0.0.192", "168.63.129.16",
        "198.18.0.1", "224.0.0.1", "255.255.255.255", "::", "::1", "::127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::",
        "::ffff:0:8.8.8.8", "64:ff9b::169.254.169.254", "64:ff9b:1::8.8.8.8", "2001:db8::1", "3fff::1", "5f00::1",
        "fc00::1", "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1",
    ],
)  # fmt: skip
def test_an_address_of_this_machine_its_networks_or_its_cloud_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "2a00:1450:4001::200e", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::"]
)
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("url", ["http://a", "https://a.b:1/x?y", "http://[::1]:80/", "HTTP://a"])
def test_http_urls(url: str) -> None:
    assert is_http(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        None,
        "a",
        "a:80",
        "//a",
        "ftp://a",
        "http:",
        "http://",
        "http://:80",
        "http://a:0",
        "http://a:x",
        "http://[a",
    ],
)
def test_what_is_no_http_url(url: str | None) -> None:
    assert not is_http(url)


@pytest.mark.parametrize(("failures", "ceiling"), [(1, 0.5), (2, 1.0), (3, 2.0), (5, 8.0), (6, 8.0), (5000, 8.0)])
def test_a_delay_doubles_up_to_its_limit_and_is_never_less_than_half(failures: int, ceiling: float) -> None:
    delays = [backoff_delay(failures, base_s=0.5, max_s=8.0) for _ in range(200)]
    assert all(ceiling / 2 <= delay <= ceiling for delay in delays)
    assert len(set(delays)) > 100


def test_the_other_side_may_ask_for_more_up_to_the_limit() -> None:
    assert 0.25 <= backoff_delay(1, base_s=0.5, max_s=8.0, asked_s=0.1) <= 0.5
    assert backoff_delay(1, base_s=0.5, max_s=8.0, asked_s=3.0) == 3.0
    assert backoff_delay(1, base_s=0.5, max_s=8.0, asked_s=600.0) == 8.0


@pytest.mark.parametrize(
    ("header", "seconds"), [("3", 3.0), ("0.5", 0.5), ("-1", 0.0), ("0", 0.0), (None, None), ("", None), ("soon", None)]
)
def test_seconds_of_retry_after(header: str | None, seconds: float | None) -> None:
    assert parse_retry_after(header) == seconds


def test_a_date_of_retry_after() -> None:
    later = datetime.now(timezone.utc) + timedelta(seconds=100)
    assert 90 < (parse_retry_after(format_datetime(later, usegmt=True)) or 0) <= 100
    assert parse_retry_after(format_datetime(later - timedelta(days=1), usegmt=True)) == 0.0


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
        assert find_web_page(url) == "https://github.com/Ada/Agents"
    for url in ("https://git.example.com/ada/agents", "/srv/agents.git", "ext::sh -c x", ""):
        assert find_web_page(url) == ""
