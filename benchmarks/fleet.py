"""What a fleet of workers costs its platform: claims, reports, idle rounds, pages, bytes; and where it bends.

Workers and jobs are spoken for in this process, by the protocol and without their work: what is measured is the
platform alone. Runs are put into its database as a submit leaves them. CPU is the server's and, on PostgreSQL, the
database's; on a busy machine only that and the bytes mean anything.

    .ci/postgres python benchmarks/fleet.py                                         # about three minutes
    .ci/postgres python benchmarks/fleet.py --workers 1000 --rollouts 1000000       # takes about half an hour
    python benchmarks/fleet.py --rollouts 2000 --claims 50                          # SQLite
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil
import sqlalchemy as sa
from platform_load import browser
from sqlalchemy.orm import make_transient, undefer

from osmosis._version import __version__
from osmosis.platform import Platform, tables
from osmosis.platform.settings import PlatformSettings
from osmosis.records.base import utc_now
from osmosis.records.run.job import JOB_PROTOCOL
from osmosis.records.run.rollout import Rollout, RolloutStatus, Score

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from support.platform_data import a_job
from support.platform_process import PlatformProcess

LANES = 16
"""Requests under way at once: more only wait."""
PAGE_EVERY_S = 0.5
FIFTHS = 5
WORDS = [f"{random.Random(n).getrandbits(28):x}" for n in range(3000)]
"""Of which conversations are made: about as compressible as text is."""


class Cpu:
    """Seconds of CPU of the platform, and of all processes of its database."""

    def __init__(self, server: int, database: int | None) -> None:
        self._server = psutil.Process(server)
        self._database = psutil.Process(database) if database else None
        self._seen: dict[int, float] = {}
        """Of each process of the database, also of those that have ended."""

    def now(self) -> tuple[float, float]:
        return sum(self._server.cpu_times()[:2]), self._of_database()

    def _of_database(self) -> float:
        if self._database is None:
            return 0.0
        for process in (self._database, *self._database.children()):
            with suppress(psutil.NoSuchProcess):
                self._seen[process.pid] = sum(process.cpu_times()[:2])
        return sum(self._seen.values())


@dataclass(frozen=True)
class Cost:
    """Of one kind of work."""

    what: str
    count: int
    wall_s: float
    server_ms: float
    database_ms: float
    p50_ms: float
    p99_ms: float

    def line(self) -> str:
        return (
            f"{self.what:<34}{self.count:>8}{self.count / self.wall_s:>10.0f}{self.server_ms:>10.2f}"
            f"{self.database_ms:>10.2f}{self.p50_ms:>9.1f}{self.p99_ms:>9.1f}"
        )


HEAD = "\n".join(
    f"{'':<34}{count:>8}{rate:>10}{server:>10}{database:>10}{p50:>9}{p99:>9}"
    for count, rate, server, database, p50, p99 in (
        ("count", "a second", "ms CPU", "ms CPU", "p50", "p99"),
        ("", "", "server", "database", "ms", "ms"),
    )
)


class Fleet:
    """Everybody who speaks to the platform."""

    def __init__(self, root: str, cpu: Cpu, session: aiohttp.ClientSession, worker_token: str) -> None:
        self.root, self.cpu, self.session = root, cpu, session
        self.worker = {"Authorization": f"Bearer {worker_token}"}

    async def ask(self, method: str, path: str, bearer: dict[str, str], body: object = None) -> object:
        try:
            return await self._ask(method, path, bearer, body)
        except aiohttp.ServerDisconnectedError:  # as a job that says it again: the connection was idle for too long
            return await self._ask(method, path, bearer, body)

    async def _ask(self, method: str, path: str, bearer: dict[str, str], body: object) -> object:
        async with self.session.request(method, self.root + path, headers=bearer, json=body) as answer:
            text = await answer.read()
            assert answer.status == 200, (path, answer.status, text[:300])
            return await answer.json() if answer.content_type == "application/json" else text

    async def measured(self, what: str, work: Iterable[Callable[[], Awaitable[object]]], *, count: int = 0) -> Cost:
        """All of it, `LANES` at once; it counts as so many, else as its pieces."""
        took: list[float] = []
        waiting = iter(work)

        async def lane() -> None:
            for one in waiting:
                began = time.perf_counter()
                await one()
                took.append(1000 * (time.perf_counter() - began))

        before, began = self.cpu.now(), time.perf_counter()
        await asyncio.gather(*(lane() for _ in range(LANES)))
        wall, after = time.perf_counter() - began, self.cpu.now()
        count = count or len(took)
        server, database = (1000 * (b - a) / max(1, count) for a, b in zip(before, after, strict=True))
        return Cost(what, count, wall, server, database, *middle_and_end(took))

    async def hello(self, number: int) -> str:
        said = {
            **{"name": f"w{number}", "machine": f"m{number}", "version": __version__, "protocol": JOB_PROTOCOL},
            **{"kinds": ["eval"], "max_jobs": 1, "resources": {"cpus": 4, "memory_mb": 16384}},
        }
        found = await self.ask("POST", "/api/workers/hello", self.worker, said)
        assert isinstance(found, dict)
        return str(found["worker_id"])

    async def round(self, worker_id: str, slots: int) -> dict[str, object] | None:
        said = {"worker_id": worker_id, "jobs": [], "slots": slots}
        found = await self.ask("POST", "/api/workers/claim", self.worker, said)
        assert isinstance(found, dict)
        return found["start"]  # type: ignore[no-any-return]

    async def take(self, worker_id: str) -> dict[str, object]:
        """A job, with all that is said until its first rollout."""
        order = await self.round(worker_id, 1)
        assert order is not None
        said = {key: order[key] for key in ("job_id", "lease_id")}
        await self.ask(
            "POST", "/api/workers/started", self.worker, {**said, "worker_id": worker_id, "handle": {"pid": 1}}
        )
        await self.of_job(order, "GET", "spec")
        await self.of_job(order, "POST", "secrets", {"taker": uuid.uuid4().hex * 2})
        await self.of_job(order, "GET", "rollouts")
        return order

    async def of_job(self, order: dict[str, object], method: str, path: str, body: object = None) -> object:
        bearer = {"Authorization": f"Bearer {order['lease']}"}
        return await self.ask(method, f"/api/jobs/{order['run_id']}/{path}", bearer, body)


def rollout(row: int, size: int) -> dict[str, object]:
    """A conversation of so many bytes."""
    text = " ".join(random.choices(WORDS, k=size // 8))
    made = Rollout(
        rollout_id=f"r{row}-{uuid.uuid4().hex[:12]}",
        row_index=row,
        row_key=f"{row:016x}",
        attempt=0,
        status=RolloutStatus.SUCCESS,
        messages=[{"role": "user", "content": text[: size // 4]}, {"role": "assistant", "content": text[size // 4 :]}],
        scores={"reward": Score(name="reward", value=float(row % 2))},
    )
    return made.to_dict()


def fill(platform: Platform, name: str, runs: int, rows: int) -> None:
    """Runs that wait, as the one that was submitted."""
    with platform.db.write() as session:
        template = session.scalars(sa.select(tables.Run).where(tables.Run.name == name).options(undefer("*"))).one()
        session.expunge(template)
        make_transient(template)
        columns = {one.key: getattr(template, one.key) for one in sa.inspect(tables.Run).column_attrs}
        for number in range(runs):
            own = {"id": uuid.uuid4().hex, "name": f"fleet-{rows}-{number}", "rows": list(range(rows))}
            new = {"status": "pending", "stop_requested_at": None, "completed_at": None, "created_at": utc_now()}
            run = tables.Run(**{**columns, **own, **new, "sampled_rows": rows, "dataset_rows": rows})
            session.add(run)
            session.flush()
            session.add(a_job(run))


def database_bytes(platform: Platform, data_dir: Path) -> int:
    if platform.settings.database_url:
        with platform.db.read() as session:
            return int(session.scalar(sa.text("SELECT pg_database_size(current_database())")) or 0)
    return sum(path.stat().st_size for path in data_dir.glob("platform.db*"))


async def measure(at: PlatformProcess, platform: Platform, asked: argparse.Namespace) -> None:
    assert at.process is not None
    token = at.json("POST", "tokens", json={"name": "fleet", "scopes": ["worker"]})["token"]
    submitted = at.submit()
    at.json("POST", f"eval-runs/{submitted}/stop", json={})
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2)) as session:
        cpu = Cpu(at.process.pid, postmaster(platform))
        fleet = Fleet(f"http://127.0.0.1:{at.port}", cpu, session, token)
        print(HEAD, flush=True)
        ids: list[str] = []

        async def arrive(number: int) -> None:
            ids.append(await fleet.hello(number))

        show(await fleet.measured("a worker says hello", (lambda n=n: arrive(n) for n in range(asked.workers))))
        show(await fleet.measured("an idle round", (lambda one=one: fleet.round(one, 1) for one in ids * asked.rounds)))
        fill(platform, submitted, asked.claims, 1)
        orders = await claims(fleet, ids, asked.claims)
        show(await fleet.measured("the end of a job", (lambda one=one: end(fleet, one) for one in orders)))
        await reports(fleet, at, platform, asked, ids, submitted)


async def claims(fleet: Fleet, ids: list[str], count: int) -> list[dict[str, object]]:
    orders: list[dict[str, object]] = []

    async def one(number: int) -> None:
        orders.append(await fleet.take(ids[number % len(ids)]))

    show(await fleet.measured("a claim, to the first rollout", (lambda n=n: one(n) for n in range(count))))
    return orders


async def end(fleet: Fleet, order: dict[str, object]) -> None:
    await fleet.of_job(order, "POST", "finish", {"status": "finished"})


async def reports(
    fleet: Fleet, at: PlatformProcess, platform: Platform, asked: argparse.Namespace, ids: list[str], submitted: str
) -> None:
    """The rollouts, in fifths, so that one sees whether the last are dearer than the first; pages meanwhile."""
    runs = LANES
    rows = -(-asked.rollouts // runs)
    fill(platform, submitted, runs, rows)
    orders = [await fleet.take(ids[number % len(ids)]) for number in range(runs)]
    beat = {"stage": "rollouts", "completed": 1, "total": rows}
    beats = (lambda one=one: fleet.of_job(one, "POST", "heartbeat", beat) for one in orders * 20)
    show(await fleet.measured("a heartbeat", beats))

    async def send(order: dict[str, object], span: range) -> None:
        batch = {"rollouts": [rollout(row, asked.bytes) for row in span]}
        await fleet.of_job(order, "POST", "rollouts", batch)

    singles = [(order, range(rows + n, rows + n + 1)) for n in range(20) for order in orders]
    show(await fleet.measured("a report of one rollout", (lambda o=o, s=s: send(o, s) for o, s in singles)))
    before, pages = database_bytes(platform, at.data_dir), Pages(fleet, at, str(orders[0]["run_id"]))
    looking = asyncio.create_task(pages.look())
    for fifth in range(FIFTHS):
        first, last = fifth * rows // FIFTHS, (fifth + 1) * rows // FIFTHS
        spans = [
            (order, range(start, min(start + asked.batch, last)))
            for start in range(first, last, asked.batch)
            for order in orders
        ]
        work = (lambda o=order, s=span: send(o, s) for order, span in spans)
        show(
            await fleet.measured(
                f"a rollout, {fifth + 1} of {FIFTHS} fifths", work, count=sum(len(span) for _, span in spans)
            )
        )
    pages.over = True
    await looking
    grown = (database_bytes(platform, at.data_dir) - before) / (rows * runs)
    for name, times in pages.took.items():
        half, nearly_all = middle_and_end(times)
        print(f"{name + ' meanwhile':<34}{len(times):>8}{'':>30}{half:>9.1f}{nearly_all:>9.1f}")
    print(f"{grown:.0f} bytes of database a rollout of {asked.bytes} bytes of conversation")
    show(await fleet.measured("the end of a run", (lambda one=one: end(fleet, one) for one in orders)))


class Pages:
    """A person who looks at the list of runs, and at one that goes on."""

    def __init__(self, fleet: Fleet, at: PlatformProcess, run_id: str) -> None:
        self.fleet = fleet
        self.cookies = {"Cookie": browser(at, at.json("POST", "browser-login")["url"])}
        self.paths = {"the list of runs": "/", "a run's page": f"/runs/{run_id}"}
        self.over = False
        self.took: dict[str, list[float]] = {name: [] for name in self.paths}

    async def look(self) -> None:
        while not self.over:
            for name, path in self.paths.items():
                began = time.perf_counter()
                async with self.fleet.session.get(self.fleet.root + path, headers=self.cookies) as answer:
                    await answer.read()
                    assert answer.status == 200, path
                self.took[name].append(1000 * (time.perf_counter() - began))
            await asyncio.sleep(PAGE_EVERY_S)


def middle_and_end(times: list[float]) -> tuple[float, float]:
    """The 50th and the 99th of a hundred."""
    cuts = statistics.quantiles(times, n=100) if len(times) > 1 else [sum(times)] * 99
    return cuts[49], cuts[98]


def show(cost: Cost) -> None:
    print(cost.line(), flush=True)


def postmaster(platform: Platform) -> int | None:
    """The process id of the database server, where it runs on this machine."""
    if not platform.settings.database_url:
        return None
    with platform.db.read() as session:
        backend = session.scalar(sa.text("SELECT pg_backend_pid()"))
    return psutil.Process(backend).ppid() if backend and psutil.pid_exists(backend) else None


def own_database(url: str) -> str:
    """A database of its own on this server."""
    name = f"fleet_{uuid.uuid4().hex[:12]}"
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return sa.make_url(url).set(database=name).render_as_string(hide_password=False)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--workers", type=int, default=100)
    words.add_argument("--rounds", type=int, default=5, help="idle rounds of each worker (5)")
    words.add_argument("--claims", type=int, default=300, help="runs of one row each (300)")
    words.add_argument("--rollouts", type=int, default=20_000)
    words.add_argument("--batch", type=int, default=100, help="rollouts in one report; a job sends at most 100 (100)")
    words.add_argument("--bytes", type=int, default=4000, help="of a conversation (4000)")
    asked = words.parse_args()
    server = os.environ.get("OSMOSIS_TEST_POSTGRES_URL", "")
    url = own_database(server) if server else ""
    print(f"{'PostgreSQL' if url else 'SQLite'}, {asked.workers} workers, {asked.rollouts} rollouts", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        data_dir = Path(scratch) / "data"
        at = PlatformProcess(data_dir, environ={**os.environ, "OSMOSIS_DATABASE_URL": url}, no_worker="", lease="3600")
        at.start()
        platform = None
        try:
            at.login()
            at.prepare(Path(scratch) / "checkout")
            platform = Platform.open(PlatformSettings(data_dir=data_dir, database_url=url))
            asyncio.run(measure(at, platform, asked))
        finally:
            if platform is not None:
                platform.db.close()
            at.end()


if __name__ == "__main__":
    main()
