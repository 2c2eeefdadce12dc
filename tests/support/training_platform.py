"""A platform that trains, for tests: a process of its own with a worker, a workspace with the template `train`, and the
command line in that workspace. Jobs are real; `job_command` may give them a trainer without a model.

Everything can be killed: the platform, a job, and the trainer that a job started.
"""

import json
import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from osmosis.base.jsonable import JsonObject
from osmosis.records.run.rows import Key
from osmosis.training.step_journal import Kind, StepJournal

from . import RUN
from .command_line import CommandRun, run_command
from .model_files import write_model
from .platform_process import PlatformProcess
from .waiting import until

CONFIG = "configs/training/add.toml"
EVAL_CONFIG = "configs/eval/add.toml"
QUIET = {"OSMOSIS_TORCH": "cpu", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
"""For the platform's jobs: two cores are shared by whatever else is tested."""

JOB = " ".join((*RUN, "fake_training_job"))
"""The job whose trainer has no model."""
AGENT = """
import asyncio
from osmosis import AgentWorkflow, AgentWorkflowConfig, ConcurrencyConfig, Grader, LocalBackend, create_rollout_server


class Asks(AgentWorkflow):
    async def run(self, ctx):
        messages = list(ctx.prompt)
        async with ctx.chat(max_attempts=1) as chat:
            answer = await chat.complete(messages)
        await asyncio.sleep(0.3 * (int(answer.message["content"]) % 4))  # so that a step has a middle
        return [*messages, answer.message]


class Judge(Grader):
    async def grade(self, ctx):
        ctx.set_reward(float(int(ctx.sample.messages[-1]["content"]) % 2))


config = AgentWorkflowConfig(name="asks", concurrency=ConcurrencyConfig(max_concurrent=64))
"""


@dataclass
class TrainingPlatform:
    """The process, and the workspace."""

    process: PlatformProcess
    folder: Path

    def run(self, *words: str) -> CommandRun:
        """One `osmosis` command in the workspace, with `--json`."""
        return run_command(*words, "--json", cwd=self.folder, environ=self.process.login_environ)

    def ok(self, *words: str) -> JsonObject:
        """`run` that has to succeed; its envelope."""
        done = self.run(*words)
        assert done.code == 0, f"{' '.join(words)}: {done.err}{done.out}"
        return done.json

    def set(self, config: str = CONFIG, **values: object) -> None:
        """Keys of a config, `training__lr=1e-3`; committed and pushed with the rest."""
        for key, value in values.items():
            written = value if isinstance(value, str) else json.dumps(value)
            self.ok("config", "set", config, key.replace("__", ".", 1), written)
        self.push()

    def push(self) -> None:
        """Commit and push what is there."""
        git(self.folder, "add", "-A")
        git(self.folder, "-c", "user.name=T", "-c", "user.email=t@localhost", "commit", "-qm", "change", check=False)
        git(self.folder, "push", "-q", "origin", "HEAD:main")

    def submit(self, noun: str = "train", config: str = CONFIG, *flags: str) -> str:
        """A submitted run's name."""
        name: str = self.ok(noun, "submit", config, "--yes", "--wait-sync", *flags)["resource"]["name"]
        return name

    def row(self, name: str, noun: str = "training") -> JsonObject:
        found: JsonObject = self.process.json("GET", f"{noun}-runs/{name}")[f"{noun}_run"]
        return found

    def log(self, name: str, noun: str = "training") -> str:
        """The run's log, without what is debug."""
        lines = self.process.json("GET", f"{noun}-runs/{name}/logs?limit=200")["logs"]
        return "\n".join(line["message"] for line in lines)

    def curve(self, name: str, key: str) -> dict[int, float]:
        """Step -> value. A step that comes twice is an error."""
        for curve in self.process.json("GET", f"training-runs/{name}/metrics")["metrics"]:
            if curve["metric_key"] == key:
                points = [(point["step"], point["value"]) for point in curve["data_points"]]
                assert len(dict(points)) == len(points), f"{key} has a step twice: {points}"
                return dict(points)
        return {}

    def work_dir(self, name: str, noun: str = "training") -> Path:
        return self.process.data_dir / "runs" / str(self.row(name, noun)["id"])

    def stored(self, name: str) -> dict[Key, str]:
        """The id of every rollout that the platform has, by step, row key and attempt."""
        with closing(sqlite3.connect(self.process.data_dir / "platform.db")) as database:
            query = "select step, row_key, attempt, rollout_id from rollouts where run_id = ?"
            return {(row[0], row[1], row[2]): row[3] for row in database.execute(query, (str(self.row(name)["id"]),))}

    def journal(self, name: str, step: int, kind: Kind = "train") -> StepJournal:
        """What the run's job keeps of a step."""
        return StepJournal(self.work_dir(name) / "steps", kind, step)

    def processes(self, name: str) -> list[psutil.Process]:
        """The run's job and all that it started, outermost first."""
        with closing(sqlite3.connect(self.process.data_dir / "platform.db")) as database:
            query = "select handle from jobs where run_id = ? and handle is not null"
            (handle,) = next(database.execute(query, (str(self.row(name)["id"]),)))
        job = psutil.Process(int(json.loads(handle)["pid"]))
        return [job, *job.children(recursive=True)]

    def trainer(self, name: str) -> psutil.Process:
        """The process of the run's trainer."""
        return next(one for one in self.processes(name) if any("trainer-plan.json" in word for word in _command(one)))

    async def until_over(self, name: str, noun: str = "training", *, within: float = 400.0) -> str:
        """The status in which the run ends."""

        def is_over() -> bool:
            return self.row(name, noun)["status"] not in ("pending", "running")

        await until(is_over, within=within, what=f"{name} over")
        return str(self.row(name, noun)["status"])


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return []


def git(folder: Path, *words: str, check: bool = True) -> None:
    """One git command."""
    subprocess.run(["git", *words], cwd=folder, check=check, capture_output=True)


@contextmanager
def training_platform(
    home: Path, cache: Path, *, more: Mapping[str, str] | None = None, **options: str
) -> Iterator[TrainingPlatform]:
    """Started, with the workspace pushed and its dataset uploaded; `cache` is where jobs keep environments, `more` are
    further variables of the platform."""
    data = home / "data"
    data.mkdir(parents=True)
    (data / "cache").symlink_to(cache)
    process = PlatformProcess(data, environ={**os.environ, **QUIET, **(more or {})}, **options)
    process.start()
    try:
        process.login()
        made = TrainingPlatform(process, home / "demo")
        assert run_command("init", "demo", "--json", cwd=home).code == 0  # of no platform yet
        connected = process.json("GET", "workspaces")["workspaces"][0]["connected_repo"]["url"]
        git(made.folder, "remote", "add", "origin", connected.replace("://", f"://git:{process.token}@"))
        made.ok("rollout", "new", "add", "--template", "train")
        made.ok("dataset", "upload", "data/add.jsonl")
        made.push()
        yield made
    finally:
        with suppress(ProcessLookupError, AssertionError):
            process.terminate()


def without_a_model(place: TrainingPlatform) -> None:
    """For jobs of `JOB`: a base model of nothing, an agent that any answer does for, four steps of four rows and four
    rollouts, a checkpoint and a validation of two rows every second step; a step begins when the one before ends."""
    place.ok("model", "upload", str(write_model(place.folder.parent / "base")), "--name", "tiny")
    (place.folder / "rollouts" / "add" / "main.py").write_text(AGENT)
    place.set(
        training__rollout_batch_size=4, training__n_samples_per_prompt=4, advanced__max_steps=4,
        advanced__validation_rows=2, advanced__max_staleness=0, checkpoints__checkpoint_save_freq=2,
        checkpoints__eval_interval=2,
    )  # fmt: skip


def kill(*processes: psutil.Process) -> None:
    """SIGKILL, all at once."""
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            one.send_signal(signal.SIGKILL)
