"""A model of the platform in an evaluation: its process is started with a plan, waited for, asked, ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from osmosis.base.redact import Redactor
from osmosis.errors import ModelError
from osmosis.jobs.commands import Leftovers
from osmosis.jobs.context import JobContext, JobFailed, JobLog
from osmosis.jobs.models import open_local_model, open_platform_model
from osmosis.jobs.reporter import Reporter
from osmosis.llm.model import ChatRequest, Model
from osmosis.records.run.job import Handover, JobSpec, LogLine
from osmosis.records.run.plan import EvalPlan, ModelSpec, Retry, Selection
from osmosis.sandbox import Level, probe
from support.fake_serving import program
from support.model_files import write_adapter, write_model
from support.server import answering


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
        leftovers=leftovers, handover=Handover(token="the-lease"),
    )  # fmt: skip


async def asked(model: Model, content: str = "hi") -> str:
    return str((await model.complete(ChatRequest([{"role": "user", "content": content}]))).message["content"])


async def test_it_is_asked_while_the_run_lasts(tmp_path: Path) -> None:
    lines: list[LogLine] = []
    job = context(tmp_path, lines)
    spec = ModelSpec.parse("osmosis/multiply-1")
    async with open_local_model(job, spec, concurrency=8, program=program()) as model:
        assert await asked(model) == "osmosis/multiply-1 (step-20): hi"
    assert any(line.message.startswith("base model osmosis/multiply-1: Qwen3ForCausalLM") for line in lines)
    assert job.leftovers.end_all() == 0, "its process is gone"


@pytest.mark.parametrize(
    ("name", "words", "fix"),
    [("broken", "it does not fit", "choose a smaller one"), ("dies", "its process ended", None)],
)
async def test_one_that_cannot_be_loaded_says_why(tmp_path: Path, name: str, words: str, fix: str | None) -> None:
    job = context(tmp_path, [])
    with pytest.raises(JobFailed) as refused:
        async with open_local_model(job, ModelSpec.parse(f"osmosis/{name}"), concurrency=1, program=program()):
            pass
    assert words in refused.value.failure.message
    assert fix is None or refused.value.failure.fix == fix


@pytest.mark.skipif(probe().level is Level.NONE, reason="no sandbox works on this machine")
async def test_its_process_reads_its_own_files_alone(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of another run")
    lines: list[LogLine] = []
    job = context(tmp_path, lines)
    async with open_local_model(job, ModelSpec.parse("osmosis/x"), concurrency=8, program=program()) as model:
        assert "Qwen3ForCausalLM" in await asked(model, f"read {job.spec.model_path}/config.json")
        assert (await asked(model, f"read {secret}")).endswith(": FileNotFoundError")
    assert any("level 1; the model's process has no network" in line.message for line in lines)


@pytest.mark.slow
async def test_a_process_that_dies_is_started_again(tmp_path: Path) -> None:
    lines: list[LogLine] = []
    job = context(tmp_path, lines)
    async with open_local_model(job, ModelSpec.parse("osmosis/x"), concurrency=8, program=program()) as model:
        with pytest.raises(ModelError, match="trainer"):
            await asked(model, "die")  # asked again, for it could have been chance, but not for ever
        assert await asked(model, "and now?") == "osmosis/x (step-20): and now?"
        assert not model.failed.done()
    assert sum("starting it again" in line.message for line in lines) >= 2
    assert job.leftovers.end_all() == 0


@pytest.mark.slow
async def test_one_that_keeps_dying_is_given_up(tmp_path: Path) -> None:
    job = context(tmp_path, [])
    async with open_local_model(job, ModelSpec.parse("osmosis/x"), concurrency=8, program=program()) as model:
        while not model.failed.done():
            with pytest.raises(ModelError):
                await asked(model, "die")
        assert "ended 5 times in a row, the last time with exit code 9" in model.failed.result().failure.message
        with pytest.raises(ModelError, match="5 times in a row"):
            await asked(model)


async def test_a_deployment_is_asked_until_it_is_gone(tmp_path: Path) -> None:
    """The run goes on with a process of its own when somebody undeploys the model in the middle."""
    lines: list[LogLine] = []
    job = context(tmp_path, lines)
    async with deployment_of("osmosis/multiply-1") as (address, asked_of_it, gone):
        job.spec = job.spec.model_copy(update={"deployed": True, "platform_url": address})
        plan = EvalPlan(
            name="r-1", agent="x", dataset="d", model=ModelSpec.parse("osmosis/multiply-1"), selection=Selection(),
            retry=Retry(max_attempts=1),
        )  # fmt: skip
        async with open_platform_model(job, plan, program()) as model:
            assert await asked(model) == "of the deployment"
            gone.set()
            assert await asked(model) == "osmosis/multiply-1 (step-20): hi"
    assert asked_of_it == ["Bearer the-lease"] * 3, "a probe, an answer, a refusal"
    assert any("is not deployed any more: loading it for this run" in line.message for line in lines)


@asynccontextmanager
async def deployment_of(name: str) -> AsyncIterator[tuple[str, list[str], asyncio.Event]]:
    """A platform that passes questions on to a deployment, until that is gone."""
    seen: list[str] = []
    gone = asyncio.Event()

    async def chat(request: web.Request) -> web.Response:
        seen.append(request.headers["Authorization"])
        assert (await request.json())["model"] == name
        if gone.is_set():
            error = {"message": "not deployed", "code": "model_not_deployed", "type": "not_found_error"}
            return web.json_response({"error": error}, status=404)
        message = {"role": "assistant", "content": "of the deployment"}
        return web.json_response({"choices": [{"message": message, "finish_reason": "stop"}]})

    async with answering(chat, "/v1/chat/completions") as url:
        yield url, seen, gone
