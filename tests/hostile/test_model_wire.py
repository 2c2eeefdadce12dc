"""A model's server that answers oddly: a reply, or one failure in its category, in bounded memory."""

import asyncio
import gzip
import json
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from osmosis.errors import ModelError
from osmosis.llm import http
from osmosis.llm.model import ChatRequest
from osmosis.llm.openai_compatible import OpenAICompatibleModel
from osmosis.records.run.plan import ModelSpec, Retry

SAID = {"role": "assistant", "content": "hello"}
DONE = json.dumps({"choices": [{"message": SAID, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}).encode()
Answer = Callable[[asyncio.StreamWriter], None]


def reply(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunked(body: bytes, size: int) -> bytes:
    parts = [b"%x\r\n%b\r\n" % (len(body[i : i + size]), body[i : i + size]) for i in range(0, len(body), size)]
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(parts) + b"0\r\n\r\n"


class Server:
    """Answers every request with the same bytes, and remembers what it was sent."""

    def __init__(self, answer: bytes, *, closes: bool = False) -> None:
        self.answer, self.closes = answer, closes
        self.heads: list[bytes] = []
        self.connections = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head.lower())
                length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
                await reader.readexactly(int(length.split(b":")[1]))
                writer.write(self.answer)
                await writer.drain()
                if self.closes:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def asking(server: Server, **options: object) -> AsyncIterator[OpenAICompatibleModel]:
    listening = await asyncio.start_server(server.talk, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    spec = ModelSpec.parse("openai/m").model_copy(update={"base_url": f"http://127.0.0.1:{port}/v1"})
    model = OpenAICompatibleModel(spec, retry=Retry(max_attempts=1), timeout_s=120)
    try:
        yield model
    finally:
        await model.close()
        listening.close()


async def ask(server: Server, times: int = 1) -> str:
    async with asking(server) as model:
        for _ in range(times):
            done = await model.complete(ChatRequest(messages=[{"role": "user", "content": "?"}]))
        return str(done.message["content"])


async def failure(server: Server) -> ModelError:
    with pytest.raises(ModelError) as found:
        await ask(server)
    return found.value


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(DONE)),
        ("GZIP", gzip.compress(DONE)),
        ("deflate", zlib.compress(DONE)),
        ("deflate", zlib.compress(DONE)[2:-4]),
        ("identity", DONE),
    ],
)
async def test_a_compressed_answer_is_read(encoding: str, body: bytes) -> None:
    server = Server(reply(body, f"Content-Encoding: {encoding}"))
    assert await ask(server) == "hello"
    assert b"\r\naccept-encoding: identity\r\n" in server.heads[0]


@pytest.mark.parametrize(
    ("answer", "category", "says"),
    [
        (reply(DONE, "Content-Encoding: br"), "connection", "content-encoding"),
        (reply(DONE, "Content-Encoding: gzip"), "connection", "cannot be decoded"),
        (reply(gzip.compress(DONE)[:-30], "Content-Encoding: gzip"), "bad_response", "chat completion"),
        (b"HTTP/1.1 101 Hm\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", "connection", "another protocol"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Half: ", "connection", "closed"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 60_000 + b"\r\n", "connection", "headers are larger than 262144 bytes"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 400_000, "connection", "larger than 262144 bytes"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000, "connection", "closed"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * 60_000, "connection", "headers"),
        (b"not http at all\r\n\r\n", "connection", "not valid HTTP"),
        (reply(b"[" * 100_000), "bad_response", "depth"),
        (reply(DONE.replace(b'"prompt_tokens": 1', b'"prompt_tokens": 1e308')), "bad_response", "usage.prompt_tokens"),
        (reply(DONE.replace(b'"prompt_tokens": 1', b'"prompt_tokens": -1')), "bad_response", "usage.prompt_tokens"),
        (reply(DONE.replace(b'"prompt_tokens": 1', b'"cost": 1e308')), "bad_response", "usage.cost"),
        (reply(DONE.replace(b"hello", b"\\ud800")), "bad_response", "surrogate"),
    ],
)  # fmt: skip
async def test_anything_else_is_one_failure_in_its_category(answer: bytes, category: str, says: str) -> None:
    error = await failure(Server(answer, closes=True))
    assert (error.category, says in error.message) == (category, True), error.message


async def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_BODY", 10_000_000)
    error = await failure(Server(reply(gzip.compress(b" " * 50_000_000), "Content-Encoding: gzip")))
    assert "larger than 10000000 bytes" in error.message


async def test_tiny_chunks_cost_their_bytes() -> None:
    text = "x" * 300_000
    server = Server(chunked(DONE.replace(b"hello", text.encode()), 2))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        assert await ask(server) == text
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert peak < 5_000_000, peak  # the server's own buffer of 1 MB, and a few copies of 300 kB


async def test_a_server_that_closes_after_each_answer_fails_no_call() -> None:
    server = Server(reply(DONE), closes=True)
    assert await ask(server, times=50) == "hello"
    assert server.connections == 50
    assert len(server.heads) == 50, "no call was answered twice"
