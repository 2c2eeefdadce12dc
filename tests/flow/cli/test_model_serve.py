"""`osmosis model serve`: what is fetched, who is answered, and what is left when it has ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import psutil
import pytest

from osmosis.errors import ValidationError
from osmosis.jobs.local_serving import LocalModel, LocalServing, serve_here
from osmosis.testing.command_line import run_command
from osmosis.testing.fake_serving import program
from osmosis.testing.model_files import write_adapter, write_model

pytestmark = pytest.mark.flow


def serving_processes() -> list[psutil.Process]:
    """What this process started to serve a model, and is still there."""
    found = psutil.Process().children(recursive=True)
    return [one for one in found if any("fake_serving" in word for word in one.cmdline())]


async def test_a_model_answers_whoever_has_the_key_until_it_is_stopped(tmp_path: Path) -> None:
    model = LocalModel("tiny", str(write_model(tmp_path / "tiny")), str(write_adapter(tmp_path / "step-4")))
    stop = asyncio.Event()
    told: asyncio.Future[LocalServing] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve_here(
            model, tmp_path / "cache", {"PATH": "/usr/bin:/bin"}, port=0, log=lambda line: None, ready=told.set_result,
            stop=stop, program=program(),
        )
    )  # fmt: skip
    served = await asyncio.wait_for(told, 60)
    assert len(serving_processes()) > 0
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    async with aiohttp.ClientSession() as session:
        url = f"{served.url}/chat/completions"
        async with session.post(url, json=body, headers={"Authorization": f"Bearer {served.key}"}) as answer:
            said = (await answer.json())["choices"][0]["message"]["content"]
        async with session.post(url, json=body, headers={"Authorization": "Bearer osl_invented"}) as refused:
            assert refused.status == 401
    assert said == "osmosis/tiny (step-4): hi"
    assert served.url.startswith("http://127.0.0.1:")
    stop.set()
    assert await asyncio.wait_for(serving, 60) == 1
    assert serving_processes() == []


def test_what_is_no_model_is_said_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for words, message in (
        (("model", "serve", "tiny", "--adapter", "x"), "there is no folder"),
        (("model", "serve", "empty", "--adapter", "empty"), "holds no adapter"),
    ):
        refused = run_command(*words, "--json", cwd=tmp_path)
        assert refused.code == 1
        assert message in refused.error["message"]
        assert ValidationError.code == refused.error["code"]
