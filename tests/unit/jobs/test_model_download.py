"""The base model of a training job: a folder that is checked, or a hub name that is fetched once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from osmosis.base.redact import Redactor
from osmosis.jobs.commands import Leftovers
from osmosis.jobs.context import JobContext, JobFailed, JobLog
from osmosis.jobs.models import base_model_folder
from osmosis.jobs.reporter import Reporter
from osmosis.jobs.trainer.environment import TrainerEnvironment
from osmosis.records.run.job import JobSpec, LogLine
from support.model_files import write_model


@pytest.fixture
def lines() -> list[LogLine]:
    return []


@pytest.fixture
def context(tmp_path: Path, lines: list[LogLine]) -> JobContext:
    experiment = {"rollout": "r", "entrypoint": "main.py", "model_path": "tiny", "dataset": "d"}
    spec = JobSpec.model_validate(
        {
            "run_id": "r1", "run_name": "r-1", "kind": "training", "platform_url": "http://127.0.0.1:9",
            "repository": str(tmp_path), "commit_sha": "0" * 40, "rows": [0], "dataset_path": "d.jsonl",
            "config": {"experiment": experiment, "training": {}, "env": {"FROM_CONFIG": "1"}},
            "work_dir": str(tmp_path / "work"), "cache_dir": str(tmp_path / "cache"),
        }
    )  # fmt: skip
    (tmp_path / "work").mkdir()
    redactor = Redactor([])
    environ = {"PATH": "/usr/bin:/bin", "PIP_INDEX_URL": "http://x", "CUDA_VISIBLE_DEVICES": "0", "OTHER": "no"}
    return JobContext(
        spec=spec,
        environ=environ,
        secrets={"HF_TOKEN": "hf-secret"},
        log=JobLog(None, lines.append),
        reporter=Reporter("http://127.0.0.1:9", "r1", "token", redactor=redactor),
        redactor=redactor,
        leftovers=Leftovers(tmp_path / "work"),
    )


def environment(folder: Path, program: str) -> TrainerEnvironment:
    """A trainer's environment whose Python is this program."""
    (folder / "env/bin").mkdir(parents=True)
    python = folder / "env/bin/python"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    return TrainerEnvironment(folder / "env", folder / "code", {"torch": "2"}, "3.11.0")


async def test_a_base_model_that_is_a_folder_is_checked(
    context: JobContext, lines: list[LogLine], tmp_path: Path
) -> None:
    made = environment(tmp_path, "exit 1")
    folder = write_model(tmp_path / "model")
    given = replace(context, spec=context.spec.model_copy(update={"model_path": str(folder)}))
    assert await base_model_folder(given, made.python) == folder
    assert lines[-1].message == "base model tiny: Qwen3ForCausalLM, 0.0 M parameters"
    (folder / "tokenizer.json").unlink()
    with pytest.raises(JobFailed, match=r"the base model .* cannot be used: .* has no tokenizer"):
        await base_model_folder(given, made.python)


async def test_a_hub_model_is_fetched_once(context: JobContext, tmp_path: Path) -> None:
    source = write_model(tmp_path / "hub")
    # As the trainer's Python is called: -I -c CODE NAME FOLDER.
    program = f'echo "$HF_TOKEN $4" >> {tmp_path}/fetched; cp {source}/* "$5"'
    made = environment(tmp_path, program)
    given = replace(context, spec=context.spec.model_copy(update={"model_path": "Qwen/Tiny"}))
    folder = await base_model_folder(given, made.python)
    assert folder == tmp_path / "cache/hub/Qwen--Tiny"
    assert await base_model_folder(given, made.python) == folder
    assert (tmp_path / "fetched").read_text() == "hf-secret Qwen/Tiny\n"


async def test_a_hub_that_cannot_be_reached(context: JobContext, tmp_path: Path) -> None:
    made = environment(tmp_path, "echo 'httpx.ConnectError: failed to lookup address information' >&2; exit 1")
    given = replace(context, spec=context.spec.model_copy(update={"model_path": "Qwen/Tiny"}))
    with pytest.raises(JobFailed, match="the hub cannot be reached from this machine") as refused:
        await base_model_folder(given, made.python)
    assert "osmosis model upload" in str(refused.value.hint)
