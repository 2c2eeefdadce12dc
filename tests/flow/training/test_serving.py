"""A base model, its adapter, and both merged, really loaded and sampled: the tiny model, the real environment."""

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from osmosis.base.model_folder import check_model
from osmosis.base.redact import Redactor
from osmosis.jobs.commands import Leftovers
from osmosis.jobs.context import JobContext, JobFailed, JobLog
from osmosis.jobs.kinds.model import MergeJob
from osmosis.jobs.models import ServingProgram, open_local_model
from osmosis.jobs.reporter import Reporter
from osmosis.jobs.runner import Exit, JobRunner
from osmosis.jobs.trainer.environment import TrainerEnvironment
from osmosis.llm.model import ChatRequest, Model
from osmosis.records.run.job import Handover, JobSpec, LogLine
from osmosis.records.run.plan import ModelSpec
from osmosis.records.run.status import RunStatus
from support.job_api import job_api
from support.model_files import write_adapter

pytestmark = [pytest.mark.network, pytest.mark.slow]
MAKE_ADAPTER = """
import sys, torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
torch.set_num_threads(1)
torch.manual_seed(1)
base = AutoModelForCausalLM.from_pretrained(sys.argv[1])
config = LoraConfig(r=4, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
get_peft_model(base, config).save_pretrained(sys.argv[2])
"""


@asynccontextmanager
async def serving(folder: Path, made: TrainerEnvironment, base: Path, adapter: Path | None) -> AsyncIterator[Model]:
    folder.mkdir()
    experiment = {"rollout": "r", "entrypoint": "main.py", "model_path": "osmosis/tiny", "dataset": "d"}
    spec = JobSpec.model_validate(
        {
            "run_id": "r1", "run_name": "r-1", "kind": "eval", "platform_url": "http://127.0.0.1:9",
            "repository": str(folder), "commit_sha": "0" * 40, "rows": [0], "dataset_path": "d.jsonl",
            "config": {"experiment": experiment, "secrets": {"required": []}}, "work_dir": str(folder),
            "cache_dir": str(folder), "model_path": str(base), "adapter_path": str(adapter or ""),
        }
    )  # fmt: skip
    redactor = Redactor([])
    job = JobContext(
        spec=spec, environ={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}, secrets={},
        log=JobLog(), reporter=Reporter("http://127.0.0.1:9", "r1", "token", redactor=redactor), redactor=redactor,
        leftovers=Leftovers(folder),
    )  # fmt: skip
    async with open_local_model(
        job, ModelSpec.parse("osmosis/tiny"), concurrency=8, program=ServingProgram(made)
    ) as model:
        yield model


async def asked(model: Model) -> tuple[list[int], list[float]]:
    question = ChatRequest([{"role": "user", "content": "17+25"}], params={"temperature": 0.0, "max_tokens": 8})
    answer = await model.complete(question)
    assert answer.token_ids is not None
    assert answer.logprobs is not None
    return answer.token_ids, answer.logprobs


async def merge(folder: Path, made: TrainerEnvironment, base: Path, adapter: Path, lines: list[LogLine]) -> Path:
    """The folder of the model that a job of kind `merge` makes, which tells its platform of every file."""
    output = folder / "models" / "new"
    async with job_api() as api:
        spec = JobSpec.model_validate(
            {
                "run_id": "run_1", "run_name": "new", "kind": "merge", "platform_url": api.url,
                "config": {"model": "tiny-step-1", "output_dir": str(output)}, "work_dir": str(folder / "work"),
                "cache_dir": str(folder), "model_path": str(base), "adapter_path": str(adapter),
            }
        )  # fmt: skip
        environ = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        kinds = {"merge": lambda job: MergeJob(job, job.spec.config, environment=made)}
        runner = JobRunner(spec, Handover(token=api.token), environ, echo=lines.append, kinds=kinds)
        assert await runner.run() is Exit.REPORTED
        assert api.result.status is RunStatus.FINISHED, api.result.failure
        assert {file.path: file.size for file in api.models[0].files} == {
            path.name: path.stat().st_size for path in output.iterdir()
        }
    return output


async def test_base_adapter_and_merged_model(trainer: TrainerEnvironment, tiny_base: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    command = [str(trainer.python), "-c", MAKE_ADAPTER, str(tiny_base), str(adapter)]
    subprocess.run(command, check=True, capture_output=True)  # noqa: ASYNC221 - nothing else runs meanwhile
    async with serving(tmp_path / "base", trainer, tiny_base, None) as model:
        of_base = await asked(model)
    async with serving(tmp_path / "lora", trainer, tiny_base, adapter) as model:
        of_adapter = await asked(model)
    assert of_base != of_adapter
    lines: list[LogLine] = []
    merged = await merge(tmp_path, trainer, tiny_base, adapter, lines)
    assert check_model(merged).chat_template
    async with serving(tmp_path / "merged", trainer, merged, None) as model:
        of_merged = await asked(model)
    assert of_merged[0] == of_adapter[0]
    assert of_merged[1] == pytest.approx(of_adapter[1], abs=1e-4)
    said = next(line.message for line in lines if line.message.startswith("merged: "))
    assert "M parameters in float32; log-probabilities differ by at most" in said


async def test_an_adapter_that_does_not_fit_says_so(
    trainer: TrainerEnvironment, tiny_base: Path, tmp_path: Path
) -> None:
    broken = write_adapter(tmp_path / "adapter")
    with pytest.raises(JobFailed, match="does not fit the base model"):
        async with serving(tmp_path / "lora", trainer, tiny_base, broken):
            pass
