"""HTTP to a platform. Its URL is safe to send a token to: plain http beyond loopback only if the person allows it.
Every error body becomes the error class that left the server; no call is repeated."""

import json
import ssl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import httpx

from osmosis._version import __version__
from osmosis.base import paths
from osmosis.base.jsonable import JsonObject
from osmosis.base.net import is_loopback
from osmosis.errors import AuthRequired, NetworkError, OsmosisError, PlatformError, ValidationError, from_wire

if TYPE_CHECKING:
    from osmosis.client import PlatformClient
    from osmosis.records.api.body import Body, Page
    from osmosis.records.base import Record

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


Warn = Callable[[str, str], None]
Params = Mapping[str, str | int | None]
R = TypeVar("R", bound="Record")
P = TypeVar("P", bound="Page[Body]")
_VERSION_CODES = {"upgrade_available": "UPGRADE_AVAILABLE", "deprecated": "DEPRECATED"}

TIMEOUT_S = 30.0


class Http:
    """`identity` (`owner/repo`) or `workspace` selects the workspace. `warn(code, message)` receives the platform's
    notices about versions. `auth_hint` is what to type when the platform refuses a token that no login replaces.
    `ca_file` replaces the public certificates."""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        identity: str | None = None,
        workspace: str | None = None,
        warn: Warn | None = None,
        auth_hint: str = "",
        ca_file: str = "",
    ) -> None:
        self.url = url
        self.identity = identity
        self.workspace = workspace
        self.auth_hint = auth_hint
        self.ca_file = ca_file
        self._warn = warn
        headers = {"User-Agent": f"osmosis-cli/{__version__}", "X-Osmosis-CLI-Version": __version__}
        headers["Content-Type"] = "application/json"
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._client = httpx.Client(
            base_url=url,
            headers=headers,
            # Plain http has nothing to verify, and reading the public certificates takes longer than a call.
            verify=trust(ca_file) if url.startswith("https:") else False,
            # The platform on this machine is never behind a proxy, and proxies must not see its tokens.
            trust_env=not is_loopback(url),
            follow_redirects=False,
        )

    def call(
        self,
        method: str,
        path: str,
        *,
        json: "Record | Mapping[str, object] | None" = None,
        params: Params | None = None,
        scoped: bool = True,
        timeout: float | None = None,
    ) -> JsonObject:
        """Make one call under `/api/cli/`; return the JSON object, `{}` for an empty body."""
        if json is not None and not isinstance(json, Mapping):
            json = json.to_dict()
        header, scope = ("Workspace", self.workspace) if self.workspace else ("Git", self.identity)
        headers = {f"X-Osmosis-{header}": scope} if scoped and scope else {}
        query = {key: value for key, value in (params or {}).items() if value is not None}
        try:
            response = self._client.request(
                method, f"/api/cli/{path}", json=json, params=query, headers=headers, timeout=timeout or TIMEOUT_S
            )
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        code = _VERSION_CODES.get(response.headers.get("X-Osmosis-Version-Status", ""))
        if code and self._warn:
            message = response.headers.get("X-Osmosis-Version-Message") or f"the platform answered: {code.lower()}"
            self._warn(code, message)
        body = _body(response)
        if response.is_success:
            if body is None:
                raise PlatformError(f"{self.url} answered {method} {path} with something other than a JSON object")
            return body
        raise self._refused(response, body)

    def read(
        self,
        kind: type[R],
        method: str,
        path: str,
        *,
        json: "Record | Mapping[str, object] | None" = None,
        params: Params | None = None,
        scoped: bool = True,
        timeout: float | None = None,
    ) -> R:
        from pydantic import ValidationError

        answer = self.call(method, path, json=json, params=params, scoped=scoped, timeout=timeout)
        try:
            return kind.model_validate(answer)
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in wrong["loc"])
            message = f"{self.url} answered {method} {path} with an unexpected response: {where}: {wrong['msg']}"
            hint = "use the same version on both sides; check with: osmosis doctor"
            raise PlatformError(message, hint=hint) from error

    def pages(
        self, kind: type[P], path: str, *, limit: int = 50, offset: int = 0, params: Params | None = None
    ) -> Iterator[P]:
        at: int | None = offset
        while at is not None:
            page = self.read(kind, "GET", path, params={**(params or {}), "limit": limit, "offset": at})
            yield page
            at = page.next_offset if page.rows else None

    def healthy(self) -> bool:
        try:
            self.health()
            return True
        except OsmosisError:
            return False

    def health(self) -> dict[str, object]:
        try:
            response = self._client.get("/health", timeout=3.0)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if response.status_code != 200:
            raise self._refused(response, _body(response))
        return _body(response) or {}

    def close(self) -> None:
        self._client.close()

    def _unreachable(self, error: httpx.HTTPError) -> NetworkError:
        is_late = isinstance(error, httpx.TimeoutException)
        reason = "did not answer in time" if is_late else f"cannot be reached: {error}"
        hint = "osmosis platform start" if is_loopback(self.url) else "check the address: --platform URL"
        if is_late:
            hint = "it may be busy: wait, then repeat the command; osmosis platform status shows whether it answers"
        elif "CERTIFICATE_VERIFY_FAILED" in str(error):
            hint = f"with a private authority: osmosis login --force --platform {self.url} --ca-file FILE"
        return NetworkError(f"the platform at {self.url} {reason}", hint=hint, platform_url=self.url)

    def _refused(self, response: httpx.Response, body: dict[str, object] | None) -> OsmosisError:
        if body is None:
            text = response.text.strip()[:300]
            body = {"message": f"the platform answered HTTP {response.status_code}" + (f": {text}" if text else "")}
        error = from_wire(response.status_code, body)
        if isinstance(error, AuthRequired) and (self.auth_hint or not error.hint):
            error.hint = self.auth_hint or "osmosis login"
        if error.details.get("platform_code") == "GIT_SCOPE_REQUIRED":
            error.hint = "osmosis workspace switch NAME, or --workspace NAME, or cd into a connected workspace"
        if retry_after := response.headers.get("Retry-After"):
            error.details.setdefault("retry_after", retry_after)
        return error


class Section:
    def __init__(self, http: "PlatformClient") -> None:
        self._http = http
        self._read, self._call, self._pages = http.read, http.call, http.pages


def _body(response: httpx.Response) -> dict[str, object] | None:
    if response.status_code == 204 or not response.content:
        return {}
    try:
        body = response.json()
    except ValueError:
        return None
    return body if isinstance(body, dict) else None
