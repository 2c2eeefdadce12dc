"""A Ray cluster of two `ray start` processes on this machine, each really ended by its own process ids.

`ray stop` ends every Ray process of a user, also those of others' work: it is never called.
"""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from osmosis.serve.server_process import free_port

START_S = 90.0
TRIES = 3
STORE = 80_000_000
AGENTS = ("dashboard-agent-listen", "dashboard-agent-grpc", "runtime-env-agent", "metrics-export")
ONE_JOB = ("--num-cpus=2", '--resources={"osmosis": 1}')
TOKEN = "token-of-the-cluster-0123456789abcdef"


class NoRay(Exception):
    """It did not come up here; what it said."""


@dataclass
class RayNode:
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """With all it started, at once."""
        with contextlib.suppress(psutil.NoSuchProcess):
            family = [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]
            for one in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        self.process.wait(20)


@dataclass
class RayCluster:
    folder: Path
    programs: Path
    address: str
    gcs: str
    environ: dict[str, str]
    nodes: list[RayNode] = field(default_factory=list)

    def add(self, *options: str) -> RayNode:
        words = [str(self.programs / "ray"), "start", "--block", "--disable-usage-stats", *options]
        words += [f"--object-store-memory={STORE}", "--min-worker-port=0", "--max-worker-port=0"]
        # A raylet waits half a minute at most for agents that choose ports of their own: on a busy machine too little.
        words += [f"--{agent}-port={free_port()}" for agent in AGENTS]
        with (self.folder / f"node-{len(self.nodes)}.out").open("ab") as output:
            process = subprocess.Popen(words, env=self.environ, stdout=output, stderr=output)
        self.nodes.append(RayNode(process))
        return self.nodes[-1]

    def get(self, path: str) -> dict[str, object] | list[dict[str, object]]:
        headers = {"Authorization": f"Bearer {self.environ['RAY_AUTH_TOKEN']}"}
        answer = httpx.get(f"{self.address}{path}", headers=headers, trust_env=False, timeout=30)
        found: dict[str, object] | list[dict[str, object]] = answer.raise_for_status().json()
        return found

    def join(self, nodes: int, *options: str) -> None:
        """Start one more node, so that there are so many. Ray's own limit for the start of its agents is 15 s, which a
        busy machine misses: then it is tried again; `NoRay` after that."""
        for _ in range(TRIES):
            node = self.add(*options)
            deadline = time.monotonic() + START_S
            while node.process.poll() is None and time.monotonic() < deadline:
                if self.alive() == nodes:
                    return
                time.sleep(0.5)
            node.kill()
            self.nodes.remove(node)
        raise NoRay(self.said())

    def alive(self) -> int:
        with contextlib.suppress(httpx.HTTPError):
            return json.dumps(self.get("/api/v0/nodes?detail=1&limit=100")).count('"ALIVE"')
        return 0

    def said(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("node-*.out")))

    def kept(self) -> bytes:
        """All that Ray writes, and what it shows of its jobs."""
        files = (path for path in self.folder.rglob("*") if path.is_file() and not path.is_symlink())
        return b"".join(path.read_bytes() for path in files) + json.dumps(self.get("/api/jobs/")).encode()


@contextmanager
def ray_cluster(folder: Path, programs: Path) -> Iterator[RayCluster]:
    """Its head, which takes one job at a time; `folder` has a short path, for sockets lie in it."""
    environ = {
        **{key: value for key, value in os.environ.items() if not key.startswith("RAY_")},
        **{"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_USAGE_STATS_ENABLED": "0"},
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }
    gcs, dashboard = free_port(), free_port()
    cluster = RayCluster(folder, programs, f"http://127.0.0.1:{dashboard}", f"127.0.0.1:{gcs}", environ)
    try:
        cluster.join(
            1,
            *("--head", f"--port={gcs}", f"--temp-dir={folder}/ray", *ONE_JOB, "--include-dashboard=true"),
            *("--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}"),
        )
        cluster.join(2, f"--address={cluster.gcs}", *ONE_JOB)
        yield cluster
    finally:
        for node in reversed(cluster.nodes):
            node.kill()
