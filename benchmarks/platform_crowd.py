"""How a platform answers while many look at runs that are going on.

Some jobs report rollouts in batches and send heartbeats, as jobs do; pollers ask for a run's details, as `osmosis eval
submit --wait` does; browsers follow its page by server-sent events. Prints how long each kind of request took, the
server's CPU, and how its memory grew. Wall-clock times are only worth something on an idle machine; CPU is, anywhere.

    python benchmarks/platform_crowd.py                     # 50 pollers, 10 streams, 2000 rollouts of 4 runs
    python benchmarks/platform_crowd.py --pollers 200 --rollouts 20000
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil
import sqlalchemy as sa
from platform_load import browser

from osmosis.platform import Platform, tables
from osmosis.platform.auth.tokens import hash_token
from osmosis.platform.settings import PlatformSettings
from osmosis.records.base import utc_now

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from support.platform_data import a_job, a_worker, add_run, report, rollout
from support.platform_process import PlatformProcess

BATCH = 10
MIB = 1024 * 1024


class Crowd:
    """Everybody who asks, and how long each was answered in."""

    def __init__(self, root: str, took: dict[str, list[float]]) -> None:
        self.root = root
        self.took = took
        self.over = asyncio.Event()
        self.events = 0

    @asynccontextmanager
    async def client(self, headers: dict[str, str]) -> AsyncIterator[aiohttp.ClientSession]:
        async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:
            yield session

    async def ask(self, session: aiohttp.ClientSession, kind: str, method: str, path: str, body: object = None) -> None:
        started = time.perf_counter()
        async with session.request(method, self.root + path, json=body) as answer:
            text = await answer.read()
            assert answer.status == 200, text[:300]
        self.took[kind].append(time.perf_counter() - started)

    async def poll(self, headers: dict[str, str], path: str, every_s: float, first: float) -> None:
        await asyncio.sleep(first)
        async with self.client(headers) as session:
            while not self.over.is_set():
                await self.ask(session, "poll", "GET", path)
                await asyncio.sleep(every_s)

    async def follow(self, headers: dict[str, str], path: str) -> None:
        async with self.client(headers) as session, session.get(self.root + path) as answer:
            assert answer.status == 200, await answer.text()
            async for line in answer.content:
                self.events += line == b"\n"
                if self.over.is_set():
                    return

    async def report(self, lease: str, run_id: str, count: int, batch_s: float) -> None:
        """A job with `count` rollouts, a batch every `batch_s`, a heartbeat with a report every second batch."""
        async with self.client({"Authorization": f"Bearer {lease}"}) as session:
            for number, start in enumerate(range(0, count, BATCH)):
                rows = range(start, min(start + BATCH, count))
                batch = {"rollouts": [rollout(row, 0).to_dict() for row in rows]}
                await self.ask(session, "report", "POST", f"/api/jobs/{run_id}/rollouts", batch)
                if number % 2 == 0:
                    said = report(count, 1, completed=rows[-1] + 1).to_dict()
                    beat = {"stage": "rollouts", "completed": rows[-1] + 1, "total": count, "report": said}
                    await self.ask(session, "heartbeat", "POST", f"/api/jobs/{run_id}/heartbeat", beat)
                await asyncio.sleep(batch_s)


def prepare(data_dir: Path, runs: int, rows: int) -> list[tuple[str, str]]:
    """Runs that a job works on: id and lease of each."""
    platform = Platform.open(PlatformSettings(data_dir=data_dir))
    with platform.db.write() as session:
        workspace_id = session.scalars(sa.select(tables.Workspace.id)).one()
        worker_id = a_worker(session).id
    made = []
    for number in range(runs):
        run_id = add_run(platform, workspace_id, f"live-{number}", "running", sampled_rows=rows, rows=[])
        lease = f"osj_benchmark-{number}"
        with platform.db.write() as session:
            session.add(
                a_job(
                    session.get_one(tables.Run, run_id),
                    state="held",
                    worker_id=worker_id,
                    lease_hash=hash_token(lease),
                    lease_until=utc_now(),
                )
            )
        made.append((run_id, lease))
    platform.db.close()
    return made


async def measure(at: PlatformProcess, asked: argparse.Namespace) -> None:
    assert at.process is not None
    server = psutil.Process(at.process.pid)
    each = asked.rollouts // asked.runs
    runs = prepare(at.data_dir, asked.runs, each)
    cookies = {"Cookie": browser(at, at.json("POST", "browser-login")["url"])}
    scoped = {"Authorization": at.http.headers["Authorization"], "X-Osmosis-Workspace": "demo"}
    crowd = Crowd(f"http://127.0.0.1:{at.port}", defaultdict(list))
    followers = [
        asyncio.create_task(crowd.follow(cookies, f"/runs/{runs[i % asked.runs][0]}/events"))
        for i in range(asked.streams)
    ]
    pollers = [
        asyncio.create_task(
            crowd.poll(
                scoped, f"/api/cli/eval-runs/live-{i % asked.runs}", asked.every, asked.every * i / asked.pollers
            )
        )
        for i in range(asked.pollers)
    ]
    await asyncio.sleep(1)
    crowd.took.clear()
    before, cpu, started = server.memory_info().rss, sum(server.cpu_times()[:2]), time.perf_counter()
    batch_s = asked.seconds * BATCH / each
    await asyncio.gather(*(crowd.report(lease, run_id, each, batch_s) for run_id, lease in runs))
    wall, cpu = time.perf_counter() - started, sum(server.cpu_times()[:2]) - cpu
    after = server.memory_info().rss
    crowd.over.set()
    await asyncio.gather(*pollers)
    for task in followers:
        task.cancel()
    await asyncio.gather(*followers, return_exceptions=True)
    print(f"{'':<12}{'requests':>10}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}")
    for kind, times in sorted(crowd.took.items()):
        cuts = statistics.quantiles(times, n=100)
        print(f"{kind:<12}{len(times):>10}{1000 * cuts[49]:>9.1f}{1000 * cuts[98]:>9.1f}{1000 * max(times):>9.1f}")
    requests = sum(map(len, crowd.took.values()))
    each_ms = 1000 * cpu / requests
    print(f"{requests / wall:.0f} requests/s and {crowd.events} events in {wall:.1f} s")
    print(f"the server used {cpu:.1f} s of CPU, {each_ms:.2f} ms a request with its share of the streams")
    print(f"its memory was {before / MIB:.0f} MiB, then {after / MIB:.0f} MiB")


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--pollers", type=int, default=50)
    words.add_argument("--every", type=float, default=0.5, help="seconds between two questions of a poller (0.5)")
    words.add_argument("--streams", type=int, default=10)
    words.add_argument("--runs", type=int, default=4, help="runs that go on (4)")
    words.add_argument("--rollouts", type=int, default=2000, help="of all runs together (2000)")
    words.add_argument("--seconds", type=float, default=20.0, help="in which they are reported (20)")
    asked = words.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        at = PlatformProcess(Path(scratch) / "data", no_worker="")
        at.start()
        try:
            at.login()
            asyncio.run(measure(at, asked))
        finally:
            at.terminate()


if __name__ == "__main__":
    main()
