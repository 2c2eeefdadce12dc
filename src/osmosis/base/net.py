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


Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_OF_A_CLOUD = ("192.0.0.0/24", "168.63.129.16/32")
"""Metadata services that `is_global` takes for hosts of the internet: Oracle's, and Azure's wire server."""
_CLOSED = [ipaddress.ip_network(network) for network in (*_OF_A_CLOUD, "3fff::/20")]
_PUBLIC = ipaddress.IPv6Network("2000::/3")
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")


def is_public(address: Address | str) -> bool:
    """Return whether an address is one of the internet: not of this machine, its networks or its cloud, also not inside
    an IPv6 address (mapped; 6to4, RFC 3056; NAT64, RFC 6052)."""
    parsed = embedded_address(ipaddress.ip_address(address))
    if any(parsed in network for network in _CLOSED if network.version == parsed.version):
        return False
    return parsed.is_global and not parsed.is_multicast and (parsed.version == 4 or parsed in _PUBLIC)


def embedded_address(address: Address) -> Address:
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _TRANSLATED:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


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
