"""2000 rollouts on two machines: what the second one brings, and nine of their parts killed at points of chance."""

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psutil
import pytest

from support.platform_process import PlatformProcess, until

from . import long_run
from .two_machines import Hub, Machine, hub, platform_in

pytestmark = [pytest.mark.soak, pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")]
LEASE_S = "20"
SHARDS = 6
WARM_ROWS = 40
"""Of a run before the one that is measured: the first job on a machine makes its environment."""
KILLS = ("machine", "worker", "platform", "worker", "platform", "worker", "machine", "worker", "platform")
"""Of machines two, because a job may be lost twice; in an order of chance."""


@dataclass
class Place:
    """A platform behind TLS, and what one worker alone has made of the run."""

    network: Hub
    platform: PlatformProcess
    folder: Path
    token: str
    alone: str = ""
    alone_rate: float = 0.0
    machines: dict[str, Machine] = field(default_factory=dict)

    def start(self, name: str, *, folder: str = "") -> None:
        where = self.folder / (folder or name)
        self.machines[name] = self.network.worker(name, where, self.token, job_command=long_run.JOB, kept_up=True)

    @property
    def disks(self) -> list[Path]:
        return [machine.folder for machine in self.network.machines]

    def done(self, name: str) -> None:
        self.platform.reaches(name, "finished", within_s=long_run.LONG_S)

    def measured(self, name: str) -> tuple[float, float, float]:
        """Of this run: rollouts a second, and ms of CPU a rollout, in all and of the busiest process."""
        roots = [self.platform.process.pid, *(one.holder.pid for one in self.machines.values())]
        until(lambda: long_run.count(self.platform, name) > 0, "the first rollouts are there", long_run.LONG_S)
        first, cpu = long_run.count(self.platform, name), long_run.CpuOf(roots)
        before = cpu.now()
        while long_run.count(self.platform, name) < long_run.ROLLOUTS:
            cpu.now()
            time.sleep(1)
        total, busiest = (1000 * used / (long_run.ROLLOUTS - first) for used in cpu.since(before))
        self.done(name)
        return long_run.rate(long_run.rollouts_of(self.platform, name)), total, busiest


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("two")
    with (
        hub(folder, tmp_path_factory.getbasetemp()) as network,
        platform_in(network, folder, long_run.prepare, lease=LEASE_S) as platform,
    ):
        token = platform.json("POST", "tokens", json={"name": "two", "scopes": ["worker"]})["token"]
        made = Place(network, platform, folder, str(token))
        made.start("one")
        made.alone = long_run.submit(platform, shards=1)
        made.alone_rate, total, busiest = made.measured(made.alone)
        cores = os.cpu_count() or 1
        long_run.say(
            f"one worker: {made.alone_rate:.1f} rollouts a second; {total:.0f} ms of CPU each, {busiest:.0f} in "
            f"one process, so two workers reach at most {min(2.0, cores * busiest / total):.2f} times that on these "
            f"{cores} cores (load {os.getloadavg()[0]:.1f})"
        )
        yield made


def kill_machine(place: Place, chance: Random) -> None:
    """One of them, with all that runs on it; it, or another with an empty disk, comes in its place."""
    name = chance.choice(sorted(place.machines))
    place.machines[name].kill()
    place.start(name, folder=chance.choice(["", f"{name}-anew"]))


def kill_worker(place: Place, chance: Random) -> None:
    """The process alone: its jobs outlive it, and the next one on its machine takes them over."""
    machine = place.machines[chance.choice(sorted(place.machines))]

    def workers() -> list[psutil.Process]:
        family = psutil.Process(machine.holder.pid).children(recursive=True)
        return [one for one in family if "osmosis worker start" in " ".join(_words(one)) and one.name() != "sh"]

    until(workers, "it has a worker")
    workers()[-1].kill()


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def kill_platform(place: Place, chance: Random) -> None:
    place.platform.kill()
    time.sleep(chance.uniform(0, 5))
    place.platform.start()


def run_id(place: Place, name: str) -> str:
    return str(place.platform.run(name)["id"])


def test_two_machines_make_one_report_and_say_at_which_rate(place: Place) -> None:
    place.start("two")
    place.done(long_run.submit(place.platform, shards=2, rows=WARM_ROWS))
    name = long_run.submit(place.platform, shards=2)
    rate, total, _ = place.measured(name)
    long_run.say(
        f"two workers: {rate:.1f} rollouts a second, {rate / place.alone_rate:.2f} times one; {total:.0f} ms of CPU "
        f"each (load {os.getloadavg()[0]:.1f})"
    )
    witness = long_run.Witness(place.platform, name)
    assert witness.judge([folder / "jobs" / "runs" / run_id(place, name) for folder in place.disks]) == 0
    assert long_run.figures(place.platform, name) == long_run.figures(place.platform, place.alone)


def test_nine_kills_lose_nothing_and_double_nothing(place: Place) -> None:
    chance = long_run.seeded("two machines")
    for name in ("one", "two"):
        if name not in place.machines:
            place.start(name)
    name = long_run.submit(place.platform, shards=SHARDS)
    witness = long_run.Witness(place.platform, name)
    kills = chance.sample(KILLS, len(KILLS))
    points = sorted(chance.sample(range(long_run.ROLLOUTS // 20, long_run.ROLLOUTS * 9 // 10), len(kills)))
    for victim, point in zip(kills, points, strict=True):
        long_run.reaches(place.platform, name, point)
        witness.look()
        long_run.say(f"{len(witness.stored)} rollouts are stored: {victim} is killed")
        {"machine": kill_machine, "worker": kill_worker, "platform": kill_platform}[victim](place, chance)
    place.done(name)
    vain = witness.judge([folder / "jobs" / "runs" / run_id(place, name) for folder in place.disks])
    long_run.say(f"{vain} rollouts were made in vain")
    assert long_run.figures(place.platform, name) == long_run.figures(place.platform, place.alone)
