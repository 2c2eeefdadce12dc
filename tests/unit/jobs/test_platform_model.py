"""A model of the platform in an evaluation: its process is started with a plan, waited for, asked, ended."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from osmosis.base.redact import Redactor
from osmosis.jobs.commands import Leftovers
from osmosis.jobs.job import JobContext, JobFailed, JobLog
from osmosis.jobs.platform_model import platform_model
from osmosis.jobs.reporter import Reporter
from osmosis.jobs.trainer_environment import TrainerEnvironment
from osmosis.llm.model import ChatRequest
from osmosis.records.plan import ModelSpec
from osmosis.records.run import JobSpec, LogLine
from osmosis.testing.model_files import write_adapter, write_model

SERVER = """
import sys
from pathlib import Path
from osmosis.training.link import Failed, Sample
from osmosis.training.link.serving_plan import ServingPlan
from osmosis.training.trainer.service import TrainerService

plan = ServingPlan.model_validate_json(Path(sys.argv[1]).read_bytes())

class Sampler:
    async def stream(self, request):
        text = f"{plan.name} {Path(plan.adapter_path).name} x {plan.concurrency}"
        yield Sample(prompt_ids=[1], token_ids=[2], logprobs=[0.0], content=text, finish_reason="stop", parse="content")

with TrainerService(plan.name, Path(sys.argv[2])) as service:
    if plan.name == "osmosis/dies":
        sys.exit(9)
    if plan.name == "osmosis/broken":
        service.finish(Failed(category="memory", message="it does not fit", fix="choose a smaller one"))
        sys.exit(1)
    service.sampler = Sampler()
    service.health.state = "ready"
    service.stop_requested.wait(60)
"""


@pytest.fixture
def made(tmp_path: Path) -> TrainerEnvironment:
    """A trainer's environment that is this Python, with a server that samples nothing."""
    (tmp_path / "env/bin").mkdir(parents=True)
    python = tmp_path / "env/bin/python"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH=$PYTHONPATH:{":".join(p for p in sys.path if p)} exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    (tmp_path / "code").mkdir()
    (tmp_path / "code/server_of_test.py").write_text(SERVER)
    return TrainerEnvironment(tmp_path / "env", tmp_path / "code", {"torch": "2"}, "3.11.0")


def context(folder: Path, lines: list[LogLine]) -> JobContext:
    experiment = {"rollout": "r", "entrypoint": "main.py", "model_path": "osmosis/multiply-1", "dataset": "d"}
    spec = JobSpec.model_validate(
        {
            "run_id": "r1", "run_name": "r-1", "kind": "eval", "platform_url": "http://127.0.0.1:9",
            "repository": str(folder), "commit_sha": "0" * 40, "rows": [0], "dataset_path": "d.jsonl",
            "config": {"experiment": experiment, "secrets": {"required": []}},
            "work_dir": str(folder / "work"), "cache_dir": str(folder / "cache"),
            "model_path": str(write_model(folder / "base")), "adapter_path": str(write_adapter(folder / "step-20")),
        }
    )  # fmt: skip
    (folder / "work").mkdir()
    redactor = Redactor([])
    reporter = Reporter("http://127.0.0.1:9", "r1", "token", redactor=redactor)
    log, leftovers = JobLog(None, lines.append), Leftovers(folder / "work")
    return JobContext(
        spec=spec, environ={"PATH": "/usr/bin:/bin"}, secrets={}, log=log, reporter=reporter, redactor=redactor,
        leftovers=leftovers,
    )  # fmt: skip


async def test_it_is_asked_while_the_run_lasts(tmp_path: Path, made: TrainerEnvironment) -> None:
    lines: list[LogLine] = []
    job = context(tmp_path, lines)
    spec = ModelSpec.parse("osmosis/multiply-1")
    async with platform_model(job, spec, concurrency=8, made=made, module="server_of_test") as model:
        answer = await model.complete(ChatRequest([{"role": "user", "content": "hi"}]))
    assert answer.message["content"] == "osmosis/multiply-1 step-20 x 8"
    assert any(line.message.startswith("base model osmosis/multiply-1: Qwen3ForCausalLM") for line in lines)
    assert job.leftovers.end_all() == 0, "its process is gone"


@pytest.mark.parametrize(
    ("name", "words", "fix"),
    [("broken", "it does not fit", "choose a smaller one"), ("dies", "its process ended", None)],
)
async def test_one_that_cannot_be_loaded_says_why(
    tmp_path: Path, made: TrainerEnvironment, name: str, words: str, fix: str | None
) -> None:
    job = context(tmp_path, [])
    with pytest.raises(JobFailed) as refused:
        async with platform_model(
            job, ModelSpec.parse(f"osmosis/{name}"), concurrency=1, made=made, module="server_of_test"
        ):
            pass
    assert words in refused.value.failure.message
    assert fix is None or refused.value.failure.fix == fix
