"""The Kubernetes example: what it creates has the published schema, and what kubectl shows becomes states of jobs.

There is no cluster here: a `kubectl` of ours keeps what it is given and answers as a recorded one does.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from osmosis.cli.worker import WorkerFlags, worker_config
from osmosis.records.config.worker import ResourceNeeds
from osmosis.records.run.job import JobEntry
from osmosis.worker.executors.command import CommandExecutor
from osmosis.worker.executors.executor import JobStart

from .tool_venv import tool_venv

EXAMPLE = Path(__file__).parents[3] / "examples" / "executors" / "kubernetes"
KUBECTL = """\
import json, os, sys
folder = os.path.dirname(os.path.abspath(__file__))
words = sys.argv[1:]
with open(f"{folder}/said", "a") as file:
    file.write(json.dumps([words, None if words[0] != "create" else json.load(sys.stdin)]) + "\\n")
if words[0] == "create":
    made = json.loads(open(f"{folder}/said").read().splitlines()[-1])[1]
    print(json.dumps({**made, "metadata": {**made["metadata"], "uid": "the-uid"}}))
if words[0] == "get":
    print(open(f"{folder}/items.json").read())
"""


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "kubectl.py").write_text(KUBECTL)
        (folder / "kubectl").write_text(f'#!/bin/sh\nexec {sys.executable} {folder}/kubectl.py "$@"\n')
        (folder / "python3").symlink_to(sys.executable)
        for name in ("kubectl", "kubectl.py"):
            (folder / name).chmod(0o700)
        config = worker_config(EXAMPLE / "worker.toml", WorkerFlags())
        options = config.command.model_copy(update={"start": _located(config.command.start)})
        options = options.model_copy(
            update={"listing": _located(config.command.listing), "end": _located(config.command.end)}
        )
        environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        self.executor = CommandExecutor(options, config.job_command, environ)

    def said(self) -> list[Any]:
        return [json.loads(line) for line in (self.folder / "said").read_text().splitlines()]

    def has(self, *items: dict[str, Any]) -> None:
        (self.folder / "items.json").write_text(json.dumps({"items": items}))


def _located(words: list[str]) -> list[str]:
    return [
        sys.executable if word == "python3" else word.replace("scheduler.py", str(EXAMPLE / "scheduler.py"))
        for word in words
    ]


def start(cluster: Cluster, count: int, **needs: Any) -> list[dict[str, Any]]:
    jobs = [
        JobStart(
            "https://osmosis.example.com/api/jobs/r1",
            JobEntry(ticket=f"ost_{number}", work_dir="$HOME/w", cache_dir="$HOME/c"),
            "run 1'; echo $HOME",
            ResourceNeeds(**needs),
        )
        for number in range(count)
    ]
    return cluster.executor.start(jobs)


def pod(job: str, index: int, created: str, **status: Any) -> dict[str, Any]:
    labels = {"batch.kubernetes.io/job-name": job, "batch.kubernetes.io/job-completion-index": str(index)}
    return {"kind": "Pod", "metadata": {"labels": labels, "creationTimestamp": created}, "status": status}


def test_a_run_in_shards_is_an_indexed_job_with_a_ticket_for_each(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    handles = start(cluster, 3, cpus=2, memory="4GB", gpus=1)
    (_, job), (_, secret) = cluster.said()
    name = job["metadata"]["name"]
    assert [handle["id"] for handle in handles] == [f"{name}/{index}" for index in range(3)]
    assert (job["spec"]["completions"], job["spec"]["completionMode"]) == (3, "Indexed")
    resources = job["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert resources["requests"] == {"cpu": "2", "memory": "4096Mi", "nvidia.com/gpu": "1"}
    assert job["metadata"]["annotations"] == {"osmosis/run": "run 1'; echo $HOME"}
    assert "ost_" not in json.dumps(job)
    assert secret["metadata"]["ownerReferences"][0]["uid"] == "the-uid"
    script = tmp_path / "job.sh"
    script.write_text(secret["stringData"]["job.sh"].replace("exec python3 -m osmosis.jobs", "exec sh -c cat"))
    for index in range(3):
        environ = {**os.environ, "JOB_COMPLETION_INDEX": str(index)}
        entry = subprocess.run(["sh", str(script)], env=environ, capture_output=True, text=True, check=True).stdout
        assert json.loads(entry)["ticket"] == f"ost_{index}"


def test_what_kubernetes_says_of_pods_is_how_the_jobs_are(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    handles = start(cluster, 5)
    name = str(handles[0]["id"]).partition("/")[0]
    ended = {"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    unschedulable = {"status": "False", "message": "0/3 nodes are available"}
    cluster.has(
        {"kind": "Job", "metadata": {"name": name}, "spec": {"completions": 5}},
        pod(name, 1, "2026-01-01T00:00:00Z", phase="Pending", conditions=[unschedulable]),
        pod(name, 2, "2026-01-01T00:00:00Z", phase="Running", containerStatuses=[{"state": {"running": {}}}]),
        pod(name, 3, "2026-01-01T00:00:09Z", phase="Failed", containerStatuses=[ended]),
        pod(name, 3, "2026-01-01T00:00:01Z", phase="Running"),
    )
    states = cluster.executor.poll([*handles, {"executor": "command", "id": "osmosis-other/0"}])
    assert [state.alive for state in states] == [True, True, True, False, True, False]
    assert states[1].place == f"queued as job {name}/1 (0/3 nodes are available)"
    assert states[0].place == states[4].place.replace("/4", "/0") == f"queued as job {name}/0"
    assert (states[2].place, states[3].exit_code) == ("", 137)
    assert "Failed: OOMKilled" in states[3].reason
    cluster.executor.kill(handles[2])
    words, _ = cluster.said()[-1]
    wanted = f"batch.kubernetes.io/job-name={name},batch.kubernetes.io/job-completion-index=2"
    assert words[:4] == ["delete", "pod", "-l", wanted]


@pytest.mark.network
def test_the_manifests_have_the_published_schema(tmp_path: Path, trainer_cache: Path) -> None:
    python = tool_venv(trainer_cache, "kubernetes-validate", "kubernetes-validate==1.37.0") / "python"
    cluster = Cluster(tmp_path)
    start(cluster, 2, cpus=0.5, disk="20GB")
    for number, (_, made) in enumerate(cluster.said()):
        (tmp_path / "made.json").write_text(json.dumps(made))
        command = [str(python), "-m", "kubernetes_validate", "--strict", "--kubernetes-version", "1.29"]
        done = subprocess.run([*command, str(tmp_path / "made.json")], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{number}: {done.stdout}{done.stderr}"
    broken = {**cluster.said()[0][1], "spec": {"completion": 2}}
    (tmp_path / "made.json").write_text(json.dumps(broken))
    done = subprocess.run([*command, str(tmp_path / "made.json")], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0, "the check can fail"
