"""Logins: `OSMOSIS_TOKEN`, else a stored login; for each platform one for all its workspaces, others for a single one.
A login is in `credentials.json` (0600, in a 0700 folder), its token there or in the OS keyring. An unreadable store is
put aside before anything is written, never overwritten, never mistaken for "logged out"."""

import contextlib
import hashlib
import json
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeVar

from osmosis.base import paths
from osmosis.base.files import write_json
from osmosis.base.jsonable import JsonObject
from osmosis.client.http import CA_FILE, check_ca_file, local_url, normalize_url
from osmosis.errors import (
    CredentialsParseFailed,
    CredentialsUnavailable,
    EnvTokenPlatformMismatch,
    EnvTokenPlatformRequired,
    KeyringUnavailable,
)

VERSION = 2
HOSTED = "https://platform.osmosis.ai"


@dataclass(frozen=True)
class Login:
    url: str
    token: str = field(repr=False)
    user: dict[str, object] = field(default_factory=dict)  # `id`, `email`, `name`
    token_id: str | None = None
    expires_at: str | None = None
    created_at: str | None = None
    source: str = "device"
    """`device` and `bootstrap` logins are revoked on logout; `token` and `environment` (`OSMOSIS_TOKEN`) stay."""
    store: str = "file"
    active_workspace: str | None = None
    ca_file: str | None = None
    organization: dict[str, object] = field(default_factory=dict)
    """`id`, `name`, `role` and `identity` of the single workspace that it is for; empty: it is for all."""
    workspaces: list[dict[str, object]] = field(default_factory=list)
    """`id`, `name` and `role` of this person's workspaces at login."""

    @property
    def workspace(self) -> str | None:
        return str(self.organization["name"]) if self.organization else None

    @property
    def expired(self) -> bool:
        """Return whether the expiry date is over; False for unknown or unreadable dates, which the platform judges."""
        try:
            end = datetime.fromisoformat(str(self.expires_at).replace("Z", "+00:00"))
        except ValueError:
            return False
        end = end if end.tzinfo else end.replace(tzinfo=timezone.utc)
        return end <= datetime.now(timezone.utc)


def environment_login(environ: Mapping[str, str], url: str) -> Login | None:
    token = environ.get("OSMOSIS_TOKEN")
    if not token:
        return None
    platform = environ.get("OSMOSIS_TOKEN_PLATFORM_URL")
    if not platform and url not in (paths.DEFAULT_PLATFORM_URL, local_url(environ)):
        message = f"OSMOSIS_TOKEN is set without OSMOSIS_TOKEN_PLATFORM_URL, so it is not sent to {url}"
        raise EnvTokenPlatformRequired(message, hint=f"export OSMOSIS_TOKEN_PLATFORM_URL={url}")
    if platform and normalize_url(platform) != url:
        message = f"OSMOSIS_TOKEN is for {normalize_url(platform)}, and the platform addressed is {url}"
        raise EnvTokenPlatformMismatch(message, hint=f"unset OSMOSIS_TOKEN, or --platform {normalize_url(platform)}")
    return Login(url=url, token=token, source="environment", store="environment")


