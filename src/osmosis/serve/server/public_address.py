"""Addresses: checking what a person wrote, and finding out the public address of this machine.

`detect_public_ip` asks cloud metadata and public services; it is called only when a server is to be registered
under an address that others can reach.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from concurrent.futures import TimeoutError as FuturesTimeout
from urllib.error import URLError
from urllib.request import ProxyHandler, Request, build_opener, urlopen

from osmosis.errors import OsmosisError

_CLOUD_TIMEOUT_S = 2.0
_CLOUD_TOTAL_S = 6.0
_PUBLIC_TOTAL_S = 10.0
_LABEL = re.compile(r"^(?!-)[A-Za-z0-9_-]{1,63}(?<!-)$")

_AWS = "http://169.254.169.254/latest"
_GCP = "http://metadata.google.internal/computeMetadata/v1/instance/network-interfaces/0/access-configs/0/external-ip"
_AZURE = (
    "http://169.254.169.254/metadata/instance/network/interface/0/ipv4/ipAddress/0/publicIpAddress"
    "?api-version=2021-02-01&format=text"
)
PUBLIC_SERVICES = (
    "https://checkip.amazonaws.com",
    "https://api.ipify.org",
    "https://icanhazip.com",
    "https://ifconfig.me/ip",
)


class PublicIPDetectionError(OsmosisError):
    """Nobody could tell the public address."""


def validate_ipv4(value: str) -> bool:
    """A dotted IPv4 address."""
    try:
        ipaddress.IPv4Address(value)
    except ValueError:
        return False
    return True


def is_private_ip(value: str) -> bool:
    """An address others cannot reach: private, loopback, link-local. False for anything that is not an address."""
    try:
        return ipaddress.ip_address(value).is_private
    except ValueError:
        return False


def is_valid_hostname_or_ip(value: str) -> bool:
    """A host name (underscores allowed) or IPv4 address, with or without `:port`."""
    host, colon, port = value.rpartition(":")
    if colon:
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            return False
    else:
        host = value
    if not host or len(host) > 253:
        return False
    if re.fullmatch(r"[0-9.]+", host):
        return validate_ipv4(host)
    return all(_LABEL.match(label) for label in host.split("."))


def detect_public_ip() -> str:
    """This machine's public IPv4 address; `PublicIPDetectionError` when it cannot be determined (at most 16 s)."""
    cloud = {"aws": _from_aws, "gcp": _from_gcp, "azure": _from_azure}
    found = first_address(cloud, _CLOUD_TOTAL_S)
    if found is None:
        services = {url: _service(url) for url in PUBLIC_SERVICES}
        found = first_address(services, _PUBLIC_TOTAL_S)
    if found is None:
        raise PublicIPDetectionError(
            "cannot determine the public address of this machine",
            hint="give the address that others can reach: --host <address>",
        )
    return found


def first_address(sources: Mapping[str, Callable[[], str]], timeout_s: float) -> str | None:
    """The first IPv4 address that any source answers with, all asked at once; None when none does in time."""
    pool = ThreadPoolExecutor(max_workers=max(1, len(sources)), thread_name_prefix="osmosis-address")
    try:
        asked: list[Future[str]] = [pool.submit(source) for source in sources.values()]
        for answer in as_completed(asked, timeout=timeout_s):
            try:
                address = answer.result().strip()
            except (OSError, URLError, ValueError):
                continue
            if validate_ipv4(address):
                return address
    except FuturesTimeout:
        pass
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return None


def _fetch(url: str, *, headers: dict[str, str] | None = None, method: str = "GET") -> str:
    # Metadata addresses are this machine's own: a proxy must never see them.
    opener = build_opener(ProxyHandler({}))
    with opener.open(Request(url, headers=headers or {}, method=method), timeout=_CLOUD_TIMEOUT_S) as reply:
        return str(reply.read(4096).decode("ascii", "replace"))


def _from_aws() -> str:
    token = _fetch(f"{_AWS}/api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"})
    return _fetch(f"{_AWS}/meta-data/public-ipv4", headers={"X-aws-ec2-metadata-token": token})


def _from_gcp() -> str:
    return _fetch(_GCP, headers={"Metadata-Flavor": "Google"})


def _from_azure() -> str:
    return _fetch(_AZURE, headers={"Metadata": "true"})


def _service(url: str) -> Callable[[], str]:
    def ask() -> str:
        with urlopen(Request(url, headers={"User-Agent": "osmosis"}), timeout=_PUBLIC_TOTAL_S) as reply:
            return str(reply.read(4096).decode("ascii", "replace"))

    return ask
