"""What a training job says of its steps: checkpoints by run and step, curves with one point a step, the lease."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from osmosis.platform import tables
from osmosis.platform.embedded_worker import build_embedded_worker
from osmosis.platform.models import service as models
from osmosis.platform.scheduling import queue
from osmosis.records.base import utc_now
from osmosis.records.config.worker import Resources
from osmosis.records.run.job import hold_file
from osmosis.worker.executors.executor import JobState
from support.platform_data import a_worker

EXPERIMENT = {"rollout": "multiply", "entrypoint": "main.py", "model_path": "Qwen/Qwen3-0.6B", "dataset": "sums"}


class TrainingJob:
    """A claimed training run, and the messages of its job."""

    def __init__(self, site: Any) -> None:
        self.site = site
        body = {"experiment_config": EXPERIMENT, "training_config": {"rollout_batch_size": 4}}
        self.run_id = site.json("POST", "training-runs", json=body)["id"]
        with site.platform.db.write() as session:
            worker = a_worker(session)
            self.token = queue.claim(session, worker, 60).token
        known = site.platform.settings.data_dir / "workers" / "worker-1"
        known.parent.mkdir()
        known.write_text(worker.id)  # the platform's own, in an earlier life

    def send(self, path: str, body: Any, expect: int = 200) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"}
        answer = self.site.anonymous.post(f"/api/jobs/{self.run_id}/{path}", json=body, headers=headers)
        assert answer.status_code == expect, answer.text
        return answer.json()

    def folder(self, step: int) -> str:
        return str(self.site.platform.settings.models_dir / "runs" / self.run_id / f"step-{step:06d}")

    def saved(self, step: int, expect: int = 200, **more: Any) -> Any:
        return self.send("checkpoints", {"checkpoints": [{"step": step, "path": self.folder(step), **more}]}, expect)

    def run(self) -> tables.Run:
        return self.site.row(tables.Run, self.run_id)


@pytest.fixture
def job(ready: Any) -> TrainingJob:
    return TrainingJob(ready)


def test_checkpoints_are_listed_under_the_names_of_their_run(job: TrainingJob) -> None:
    assert job.saved(2, reward=0.5) == {"stored": 1}
    assert job.saved(4, reward=0.75, kind="final") == {"stored": 1}
    listed = job.site.json("GET", "training-runs/multiply-1/checkpoints")["checkpoints"]
    assert [(one["checkpoint_step"], one["checkpoint_name"], one["status"]) for one in listed] == [
        (2, "multiply-1-step-2", "ready"),
        (4, "multiply-1-step-4", "ready"),
    ]
    job.saved(6, reward=0.75)
    job.saved(8)
    listed = job.site.json("GET", "training-runs/multiply-1/checkpoints")["checkpoints"]
    expected = [(0.5, False), (0.75, False), (0.75, True), (None, False)]
    assert [(one["reward"], one["best"]) for one in listed] == expected
    with job.site.platform.db.read() as session:
        found = models.find_trained(session, job.run().workspace_id, "multiply-1")
    assert found.name == listed[2]["checkpoint_name"], "what the run's name stands for"


def test_a_checkpoint_that_is_reported_again_is_the_same_one(job: TrainingJob) -> None:
    job.saved(2, reward=0.5)
    before = job.site.json("GET", "training-runs/multiply-1/checkpoints")["checkpoints"]
    assert job.saved(2) == {"stored": 0}
    assert job.site.json("GET", "training-runs/multiply-1/checkpoints")["checkpoints"] == before
    assert job.site.stored(sa.select(tables.Checkpoint.reward)) == [0.5]


def test_what_the_trainer_removed_is_no_longer_listed(job: TrainingJob) -> None:
    for step in (2, 4):
        job.saved(step)
    job.saved(6, removed=[job.folder(2), job.folder(1)])
    listed = job.site.json("GET", "training-runs/multiply-1/checkpoints")["checkpoints"]
    assert [checkpoint["checkpoint_step"] for checkpoint in listed] == [4, 6]


def test_a_deployed_checkpoint_is_kept_until_it_is_undeployed(job: TrainingJob) -> None:
    site = job.site
    object.__setattr__(site.platform.settings, "max_deployments", 2)
    for step in (1, 2):
        job.saved(step, reward=0.1 * step)
        Path(job.folder(step)).mkdir(parents=True, exist_ok=True)
        (Path(job.folder(step)) / "adapter_model.safetensors").write_bytes(b"")
    name = site.json("GET", "models/lora")["models"][-1]["model_name"]
    assert name.endswith("step-1")
    site.json("POST", f"models/{name}/deploy", json={})
    assert hold_file(Path(job.folder(1))).exists()
    job.saved(3, removed=[job.folder(1)])  # a trainer that did not see it, on another machine
    listed = [one["model_name"][-6:] for one in site.json("GET", "models/lora")["models"]]
    assert sorted(listed) == ["step-1", "step-2", "step-3"]

    site.json("POST", f"models/{name}/undeploy", json={})
    job.saved(4)
    assert not hold_file(Path(job.folder(1))).exists()
    listed = [one["model_name"][-6:] for one in site.json("GET", "models/lora")["models"]]
    assert sorted(listed) == ["step-2", "step-3", "step-4"]


def test_a_path_outside_of_the_runs_folder_is_refused(job: TrainingJob) -> None:
    run = Path(job.folder(2)).parent
    for path in ("/etc", "../other/step-000002", f"{run}/../../base/x/step-000002", ""):
        refused = job.send("checkpoints", {"checkpoints": [{"step": 2, "path": path}]}, expect=400)
        assert "not in the folder of this run" in refused["message"], path


def test_only_the_holder_of_the_lease_reports_checkpoints(job: TrainingJob) -> None:
    job.token = "osj_guess"
    job.saved(2, expect=409)


def test_a_run_that_gets_on_may_start_its_job_more_often(job: TrainingJob) -> None:
    with job.site.platform.db.write() as session:
        session.execute(sa.update(tables.Job).values(starts=3))
    job.saved(2)
    assert job.site.stored(sa.select(tables.Job.starts)) == [1]


def test_a_step_that_is_trained_again_says_its_figures_again(job: TrainingJob) -> None:
    def points(*values: float) -> Any:
        said = [{"key": "rollout/raw_reward", "step": n, "value": value} for n, value in enumerate(values, start=1)]
        return job.send("metrics", {"points": said})["stored"]

    assert points(0.1, 0.2, 0.3) == 3
    assert points(0.1, 0.2, 0.3) == 0
    assert points(0.1, 0.25) == 1
    twice = [{"key": "k", "step": 1, "value": 1.0}, {"key": "k", "step": 1, "value": 2.0}]
    job.send("metrics", {"points": twice})
    curves = job.site.json("GET", "training-runs/multiply-1/metrics")["metrics"]
    values = {c["metric_key"]: [(p["step"], p["value"]) for p in c["data_points"]] for c in curves}
    assert values == {"rollout/raw_reward": [(1, 0.1), (2, 0.25), (3, 0.3)], "k": [(1, 2.0)]}


class Living:
    """An executor whose jobs live until they are killed."""

    name = "living"
    remote = False

    def __init__(self) -> None:
        self.killed = 0

    def owns(self, handle: Any) -> bool:
        return True

    def reap(self) -> None:
        """Nothing of its own ends."""

    def poll(self, handles: Any) -> list[JobState]:
        return [JobState(alive=True) for _ in handles]

    def resources(self) -> Resources:
        return Resources()

    def level(self) -> str:
        return ""

    def kill(self, handle: Any) -> None:
        self.killed += 1


@pytest.mark.parametrize(("asked_s", "killed"), [(60, 0), (3600, 1)])
def test_a_stop_waits_for_the_checkpoint_longer_than_for_rollouts(job: TrainingJob, asked_s: int, killed: int) -> None:
    with job.site.platform.db.write() as session:
        session.execute(sa.update(tables.Job).values(handle={"pid": 1}))
        run = session.get_one(tables.Run, job.run_id)
        run.stop_requested_at = utc_now() - timedelta(seconds=asked_s)
    executor = Living()
    build_embedded_worker(job.site.platform, executor).step()  # type: ignore[arg-type]
    assert executor.killed == killed
