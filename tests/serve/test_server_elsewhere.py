"""A rollout server on another machine, as a job sees it: its key, its coming and going, and the way to the job."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from osmosis.errors import UsageError
from osmosis.jobs.context import JobFailed, JobLog
from osmosis.jobs.server.pool import RemoteServer, check_reach
from osmosis.records.config.worker import GateAddress
from osmosis.records.run.job import LogLine
from osmosis.records.run.plan import EvalPlan
from osmosis.serve.client.model_proxy import ModelProxy
from osmosis.serve.server.app import create_rollout_server
from support.server import running_app
from support.waiting import until

from .support import SPEC, OneCall, ScriptedModel, backend, open_proxy

PLAN = EvalPlan(name="r", agent="a", model=SPEC, dataset="d")


async def test_a_key_that_is_refused_is_known_before_anything_is_trained(tmp_path: Path) -> None:
    app = create_rollout_server(backend(OneCall, root=tmp_path), api_key="right", environ={})
    async with running_app(app) as url:
        await RemoteServer(url, "right", JobLog()).check()
        for key in ("wrong", None):
            with pytest.raises(JobFailed, match="key") as refused:
                await RemoteServer(url, key, JobLog()).check()
            assert "rollout_server_key_env" in (refused.value.hint or "")


async def test_a_proxy_that_says_that_its_server_is_gone_is_believed() -> None:
    there = asyncio.Event()
    there.set()

    async def health(_: Request) -> Response:
        body = {"status": "healthy", "concurrency": {"max_concurrent": 3}, "lifecycle": {}}
        return JSONResponse(body) if there.is_set() else Response("Bad Gateway", 502)

    lines: list[LogLine] = []
    async with running_app(Starlette(routes=[Route("/health", health)])) as url:
        server = RemoteServer(url, None, JobLog(None, lines.append))
        async with open_proxy(ScriptedModel()) as gate, server.running(gate, PLAN):
            await until(lambda: server.up, within=60)
            assert server.at_once == 3
            there.clear()
            await until(lambda: not server.up, within=60)
            assert server.at_once == 0
            there.set()
            await until(lambda: server.up, within=60)
    said = [line.message for line in lines if line.level == "warning"]
    assert said[0] == f"{url} does not answer any more: its rollouts go to others"


@asynccontextmanager
async def gate_at(advertise_url: str) -> AsyncIterator[ModelProxy]:
    gate = ModelProxy(ScriptedModel(), advertise_url=advertise_url)
    await gate.open()
    try:
        yield gate
    finally:
        await gate.close()


async def test_rollouts_are_told_the_address_that_is_advertised() -> None:
    async with gate_at("https://gpu-box.example.com/gate/{port}") as gate:
        port = gate.base_url.rpartition("/")[2]
        assert int(port) > 0
        far = gate.open_rollout("far")
        near = gate.open_rollout("near", base_url="http://127.0.0.1:7576")
    assert far.chat_completions_url == f"https://gpu-box.example.com/gate/{port}/v1/rollouts/far"
    assert near.chat_completions_url == "http://127.0.0.1:7576/v1/rollouts/near"


async def test_where_others_can_call_no_body_is_read_for_who_has_no_token() -> None:
    async with gate_at("http://127.0.0.1:{port}") as gate, aiohttp.ClientSession() as session:
        rollout = gate.open_rollout("r")
        for path in ("/v1/chat/completions", "/v1/rollout/completed"):
            for token, status in (("x", 401), (rollout.bearer, 400 if "chat" in path else 422)):
                headers = {"Authorization": f"Bearer {token}"}
                async with session.post(gate.base_url + path, data=b"not JSON", headers=headers) as reply:
                    assert reply.status == status, (path, token)


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ({"advertise_url": "http://10.0.0.5:7577", "listen": "10.0.0.5:7577"}, "--insecure-http"),
        ({"listen": "0.0.0.0:7577"}, "--advertise-url"),
        ({"advertise_url": "https://gpu-box.example.com"}, "{port}"),
    ],
)
def test_an_address_that_is_open_or_leads_nowhere_is_refused(said: dict[str, str], fix: str) -> None:
    with pytest.raises(UsageError) as refused:
        GateAddress.model_validate(said).refuse()
    assert fix in (refused.value.hint or "")


def test_an_address_behind_a_proxy_or_in_a_network_that_is_trusted() -> None:
    GateAddress(advertise_url="https://gpu-box.example.com/gate/{port}").refuse()
    GateAddress(advertise_url="http://10.0.0.5:7577", listen="10.0.0.5:7577", insecure_http=True).refuse()


def test_servers_that_could_not_reach_the_job_or_only_in_the_open() -> None:
    told = GateAddress(advertise_url="https://gpu-box.example.com", listen="127.0.0.1:7577")
    check_reach(GateAddress(), ["http://127.0.0.1:9000"])
    check_reach(told, ["https://east.example.com"])
    with pytest.raises(JobFailed, match="its machine advertises no address"):
        check_reach(GateAddress(), ["https://east.example.com"])
    with pytest.raises(JobFailed, match="plain http"):
        check_reach(told, ["http://east.example.com"])
