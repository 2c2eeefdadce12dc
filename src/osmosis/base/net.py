"""Addresses: is this machine meant, is this a URL of a host. Resolves no name and opens no connection."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_loopback(host_or_url: str | None) -> bool:
    """Whether a host, or the host of a URL, is this machine by its spelling alone: 127.0.0.0/8, ::1, both inside
    IPv6 (::ffff:127.0.0.1), `localhost` and what ends in `.localhost` (RFC 6761). Nothing else is, unreadable text
    included; `0.0.0.0` is not."""
    host = host_of(host_or_url or "").lower().rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def is_http(url: str | None) -> bool:
    """Whether this is an http(s) URL with a host, and a port that there can be."""
    try:
        parts = urlsplit(url or "")
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def host_of(text: str) -> str:
    """The host alone of a URL or of `host:port`, without brackets; empty when there is none that can be read."""
    if "://" in text:
        try:
            return urlsplit(text).hostname or ""
        except ValueError:
            return ""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text
