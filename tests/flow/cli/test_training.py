"""`osmosis train` on a platform without a worker: checked, submitted, followed by its curves, resumed, started anew."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from osmosis.platform import tables
from osmosis.platform.runs import lifecycle, rollouts
from osmosis.platform.scheduling import queue
from osmosis.platform.training import service
from osmosis.records.run.job import JobResult, MetricPoint
from osmosis.records.run.rollout import Rollout, RolloutStatus, Score
from osmosis.records.run.status import RunStatus
from support.command_line import CommandRun, run_command
from support.platform_app import RunningPlatform, running_platform
from support.platform_data import a_worker

Run = Callable[..., CommandRun]
CONFIG = "configs/training/multiply.toml"


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Run, RunningPlatform]]:
    """A workspace with a rollout, a dataset and a training config, pushed to a platform."""
    home = tmp_path_factory.mktemp("training")
    with running_platform(home / "data") as platform:
        folder = home / "demo"

        def go(*words: str, cwd: Path = folder) -> CommandRun:
            return run_command(*words, "--json", cwd=cwd, environ=platform.environ)

        made = run_command("init", "demo", "--json", cwd=home)  # of no platform yet
        assert made.code == 0, made.err
        git(folder, "remote", "add", "origin", platform.git_url)
        assert go("rollout", "new", "multiply", "--template", "multiply").code == 0
        rows = [{"user_prompt": f"{n} x 2?", "ground_truth": str(2 * n)} for n in range(20)]
        (folder / "data/multiply.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert go("dataset", "upload", "data/multiply.jsonl").code == 0
        git(folder, "add", "-A")
        git(folder, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "add")
        git(folder, "push", "-q", platform.git_url, "HEAD:main")
        yield folder, go, platform


def evaluation(run: Run, platform: RunningPlatform, rewards: list[float], rows: int = 4) -> str:
    """An evaluation with these rewards in each row."""
    sent = run("eval", "submit", "multiply", "--yes", "--allow-dirty")
    assert sent.code == 0, sent.err
    resource = sent.json["resource"]
    with platform.parts.db.write() as session:
        made = [
            Rollout(
                rollout_id=f"r{row}-{attempt}", row_index=row, row_key=f"k{row}", attempt=attempt,
                status=RolloutStatus.SUCCESS, scores={"reward": Score(name="reward", value=reward)}, duration_ms=3000,
            )
            for row in range(rows) for attempt, reward in enumerate(rewards)
        ]  # fmt: skip
        rollouts.store(session, resource["id"], made)
    run("eval", "stop", resource["name"], "--yes")
    return str(resource["name"])


def test_a_training_run_from_submit_to_retry(place: tuple[Path, Run, RunningPlatform]) -> None:
    _, run, platform = place
    assert run("config", "set", CONFIG, "training.rollout_batch_size", "32").code == 0
    refused = run("train", "submit", CONFIG, "--yes", "--allow-dirty")
    assert "18 rows do not fill one step of rollout_batch_size = 32" in refused.error["message"]
    assert run("config", "set", CONFIG, "training.rollout_batch_size", "4").code == 0

    evaluation(run, platform, [0.0] * 8, rows=100)
    refused = run("train", "submit", CONFIG, "--yes", "--allow-dirty")
    assert "at most 3.6% of the groups of 8 will have different rewards" in refused.error["message"]
    assert "--force" in refused.err
    forced = run("train", "submit", CONFIG, "--yes", "--allow-dirty", "--force")
    assert forced.code == 0, forced.err
    assert "NO_SIGNAL" in forced.err
    assert run("train", "stop", forced.json["resource"]["name"], "--yes").code == 0

    name = evaluation(run, platform, [0.0, 1.0])
    sent = run("train", "submit", CONFIG, "--yes", "--allow-dirty")
    assert sent.code == 0, sent.err
    trained = sent.json["resource"]["name"]
    assert name
    with platform.parts.db.write() as session:
        row = queue.claim(session, a_worker(session), 60).run
        points = [MetricPoint(key="rollout/raw_reward", step=step, value=step / 10) for step in range(1, 5)]
        points += [MetricPoint(key="eval/validation/reward", step=step, value=v) for step, v in ((0, 0.3), (4, 0.5))]
        points.append(MetricPoint(key="rollout/forks", step=1, value=0.0))
        service.store(session, row.id, points)
        lifecycle.end(session, row, JobResult(status=RunStatus.STOPPED), "stopped")
    listed = {row["name"]: row for row in run("train", "list").json["items"]}
    assert (listed[trained]["reward"], listed[trained]["validation_reward"]) == (0.4, 0.5)

    seen = run("train", "metrics", trained, "-o", "curves.json").json
    assert seen["data"]["metrics"][0]["title"] == "Training reward"
    assert json.loads((place[0] / "curves.json").read_text())["data"] == seen["data"]
    _curves_are_drawn(place, trained)
    assert run("train", "checkpoints", trained).json["items"] == []
    with platform.parts.db.write() as session:
        saved = {"run_id": row.id, "status": "ready", "base_model": "tiny"}
        for step, reward in ((2, 0.75), (4, 0.5)):
            name = f"{trained}-step-{step}"
            session.add(tables.Checkpoint(step=step, reward=reward, name=name, path=f"step-{step}", **saved))
    shown = run_command("train", "show", trained, cwd=place[0], environ=platform.environ).out
    assert [line.split()[1:4] for line in shown.splitlines() if "-step-" in line] == [
        ["2", "0.750", "best"], ["4", "0.500", "ready"]
    ]  # fmt: skip
    assert f"osmosis eval submit --model osmosis/{trained} --held-out-of {trained}" in shown
    assert f"osmosis model download {trained}" in shown
    assert "at step 4; 0.300 at step 0" in shown
    resumed = run("train", "resume", trained, "--yes")
    assert resumed.json["message"] == f"run {trained} goes on from its last checkpoint"
    assert run("train", "stop", trained, "--yes").code == 0
    again = run("train", "retry", trained, "--yes").json["resource"]
    compared = run("train", "compare", trained, again["name"]).json
    first, second = compared["data"]["runs"]
    assert (first["figures"]["best_reward"], first["best_checkpoint"]) == (0.4, f"{trained}-step-2")
    assert first["figures"]["steps"] == 4
    assert (second["name"], second["figures"]) == (again["name"], {"steps": 0, "rollouts": 0})
    assert compared["data"]["changed"] == {}
    assert f"run={resumed.json['resource']['id']}&run={again['id']}" in compared["next_steps_structured"][0]["url"]
    assert "needs two training runs" in run("train", "compare", trained).error["message"]
    assert (again["name"] != trained, again["status"]) == (True, "pending")
    assert run("train", "stop", again["name"], "--yes").code == 0
    assert run("train", "delete", again["name"], "--yes").code == 0


def _curves_are_drawn(place: tuple[Path, Run, RunningPlatform], name: str) -> None:
    """For people, who do not ask for `--json`."""
    folder, _, platform = place
    drawn = run_command("train", "metrics", name, cwd=folder, environ=platform.environ)
    assert drawn.code == 0, drawn.err
    line = next(line for line in drawn.out.splitlines() if line.startswith("Training reward"))
    assert "0.1" in line
    assert "0.4" in line
    assert line.rstrip().endswith("█")
    assert "always the same: Forks 0" in drawn.out
