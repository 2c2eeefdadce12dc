"""The login at each platform: `OSMOSIS_TOKEN`, else a stored login; several platforms side by side.

A login's facts live in `credentials.json` (0600, in a 0700 folder), its token there too or in the OS keyring
when that really works. A store that cannot be read is an error and is kept aside before anything new is
written; it is never overwritten silently and never mistaken for "logged out".
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from osmosis.base import paths
from osmosis.base.files import write_json
from osmosis.base.json_types import JsonObject
from osmosis.base.locks import FileLock
from osmosis.errors import (
    CredentialsParseFailed,
    CredentialsUnavailable,
    EnvTokenPlatformMismatch,
    EnvTokenPlatformRequired,
)

from . import keyrings
from .settings import CA_FILE, checked_ca_file, local_url, normalise

VERSION = 2
HOSTED = "https://platform.osmosis.ai"
"""Where logins of version 1 belong: that generation knew one platform."""


@dataclass(frozen=True)
class Login:
    """One login at one platform."""

    url: str
    token: str = field(repr=False)
    user: dict[str, object] = field(default_factory=dict)
    """`id`, `email`, `name`."""
    token_id: str | None = None
    expires_at: str | None = None
    created_at: str | None = None
    source: str = "device"
    """`device` or `bootstrap`: a token this tool had made, revoked on logout; `token`: one that was given to
    us, and `environment`: `OSMOSIS_TOKEN`; those are left alone."""
    store: str = "file"
    """`file`, `keyring` or `environment`."""
    active_workspace: str | None = None
    ca_file: str | None = None
    """Certificates to know this platform by, where its authority is a private one."""

    @property
    def expired(self) -> bool:
        """Is the expiry date over. Unknown or unreadable dates are for the platform to judge."""
        try:
            end = datetime.fromisoformat(str(self.expires_at).replace("Z", "+00:00"))
        except ValueError:
            return False
        end = end if end.tzinfo else end.replace(tzinfo=timezone.utc)
        return end <= datetime.now(timezone.utc)


def environment_login(environ: Mapping[str, str], url: str) -> Login | None:
    """The login by `OSMOSIS_TOKEN`, when it is meant for this platform."""
    token = environ.get("OSMOSIS_TOKEN")
    if not token:
        return None
    meant = environ.get("OSMOSIS_TOKEN_PLATFORM_URL")
    if not meant:
        if url in (paths.DEFAULT_PLATFORM_URL, local_url(environ)):
            return Login(url=url, token=token, source="environment", store="environment")
        raise EnvTokenPlatformRequired(
            f"OSMOSIS_TOKEN is set without OSMOSIS_TOKEN_PLATFORM_URL, so it is not sent to {url}",
            hint=f"export OSMOSIS_TOKEN_PLATFORM_URL={url}",
        )
    if normalise(meant) != url:
        raise EnvTokenPlatformMismatch(
            f"OSMOSIS_TOKEN is for {normalise(meant)}, and the platform addressed is {url}",
            hint=f"unset OSMOSIS_TOKEN, or --platform {normalise(meant)}",
        )
    return Login(url=url, token=token, source="environment", store="environment")


class CredentialStore:
    """The stored logins of one person on one machine."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.path = paths.config_dir(environ) / "credentials.json"

    def find(self, url: str) -> Login | None:
        """`OSMOSIS_TOKEN` when set, else the stored login for this platform."""
        return environment_login(self.environ, url) or self.stored(url)

    def stored(self, url: str) -> Login | None:
        entry = self._read()["platforms"].get(url)
        return None if entry is None else self._login(url, entry)

    def ca_file(self, url: str) -> str:
        """The certificates to know a platform by: `OSMOSIS_CA_FILE`, else what the login there kept; may be empty.

        A store that cannot be read is a matter for whoever needs a login: here it has kept nothing.
        """
        if told := self.environ.get(CA_FILE):
            return checked_ca_file(told, CA_FILE)
        try:
            entry = self._read()["platforms"].get(url) or {}
        except (CredentialsParseFailed, CredentialsUnavailable):
            return ""
        kept = entry.get("ca_file")
        return checked_ca_file(kept, f"the login to {url}") if kept else ""

    def urls(self) -> list[str]:
        """The platforms with a stored login."""
        return sorted(self._read()["platforms"])

    def save(self, login: Login, *, store: str = "auto") -> tuple[Login, Path | None]:
        """Keep a login. `store`: `auto` (keyring where sound, else file), `file`, `keyring`.

        Returns the login with the store used, and where an unreadable old store was put aside, if any.
        """
        chosen = keyrings.choose(self.environ, store)
        saved = replace(login, store=chosen, created_at=login.created_at or _now())
        entry = {key: value for key, value in asdict(saved).items() if value not in (None, "")}
        for key in ("url", "token", "store"):
            entry.pop(key, None)
        entry["token_type"], entry["token_store"] = "Bearer", chosen
        if chosen == "keyring":
            entry["keyring_account"] = keyrings.account(login.url, login.token_id or login.token)
            keyrings.put(entry["keyring_account"], login.token)
        else:
            entry["access_token"] = login.token
        with self._locked():
            aside = self._put_aside_when_unreadable()
            data = self._read()
            old = data["platforms"].get(login.url)
            data["platforms"][login.url] = entry
            self._write(data)
        if old and old.get("keyring_account") not in (None, entry.get("keyring_account")):
            keyrings.drop(old["keyring_account"])
        return saved, aside

    def set_workspace(self, url: str, name: str | None) -> None:
        """Remember the active workspace at a platform; without a stored login the choice is kept by itself."""
        with self._locked():
            data = self._read()
            entry = data["platforms"].get(url)
            if entry is not None:
                entry["active_workspace"] = name
            else:
                data.setdefault("active_workspaces", {})[url] = name
            self._write(data)

    def active_workspace(self, url: str) -> str | None:
        """The workspace chosen with `workspace switch` at this platform."""
        data = self._read()
        entry = data["platforms"].get(url) or {}
        name = entry.get("active_workspace") or (data.get("active_workspaces") or {}).get(url)
        return str(name) if name else None

    def remove(self, url: str) -> Login | None:
        """Forget a login; returns it, so that its token can be revoked."""
        with self._locked():
            data = self._read()
            entry = data["platforms"].pop(url, None)
            if entry is None:
                return None
            try:
                login = self._login(url, entry)
            except CredentialsUnavailable:
                login = Login(url=url, token="", user=entry.get("user") or {}, source=entry.get("source", "device"))
            self._write(data)
        if entry.get("keyring_account"):
            keyrings.drop(entry["keyring_account"])
        return login

    # -- the file --------------------------------------------------------------------------------------------
    def _login(self, url: str, entry: JsonObject) -> Login:
        store = entry.get("token_store", "file")
        token = keyrings.get(entry["keyring_account"]) if store == "keyring" else entry.get("access_token")
        if not token:
            raise CredentialsUnavailable(
                f"the {store} holds no token for {url} any more", hint=f"osmosis login --force --platform {url}"
            )
        return Login(
            url=url,
            token=str(token),
            user=dict(entry.get("user") or {}),
            token_id=entry.get("token_id"),
            expires_at=entry.get("expires_at"),
            created_at=entry.get("created_at"),
            source=entry.get("source", "device"),
            store=store,
            active_workspace=entry.get("active_workspace"),
            ca_file=entry.get("ca_file"),
        )

    def _read(self) -> JsonObject:
        try:
            with self.path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                raw = file.read()
        except FileNotFoundError:
            return {"version": VERSION, "platforms": {}}
        except OSError as error:
            raise CredentialsUnavailable(f"cannot read {self.path}: {error.strerror}") from error
        if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
            raise CredentialsUnavailable(
                f"{self.path} is readable by other users of this machine", hint=f"chmod 600 {self.path}"
            )
        return _parse(raw, self.path)

    def _write(self, data: Mapping[str, object]) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_json(self.path, {**data, "version": VERSION}, indent=2, mode=0o600, durable=True)
        except OSError as error:
            raise CredentialsUnavailable(
                f"cannot write {self.path}: {error.strerror}", hint="choose another folder with OSMOSIS_CONFIG_DIR"
            ) from error

    def _put_aside_when_unreadable(self) -> Path | None:
        try:
            self._read()
        except CredentialsParseFailed:
            aside = self.path.with_name(f"credentials.json.unreadable-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}")
            os.replace(self.path, aside)
            return aside
        return None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            lock = FileLock(self.path.with_name(".credentials.lock"))
            lock.take(timeout_s=None)
        except OSError as error:
            raise CredentialsUnavailable(
                f"cannot write {self.path.parent}: {error.strerror}",
                hint="choose another folder with OSMOSIS_CONFIG_DIR",
            ) from error
        try:
            yield
        finally:
            lock.release()


