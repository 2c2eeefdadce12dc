"""Processes and ports: who is who, what a job is given, and which addresses are refused."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from osmosis.errors import Conflict, PlatformError, ValidationError
from osmosis.platform.announce import listen
from osmosis.platform.executors.local import LocalExecutor, LocalHandle
from osmosis.platform.settings import PlatformSettings
from osmosis.records.config import EvalConfig, Experiment, Secrets
from osmosis.records.run import Handover, JobSpec

SLEEPER = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
time.sleep(60)
"""


def spec(folder: Path) -> JobSpec:
    experiment = Experiment(rollout="r", entrypoint="main.py", model_path="offline/x", dataset="d")
    return JobSpec(
        run_id="r1",
        run_name="r-1",
        kind="eval",
        platform_url="http://127.0.0.1:1",
        repository="/nowhere",
        commit_sha="0" * 40,
        config=EvalConfig(experiment=experiment, secrets=Secrets(required=[])),
        dataset_path="d.jsonl",
        rows=[0],
        work_dir=str(folder / "work"),
        cache_dir=str(folder / "cache"),
    )


def gone(executor: LocalExecutor, handle: dict) -> bool:
    deadline = time.monotonic() + 20
    while executor.poll(handle).alive:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_killing_a_job_ends_everything_it_started(tmp_path: Path) -> None:
    executor = LocalExecutor((sys.executable, "-c", SLEEPER), os.environ)
    handle = executor.start(spec(tmp_path), Handover(token="lease"))
    assert executor.owns(handle)
    assert executor.poll(handle).alive
    executor.kill(handle)
    assert not executor.poll(handle).alive
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.killpg(handle["pid"], 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    pytest.fail("something of the group is left")


def test_another_process_with_the_same_id_is_never_signalled(tmp_path: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        executor = LocalExecutor(("true",), {})
        handle = LocalHandle(executor="local", machine="here", pid=stranger.pid, start_token="1", output="").to_dict()
        executor.interrupt(handle)
        executor.kill(handle)
        assert stranger.poll() is None
    finally:
        stranger.send_signal(signal.SIGKILL)
        stranger.wait(20)


def test_what_a_job_printed_last_is_kept(tmp_path: Path) -> None:
    executor = LocalExecutor((sys.executable, "-c", "print('x' * 9000, 'the end'); raise SystemExit(3)"), os.environ)
    handle = executor.start(spec(tmp_path), Handover(token="lease"))
    assert gone(executor, handle)
    later = LocalExecutor(("true",), {}).poll(handle)
    assert not later.alive
    assert later.words.endswith("the end")
    assert len(later.words) <= 4_000


def test_only_listed_variables_reach_a_job(tmp_path: Path) -> None:
    environ = {
        **{"PATH": os.environ["PATH"], "LC_ALL": "C", "https_proxy": "p", "UV_CACHE_DIR": "u"},
        **{
            "OPENAI_API_KEY": "k",
            "OSMOSIS_TOKEN": "t",
            "OSMOSIS_MASTER_KEY": "m",
            "PYTHONPATH": "x",
            "MY_PROXY_KEY": "z",
        },
    }
    code = "import os; print(' '.join(sorted(os.environ)))"
    executor = LocalExecutor((sys.executable, "-c", code), environ)
    handle = executor.start(spec(tmp_path), Handover(token="lease"))
    assert gone(executor, handle)
    names = set(Path(handle["output"]).read_text().split())
    assert {"PATH", "LC_ALL", "https_proxy", "UV_CACHE_DIR"} <= names
    assert not names & {"OPENAI_API_KEY", "OSMOSIS_TOKEN", "OSMOSIS_MASTER_KEY", "PYTHONPATH", "MY_PROXY_KEY"}


def test_lease_and_secrets_go_through_a_pipe_however_large(tmp_path: Path) -> None:
    """Neither the environment nor the command line nor a file of the job has them."""
    code = (
        "import json, sys, pathlib; given = json.loads(sys.stdin.buffer.read());"
        "own = pathlib.Path('/proc/self');"
        "public = b''.join((own / name).read_bytes() for name in ('environ', 'cmdline'));"
        "print(given['token'], len(given['secrets']['KEY']), given['token'].encode() in public, b'v' * 9 in public)"
    )
    executor = LocalExecutor((sys.executable, "-c", code), os.environ)
    handle = executor.start(spec(tmp_path), Handover(token="the-lease", secrets={"KEY": "v" * 2_000_000}))
    assert gone(executor, handle)
    assert executor.poll(handle).words == "the-lease 2000000 False False"
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "job.log"]
    assert written
    assert not [path for path in written if b"the-lease" in path.read_bytes()]


def test_a_command_that_does_not_exist_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(PlatformError, match="could not be started"):
        LocalExecutor(("/no/such/program",), {}).start(spec(tmp_path), Handover(token="lease"))


def test_a_taken_port_and_an_address_nobody_could_reach(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(Conflict, match="cannot listen"):
            listen(PlatformSettings(data_dir=tmp_path, port=taken.getsockname()[1]))
    with pytest.raises(ValidationError, match=r"0\.0\.0\.0"):
        listen(PlatformSettings(data_dir=tmp_path, host="0.0.0.0", port=0))
    listen(PlatformSettings(data_dir=tmp_path, host="0.0.0.0", port=0, public_url="https://here.example")).close()


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({"port": 80}, "http://127.0.0.1:80"),
        ({"host": "::1", "port": 80}, "http://[::1]:80"),
        ({"host": "0.0.0.0", "port": 80, "public_url": "https://here.example/"}, "https://here.example"),
    ],
)
def test_how_others_reach_the_platform(tmp_path: Path, given: dict, url: str) -> None:
    settings = PlatformSettings(data_dir=tmp_path, **given)
    assert settings.url == url
    assert settings.job_base_url.startswith("http://")


def test_a_process_is_set_up_by_flags_over_variables_over_defaults(tmp_path: Path) -> None:
    environ = {"OSMOSIS_DATA_DIR": str(tmp_path), "OSMOSIS_PUBLIC_URL": "https://a.example", "OSMOSIS_MASTER_KEY": "k"}
    settings = PlatformSettings.from_environ(environ, port=None, public_url=None)
    assert (settings.data_dir, settings.port, settings.url) == (tmp_path, 7575, "https://a.example")
    assert settings.master_key.get_secret_value() == "k"
    given = PlatformSettings.from_environ(environ, data_dir=tmp_path / "other", public_url="https://b.example")
    assert (given.data_dir, given.url) == (tmp_path / "other", "https://b.example")


@pytest.mark.parametrize(
    ("environ", "given", "said"),
    [
        ({"OSMOSIS_PUBLIC_URL": "here"}, {}, "OSMOSIS_PUBLIC_URL=here: must be an http"),
        ({}, {"max_jobs": 0}, "max_jobs=0: "),
        ({}, {"lease_s": float("nan")}, "lease_s=nan: "),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(tmp_path: Path, environ: dict, given: dict, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        PlatformSettings.from_environ({"OSMOSIS_DATA_DIR": str(tmp_path), **environ}, **given)


async def test_a_kept_connection_does_not_wait_for_acknowledgements(tmp_path: Path) -> None:
    """asyncio turns Nagle's algorithm off only for a listening socket that says it is TCP."""
    delays: list[int] = []

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        delays.append(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listener = listen(PlatformSettings(data_dir=tmp_path, port=0))
    async with await asyncio.start_server(answer, sock=listener):
        reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
        await reader.read()
        writer.close()
    assert delays == [1]
