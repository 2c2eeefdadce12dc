"""The three commands of a scheduler for Kubernetes, with kubectl: start, list, end.

`start` reads the job's script, which holds a ticket, and keeps it in a Secret that goes with its Job.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

MANIFEST = Path(__file__).parent / "job.yaml"
INDEX = "batch.kubernetes.io/job-completion-index"
JOB = "batch.kubernetes.io/job-name"


def job_of(name: str, run: str, count: int, sizes: dict[str, str]) -> dict[str, Any]:
    """The Job that is created: `sizes` are those of one pod."""
    job: dict[str, Any] = yaml.safe_load(MANIFEST.read_text())
    job["metadata"] |= {"name": name, "annotations": {"osmosis/run": run}}
    job["spec"] |= {"completions": count, "parallelism": count}
    pod = job["spec"]["template"]["spec"]
    pod["containers"][0]["resources"] = {"requests": sizes, "limits": {k: v for k, v in sizes.items() if k != "cpu"}}
    pod["volumes"].append({"name": "ticket", "secret": {"secretName": name, "defaultMode": 0o400}})
    return job


def secret_of(job: dict[str, Any], script: str) -> dict[str, Any]:
    """Deleted with its Job, which Kubernetes has named by then."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
    metadata = {"name": job["metadata"]["name"], "labels": {"app": "osmosis"}, "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"job.sh": script}}


def start(run: str, count: str, cpus: str, memory_mb: str, gpus: str, disk_mb: str) -> None:
    sizes = {"cpu": cpus, "memory": f"{memory_mb}Mi", "nvidia.com/gpu": gpus, "ephemeral-storage": f"{disk_mb}Mi"}
    asked = {key: value for key, value in sizes.items() if value not in ("0", "0Mi")}
    name = f"osmosis-{secrets.token_hex(5)}"
    made = json.loads(kubectl("create", "-f", "-", "-o", "json", given=job_of(name, run, int(count), asked)))
    try:
        kubectl("create", "-f", "-", given=secret_of(made, sys.stdin.read()))
    except SystemExit:
        kubectl("delete", "job", name, "--wait=false")
        raise
    print(name)


def show_all() -> None:
    """Each index of each Job: that of its newest pod, else `Pending`."""
    items = json.loads(kubectl("get", "jobs,pods", "-l", "app=osmosis", "-o", "json"))["items"]
    jobs = [item for item in items if item["kind"] == "Job"]
    pods = [item for item in items if item["kind"] == "Pod" and INDEX in item["metadata"]["labels"]]
    names = [(job["metadata"]["name"], index) for job in jobs for index in range(job["spec"]["completions"])]
    states = dict.fromkeys(names, "Pending - ")
    for pod in sorted(pods, key=lambda one: str(one["metadata"]["creationTimestamp"])):
        labels = pod["metadata"]["labels"]
        states[labels[JOB], int(labels[INDEX])] = state_of(pod["status"])
    for (name, index), state in states.items():
        print(f"{name}/{index} {state}")


def state_of(status: dict[str, Any]) -> str:
    """`PHASE EXIT-CODE WHY`."""
    states = [one.get("state", {}) for one in status.get("containerStatuses", [])]
    code = next((one["terminated"]["exitCode"] for one in states if "terminated" in one), "-")
    whys = [part.get("reason") for one in states for part in one.values()]
    whys += [one.get("message") for one in status.get("conditions", []) if one.get("status") == "False"]
    return f"{status.get('phase', 'Pending')} {code} {status.get('reason') or next(filter(None, whys), '')}"


def end(one: str) -> None:
    """The pod of one index: the others of its Job work on."""
    name, _, index = one.partition("/")
    kubectl("delete", "pod", "-l", f"{JOB}={name},{INDEX}={index}", "--wait=false", "--ignore-not-found")


def kubectl(*words: str, given: dict[str, Any] | None = None) -> str:
    text = json.dumps(given) if given is not None else None
    done = subprocess.run(["kubectl", *words], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr.strip())
    return done.stdout


if __name__ == "__main__":
    {"start": start, "list": show_all, "end": end}[sys.argv[1]](*sys.argv[2:])
