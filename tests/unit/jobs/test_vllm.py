"""vLLM servers that a training job starts: on which GPUs, with what, and what becomes of one that dies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psutil
import pytest

from osmosis.base.hardware import gpu_names
from osmosis.base.redact import Redactor
from osmosis.jobs.commands import Leftovers
from osmosis.jobs.context import JobContext, JobFailed, JobLog
from osmosis.jobs.reporter import Reporter
from osmosis.jobs.trainer.vllm import GpuSplit, VllmProcesses, find_vllm, vllm_arguments
from osmosis.records.config.advanced import TrainingAdvanced
from osmosis.records.run.job import JobSpec, LogLine
from osmosis.training.protocol.plans import TrainerPlan
from support.fake_vllm import write_program
from support.model_files import write_model

EIGHT = "#!/bin/sh\nfor i in 1 2 3 4 5 6 7 8; do echo 'NVIDIA H100, 81559'; done\n"


def split(gpus: int, **keys: object) -> tuple[str, list[str]]:
    made = GpuSplit.of([str(number) for number in range(gpus)], TrainingAdvanced.model_validate(keys))
    return "".join(made.trainer), ["".join(names) for names in made.samplers]


@pytest.mark.parametrize(
    ("gpus", "keys", "trainer", "samplers"),
    [
        (8, {}, "01234567", []),
        (8, {"trainer_gpus": 2}, "01", []),
        (0, {"sampler": "vllm"}, "", [""]),
        (1, {"sampler": "vllm"}, "0", ["0"]),
        (8, {"sampler": "vllm"}, "0123", ["4567"]),
        (3, {"sampler": "vllm"}, "01", ["2"]),
        (8, {"sampler": "vllm", "samplers": 2}, "0123", ["45", "67"]),
        (8, {"sampler": "vllm", "samplers": 3, "trainer_gpus": 1}, "0", ["12", "34", "56"]),
        (8, {"sampler": "vllm", "sampler_gpus": 6, "samplers": 2}, "01", ["234", "567"]),
        (8, {"sampler": "vllm", "base_url": "http://a", "trainer_gpus": 4}, "0123", []),
    ],
)
def test_the_gpus_of_a_job_are_split(gpus: int, keys: dict[str, Any], trainer: str, samplers: list[str]) -> None:
    assert split(gpus, **keys) == (trainer, samplers)


def test_more_servers_than_gpus_are_refused() -> None:
    with pytest.raises(JobFailed, match="2 GPUs are not enough for the trainer and 2 vLLM servers"):
        split(2, sampler="vllm", samplers=2)


def context(folder: Path, lines: list[LogLine], **environ: str) -> JobContext:
    experiment = {"rollout": "r", "entrypoint": "main.py", "model_path": "tiny", "dataset": "d"}
    spec = JobSpec.model_validate(
        {
            "run_id": "r1", "run_name": "r-1", "kind": "training", "platform_url": "http://127.0.0.1:9",
            "repository": str(folder), "commit_sha": "0" * 40, "rows": [0], "dataset_path": "d.jsonl",
            "config": {"experiment": experiment}, "work_dir": str(folder / "work"), "cache_dir": str(folder / "cache"),
        }
    )  # fmt: skip
    (folder / "work").mkdir()
    redactor = Redactor([])
    return JobContext(
        spec=spec, environ={"PATH": f"{folder}:/usr/bin:/bin", **environ}, secrets={}, redactor=redactor,
        log=JobLog(None, lines.append), leftovers=Leftovers(folder / "work"),
        reporter=Reporter("http://127.0.0.1:9", "r1", "token", redactor=redactor),
    )  # fmt: skip


def trainer_plan(folder: Path) -> TrainerPlan:
    return TrainerPlan(
        run="r-1", model_path=str(write_model(folder / "base")), output_dir=str(folder / "out"), steps=1, rows=[0, 1],
        rows_per_step=2, max_prompt_length=60, max_response_length=60, lr=1e-3, sampler="vllm", lora_rank=12,
    )  # fmt: skip


async def test_each_server_sees_its_own_gpus_and_is_started_again(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text(EIGHT)
    (tmp_path / "nvidia-smi").chmod(0o755)
    lines: list[LogLine] = []
    program = write_program(tmp_path / "vllm", [1])
    job = context(tmp_path, lines, CUDA_VISIBLE_DEVICES="2,3,5,6", OSMOSIS_VLLM=str(program), VLLM_LOGGING_LEVEL="INFO")
    advanced = TrainingAdvanced(sampler="vllm", samplers=2)
    gpus = GpuSplit.of(gpu_names(job.environ), advanced)
    assert await find_vllm(job) == program
    servers = VllmProcesses(job, program, trainer_plan(tmp_path), gpus)
    async with servers.running():
        first, second = sorted(found(program), key=lambda process: process.environ()["CUDA_VISIBLE_DEVICES"])
        assert [process.environ()["CUDA_VISIBLE_DEVICES"] for process in (first, second)] == ["5", "6"]
        assert first.environ()["VLLM_API_KEY"] == servers.key
        assert len({*servers.urls}) == 2
        assert first.environ()["VLLM_LOGGING_LEVEL"] == "INFO"
        assert servers.key not in " ".join(first.cmdline())
        assert "--max-lora-rank 16" in " ".join(first.cmdline())
        first.kill()
        while sum("is ready" in line.message for line in lines) < 3:  # noqa: ASYNC110 - a log tells nobody
            await asyncio.sleep(0.05)
        assert len(found(program)) == 2
    assert not found(program)
    text = "\n".join(line.message for line in lines)
    assert "ended with signal 9: starting it again" in text
    assert servers.key not in text


@pytest.mark.parametrize(
    ("changes", "gpus", "sleeps"),
    [({}, "0", True), ({"max_staleness": 1}, "0", False), ({"oversample": 1.5}, "0", False), ({}, "", False)],
)
async def test_a_server_on_the_trainers_gpu_sleeps_while_no_rollout_is_in_flight(
    tmp_path: Path, changes: dict[str, Any], gpus: str, sleeps: bool
) -> None:
    lines: list[LogLine] = []
    plan = trainer_plan(tmp_path).model_copy(update=changes)
    split = GpuSplit.of(list(gpus), TrainingAdvanced(sampler="vllm"))
    servers = VllmProcesses(context(tmp_path, lines), write_program(tmp_path / "vllm", [1]), plan, split)
    assert servers.sleep is sleeps
    words = vllm_arguments(plan, split.samplers[0], 1, 1, is_shared=bool(gpus))
    assert ("--enable-sleep-mode" in words, "--gpu-memory-utilization" in words) == (sleeps, bool(gpus))
    assert any("with max_staleness = 0" in line.message for line in lines) == (bool(gpus) and not sleeps)


def found(program: Path) -> list[psutil.Process]:
    """The servers, without what keeps them in a sandbox."""
    every = [process for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"]]
    return [process for process in every if process.info["cmdline"][1:3] == [str(program), "serve"]]


async def test_one_that_does_not_start_says_why(tmp_path: Path) -> None:
    program = write_program(tmp_path / "vllm", [1], fails="ValueError: no kernel for this GPU")
    job = context(tmp_path, [])
    with pytest.raises(JobFailed, match=r"vLLM server 1 ended with exit code 1.*no kernel for this GPU") as refused:
        async with VllmProcesses(job, program, trainer_plan(tmp_path), GpuSplit([], [[]])).running():
            pass
    assert "no kernel" in str(refused.value.failure.traceback)


@pytest.mark.parametrize(
    ("environ", "words"), [({}, "this job has no GPU"), ({"OSMOSIS_VLLM": "/no/vllm"}, "no such program")]
)
async def test_a_machine_without_vllm_is_told_what_to_set(tmp_path: Path, environ: dict[str, str], words: str) -> None:
    with pytest.raises(JobFailed, match=words) as refused:
        await find_vllm(context(tmp_path, [], **environ))
    assert "OSMOSIS_VLLM" in str(refused.value.hint)