class CredentialStore:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.path = paths.config_dir(environ) / "credentials.json"

    def find(self, url: str, *, workspace: str | None = None, identity: str | None = None) -> Login | None:
        """Return the login of a workspace (name or identity), else the one for all, else the first."""
        if login := environment_login(self.environ, url):
            return login
        platforms = self._read()["platforms"]
        own = [key for key in sorted(platforms) if key.startswith(f"{url}#")]
        for key in own:
            organization = platforms[key].get("organization") or {}
            if workspace == organization.get("name") or (identity and identity == organization.get("identity")):
                return self._login(key, platforms[key])
        key = next((key for key in (url, *own) if key in platforms), None)
        return None if key is None else self._login(key, platforms[key])

    def stored(self, url: str, workspace: str | None = None) -> Login | None:
        key = _key(url, workspace)
        entry = self._read()["platforms"].get(key)
        return None if entry is None else self._login(key, entry)

    def logins(self) -> list[tuple[str, str | None]]:
        """Return the platform of each stored login, and its workspace when it is for one alone."""
        parts = (key.partition("#") for key in sorted(self._read()["platforms"]))
        return [(url, workspace or None) for url, _, workspace in parts]

    def ca_file(self, url: str) -> str:
        """Return the certificates: `OSMOSIS_CA_FILE`, else those of the login; empty without a readable store."""
        if variable := self.environ.get(CA_FILE):
            return check_ca_file(variable, CA_FILE)
        try:
            platforms = self._read()["platforms"]
        except (CredentialsParseFailed, CredentialsUnavailable):
            return ""
        files = (platforms[key].get("ca_file") for key in sorted(platforms) if key.partition("#")[0] == url)
        file = next(filter(None, files), None)
        return check_ca_file(file, f"the login to {url}") if file else ""

    def save(self, login: Login, *, store: str = "auto") -> tuple[Login, Path | None]:
        """Return the login with the store used, and where an unreadable old store was put aside, if any."""
        chosen = choose_store(self.environ, store)
        saved = replace(login, store=chosen, created_at=login.created_at or datetime.now(timezone.utc).isoformat())
        entry = {key: value for key, value in asdict(saved).items() if value not in (None, "", {}, [])}
        for key in ("url", "token", "store"):
            entry.pop(key, None)
        entry["token_type"], entry["token_store"] = "Bearer", chosen
        if chosen == "keyring":
            entry["keyring_account"] = keyring_account(login.url, login.token_id or login.token)
            import keyring
            from keyring.errors import KeyringError

            try:
                keyring.set_password(SERVICE, entry["keyring_account"], login.token)
            except KeyringError as error:
                message = f"the OS keyring returned an error: {error}"
                raise KeyringUnavailable(message, hint="osmosis login --store file") from error
        else:
            entry["access_token"] = login.token
        with self._locked():
            aside = self._put_aside_when_unreadable()
            data = self._read()
            key = _key(login.url, login.workspace)
            old = data["platforms"].get(key)
            data["platforms"][key] = entry
            self._write(data)
        if old and old.get("keyring_account") not in (None, entry.get("keyring_account")):
            delete_from_keyring(old["keyring_account"])
        return saved, aside

    def set_workspace(self, url: str, name: str | None) -> None:
        with self._locked():
            data = self._read()
            entry = data["platforms"].get(url)
            if entry is not None:
                entry["active_workspace"] = name
            else:
                data.setdefault("active_workspaces", {})[url] = name
            self._write(data)

    def active_workspace(self, url: str) -> str | None:
        data = self._read()
        entry = data["platforms"].get(url) or {}
        name = entry.get("active_workspace") or (data.get("active_workspaces") or {}).get(url)
        return str(name) if name else None

    def remove(self, url: str, workspace: str | None = None) -> Login | None:
        key = _key(url, workspace)
        with self._locked():
            data = self._read()
            entry = data["platforms"].pop(key, None)
            if entry is None:
                return None
            try:
                login = self._login(key, entry)
            except CredentialsUnavailable:
                login = Login(url=url, token="", user=entry.get("user") or {}, source=entry.get("source", "device"))
            self._write(data)
        if entry.get("keyring_account"):
            delete_from_keyring(entry["keyring_account"])
        return login

    # -- the file --------------------------------------------------------------------------------------------
    def _login(self, key: str, entry: JsonObject) -> Login:
        url = key.partition("#")[0]
        store = entry.get("token_store", "file")
        token = read_keyring(entry["keyring_account"]) if store == "keyring" else entry.get("access_token")
        if not token:
            message = f"the {store} holds no token for {url} any more"
            raise CredentialsUnavailable(message, hint=f"osmosis login --force --platform {url}")
        names = {field.name for field in fields(Login)} - {"url", "token", "store"}
        values = {name: value for name, value in entry.items() if name in names and value is not None}
        return Login(url, str(token), store=store, **values)

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
            message = f"{self.path} is readable by other users of this machine"
            raise CredentialsUnavailable(message, hint=f"chmod 600 {self.path}")
        return _parse(raw, self.path)

    def _write(self, data: Mapping[str, object]) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_json(self.path, {**data, "version": VERSION}, indent=2, mode=0o600, durable=True)
        except OSError as error:
            message = f"cannot write {self.path}: {error.strerror}"
            raise CredentialsUnavailable(message, hint="choose another folder with OSMOSIS_CONFIG_DIR") from error

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
            from osmosis.base.locks import FileLock  # brings asyncio, which no reading command needs

            lock = FileLock(self.path.with_name(".credentials.lock"))
            lock.take(timeout_s=None)
        except OSError as error:
            message = f"cannot write {self.path.parent}: {error.strerror}"
            raise CredentialsUnavailable(message, hint="choose another folder with OSMOSIS_CONFIG_DIR") from error
        try:
            yield
        finally:
            lock.release()


