"""A real Ray cluster of two nodes: a sharded run survives one of them, Ray learns no secret, refusals are plain."""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.platform_process import FAKE_JOB, PlatformProcess, until

from . import long_run
from .ray_cluster import ONE_JOB, TOKEN, NoRay, RayCluster, ray_cluster
from .remote_worker import SECRET, RemoteWorker, platform_without_worker, remote_worker
from .tool_venv import tool_venv

pytestmark = [pytest.mark.network, pytest.mark.slow]


def config_of(cluster: RayCluster, folder: Path, job_command: str) -> str:
    return f"""
executor = "ray"
max_jobs = 4
poll_s = 0.5
job_command = {json.dumps(job_command)}
node_dir = "{folder}/nodes"
[ray]
address = "{cluster.address}"
token_variable = "TOKEN_OF_RAY"
resources = {{osmosis = 1}}
[ray.runtime_env.env_vars]
FROM_THE_CONFIG = "1"
"""


def environ_of(cluster: RayCluster) -> dict[str, str]:
    environ = {key: value for key, value in cluster.environ.items() if not key.startswith("RAY_")}
    return {**environ, "TOKEN_OF_RAY": TOKEN}


@pytest.fixture(scope="module")
def cluster(trainer_cache: Path) -> Iterator[RayCluster]:
    programs = tool_venv(trainer_cache, "ray", "ray[default]==2.60.0")
    folder = Path(tempfile.mkdtemp(prefix="osm", dir="/tmp"))  # Ray's sockets want a short path
    try:
        with ray_cluster(folder, programs) as found:
            yield found
    except NoRay as reason:
        pytest.skip(f"ray did not come up on this machine: {str(reason)[-300:]}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    with platform_without_worker(tmp_path_factory.mktemp("platform")) as process:
        yield process


@pytest.fixture(scope="module")
def worker(
    platform: PlatformProcess, cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RemoteWorker]:
    folder = tmp_path_factory.mktemp("beside-ray")
    config = config_of(cluster, folder, FAKE_JOB)
    with remote_worker(platform, folder / "worker", config, environ_of(cluster)) as started:
        yield started


def shard_folder(worker: RemoteWorker, platform: PlatformProcess, name: str, shard: int) -> Path:
    return worker.folder.parent / "nodes" / "runs" / str(platform.run(name)["id"]) / f"shard-{shard}"


def ray_jobs(cluster: RayCluster) -> list[dict[str, Any]]:
    return list(cluster.get("/api/jobs/"))  # type: ignore[arg-type]


def test_a_sharded_run_outlives_a_node_and_ray_learns_no_secret(
    platform: PlatformProcess, worker: RemoteWorker, cluster: RayCluster
) -> None:
    name = platform.submit(
        "environ,wait:3",
        secrets={"required": ["API_KEY"]},
        evaluation_config={"limit": 12, "batch_size": 4},
        advanced_config={"shards": 2},
    )
    until(lambda: len(platform.rollouts(name)) == 6, "both shards have done half")
    on = {job["driver_node_id"] for job in ray_jobs(cluster)}
    assert len(on) == 2, "they are spread over the nodes"
    stored = cluster.kept()
    cluster.nodes[1].kill()
    gone = re.compile("ray lost job|sent no heartbeat")  # whoever sees it first
    until(lambda: gone.search(platform.logs(name)), "it is noticed")
    for shard in (0, 1):
        (shard_folder(worker, platform, name, shard) / "go").touch()
    platform.reaches(name, "finished")

    assert sorted(platform.rollouts(name)) == list(range(12))
    journals = [shard_folder(worker, platform, name, shard) / "fake-journal.jsonl" for shard in (0, 1)]
    done = [json.loads(line)["row_index"] for journal in journals for line in journal.read_bytes().splitlines()]
    assert sorted(done) == list(range(12)), "nothing was done twice"
    logs = platform.logs(name)
    assert "queued in ray as job osmosis-" in logs
    names = logs.split("environ: ")[1].splitlines()[0].split()
    assert "FROM_THE_CONFIG" in names
    assert "secrets: API_KEY" in logs
    assert not {"OSMOSIS_JOB_ENTRY", "OSMOSIS_WORKER_TOKEN", "TOKEN_OF_RAY"} & set(names)
    for kept in (stored, cluster.kept()):
        assert b"ost_" in kept
        assert not [word for word in (SECRET, "osj_", worker.token) if word.encode() in kept]


def test_a_job_that_dies_says_its_last_words_and_a_stop_ends_one(
    platform: PlatformProcess, worker: RemoteWorker, cluster: RayCluster
) -> None:
    name = platform.submit("crash")
    found = platform.reaches(name, "failed")
    assert "fake job: crashing as told" in found["failure"]["message"]
    working = platform.submit("wait:1")
    until(lambda: platform.rollouts(working) == [0], "it works")
    platform.json("POST", f"eval-runs/{working}/stop", json={})
    platform.reaches(working, "stopped")
    until(lambda: not [job for job in ray_jobs(cluster) if job["status"] in ("PENDING", "RUNNING")], "none is left")
    assert len(cluster.get("/api/version")) > 0, "the cluster itself goes on"


def test_a_cluster_that_refuses_or_is_not_there_is_said_on_the_run(
    platform: PlatformProcess, worker: RemoteWorker, cluster: RayCluster, tmp_path: Path
) -> None:
    worker.stop()
    config = f'executor = "ray"\nresources = {{cpus = 1}}\n[ray]\naddress = "{cluster.address}"\n'
    environ = {**worker.environ, "RAY_AUTH_TOKEN": "a wrong one"}
    with remote_worker(platform, tmp_path / "stranger", config, environ):
        found = platform.reaches(platform.submit(), "failed")
    assert "does not take this worker: HTTP 40" in found["failure"]["message"]


@pytest.mark.soak
def test_three_nodes_are_killed_and_2000_rollouts_lose_nothing_and_double_nothing(
    cluster: RayCluster, tmp_path: Path
) -> None:
    """A killed node is replaced by another. The report is that of one job that nobody disturbed."""
    chance = long_run.seeded("ray")
    with platform_without_worker(tmp_path, long_run.prepare, lease="60", stop_grace="60") as platform:
        config = config_of(cluster, tmp_path, long_run.JOB)
        with remote_worker(platform, tmp_path / "worker", config, environ_of(cluster)):
            alone = long_run.submit(platform, shards=1)
            platform.reaches(alone, "finished", within_s=long_run.LONG_S)
            name = long_run.submit(platform, shards=4)
            witness = long_run.Witness(platform, name)
            for point in sorted(chance.sample(range(long_run.ROLLOUTS // 20, long_run.ROLLOUTS * 8 // 10), 3)):
                long_run.reaches(platform, name, point)
                witness.look()
                long_run.say(f"{len(witness.stored)} rollouts are stored: a node of Ray is killed")
                node = cluster.nodes.pop()
                node.kill()
                until(lambda: cluster.alive() == 1, "Ray knows", long_run.LONG_S)
                cluster.join(2, f"--address={cluster.gcs}", *ONE_JOB)
            platform.reaches(name, "finished", within_s=long_run.LONG_S)
            journals = tmp_path / "nodes" / "runs" / str(platform.run(name)["id"])
            long_run.say(f"{witness.judge([journals])} rollouts were made in vain")
            assert long_run.figures(platform, name) == long_run.figures(platform, alone)
