"""A chat-completions endpoint that costs almost nothing, so that a benchmark measures its client.

One asyncio protocol, HTTP/1.1 with keep-alive read by hand, replies rendered beforehand. A request that offers
tools and holds no tool result yet is answered with a call of `add`, every other with a final answer. It is no
general HTTP server: chunked bodies and anything but POST are refused.

    python benchmarks/stub_server.py --port 8991 --latency-ms 50
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal

USAGE = {"prompt_tokens": 60, "completion_tokens": 8, "total_tokens": 68}


def rendered(message: dict[str, object], finish_reason: str) -> bytes:
    """A whole HTTP reply with this assistant message."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    body = json.dumps(
        {"id": "stub", "object": "chat.completion", "created": 0, "model": "stub", "choices": [choice], "usage": USAGE}
    ).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


ANSWER = rendered({"content": "The answer is #### 42"}, "stop")
CALL = rendered(
    {
        "content": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a":40,"b":2}'}}
        ],
    },
    "tool_calls",
)
REFUSED = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Stub(asyncio.Protocol):
    """One connection: complete requests are answered in order, `latency_s` later."""

    def __init__(self, latency_s: float) -> None:
        self.latency_s = latency_s
        self.received = bytearray()
        self.loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        while (end := self.received.find(b"\r\n\r\n")) >= 0:
            head = bytes(self.received[:end]).lower()
            marker = head.find(b"\r\ncontent-length:")
            if not head.startswith(b"post ") or marker < 0:
                self.transport.write(REFUSED)
                self.transport.close()
                return
            length = int(head[marker + 17 :].split(b"\r\n", 1)[0])
            if len(self.received) < end + 4 + length:
                return
            body = bytes(self.received[end + 4 : end + 4 + length])
            del self.received[: end + 4 + length]
            self.answer(CALL if b'"tools"' in body and b'"role":"tool"' not in body.replace(b" ", b"") else ANSWER)

    def answer(self, reply: bytes) -> None:
        if self.latency_s:
            self.loop.call_later(self.latency_s, self.write, reply)
        else:
            self.transport.write(reply)

    def write(self, reply: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(reply)


async def serve(port: int, latency_s: float) -> None:
    """Until SIGINT or SIGTERM; prints its URL when it listens."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Stub(latency_s), "127.0.0.1", port, backlog=4096)
    done = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, done.set)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await done.wait()
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    given = parser.parse_args()
    asyncio.run(serve(given.port, given.latency_ms / 1000))


if __name__ == "__main__":
    main()
