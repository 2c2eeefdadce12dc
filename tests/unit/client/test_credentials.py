"""The store of logins: private, several platforms, never overwritten silently."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import keyring
import pytest
from keyring.backend import KeyringBackend

from osmosis.client.credentials import HOSTED, CredentialStore, Login, choose_store
from osmosis.errors import (
    CredentialsParseFailed,
    CredentialsUnavailable,
    EnvTokenPlatformMismatch,
    EnvTokenPlatformRequired,
    KeyringUnavailable,
    ValidationError,
)
from support.private_tls import PrivateAuthority

HERE, THERE = "http://127.0.0.1:7575", "https://b.example"
LOGIN = Login(HERE, "t-1", user={"id": "1", "email": "a@b"}, token_id="id-1", expires_at="2999-01-01T00:00:00Z")
UNREADABLE = [
    "{half",
    "[]",
    '{"version": 2}',
    '{"version": 9, "platforms": {}}',
    '{"version": 2, "platforms": {"x": 1}}',
]


@pytest.fixture
def store(tmp_path: Path) -> CredentialStore:
    return CredentialStore({"OSMOSIS_CONFIG_DIR": str(tmp_path / "c"), "OSMOSIS_DATA_DIR": str(tmp_path / "d")})


def test_a_login_comes_back_as_it_was_kept(store: CredentialStore) -> None:
    saved, aside = store.save(LOGIN)
    assert (saved.store, aside) == ("file", None)
    assert store.find(HERE) == saved
    assert saved.token not in repr(saved)


def test_a_workspace_may_have_a_login_of_its_own(store: CredentialStore) -> None:
    demo = {"id": "w1", "name": "demo", "role": "owner", "identity": "team/demo"}
    own, _ = store.save(replace(LOGIN, token="t-demo", token_id="id-demo", organization=demo))
    assert store.find(HERE) == own  # the only one there is
    everywhere, _ = store.save(replace(LOGIN, workspaces=[{"id": "w1", "name": "demo", "role": "owner"}]))
    assert store.logins() == [(HERE, None), (HERE, "demo")]
    assert store.find(HERE) == store.find(HERE, workspace="other", identity="team/other") == everywhere
    assert store.find(HERE, workspace="demo") == store.find(HERE, identity="team/demo") == own
    assert json.loads(store.path.read_text())["platforms"][f"{HERE}#demo"]["organization"] == demo
    assert store.remove(HERE, "demo") == own
    assert store.find(HERE, workspace="demo") == everywhere


def test_the_file_is_private(store: CredentialStore) -> None:
    store.save(LOGIN)
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700
    assert [p.name for p in store.path.parent.iterdir() if p.suffix == ".tmp"] == []


def test_a_file_that_others_can_read_is_refused(store: CredentialStore) -> None:
    store.save(LOGIN)
    store.path.chmod(0o644)
    with pytest.raises(CredentialsUnavailable, match="readable by other users") as refused:
        store.find(HERE)
    assert "chmod 600" in (refused.value.hint or "")


def test_platforms_live_side_by_side(store: CredentialStore) -> None:
    store.save(LOGIN)
    store.save(Login(url=THERE, token="t-2"))
    assert store.logins() == [(HERE, None), (THERE, None)]
    gone = store.remove(HERE)
    assert gone is not None
    assert gone.token == "t-1"
    assert store.find(HERE) is None
    assert store.remove(HERE) is None
    found = store.find(THERE)
    assert found is not None
    assert found.token == "t-2"


@pytest.mark.parametrize("text", UNREADABLE)
def test_what_we_did_not_write_is_kept_aside(store: CredentialStore, text: str) -> None:
    store.path.parent.mkdir(parents=True)
    store.path.touch(0o600)
    store.path.write_text(text)
    with pytest.raises(CredentialsParseFailed):
        store.find(HERE)
    assert store.path.read_text() == text
    _, aside = store.save(LOGIN)
    assert aside is not None
    assert aside.read_text() == text
    assert store.find(HERE) is not None


def test_a_store_of_generation_02_is_read(store: CredentialStore) -> None:
    entry = {"access_token": "old", "user": {"id": "1", "email": "e"}, "expires_at": "2999-01-01T00:00:00+00:00"}
    store.path.parent.mkdir(parents=True)
    store.path.touch(0o600)
    store.path.write_text(json.dumps({"version": 1, "active_workspace": "w", "workspaces": {"w": entry}}))
    found = store.find(HOSTED)
    assert found is not None
    assert (found.token, found.active_workspace) == ("old", "w")


@pytest.mark.parametrize(("ends", "over"), [(timedelta(days=1), False), (timedelta(days=-1), True)])
def test_an_expiry_date_ends_a_login(ends: timedelta, over: bool) -> None:
    moment = datetime.now(timezone.utc) + ends
    assert Login(HERE, "t", expires_at=moment.isoformat()).expired is over
    assert Login(HERE, "t", expires_at=moment.strftime("%Y-%m-%dT%H:%M:%SZ")).expired is over
    assert Login(HERE, "t", expires_at="someday").expired is False


def test_the_active_workspace_is_kept_per_platform(store: CredentialStore) -> None:
    store.save(LOGIN)
    store.set_workspace(HERE, "one")
    store.set_workspace(THERE, "two")
    assert (store.active_workspace(HERE), store.active_workspace(THERE)) == ("one", "two")
    assert store.logins() == [(HERE, None)]


def test_the_environment_token_is_for_one_platform(tmp_path: Path) -> None:
    environ = {"OSMOSIS_TOKEN": "e", "OSMOSIS_CONFIG_DIR": str(tmp_path), "OSMOSIS_DATA_DIR": str(tmp_path)}
    found = CredentialStore(environ).find(HERE)
    assert found is not None
    assert (found.token, found.store) == ("e", "environment")
    with pytest.raises(EnvTokenPlatformRequired):
        CredentialStore(environ).find(THERE)
    environ["OSMOSIS_TOKEN_PLATFORM_URL"] = "b.example"
    assert CredentialStore(environ).find(THERE) is not None
    with pytest.raises(EnvTokenPlatformMismatch):
        CredentialStore(environ).find(HERE)


class Memory(KeyringBackend):
    """A keyring in memory; its module name decides whether it counts as sound."""

    priority = 1  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[tuple[str, str], str] = {}

    def set_password(self, service: str, username: str, password: str) -> None:
        self.held[service, username] = password

    def get_password(self, service: str, username: str) -> str | None:
        return self.held.get((service, username))

    def delete_password(self, service: str, username: str) -> None:
        del self.held[service, username]


class Sound(Memory):
    __module__ = "keyring.backends.SecretService"


@pytest.fixture
def sound() -> Memory:
    before = keyring.get_keyring()
    backend = Sound()
    keyring.set_keyring(backend)
    yield backend  # type: ignore[misc]
    keyring.set_keyring(before)


def test_a_sound_keyring_holds_the_token(store: CredentialStore, sound: Memory) -> None:
    store.environ = {**store.environ, "DBUS_SESSION_BUS_ADDRESS": "unix:path=/nowhere"}
    saved, _ = store.save(LOGIN)
    assert saved.store == "keyring"
    assert "t-1" not in store.path.read_text()
    found = store.find(HERE)
    assert found is not None
    assert found.token == "t-1"
    store.remove(HERE)
    assert sound.held == {}


def test_an_unsound_keyring_is_never_used(store: CredentialStore) -> None:
    before = keyring.get_keyring()
    keyring.set_keyring(Memory())
    try:
        environ = {"DBUS_SESSION_BUS_ADDRESS": "unix:path=/nowhere"}
        assert choose_store(environ) == "file"
        with pytest.raises(KeyringUnavailable):
            choose_store(environ, "keyring")
    finally:
        keyring.set_keyring(before)


def test_without_a_desktop_no_keyring_is_even_loaded() -> None:
    assert choose_store({}) == "file"
    assert choose_store({}, "file") == "file"


def test_a_platform_is_known_by_the_variable_else_by_what_its_login_kept(tmp_path: Path) -> None:
    kept, told = (PrivateAuthority.made(tmp_path / name, "127.0.0.1").ca_file for name in ("kept", "told"))
    environ = {"OSMOSIS_CONFIG_DIR": str(tmp_path / "c"), "OSMOSIS_DATA_DIR": str(tmp_path / "d")}
    store = CredentialStore(environ)
    assert store.ca_file(THERE) == ""
    store.save(replace(LOGIN, url=THERE, ca_file=str(kept)))
    store.set_workspace(THERE, "demo")
    assert (store.ca_file(THERE), store.ca_file(HERE)) == (str(kept), "")
    assert CredentialStore({**environ, "OSMOSIS_CA_FILE": str(told)}).ca_file(THERE) == str(told)
    kept.write_text("no certificate")
    with pytest.raises(ValidationError, match=f"the login to {THERE}: .* holds no certificates"):
        store.ca_file(THERE)
    kept.unlink()
    with pytest.raises(ValidationError, match="does not exist"):
        store.ca_file(THERE)
