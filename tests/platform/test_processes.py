"""Processes and ports: who is who, what a job is given, and which addresses are refused."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from osmosis.errors import Conflict, PlatformError, UsageError, ValidationError
from osmosis.platform import Platform
from osmosis.platform.__main__ import gate_of, listen, parser
from osmosis.platform.embedded_worker import build_embedded_worker
from osmosis.platform.settings import PlatformSettings
from osmosis.records.config.worker import ResourceNeeds
from osmosis.records.run.job import JobEntry
from osmosis.worker.executors.executor import JobStart
from osmosis.worker.executors.local import LocalExecutor, LocalHandle

SLEEPER = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
time.sleep(60)
"""


def job(folder: Path, lease: str = "lease") -> JobStart:
    entry = JobEntry(lease=lease, work_dir=str(folder / "work"), cache_dir=str(folder / "cache"))
    return JobStart("http://127.0.0.1:1/api/jobs/r1", entry)


def gone(executor: LocalExecutor, handle: dict) -> bool:
    deadline = time.monotonic() + 20
    while executor.poll([handle])[0].alive:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_killing_a_job_ends_everything_it_started(tmp_path: Path) -> None:
    executor = LocalExecutor((sys.executable, "-c", SLEEPER), os.environ)
    handle = executor.start([job(tmp_path)])[0]
    assert executor.owns(handle)
    assert executor.poll([handle])[0].alive
    executor.kill(handle)
    assert not executor.poll([handle])[0].alive
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
    handle = executor.start([job(tmp_path)])[0]
    assert gone(executor, handle)
    later = LocalExecutor(("true",), {})
    assert not later.poll([handle])[0].alive
    assert later.read_output(handle).endswith("the end")
    assert len(later.read_output(handle)) <= 4_000


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
    handle = executor.start([job(tmp_path)])[0]
    assert gone(executor, handle)
    names = set(Path(handle["output"]).read_text().split())
    assert {"PATH", "LC_ALL", "https_proxy", "UV_CACHE_DIR"} <= names
    assert not names & {"OPENAI_API_KEY", "OSMOSIS_TOKEN", "OSMOSIS_MASTER_KEY", "PYTHONPATH", "MY_PROXY_KEY"}


def test_two_jobs_that_need_a_gpu_never_have_the_same(tmp_path: Path) -> None:
    """Of eight that `nvidia-smi` shows; a job that ended gives its own back, and one that needs none is left alone."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nfor i in 1 2 3 4 5 6 7 8; do echo 'NVIDIA H100, 81559'; done\n")
    smi.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": "2,3,5,6"}
    code = "import os, time; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); time.sleep(60)"
    executor = LocalExecutor((sys.executable, "-c", code), environ)

    def start(name: str, gpus: int | None) -> dict[str, object]:
        return executor.start([replace(job(tmp_path / name), needs=ResourceNeeds(gpus=gpus))])[0]

    first, second, third = start("a", 1), start("b", 2), start("c", None)
    try:
        assert [handle["gpus"] for handle in (first, second, third)] == [["2"], ["3", "5"], []]
        assert until_printed(executor, second) == "3,5"
        assert until_printed(executor, third) == "2,3,5,6"
        executor.kill(second)
        later = LocalExecutor((sys.executable, "-c", code), environ)
        later.poll([first])  # as a worker that was started again does
        assert later._choose_gpus(3) == ["3", "5", "6"]
        with pytest.raises(PlatformError, match="the job needs 4 GPUs, and 3 are free"):
            later._choose_gpus(4)
    finally:
        for handle in (first, second, third):
            executor.kill(handle)


def until_printed(executor: LocalExecutor, handle: dict[str, object]) -> str:
    deadline = time.monotonic() + 30
    while not (text := executor.read_output(handle)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return text


def test_the_lease_goes_through_a_pipe_however_large(tmp_path: Path) -> None:
    """Neither the environment nor the command line nor a file of the job has them."""
    code = (
        "import json, sys, pathlib; given = json.loads(sys.stdin.buffer.read());"
        "own = pathlib.Path('/proc/self');"
        "public = b''.join((own / name).read_bytes() for name in ('environ', 'cmdline'));"
        "print(len(given['lease']), given['lease'].encode() in public, (b'the-' + b'lease') in public)"
    )
    executor = LocalExecutor((sys.executable, "-c", code), os.environ)
    handle = executor.start([job(tmp_path, "the-lease" * 200_000)])[0]
    assert gone(executor, handle)
    assert executor.read_output(handle) == "1800000 False False"
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    assert not [path for path in written if b"the-lease" in path.read_bytes()]


def test_a_command_that_does_not_exist_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(PlatformError, match="could not be started"):
        LocalExecutor(("/no/such/program",), {}).start([job(tmp_path)])


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


def test_how_training_jobs_are_reached_is_told_to_those_of_the_platforms_own_worker(tmp_path: Path) -> None:
    told = ["--advertise-url", "https://gpu-box.example.com/gate/{port}"]
    gate = gate_of(parser().parse_args(["serve", *told]))
    assert gate is not None
    platform = Platform.open(PlatformSettings(data_dir=tmp_path, gate=gate))
    try:
        assert build_embedded_worker(platform).plan.gate == gate
    finally:
        platform.db.close()
    assert gate_of(parser().parse_args(["serve"])) is None
    for wrong in ("gpu-box", "http://gpu-box.example.com/gate/{port}"):
        with pytest.raises(UsageError):
            gate_of(parser().parse_args(["serve", "--advertise-url", wrong]))
