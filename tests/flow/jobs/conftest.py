"""A desk for whole jobs: a rollout in a real repository, a dataset, and the job API that the job reports to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from osmosis.base.processes import is_same
from osmosis.jobs.commands import PROCESSES_FILE
from osmosis.records.run.job import JobEntry, JobResult, JobSpec
from support.job_api import FakeJobApi, job_api

JOB = (sys.executable, "-m", "osmosis.jobs")
DEADLINE_S = 120.0
TOKEN = "lease-token"
PYPROJECT = '[project]\nname = "multiply"\nversion = "0.1"\ndependencies = ["osmosis-ai>=1", "iniconfig>=2"]\n'

AGENT = """
import asyncio, json, os, re
import iniconfig
from osmosis.sdk.workflow import AgentWorkflow
from osmosis.sdk.workflow import Grader
from osmosis.sdk.types import AgentWorkflowConfig, ConcurrencyConfig

TOOL = {"type": "function", "function": {"name": "multiply", "parameters": {"type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}}}


async def before(ctx):
    pass  # what a test wants done


class Multiply(AgentWorkflow):
    async def run(self, ctx):
        await before(ctx)
        messages = list(ctx.prompt)
        async with ctx.chat() as chat:
            for _ in range(4):
                answer = await chat.complete(messages, tools=[TOOL])
                messages.append(answer.message)
                if not answer.tool_calls:
                    break
                for call in answer.tool_calls:
                    said = json.loads(call["function"]["arguments"])
                    result = str(said["a"] * said["b"])
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        return messages


class Judge(Grader):
    async def grade(self, ctx):
        found = re.findall(r"####\\s*(-?[\\d.,]+)", str(ctx.sample.messages[-1].get("content")))
        right = bool(found) and abs(float(found[-1].replace(",", "")) - float(ctx.label)) < 1e-2
        ctx.set_reward(1.0 if right else 0.0)


config = AgentWorkflowConfig(name="multiply", concurrency=ConcurrencyConfig(max_concurrent=16))
"""
SERVES_ITSELF = """
from osmosis.sdk.backend import LocalBackend
from osmosis.serve.server.app import create_rollout_server
import uvicorn
if __name__ == "__main__":
    app = create_rollout_server(LocalBackend(Multiply, config, Judge))
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ["_OSMOSIS_ROLLOUT_PORT"]), log_level="warning")
"""


async def started_job(
    url: str, entry: JobEntry, environ: Mapping[str, str], *, program: Sequence[str] = JOB, **more: Any
) -> asyncio.subprocess.Process:
    """A job as an executor starts it."""
    process = await asyncio.create_subprocess_exec(
        *program, "--run", url, env=dict(environ), stdin=asyncio.subprocess.PIPE, start_new_session=True, **more
    )
    process.stdin.write(entry.model_dump_json().encode())
    process.stdin.close()
    return process


def with_before(*lines: str) -> str:
    """A rollout that serves itself and does this before it asks the model."""
    body = "".join(f"    {line}\n" for line in lines)
    agent = AGENT.replace("    pass  # what a test wants done\n", body)
    return agent + SERVES_ITSELF


@dataclass
class Desk:
    """One run to be: its repository, dataset, folders, and the job API it reports to."""

    folder: Path
    cache: Path
    api: FakeJobApi
    environ: dict[str, str]
    rows: int = 6
    config: dict[str, Any] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)

    def commit(self, **files: str) -> str:
        """A commit with the rollout; keyword `main` is `rollouts/multiply/main.py`."""
        work = self.folder / "person"
        rollout = work / "rollouts" / "multiply"
        rollout.mkdir(parents=True, exist_ok=True)
        (rollout / "pyproject.toml").write_text(files.pop("pyproject", PYPROJECT))
        for name, text in files.items():
            (rollout / f"{name}.py").write_text(text)
        environ = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
        identity = ["-c", "user.name=A Person", "-c", "user.email=person@example.org"]
        for command in (["init", "-q", "-b", "main"], ["add", "-A"], [*identity, "commit", "-q", "-m", "work"]):
            subprocess.run(["git", *command], cwd=work, check=True, env=environ)
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=work, check=True, capture_output=True, text=True)
        bare = self.folder / "hub.git"
        subprocess.run(["git", "clone", "-q", "--bare", str(work), str(bare)], check=True, env=environ)
        return head.stdout.strip()

    def write(self, commit: str) -> Path:
        """The job's work folder; the platform knows what the job is to do."""
        dataset = self.folder / "multiply.jsonl"
        lines = [
            {"user_prompt": f"What is {a} times {a + 3}? Answer with #### <number>", "ground_truth": str(a * (a + 3))}
            for a in range(2, 2 + self.rows)
        ]
        dataset.write_text("".join(json.dumps(line) + "\n" for line in lines))
        experiment = {"rollout": "multiply", "entrypoint": "main.py", "dataset": "multiply"}
        config = {
            "experiment": {**experiment, "model_path": "offline/calculator", **self.config.pop("experiment", {})},
            "evaluation": {"n": 2, "batch_size": 4, **self.config.pop("evaluation", {})},
            "secrets": {"required": []},
            **self.config,
        }
        spec = {
            "run_id": self.api.run_id,
            "run_name": "multiply-1",
            "kind": "eval",
            "repository": str(self.folder / "hub.git"),
            "commit_sha": commit,
            "config": config,
            "dataset_path": str(dataset),
            "dataset_rows": self.rows,
            "rows": list(range(self.rows)),
            "secret_names": config["secrets"]["required"],
            **self.spec,
        }
        self.api.spec = JobSpec.model_validate(spec)
        return self.folder / "work"

    async def start(self, folder: Path, *, program: Sequence[str] = JOB) -> asyncio.subprocess.Process:
        self.api.secrets = self.secrets
        entry = JobEntry(lease=self.api.token, work_dir=str(folder), cache_dir=str(self.cache))
        return await started_job(f"{self.api.url}/api/jobs/{self.api.run_id}", entry, self.environ, program=program)

    async def run(self, folder: Path) -> int:
        process = await self.start(folder)
        try:
            return await asyncio.wait_for(process.wait(), DEADLINE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    @property
    def keys(self) -> list[tuple[int, int]]:
        return sorted((one.row_index, one.attempt) for one in self.api.rollouts.values())

    @property
    def owed(self) -> list[tuple[int, int]]:
        return [(row, attempt) for row in range(self.rows) for attempt in range(2)]

    @property
    def result(self) -> JobResult:
        """The job's last message."""
        assert self.api.result is not None, f"no result; the log says:\n{self.log}"
        return self.api.result

    @property
    def log(self) -> str:
        return "\n".join(f"{line.step}: {line.message}" for line in self.api.logs)

    def servers(self) -> list[int]:
        """Process groups of the run that are still alive."""
        listed = self.folder / "work" / PROCESSES_FILE
        if not listed.exists():
            return []
        known: dict[str, str] = json.loads(listed.read_text())
        return [int(pid) for pid, started in known.items() if is_same(int(pid), started)]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jobs-cache")


@pytest.fixture
async def desk(tmp_path: Path, cache: Path) -> AsyncIterator[Desk]:
    async with job_api(token=TOKEN) as api:
        made = Desk(tmp_path, cache, api, dict(os.environ))
        yield made
        for group in made.servers():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
