"""An OpenAI-compatible endpoint over an offline stand-in, in a process of its own: what a test points `--base-url` at.

    python tests/support/run.py stand_in --delay-ms 50 --key-env SOME_KEY

Prints its base URL on the first line. It knows one model by any name, streams when asked to, and checks the bearer
when it has a key. It is not meant for load tests: every answer goes through aiohttp's ordinary path.
"""

import argparse
import asyncio
import os

from aiohttp import web

from osmosis.dialects.chat import completion_body
from osmosis.llm import ChatRequest, open_model
from osmosis.records.run.plan import ModelSpec
from support.dialect_clients import completion_events

_NOT_PARAMS = {"messages", "tools", "model", "stream", "stream_options"}


def endpoint_app(
    stand_in: str = "offline/calculator", *, delay_s: float = 0.0, key: str | None = None
) -> web.Application:
    """`POST /v1/chat/completions` and `GET /v1/models`, answered by the stand-in after `delay_s`."""
    model = open_model(ModelSpec.parse(stand_in))

    async def chat(request: web.Request) -> web.StreamResponse:
        if key is not None and request.headers.get("Authorization") != f"Bearer {key}":
            return web.json_response({"error": {"message": "wrong key", "code": "invalid_api_key"}}, status=401)
        body = await request.json()
        params = {name: value for name, value in body.items() if name not in _NOT_PARAMS}
        answer = await model.complete(ChatRequest(messages=body["messages"], tools=body.get("tools"), params=params))
        await asyncio.sleep(delay_s)
        name = str(body.get("model"))
        if not body.get("stream"):
            return web.json_response(completion_body(answer, model=name))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in completion_events(answer, model=name, with_usage=True):
            await response.write(event)
        return response

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": stand_in, "object": "model"}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/v1/models", models)
    return app


async def _serve(app: web.Application, port: int) -> None:
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", flush=True)  # noqa: T201 - the one line callers read
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="offline/calculator")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--key-env", help="variable that holds the key that callers must send")
    args = parser.parse_args()
    key = os.environ[args.key_env] if args.key_env else None
    asyncio.run(_serve(endpoint_app(args.model, delay_s=args.delay_ms / 1000, key=key), args.port))


if __name__ == "__main__":
    main()
