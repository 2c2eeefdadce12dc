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

from osmosis.errors import Conflict, PlatformError, UsageError, ValidationError
from osmosis.platform import Platform
from osmosis.platform.__main__ import gate_of, parser
from osmosis.platform.announce import listen
from osmosis.platform.own_worker import own_worker
from osmosis.platform.settings import PlatformSettings
from osmosis.records.run import JobEntry
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
    assert later.words(handle).endswith("the end")
    assert len(later.words(handle)) <= 4_000


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
    assert executor.words(handle) == "1800000 False False"
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


SAYS = """
import json, sys
words = sys.argv[1:]
if words[0] == "--wait":
    words.append(sys.stdin.readline().strip())
given = sys.stdin.read()
if given:
    open(json.loads(given)["work_dir"] + "/said", "w").write(" ".join(words) + " " + given)
"""


def test_a_process_stands_ready_for_the_next_job(tmp_path: Path) -> None:
    executor = LocalExecutor((sys.executable, "-c", SAYS), os.environ, spare=tmp_path)
    first = executor.start([job(tmp_path / "1", "lease-1")])[0]
    assert gone(executor, first)
    executor.reap()
    spare = executor._spare
    assert spare is not None
    second = executor.start([job(tmp_path / "2", "lease-2")])[0]
    assert second["pid"] == spare.pid
    assert gone(executor, second)
    said = {name: (tmp_path / name / "work" / "said").read_text() for name in "12"}
    assert said["1"].startswith("--run http://127.0.0.1:1/api/jobs/r1 {")
    assert said["2"].startswith(f"--wait {tmp_path} http://127.0.0.1:1/api/jobs/r1 {{")
    assert "lease-2" in said["2"]
    executor.reap()
    unused = executor._spare
    assert unused is not None
    unused.kill()
    unused.wait(20)
    executor.reap()
    assert executor._spare is None  # one that ended by itself is not replaced again and again


@pytest.mark.parametrize("told", [True, False])
def test_a_job_that_waits_prints_into_its_folder_or_ends(tmp_path: Path, told: bool) -> None:
    (tmp_path / "job.log").touch()
    entry = JobEntry(lease="lease", work_dir=str(tmp_path), cache_dir=str(tmp_path))
    given = b"http://127.0.0.1:1/not-a-job\n" + entry.model_dump_json().encode() if told else b""
    done = subprocess.run(
        [sys.executable, "-m", "osmosis.jobs", "--wait", str(tmp_path)],
        input=given,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (2 if told else 0, b"", b"")
    assert bool((tmp_path / "job.log").read_text()) is told


def test_how_training_jobs_are_reached_is_told_to_those_of_the_platforms_own_worker(tmp_path: Path) -> None:
    told = ["--advertise-url", "https://gpu-box.example.com/gate/{port}"]
    gate = gate_of(parser().parse_args(["serve", *told]))
    assert gate is not None
    platform = Platform.open(PlatformSettings(data_dir=tmp_path, gate=gate))
    try:
        assert own_worker(platform).plan.gate == gate
    finally:
        platform.db.close()
    assert gate_of(parser().parse_args(["serve"])) is None
    for wrong in ("gpu-box", "http://gpu-box.example.com/gate/{port}"):
        with pytest.raises(UsageError):
            gate_of(parser().parse_args(["serve", "--advertise-url", wrong]))
