from __future__ import annotations

import pytest

from osmosis.base.net import is_http, is_loopback

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