def _parse(raw: bytes, path: Path) -> dict[str, object]:
    hint = "osmosis login (it sets the file aside and starts a new one)"
    try:
        data = json.loads(raw)
    except ValueError as error:
        raise CredentialsParseFailed(f"{path} is not JSON: {error}", hint=hint) from error
    if isinstance(data, dict) and data.get("version") == 1:
        return _from_version_1(data)
    platforms = data.get("platforms") if isinstance(data, dict) else None
    if not isinstance(platforms, dict) or not all(isinstance(entry, dict) for entry in platforms.values()):
        raise CredentialsParseFailed(f"{path} is not an osmosis credentials file", hint=hint)
    if data.get("version") != VERSION:
        raise CredentialsParseFailed(
            f"{path} has version {data.get('version')!r}; this osmosis reads versions 1 and {VERSION}", hint=hint
        )
    return dict(data)


def _from_version_1(data: Mapping[str, object]) -> dict[str, object]:
    workspaces = data.get("workspaces") or {}
    name = data.get("active_workspace")
    entry = workspaces.get(name) if isinstance(workspaces, dict) else None
    if not isinstance(entry, dict) or "access_token" not in entry:
        return {"version": VERSION, "platforms": {}}
    kept = {key: entry.get(key) for key in ("access_token", "expires_at", "user", "created_at", "token_id")}
    return {
        "version": VERSION,
        "platforms": {HOSTED: {**kept, "token_store": "file", "source": "device", "active_workspace": name}},
    }


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()
