"""The clock of the platform's machine is set by hours, as after a suspend or by a correction: no run pays, and nothing
outlives its time. (Leases of dead jobs: tests/platform/test_workers.py.)"""

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from support.platform_process import PlatformProcess, until
from support.shifted_clock import ShiftedClock

HOUR_S = 3600
pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="the library is loaded as on Linux")]


@pytest.fixture
def clock(tmp_path: Path) -> ShiftedClock:
    return ShiftedClock.build(tmp_path)


@pytest.fixture
def platform(tmp_path: Path, clock: ShiftedClock) -> Iterator[PlatformProcess]:
    process = PlatformProcess(tmp_path / "data", environ={**clock.environ, "UV_CACHE_DIR": "/tmp/uv"}, lease="3")
    process.start()
    process.login()
    process.prepare(tmp_path / "checkout")
    yield process
    process.end()


@pytest.mark.parametrize("hours", [[1], [-1], [2, -1, 1]], ids=["on", "back", "about"])
def test_a_run_goes_on_whatever_the_clock_says(
    platform: PlatformProcess, clock: ShiftedClock, hours: list[int]
) -> None:
    name = platform.submit("wait:3")
    until(lambda: len(platform.rollouts(name)) == 3, "the job waits")
    for hour in hours:
        clock.set(hour * HOUR_S)
        before = heard(platform)
        until(lambda before=before: heard(platform) != before, "the job is heard after the jump")
    (platform.folder(name) / "go").touch()
    platform.reaches(name, "finished")
    assert platform.rollouts(name) == [0, 1, 2, 3, 4, 5]
    assert platform.logs(name).count("job started") == 1, platform.logs(name)


def heard(platform: PlatformProcess) -> list[tuple[str]]:
    with closing(sqlite3.connect(platform.data_dir / "platform.db")) as database:
        return database.execute("SELECT updated_at FROM runs").fetchall()


def test_what_is_good_for_a_time_ends_when_the_clock_says_so(platform: PlatformProcess, clock: ShiftedClock) -> None:
    body = {"file_name": "more", "file_size": 3, "extension": "jsonl"}
    address = platform.json("POST", "datasets", json=body)["upload"]["presigned_url"]
    device = platform.http.post("/api/cli/device/authorize", json={"device_name": "x"}).json()
    clock.set(30 * 24 * HOUR_S)
    assert httpx.put(address, content=b"{}\n").status_code == 403
    answer = httpx.post(f"{platform.url}/api/cli/device/token", json={"device_code": device["device_code"]})
    assert answer.status_code in (400, 404, 410), answer.text
