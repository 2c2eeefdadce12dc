"""How fast the platform answers, beside a bare FastAPI on the same machine in the same minutes.

Both are whole processes; one client drives them in turn, so ratios carry over to other machines and absolute figures
do not. CPU is the server's own. Runs and rollouts are put into the database beforehand, as jobs would have left them.

    python benchmarks/platform_load.py                      # the table of docs/performance.md
    python benchmarks/platform_load.py --rollouts 100000    # run page and info at that size
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil
import sqlalchemy as sa

from osmosis.platform import Platform, tables
from osmosis.platform.settings import PlatformSettings
from osmosis.records.base import utc_now

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from support.platform_data import add_run
from support.platform_process import PlatformProcess

CONNECTIONS = 32
SECONDS = 3.0
CHUNK = 2000
BARE = """
import sys
import uvicorn
from fastapi import FastAPI

app = FastAPI()


@app.get("/sync")
def sync() -> dict[str, str]:
    return {"id": "1", "name": "somebody", "email": "somebody@localhost", "handle": "somebody"}


@app.get("/async")
async def direct() -> dict[str, str]:
    return {"id": "1", "name": "somebody", "email": "somebody@localhost", "handle": "somebody"}


uvicorn.run(app, port=int(sys.argv[1]), log_level="error", access_log=False)
"""


@dataclass(frozen=True)
class Figure:
    """Of one address under load."""

    per_s: float
    cpu_ms: float
    """Of the server, per request."""
    p50_ms: float
    p99_ms: float


async def load(server: psutil.Process, url: str, headers: dict[str, str], connections: int) -> Figure:
    """As many requests as `connections` kept-alive connections can make in `SECONDS`."""
    took: list[float] = []
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=connections)) as session:

        async def once() -> None:
            started = time.perf_counter()
            async with session.get(url) as answer:
                body = await answer.read()
                assert answer.status == 200, body[:300]
            took.append(time.perf_counter() - started)

        await asyncio.gather(*(once() for _ in range(connections)))
        took.clear()
        over = time.perf_counter() + SECONDS

        async def lane() -> None:
            while time.perf_counter() < over:
                await once()

        before, started = sum(server.cpu_times()[:2]), time.perf_counter()
        await asyncio.gather(*(lane() for _ in range(connections)))
        wall, cpu = time.perf_counter() - started, sum(server.cpu_times()[:2]) - before
    centiles = statistics.quantiles(took, n=100) if len(took) > 1 else [took[0]] * 99
    return Figure(len(took) / wall, 1000 * cpu / len(took), 1000 * centiles[49], 1000 * centiles[98])


def fill(data_dir: Path, runs: int, count: int) -> str:
    """`runs` finished runs without rollouts and one with `count`; the answer is its id."""
    platform = Platform.open(PlatformSettings(data_dir=data_dir))
    with platform.db.write() as session:
        workspace = session.scalars(sa.select(tables.Workspace)).one()
    for number in range(runs):
        add_run(platform, workspace.id, f"small-{number}")
    run_id = add_run(platform, workspace.id, "large", sampled_rows=count)
    body = (
        '{"rollout_id":"r","row_index":0,"status":"success","messages":[{"role":"user","content":"' + "x" * 400 + '"}]}'
    )
    shared = {"run_id": run_id, "step": 0, "attempt": 0, "status": "success", "tokens": 100, "duration_ms": 5.0}
    for start in range(0, count, CHUNK):
        rows = [
            {**shared, "rollout_id": f"r{i}", "row_index": i, "row_key": f"k{i}", "reward": (i % 11) / 10, "body": body}
            for i in range(start, min(start + CHUNK, count))
        ]
        with platform.db.write() as session:
            session.execute(sa.insert(tables.Rollout), [{**row, "created_at": utc_now()} for row in rows])
    platform.db.close()
    return run_id


def start_bare(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """A bare FastAPI on a port of its own."""
    port = PlatformProcess(folder).port
    process = subprocess.Popen([sys.executable, "-c", BARE, str(port)], env=dict(os.environ))
    return process, f"http://127.0.0.1:{port}"


async def reachable(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(200):
            try:
                async with session.get(url):
                    return
            except aiohttp.ClientError:
                await asyncio.sleep(0.1)
    raise SystemExit(f"nothing answers at {url}")


async def measure(at: PlatformProcess, bare: tuple[subprocess.Popen[bytes], str], run_id: str) -> None:
    assert at.process is not None
    ours, framework = psutil.Process(at.process.pid), psutil.Process(bare[0].pid)
    root = f"http://127.0.0.1:{at.port}"
    token = {"Authorization": at.http.headers["Authorization"]}
    scoped = {**token, "X-Osmosis-Workspace": "demo"}
    link = at.json("POST", "browser-login")["url"]
    cookies = {"Cookie": browser(at, link)}
    await reachable(f"{bare[1]}/sync")
    cases = [
        ("bare FastAPI, sync route", framework, f"{bare[1]}/sync", {}, CONNECTIONS),
        ("bare FastAPI, async route", framework, f"{bare[1]}/async", {}, CONNECTIONS),
        ("bare FastAPI, 1 connection", framework, f"{bare[1]}/sync", {}, 1),
        ("verify, 1 connection", ours, f"{root}/api/cli/verify", scoped, 1),
        ("verify, token only", ours, f"{root}/api/cli/verify", token, CONNECTIONS),
        ("verify, token and workspace", ours, f"{root}/api/cli/verify", scoped, CONNECTIONS),
        ("list of runs, 1", ours, f"{root}/api/cli/eval-runs?limit=1", scoped, CONNECTIONS),
        ("list of runs, 50", ours, f"{root}/api/cli/eval-runs", scoped, CONNECTIONS),
        ("info of the large run", ours, f"{root}/api/cli/eval-runs/large", scoped, CONNECTIONS),
        ("page of the large run", ours, f"{root}/runs/{run_id}", cookies, CONNECTIONS),
        ("overview page", ours, f"{root}/", cookies, CONNECTIONS),
        ("bare FastAPI, sync route again", framework, f"{bare[1]}/sync", {}, CONNECTIONS),
    ]
    print(f"{'':<34}{'requests/s':>11}{'CPU ms':>9}{'p50 ms':>9}{'p99 ms':>9}")
    for name, server, url, headers, connections in cases:
        found = await load(server, url, headers, connections)
        print(f"{name:<34}{found.per_s:>11.0f}{found.cpu_ms:>9.2f}{found.p50_ms:>9.1f}{found.p99_ms:>9.1f}", flush=True)


def browser(at: PlatformProcess, link: str) -> str:
    """The cookie of a browser that followed a login link."""
    page = at.http.get(link)
    code = link.rpartition("code=")[2]
    csrf = page.text.partition('name="csrf" value="')[2].partition('"')[0]
    form = {"code": code, **({"csrf": csrf} if csrf else {})}
    origin = {"Origin": f"http://127.0.0.1:{at.port}"}
    answer = at.http.post("/login/link", data=form, headers=origin, follow_redirects=False)
    assert answer.status_code in (302, 303), answer.text[:500]
    return "; ".join(f"{cookie.name}={cookie.value}" for cookie in at.http.cookies.jar)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--runs", type=int, default=200, help="runs without rollouts in the workspace (200)")
    words.add_argument("--rollouts", type=int, default=20_000, help="rollouts of the large run (20,000)")
    asked = words.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        at = PlatformProcess(Path(scratch) / "data", no_worker="")
        at.start()
        bare = start_bare(Path(scratch))
        try:
            at.login()
            run_id = fill(at.data_dir, asked.runs, asked.rollouts)
            asyncio.run(measure(at, bare, run_id))
        finally:
            at.terminate()
            bare[0].terminate()
            bare[0].wait(10)


if __name__ == "__main__":
    main()
