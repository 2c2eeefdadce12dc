"""The OS keyring, used only where it really works: never a plain-text backend, never one that asks for a password.

`keyring` is slow to import, so it is loaded only when a login is in it or is being put there.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from osmosis.errors import KeyringUnavailable

SERVICE = "osmosis-cli"
PROBE_TIMEOUT_S = 5.0
Result = TypeVar("Result")
_SOUND = ("SecretService", "kwallet", "libsecret", "macOS", "Windows")


def account(url: str, token_id: str) -> str:
    """The account name of a token: says nothing about either."""
    return f"platform:{_short(url)}:{_short(token_id)}"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def choose(environ: Mapping[str, str], wanted: str = "auto") -> str:
    """`keyring` or `file`. `auto` takes the keyring where it is sound; a wanted keyring that is not is an error."""
    wanted = environ.get("OSMOSIS_CREDENTIAL_STORE", "auto") if wanted == "auto" else wanted
    if wanted == "file":
        return "file"
    if is_sound(environ):
        return "keyring"
    if wanted == "keyring":
        raise KeyringUnavailable("no working OS keyring on this machine", hint="osmosis login --store file")
    return "file"


def is_sound(environ: Mapping[str, str]) -> bool:
    """Is there a desktop keyring that stores, returns and deletes a value without asking anything."""
    if sys.platform not in ("darwin", "win32") and not environ.get("DBUS_SESSION_BUS_ADDRESS"):
        return False
    return _within(_probe, default=False)


def _probe() -> bool:
    import keyring

    backend = keyring.get_keyring()
    parts = getattr(backend, "backends", [backend])
    names = [type(part).__module__ for part in parts]
    if not any(name.startswith(f"keyring.backends.{good}") for name in names for good in _SOUND):
        return False
    keyring.set_password(SERVICE, "probe", "probe")
    kept = keyring.get_password(SERVICE, "probe") == "probe"
    keyring.delete_password(SERVICE, "probe")
    return kept


def _within(work: Callable[[], Result], *, default: Result) -> Result:
    """The result of `work`, or the default when it fails or hangs (a locked keyring may wait for a dialog)."""
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


def put(name: str, token: str) -> None:
    """Store a token."""
    import keyring
    from keyring.errors import KeyringError

    try:
        keyring.set_password(SERVICE, name, token)
    except KeyringError as error:
        raise KeyringUnavailable(
            f"the OS keyring returned an error: {error}", hint="osmosis login --store file"
        ) from error


def get(name: str) -> str | None:
    """A stored token, None when it is gone."""
    import keyring
    from keyring.errors import KeyringError

    try:
        return keyring.get_password(SERVICE, name)
    except KeyringError as error:
        raise KeyringUnavailable(
            f"the OS keyring is not responding: {error}", hint="unlock it, or log in again"
        ) from error


def drop(name: str) -> None:
    """Delete a stored token; one that is gone already is fine."""

    def delete() -> None:
        import keyring

        keyring.delete_password(SERVICE, name)

    _within(delete, default=None)
