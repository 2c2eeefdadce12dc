"""A platform whose disk is full, a real one of some megabytes: each thing that needs room says that there is none, what
only looks goes on, and when there is room again nothing is lost."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from osmosis.base.git import Git, GitError
from support.platform_process import PlatformProcess, until

pytestmark = pytest.mark.flow

ROOM = 64 * 1024 * 1024
FULL = "the disk of the platform is full"


class SmallDisk:
    """The data folder of a platform, which alone sees it."""

    def __init__(self, platform: PlatformProcess) -> None:
        inside = psutil.Process(platform.process.pid).children()
        seen = [Path(f"/proc/{one.pid}/root{platform.data_dir}") for one in inside]
        self.filler = next(folder for folder in seen if (folder / "platform.db").exists()) / "filler"

    def fill(self) -> None:
        with self.filler.open("ab", buffering=0) as file:
            for piece in (1024 * 1024, 4096):
                try:
                    while file.write(b"x" * piece) == piece:
                        pass
                except OSError:
                    continue

    def empty(self) -> None:
        self.filler.unlink()


@pytest.fixture
def platform(tmp_path: Path, isolated: None) -> Iterator[PlatformProcess]:
    folder = tmp_path / "data"
    folder.mkdir()
    disk = ["bwrap", "--dev-bind", "/", "/", "--die-with-parent", "--size", str(ROOM), "--tmpfs", str(folder)]
    platform = PlatformProcess(folder, environ={**os.environ, "OSMOSIS_LOG_REQUESTS": "true"}, no_sandbox="")
    platform.within = disk
    platform.start()
    try:
        yield platform
    finally:
        platform.end()


def _sign_in(platform: PlatformProcess, disk: SmallDisk) -> None:
    token = disk.filler.with_name("bootstrap.token").read_text().strip()
    answer = platform.http.post("/api/cli/bootstrap", json={}, headers={"Authorization": f"Bearer {token}"})
    platform.http.headers["Authorization"] = f"Bearer {answer.json()['token']}"
    platform.json("POST", "workspaces", json={"name": "demo"})
    platform.http.headers["X-Osmosis-Workspace"] = "demo"


def _is_said(answer: httpx.Response) -> None:
    assert answer.status_code == 507, answer.text
    assert answer.json()["code"] == "DISK_FULL"
    assert FULL in answer.json()["message"]


def _went_on(platform: PlatformProcess, disk: SmallDisk, talks: str) -> None:
    """The job that talked all the time has lost none of its lines and says none twice, and the platform's own log says
    what it lacks."""
    seen = _lines(platform, talks)
    until(lambda: _lines(platform, talks)[-1] > seen[-1], "the job talks again")
    (disk.filler.parent / "runs" / str(platform.run(talks)["id"]) / "go").touch()
    platform.reaches(talks, "finished")
    spoken = _lines(platform, talks)
    assert spoken == list(range(spoken[0], spoken[0] + len(spoken)))
    assert platform.rollouts(talks) == [0, 1, 2, 3, 4, 5]
    log = (disk.filler.parent / "logs" / "platform.log").read_text()
    assert re.search(r"\d+ lines could not be written here; standard error has them", log)
    assert "Logging error" not in log


def _lines(platform: PlatformProcess, name: str) -> list[int]:
    return sorted(map(int, re.findall(r"line (\d+)$", platform.logs(name), re.MULTILINE)))


def test_whatever_needs_room_says_that_there_is_none(platform: PlatformProcess, tmp_path: Path) -> None:
    disk, checkout = SmallDisk(platform), tmp_path / "checkout"
    _sign_in(platform, disk)
    platform.prepare(checkout)
    done = platform.submit()
    platform.reaches(done, "finished")
    content = b"{}" * 500_000
    announced = platform.json(
        "POST", "datasets", json={"file_name": "more", "file_size": len(content), "extension": "jsonl"}
    )
    (checkout / "large.bin").write_bytes(os.urandom(2_000_000))
    git = Git(checkout)
    git.run("add", "-A")
    git.run("-c", "user.name=T", "-c", "user.email=t@localhost", "commit", "-q", "-m", "large")
    url = platform.json("GET", "workspaces")["workspaces"][0]["connected_repo"]["url"]
    token = platform.http.headers["authorization"].partition(" ")[2]
    push = ["push", "-q", url.replace("://", f"://git:{token}@"), "main"]

    talks = platform.submit("wait:2,chatty")
    until(lambda: "line 3" in platform.logs(talks), "the job talks")

    disk.fill()
    _is_said(httpx.put(announced["upload"]["presigned_url"], content=content, trust_env=False, timeout=60))
    with pytest.raises(GitError, match="remote rejected") as kept_out:
        git.run(*push)
    assert "No space left on device" in kept_out.value.stderr
    for number in range(300):  # until the last pages of the database are used up, too
        secret = {"name": f"NAME_{number}", "value": "x" * 3000, "scope": "workspace"}
        if (refused := platform.http.post("/api/cli/environment-secrets", json=secret)).status_code >= 300:
            break
    _is_said(refused)
    assert platform.http.get("/ready").status_code == 503
    assert platform.run(done)["status"] == "finished"
    assert platform.rollouts(done) == [0, 1, 2, 3, 4, 5]

    disk.empty()
    git.run(*push)
    assert platform.http.post("/api/cli/environment-secrets", json=secret).status_code < 300
    _went_on(platform, disk, talks)
    again = platform.submit()
    assert platform.reaches(again, "finished")["eval_run"]["status"] == "finished"
