"""The platform's URL, safe to send a token to: plain http beyond loopback only if the person allows it."""

import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from osmosis.base import paths
from osmosis.base.net import is_loopback
from osmosis.errors import ValidationError

PLATFORM_URL = "OSMOSIS_PLATFORM_URL"
ALLOW_INSECURE = "OSMOSIS_ALLOW_INSECURE_PLATFORM_URL"
CA_FILE = "OSMOSIS_CA_FILE"
_EXAMPLE = paths.DEFAULT_PLATFORM_URL
_DEFAULT_PORTS = {"http": 80, "https": 443}


def platform_url(environ: Mapping[str, str], option: str | None = None) -> str:
    url = normalize_url(option) if option else _from_variable(environ) or local_url(environ)
    if url.startswith("http://") and not is_loopback(url) and environ.get(ALLOW_INSECURE) != "1":
        message = f"{url} is plain http to another machine: the token would be sent unencrypted"
        raise ValidationError(message, hint=f"use https, or set {ALLOW_INSECURE}=1 if you trust that network")
    return url


def _from_variable(environ: Mapping[str, str]) -> str | None:
    value = environ.get(PLATFORM_URL)
    try:
        return normalize_url(value) if value else None
    except ValidationError as error:
        raise ValidationError(f"{PLATFORM_URL}: {error.message}", hint=f"export {PLATFORM_URL}={_EXAMPLE}") from None


def local_url(environ: Mapping[str, str]) -> str:
    folder = paths.data_dir(environ)
    try:
        return normalize_url(str(json.loads((folder / "platform.json").read_text())["url"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    try:
        return f"http://127.0.0.1:{int((folder / 'port').read_text())}"
    except (OSError, ValueError):
        return paths.DEFAULT_PLATFORM_URL


def normalize_url(value: str) -> str:
    """Add the scheme (http on loopback, else https), drop default port and trailing slashes, lower the host."""
    text = value.strip()
    try:
        if "://" not in text:
            text = ("http://" if is_loopback("http://" + text) else "https://") + text
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise _bad(value, str(error)) from error
    if not host or any(c.isspace() or ord(c) < 32 for c in text):
        host = ""
    if parts.scheme not in _DEFAULT_PORTS:
        raise _bad(value, f"{parts.scheme}:// is not http:// or https://")
    if not host:
        raise _bad(value, "it has no host")
    if parts.username or parts.password:
        raise _bad(host, "it must not contain credentials")
    if parts.query or parts.fragment:
        raise _bad(value, "it must not contain a query or fragment")
    display = f"[{host}]" if ":" in host else host
    if port is not None and port != _DEFAULT_PORTS[parts.scheme]:
        display += f":{port}"
    return f"{parts.scheme}://{display}{parts.path.rstrip('/')}"


def check_ca_file(file: str | Path, told_by: str) -> str:
    path = Path(file).expanduser().absolute()
    try:
        trust(str(path))
    except FileNotFoundError:
        raise ValidationError(f"{told_by}: {path} does not exist") from None
    except OSError as error:  # also `ssl.SSLError`
        raise ValidationError(f"{told_by}: {path} holds no certificates in PEM form: {error}") from None
    return str(path)


def trust(ca_file: str) -> ssl.SSLContext | bool:
    return ssl.create_default_context(cafile=ca_file) if ca_file else True


def _bad(value: str, reason: str) -> ValidationError:
    return ValidationError(f"not a platform URL: {value}: {reason}", hint=f"for example --platform {_EXAMPLE}")
