"""Env files, the network switch, and the report of a bug."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from osmosis.cli.core.context import AppContext, GlobalOptions, allow_host, load_environment, online
from osmosis.cli.core.errors import report_bug
from osmosis.cli.core.output import Mode, Output
from osmosis.errors import Conflict, NetworkError, ValidationError


def context(cwd: Path, environ: dict[str, str], options: GlobalOptions | None = None) -> AppContext:
    output = Output(Mode.PLAIN, environ=environ, stdout=io.StringIO(), stderr=io.StringIO())
    return AppContext(environ, cwd, options or GlobalOptions(), output)


def test_a_path_that_goes_up_is_shown_as_where_it_is(tmp_path: Path) -> None:
    assert context(tmp_path / "demo", {}).path("../all.tar") == tmp_path.resolve() / "all.tar"


def test_the_nearest_env_file_adds_and_never_overrides(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "a" / ".env").write_text("ONE=file\nTWO=file\n")
    ctx = context(inner, {"TWO": "real"})
    load_environment(ctx)
    assert (ctx.environ["ONE"], ctx.environ["TWO"]) == ("file", "real")


def test_the_search_ends_at_the_repository(tmp_path: Path) -> None:
    repository = tmp_path / "r"
    (repository / ".git").mkdir(parents=True)
    (tmp_path / ".env").write_text("ONE=file\n")
    ctx = context(repository, {})
    load_environment(ctx)
    assert "ONE" not in ctx.environ


def test_a_named_env_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="env file not found"):
        load_environment(context(tmp_path, {}, GlobalOptions(env_file="x.env")))


def test_an_env_file_cannot_redirect_a_token(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("OSMOSIS_PLATFORM_URL=https://elsewhere.example\n")
    with pytest.raises(Conflict, match="OSMOSIS_PLATFORM_URL"):
        load_environment(context(tmp_path, {"OSMOSIS_TOKEN": "t"}))
    named = context(tmp_path, {"OSMOSIS_TOKEN": "t"}, GlobalOptions(env_file=".env"))
    load_environment(named)
    assert named.environ["OSMOSIS_PLATFORM_URL"] == "https://elsewhere.example"


def test_an_env_file_that_lies_there_cannot_say_whom_to_trust(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("OSMOSIS_CA_FILE=evil.pem\n")
    with pytest.raises(Conflict, match="certificates to trust are your choice"):
        load_environment(context(tmp_path, {}))
    named = context(tmp_path, {}, GlobalOptions(env_file=".env"))
    load_environment(named)
    assert named.environ["OSMOSIS_CA_FILE"] == "evil.pem"


@pytest.fixture
def offline(tmp_path: Path) -> Iterator[AppContext]:
    ctx = context(tmp_path, {}, GlobalOptions(offline=True))
    load_environment(ctx)
    yield ctx
    online()


def test_offline_refuses_what_leaves_the_machine(offline: AppContext) -> None:
    with pytest.raises(NetworkError, match=r"example\.com"):
        socket.getaddrinfo("example.com", 443)
    with socket.socket() as probe, pytest.raises(NetworkError, match=r"192\.0\.2\.1"):
        probe.connect(("192.0.2.1", 9))
    assert offline.environ["UV_OFFLINE"] == "1"


def test_offline_allows_this_machine_and_a_named_host(offline: AppContext) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        socket.create_connection(listener.getsockname()).close()
    allow_host("http://192.0.2.7:8000/v1")
    with socket.socket() as probe:
        probe.setblocking(False)
        assert probe.connect_ex(("192.0.2.7", 9)) != 0  # tried, not refused by the guard


def test_a_bug_report_holds_no_secret(tmp_path: Path) -> None:
    environ = {
        "OSMOSIS_CACHE_DIR": str(tmp_path),
        "OPENAI_API_KEY": "abcdef-123456",
        "HOME": "/home/someone",
        "DB_PASSWORD": "hunter22",
    }
    words = ["login", "--token", "given-token", "--platform", "http://user:pass@host/"]
    try:
        raise RuntimeError("abcdef-123456 and hunter22 in /home/someone/x, given-token, http://user:pass@host/")
    except RuntimeError as bug:
        error = report_bug(bug, words, environ)
    text = Path(error.details["report"]).read_text()
    for secret in ("abcdef-123456", "hunter22", "given-token", "user:pass", "/home/someone"):
        assert secret not in text
        assert secret not in error.message
    assert "RuntimeError" in text
    assert "osmosis-ai 1.0.0" in text
    assert error.exit_code == 3
