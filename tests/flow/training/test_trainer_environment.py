"""The trainer's environment, really built by uv: which torch, what is said before it is fetched, what is refused."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import uv

from osmosis.base.installation import build_wheel, prune_environments
from osmosis.jobs.context import JobFailed, JobLog
from osmosis.jobs.trainer.environment import TrainerBuilder, TrainerEnvironment
from osmosis.records.run.job import LogLine

pytestmark = [pytest.mark.network, pytest.mark.slow]


def builder(cache: Path, lines: list[LogLine], environ: dict[str, str] | None = None) -> TrainerBuilder:
    log = JobLog(None, lines.append)
    return TrainerBuilder(uv.find_uv_bin(), cache, build_wheel(cache), environ or dict(os.environ), log, torch="cpu")


def test_it_has_the_cpu_build_and_runs_this_osmosis(trainer: TrainerEnvironment) -> None:
    assert not [name for name in trainer.packages if name.startswith("nvidia-")]
    code = "import torch, peft, osmosis.records.run.job as ours; print(torch.cuda.is_available(), ours.__file__)"
    environ = {"PYTHONPATH": str(trainer.code)}
    said = subprocess.run([str(trainer.python), "-c", code], env=environ, capture_output=True, text=True)
    assert said.stdout.split() == ["False", str(trainer.code / "osmosis/records/run/job.py")], said.stderr


async def test_it_is_found_again(trainer: TrainerEnvironment, trainer_cache: Path) -> None:
    lines: list[LogLine] = []
    assert await builder(trainer_cache, lines).environment() == trainer
    assert [line.message for line in lines if line.level == "info"] == [
        f"using the environment {trainer.folder.name} (torch {trainer.packages['torch']})"
    ]


def test_it_stays_when_environments_that_nobody_uses_are_removed(
    trainer: TrainerEnvironment, trainer_cache: Path
) -> None:
    """As every environment of a rollout that is made does."""
    prune_environments(trainer_cache)
    assert (trainer.python.exists(), (trainer.folder / "lib").is_dir()) == (True, True)
    assert trainer.folder.name not in prune_environments(trainer_cache)


async def test_what_would_be_fetched_is_known_before(trainer: TrainerEnvironment, tmp_path: Path) -> None:
    lock = await builder(tmp_path, []).plan(tmp_path)
    assert lock.packages["torch"].partition("+")[0] in lock.words
    assert "(CPU)" in lock.words
    assert 1e8 < lock.download_bytes < 1e9


async def test_where_only_cuda_can_be_had_the_cpu_build_is_not_replaced(tmp_path: Path) -> None:
    """Gigabytes are not fetched because a small build was asked for."""
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    nowhere = tmp_path / "pip.conf"
    nowhere.write_text("")
    # PyTorch's own index, unreachable.
    environ = {**alone, "PIP_CONFIG_FILE": str(nowhere), "UV_HTTP_TIMEOUT": "20", "UV_HTTP_RETRIES": "0"}
    if (found := await _words_without_cpu_index(builder(tmp_path, [], environ), tmp_path)) is None:
        pytest.skip("this machine reaches PyTorch's index")
    assert "only the CUDA build of torch can be had from here" in found.message
    assert "GB" in found.message
    assert "PIP_FIND_LINKS" in str(found.hint)
    lines: list[LogLine] = []
    auto = replace(builder(tmp_path, lines, {**environ, "PATH": str(Path(sys.executable).parent)}), torch="auto")
    assert (await auto.plan(tmp_path)).cuda
    assert "this machine has no GPU" in next(line.message for line in lines if line.level == "warning")


async def _words_without_cpu_index(made: TrainerBuilder, folder: Path) -> JobFailed | None:
    try:
        await made.plan(folder)
    except JobFailed as refused:
        return refused
    return None
