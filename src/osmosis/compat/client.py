import asyncio

import orjson
from fastapi import APIRouter, Request, Response

from osmosis.dialects import CHAT, EndpointError
from osmosis.engine.agent import DEFAULT_MAX_TOKENS_TOTAL
from osmosis.records.protocol import v02
from osmosis.records.protocol.messages import CallbackReply, WireSample
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.rollout import Category
from osmosis.records.run.rows import Row
from osmosis.serve.client import protocols
from osmosis.serve.client.model_http import read_object, read_record
from osmosis.serve.client.model_proxy import MAX_BODY, ModelProxy, document_body
from osmosis.serve.client.rollout_endpoint import RolloutEndpoint
from osmosis.serve.http import operation_id, reply


class AgentLoopProtocol(protocols.ServerProtocol):
    sends_limits = False

    def __init__(self, client: protocols.ServerClient, plan: EvalPlan, proxy_url: str) -> None:
        super().__init__(client, plan)
        self._proxy_url = proxy_url

    async def run(self, endpoint: RolloutEndpoint, row: Row) -> protocols.ServerResult:
        endpoint.expect_tools()
        request = v02.RolloutRequest(
            rollout_id=endpoint.rollout_id,
            server_url=self._proxy_url,
            messages=row.messages(),
            completion_params=dict(self._plan.model.params),
            max_turns=self._plan.max_turns,
            max_tokens_total=self._plan.max_tokens_total or DEFAULT_MAX_TOKENS_TOTAL,
            metadata={**row.data, **protocols.row_position(endpoint)},
            api_key=endpoint.bearer,
        )
        answer = await self._client.submit("/v1/rollout/init", request)
        try:
            tools = orjson.loads(answer).get("tools")
        except (orjson.JSONDecodeError, AttributeError) as exc:
            raise protocols.RolloutLost(
                Category.BAD_RESPONSE, "the answer to /v1/rollout/init is not an object"
            ) from exc
        endpoint.set_tools(tools)
        await endpoint.result()
        response = endpoint.response
        assert isinstance(response, v02.RolloutResponse)
        failure = None
        if response.status is v02.LoopStatus.ERROR:
            failure = response.failure or protocols.failure_from_wire("agent_error", response.error_message, "failure")
        metrics = response.metrics.model_dump() if response.metrics else {}
        sample = WireSample(
            messages=response.final_messages, reward=response.reward, extra_fields=response.extra_fields
        )
        return protocols.ServerResult(failure, sample, finish_reason=response.finish_reason, metrics=metrics)

    async def agent_runs(self, endpoint: RolloutEndpoint) -> bool | None:
        return True

    async def cancel(self, rollout_id: str) -> None:
        """Do nothing: this generation knows no cancellation; the server's own limits end the rollout."""


TOOLS_WAIT_S = 30.0


def loop_routes(proxy: ModelProxy) -> APIRouter:
    router = APIRouter(generate_unique_id_function=operation_id)

    @router.post(
        "/v1/chat/completions",
        **document_body(
            "0.2: a model call; the rollout is named in the body",
            v02.ChatCompletionsRequest,
            v02.CompletionsResponse,
            (400, 401, 404, 424),
        ),
    )
    async def chat(request: Request) -> Response:
        proxy.check_bearer(request)
        body = await read_object(request, MAX_BODY)
        if "rollout_id" not in body:  # not this generation: its bearer alone names the rollout
            return await proxy.answer(request, proxy.authenticate(request), CHAT, CHAT.parse(body))
        endpoint = proxy.find_endpoint(str(body["rollout_id"]), request)
        body.pop("logprobs", None)  # clients of this generation always set it, also for models that refuse it
        if "tools" not in body:
            try:
                await endpoint.wait_for_tools(TOOLS_WAIT_S)
            except asyncio.TimeoutError:
                raise EndpointError(
                    424, "the server never answered the rollout's init request", Category.BAD_REQUEST.value
                ) from None
            body["tools"] = endpoint.tools
        return await proxy.answer(request, endpoint, CHAT, CHAT.parse(body))

    @router.post(
        "/v1/rollout/completed",
        **document_body("0.2: the terminal result", v02.RolloutResponse, CallbackReply, (401, 404, 422)),
    )
    async def completed(request: Request) -> Response:
        proxy.check_bearer(request)
        message = await read_record(request, v02.RolloutResponse, MAX_BODY)
        proxy.find_endpoint(message.rollout_id, request, closed=True).take_response(message)
        return reply({"status": "ok"})

    return router
