"""Classify addresses by their spelling; resolves no name and opens no connection."""

import ipaddress
import random
from datetime import datetime, timezone
from urllib.parse import urlsplit


def is_loopback(host_or_url: str | None) -> bool:
    """Return whether a host, or the host of a URL, is spelled as this machine: 127.0.0.0/8, ::1, both inside IPv6
    (::ffff:127.0.0.1), `localhost` and `*.localhost` (RFC 6761); not `0.0.0.0`."""
    host = parse_host(host_or_url or "").lower().rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def is_http(url: str | None) -> bool:
    try:
        parts = urlsplit(url or "")
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def parse_host(text: str) -> str:
    if "://" in text:
        try:
            return urlsplit(text).hostname or ""
        except ValueError:
            return ""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def backoff_delay(failures: int, *, base_s: float, max_s: float, asked_s: float | None = None) -> float:
    """Return the seconds to wait after the `failures`-th failure in a row (from 1): between half and all of `base_s`
    doubled each time, at least `asked_s`, at most `max_s`."""
    ceiling = min(max_s, base_s * 2.0 ** min(failures - 1, 30))
    return max(random.uniform(ceiling / 2, ceiling), min(asked_s or 0.0, max_s))


def parse_retry_after(value: str | None) -> float | None:
    """Return the seconds of a `Retry-After` header (number or HTTP date, RFC 9110 10.2.3); None for anything else."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    from email.utils import parsedate_to_datetime  # brings all of `email`, for a form that hardly anybody sends

    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(timezone.utc)).total_seconds())
    except (TypeError, ValueError):
        return None
