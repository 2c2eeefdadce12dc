"""A real Slurm of one node: runs and their shards go through it, wait in it, and end in it in every way it has."""

import json
import os
import re
from collections.abc import Iterator

import pytest

from support.platform_process import FAKE_JOB, PlatformProcess, until

from .remote_worker import SECRET, RemoteWorker, platform_without_worker, remote_worker
from .slurm_cluster import SlurmCluster, slurm_cluster, why_not

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=f"no Slurm here: {why_not()}"), pytest.mark.slow]

TEMPLATE = """\
#!/bin/sh
#SBATCH --comment=from-the-template
export FROM_THE_TEMPLATE=1
{job}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as found:
        yield found


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    with platform_without_worker(tmp_path_factory.mktemp("platform")) as process:
        yield process


@pytest.fixture(scope="module")
def worker(
    platform: PlatformProcess, cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RemoteWorker]:
    folder = tmp_path_factory.mktemp("login")
    (folder / "template.sh").write_text(TEMPLATE)
    config = f"""
executor = "slurm"
max_jobs = 6
poll_s = 0.5
job_command = {json.dumps(FAKE_JOB)}
node_dir = "$HOME/osmosis"
[slurm]
template = "{folder}/template.sh"
options = ["--export=ALL,HOME={folder}"]
"""
    with remote_worker(platform, folder / "worker", config, cluster.environ) as started:
        yield started


def job_of(platform: PlatformProcess, name: str) -> str:
    """Slurm's number of the run's latest job."""
    found: list[str] = []

    def given() -> bool:
        found[:] = re.findall(r"to slurm, as job (\S+)", platform.logs(name))
        return bool(found)

    until(given, "the job is in slurm")
    return found[-1]


def works(platform: PlatformProcess, name: str) -> str:
    """Its job, when it has begun and done a rollout."""
    until(lambda: platform.rollouts(name), "its job works")
    return job_of(platform, name)


def go(worker: RemoteWorker, platform: PlatformProcess, name: str, shard: str = "") -> None:
    folder = worker.folder.parent / "osmosis" / "runs" / str(platform.run(name)["id"]) / shard
    until(folder.is_dir, "the job has its folder")
    (folder / "go").touch()


def test_a_sharded_run_is_an_array_and_slurm_learns_no_secret(
    platform: PlatformProcess, worker: RemoteWorker, cluster: SlurmCluster
) -> None:
    name = platform.submit(
        "environ",
        secrets={"required": ["API_KEY"]},
        evaluation_config={"limit": 6, "batch_size": 6},
        advanced_config={"shards": 3},
    )
    platform.reaches(name, "finished")
    assert sorted(platform.rollouts(name)) == [0, 1, 2, 3, 4, 5]
    logs = platform.logs(name)
    given = re.findall(r"to slurm, as job (\d+)_(\d)", logs)
    assert sorted(index for _, index in given) == ["0", "1", "2"]
    assert len({number for number, _ in given}) == 1, "one array"
    names = logs.split("environ: ")[1].splitlines()[0].split()
    assert "FROM_THE_TEMPLATE" in names
    assert "OSMOSIS_WORKER_TOKEN" not in names
    assert "secrets: API_KEY" in logs
    kept = cluster.kept() + b"".join(path.read_bytes() for path in worker.folder.glob("jobs/slurm/*"))
    assert b"from-the-template" in kept
    assert not [word for word in (SECRET, "osj_", worker.token) if word.encode() in kept]


def test_a_run_waits_in_slurm_says_why_and_outlives_its_worker(platform: PlatformProcess, worker: RemoteWorker) -> None:
    wide = {"resources": {"cpus": 2}}
    first = platform.submit("wait:1", advanced_config=wide)
    works(platform, first)
    second = platform.submit(advanced_config={"resources": {"memory": "3GB"}})
    waits = re.compile(r"queued in slurm as job \d+ \((Resources|Priority)\)")
    until(lambda: waits.search(str(platform.run(second)["progress"])), "it says that it waits, and for what")
    worker.kill()
    go(worker, platform, first)
    platform.reaches(first, "finished")
    worker.start()
    platform.reaches(second, "finished")
    assert "restarting (start" not in platform.logs(first) + platform.logs(second)


def test_what_ends_a_job_there_decides_what_becomes_of_its_run(
    platform: PlatformProcess, worker: RemoteWorker, cluster: SlurmCluster
) -> None:
    cancelled = platform.submit("wait:2")
    cluster.say("scancel", works(platform, cancelled))
    found = platform.reaches(cancelled, "failed")
    assert "it was cancelled there (scancel)" in found["failure"]["message"]
    platform.json("POST", f"eval-runs/{cancelled}/retry", json={})
    retried = platform.run(cancelled)
    assert retried["status"] in ("pending", "running")
    platform.json("POST", f"eval-runs/{cancelled}/stop", json={})

    late = platform.submit("wait:2", advanced_config={"resources": {"wall_s": 60}})
    number = works(platform, late)
    assert "TimeLimit=00:16:00" in cluster.say("scontrol", "show", "job", number)
    cluster.say("scontrol", "update", f"JobId={number}", "EndTime=now")
    assert "it reached its time limit: raise wall_s" in platform.reaches(late, "failed")["failure"]["message"]

    lost = platform.submit("wait:2")
    works(platform, lost)
    cluster.say("scontrol", "update", f"NodeName={cluster.node}", "State=DOWN", "Reason=test")
    until(lambda: "its node failed" in platform.logs(lost), "the node is lost; it comes back by itself")
    go(worker, platform, lost)
    platform.reaches(lost, "finished")
    assert platform.rollouts(lost) == [0, 1, 2, 3, 4, 5]

    large = platform.submit("grow")
    message = platform.reaches(large, "failed")["failure"]["message"]
    assert "it needed more memory than it had: raise memory" in message


def test_a_stopped_run_leaves_nothing_in_slurm(
    platform: PlatformProcess, worker: RemoteWorker, cluster: SlurmCluster
) -> None:
    working, waiting = platform.submit("wait:1"), platform.submit(advanced_config={"resources": {"cpus": 2}})
    works(platform, working)
    job_of(platform, waiting)
    for name in (waiting, working):
        platform.json("POST", f"eval-runs/{name}/stop", json={})
        platform.reaches(name, "stopped")
    until(lambda: not cluster.say("squeue", "-h", "-t", "PENDING,RUNNING"), "nothing of them is there")


def test_the_cluster_says_what_it_has(platform: PlatformProcess, worker: RemoteWorker) -> None:
    listed = platform.json("GET", "workers")["workers"]
    mine = next(one for one in listed if one["executor"] == "slurm" and one["state"] != "lost")
    assert (mine["resources"]["cpus"], mine["resources"]["memory_mb"]) == (2, 4000)
    assert os.path.basename(worker.folder) == mine["name"]
