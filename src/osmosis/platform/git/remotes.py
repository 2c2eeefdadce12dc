"""The remotes that the platform may fetch from, and their credentials. Names are resolved here, every address is
checked, git connects to these alone and follows no redirect. A workspace's secret is in no command line, URL or log."""

import base64
import contextlib
import shlex
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from osmosis.base.files import write_text
from osmosis.base.git import fetching_environ, parse_git_url, sealed_environ
from osmosis.base.net import is_loopback, is_public, parse_host
from osmosis.errors import Forbidden
from osmosis.platform.git.repositories import refuse_url
from osmosis.platform.settings import PlatformSettings

_PORTS = {"https": 443, "http": 80, "ssh": 22, "git": 9418}
_TRUST_FILES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")


@dataclass(frozen=True, slots=True)
class Remote:
    url: str
    trusted: bool = False
    """True when the operator connected it: their git credentials and paths of this machine may be used."""
    credential: str = field(default="", repr=False)
    """A token, `user:token`, or a private key in PEM; empty for none."""


@contextlib.contextmanager
def reaching(remote: Remote, settings: PlatformSettings) -> Iterator[dict[str, str]]:
    url = parse_git_url(remote.url)
    way = url.scheme.replace("git+", "").replace("+git", "")
    if way in ("path", "file"):
        _check_local(remote, settings)
        yield fetching_environ(settings.environ, settings={"protocol.file.allow": "always"})
        return
    host = parse_host(f"x://{url.host}") if url.host else ""
    port = (urlsplit(f"x://{url.host}").port if url.host else None) or _PORTS.get(way, 22)
    addresses = _addresses(host, port, way, remote, settings)
    pairs = {"protocol.file.allow": "never", "http.lowSpeedLimit": "1000", "http.lowSpeedTime": "30"}
    pairs["http.followRedirects"] = "false"
    if addresses and way == "git":
        scheme, _, rest = remote.url.partition("://")
        pairs[f"url.git://{addresses[0]}:{port}/.insteadOf"] = f"{scheme}://{rest.partition('/')[0]}/"
    elif addresses:
        pairs["http.curloptResolve"] = f"{host}:{port}:{','.join(addresses)}"
    if remote.credential:
        is_key = remote.credential.lstrip().startswith("-----BEGIN")
        if way == "ssh" and not is_key:
            raise refuse_url("is an ssh URL, and the secret is not a private key")
        if way == "https" and is_key:
            message = "is an https URL, and the secret is a key, which is for ssh"
            raise refuse_url(message, hint="use git@host:owner/repo.git")
        if way not in ("ssh", "https"):
            raise refuse_url(f"uses {way}, which would send the secret in the open", hint="use https or ssh")
        if way == "https":
            token = remote.credential.strip()
            pair = token if ":" in token else f"x-access-token:{token}"
            pairs["http.extraHeader"] = f"Authorization: Basic {base64.b64encode(pair.encode()).decode()}"
    if remote.trusted and not remote.credential:
        yield fetching_environ(settings.environ, settings=pairs)
        return
    environ = sealed_environ(settings.environ, settings=pairs)
    for name, value in settings.environ.items():
        if name in _TRUST_FILES or name.lower().endswith("_proxy"):
            environ[name] = value
    with tempfile.TemporaryDirectory(prefix="osmosis-key-") as folder:
        if way == "ssh":
            environ["GIT_SSH_COMMAND"] = _ssh(remote, host, addresses, Path(folder), settings)
        yield environ


def _check_local(remote: Remote, settings: PlatformSettings) -> None:
    if not remote.trusted:
        message = "a path on the platform's machine can be connected only by an operator of the platform"
        hint = "push to the repository that the platform hosts, or give an https:// or ssh:// URL"
        raise Forbidden(message, hint=hint, code="OPERATOR_NEEDED")
    if not is_loopback(settings.host):
        message = "is a path on the platform's machine, which is allowed only when the platform listens on loopback"
        raise refuse_url(message)
    path = Path(urlsplit(remote.url).path if "://" in remote.url else remote.url).resolve()
    data = settings.data_dir.resolve()
    if path == data or data in path.parents or path in data.parents:
        raise refuse_url("is inside the platform's own data folder")


def _addresses(host: str, port: int, way: str, remote: Remote, settings: PlatformSettings) -> list[str]:
    """Return the checked addresses to which git may connect; empty where a proxy connects by its own rules."""
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        proxies = {name.lower() for name, value in settings.environ.items() if value}
        if way in ("https", "http") and proxies & {f"{way}_proxy", "all_proxy"}:
            return []
        raise refuse_url(f"names the host {host}, which cannot be resolved") from None
    addresses = list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in entries))
    own = remote.trusted and is_loopback(settings.host)
    if host not in settings.remote_allow and not own and not all(map(is_public, addresses)):
        message = f"names {host}, which is not a public address"
        raise refuse_url(message, hint=f"an operator can allow it: osmosis platform start --remote-allow {host}")
    return [f"[{address}]" if ":" in address else address for address in addresses]


def _ssh(remote: Remote, host: str, addresses: list[str], folder: Path, settings: PlatformSettings) -> str:
    words = ["ssh", "-F", "/dev/null", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new"]
    words += ["-o", f"UserKnownHostsFile={settings.data_dir / 'known_hosts'}", "-o", f"HostKeyAlias={host}"]
    words += ["-o", "IdentityAgent=none", "-o", "IdentitiesOnly=yes", "-o", f"HostName={addresses[0].strip('[]')}"]
    if remote.credential:
        write_text(folder / "key", f"{remote.credential.strip()}\n", mode=0o600)
        words += ["-i", str(folder / "key")]
    return shlex.join(words)