def _key(url: str, workspace: str | None) -> str:
    return f"{url}#{workspace}" if workspace else url


def _parse(raw: bytes, path: Path) -> dict[str, object]:
    hint = "osmosis login (it sets the file aside and starts a new one)"
    try:
        data = json.loads(raw)
    except ValueError as error:
        raise CredentialsParseFailed(f"{path} is not JSON: {error}", hint=hint) from error
    if isinstance(data, dict) and data.get("version") == 1:
        workspaces = data.get("workspaces") or {}
        name = data.get("active_workspace")
        entry = workspaces.get(name) if isinstance(workspaces, dict) else None
        if not isinstance(entry, dict) or "access_token" not in entry:
            return {"version": VERSION, "platforms": {}}
        login = {key: entry.get(key) for key in ("access_token", "expires_at", "user", "created_at", "token_id")}
        hosted = {**login, "token_store": "file", "source": "device", "active_workspace": name}
        return {"version": VERSION, "platforms": {HOSTED: hosted}}
    platforms = data.get("platforms") if isinstance(data, dict) else None
    if not isinstance(platforms, dict) or not all(isinstance(entry, dict) for entry in platforms.values()):
        raise CredentialsParseFailed(f"{path} is not an osmosis credentials file", hint=hint)
    if data.get("version") != VERSION:
        message = f"{path} has version {data.get('version')!r}; this osmosis reads versions 1 and {VERSION}"
        raise CredentialsParseFailed(message, hint=hint)
    return dict(data)


SERVICE = "osmosis-cli"
PROBE_TIMEOUT_S = 5.0
Result = TypeVar("Result")
_SOUND = ("SecretService", "kwallet", "libsecret", "macOS", "Windows")


def keyring_account(url: str, token_id: str) -> str:
    return f"platform:{_short(url)}:{_short(token_id)}"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def choose_store(environ: Mapping[str, str], wanted: str = "auto") -> str:
    wanted = environ.get("OSMOSIS_CREDENTIAL_STORE", "auto") if wanted == "auto" else wanted
    if wanted == "file":
        return "file"
    if is_keyring_sound(environ):
        return "keyring"
    if wanted == "keyring":
        raise KeyringUnavailable("no working OS keyring on this machine", hint="osmosis login --store file")
    return "file"


def is_keyring_sound(environ: Mapping[str, str]) -> bool:
    if sys.platform not in ("darwin", "win32") and not environ.get("DBUS_SESSION_BUS_ADDRESS"):
        return False
    return _within(_probe, default=False)


def _probe() -> bool:
    import keyring

    backend = keyring.get_keyring()
    names = [type(part).__module__ for part in getattr(backend, "backends", [backend])]
    if not any(name.startswith(f"keyring.backends.{good}") for name in names for good in _SOUND):
        return False
    keyring.set_password(SERVICE, "probe", "probe")
    works = keyring.get_password(SERVICE, "probe") == "probe"
    keyring.delete_password(SERVICE, "probe")
    return works


def _within(work: Callable[[], Result], *, default: Result) -> Result:
    """Run `work`; return the default when it fails or hangs (a locked keyring may wait for a dialog)."""
    box: list[Result] = []

    def run() -> None:
        try:
            box.append(work())
        except Exception:  # noqa: BLE001 - backends raise anything; every failure means: not usable
            return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PROBE_TIMEOUT_S)
    return box[0] if box else default


def read_keyring(name: str) -> str | None:
    import keyring
    from keyring.errors import KeyringError

    try:
        return keyring.get_password(SERVICE, name)
    except KeyringError as error:
        message = f"the OS keyring is not responding: {error}"
        raise KeyringUnavailable(message, hint="unlock it, or log in again") from error


def delete_from_keyring(name: str) -> None:
    def delete() -> None:
        import keyring

        keyring.delete_password(SERVICE, name)

    _within(delete, default=None)
