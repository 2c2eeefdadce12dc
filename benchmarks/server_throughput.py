"""How many rollouts per second the servers carry, against a bare FastAPI + aiohttp loop in the same run.

`server_throughput.py [N] [--rounds R]`: N one-call rollouts per round against a zero-latency trainer, alternating
the servers; prints medians and ratios to the bare loop. `bare` and `loop` (an agent loop) take POST /v1/rollout/init
and make one chat call and one completion. A workflow with its grader takes POST /rollout: `workflow 0.3` makes two
callbacks after its chat call, `workflow 0.4` is read under a lease instead.
`server_throughput.py --inflight 10000`: that many rollouts in flight at once; prints the event loop's lag and the
memory before and after. The trainer and the driver are raw protocols in this process, so the servers are measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

NAP_S = 45.0
"""Long enough for all rollouts to be accepted before the first one goes on."""
HERE = Path(__file__).resolve().parent
MESSAGE = {"role": "assistant", "content": "The answer is 42."}
COMPLETION = json.dumps(
    {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "default",
        "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 20, "completion_tokens": 6, "total_tokens": 26},
    }
).encode()
MESSAGES = [{"role": "system", "content": "Be brief. " * 10}, {"role": "user", "content": "What is 6 * 7?"}]


def reply(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    return head + body


CHAT_REPLY, DONE_REPLY = reply(COMPLETION), reply(b'{"status":"ok"}')


class Trainer(asyncio.Protocol):
    """Answers chat calls and counts completions, as cheaply as Python can."""

    completed = 0
    errors = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        while (end := self.data.find(b"\r\n\r\n")) >= 0:
            head = self.data[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 : (head.find(b"\r", at) + 1 or len(head) + 1) - 1]) if at >= 0 else 0
            if len(self.data) < end + 4 + length:
                return
            body = self.data[end + 4 : end + 4 + length]
            self.data = self.data[end + 4 + length :]
            if head.startswith(b"post /v1/chat"):
                self.transport.write(CHAT_REPLY)  # type: ignore[attr-defined]
                continue
            if not head.startswith(b"post /workflow-ended"):  # a result follows
                Trainer.completed += 1
                Trainer.errors += b'"COMPLETED"' not in body and b'"reward":1.0' not in body
            self.transport.write(DONE_REPLY)  # type: ignore[attr-defined]


HEADERS = "host: x\r\ncontent-type: application/json\r\n"


class Client:
    """One connection to a server: one request after the other."""

    async def open(self, port: int) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)

    async def ask(self, first: str, body: dict[str, Any] | None = None, expect: int = 200) -> bytes:
        sent = b"" if body is None else json.dumps(body).encode()
        self._writer.write(f"{first}\r\n{HEADERS}content-length: {len(sent)}\r\n\r\n".encode() + sent)
        head = await self._reader.readuntil(b"\r\n\r\n")
        if b" %d " % expect not in head.split(b"\r\n", 1)[0]:
            raise RuntimeError(head.decode())
        return await self._reader.readexactly(int(head.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0]))

    def close(self) -> None:
        self._writer.close()


async def submit(port: int, trainer: int, ids: list[str], generation: str) -> None:
    """Sends the inits of one connection; of generation 0.4 it also reads the results."""
    client = Client()
    await client.open(port)
    url = f"http://127.0.0.1:{trainer}"
    leases = {}
    for rollout_id in ids:
        if generation == "0.2":
            await client.ask("POST /v1/rollout/init HTTP/1.1", init02(rollout_id, url), 202)
            continue
        answer = await client.ask("POST /rollout HTTP/1.1", init03(rollout_id, url, generation), 202)
        if generation == "0.4":
            leases[rollout_id] = json.loads(answer)["polling_lease_token"]
    for rollout_id, lease in leases.items():
        state: dict[str, Any] = {"status": "queued"}
        while state["status"] in ("queued", "running", "grading"):
            first = f"GET /rollout/{rollout_id}/result HTTP/1.1\r\nX-Osmosis-Rollout-Lease: {lease}"
            state = json.loads(await client.ask(first))
        Trainer.completed += 1
        Trainer.errors += state["sample"]["reward"] != 1.0
    client.close()


def init02(rollout_id: str, url: str) -> dict[str, Any]:
    return {
        "rollout_id": rollout_id,
        "server_url": url,
        "messages": MESSAGES,
        "completion_params": {"temperature": 0.7, "max_tokens": 64},
        "metadata": {"row_index": 1, "ground_truth": "42"},
        "api_key": "bench",
    }


def init03(rollout_id: str, url: str, generation: str) -> dict[str, Any]:
    body = {
        "rollout_id": rollout_id,
        "initial_messages": MESSAGES,
        "label": "42",
        "metadata": {"row_index": 1},
        "chat_completions_url": f"{url}/v1",
        "llm_api_key": "bench",
    }
    if generation == "0.3":
        body |= {"completion_callback_url": f"{url}/workflow-ended", "grader_callback_url": f"{url}/graded"}
        body["controller_api_key"] = "bench"
    return body


def usage_of(pid: int) -> tuple[float, float]:
    """CPU seconds and resident MiB of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    ticks = os.sysconf("SC_CLK_TCK")
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return (int(fields[11]) + int(fields[12])) / ticks, pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Server:
    """One server process."""

    def __init__(self, script: str, port: int, *words: str) -> None:
        self.port = port
        self._words = [str(HERE / script), str(port), *words]

    async def __aenter__(self) -> Server:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, *self._words, stdout=asyncio.subprocess.PIPE
        )
        for _ in range(600):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.close()
                return self
            except OSError:
                await asyncio.sleep(0.05)
        raise RuntimeError("the server did not come up")

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        self.output = (await self.process.communicate())[0].decode()

    @property
    def usage(self) -> tuple[float, float]:
        return usage_of(self.process.pid)


async def carry(server: Server, trainer: int, ids: list[str], connections: int, generation: str = "0.2") -> float:
    """Seconds until every rollout has completed."""
    Trainer.completed = 0
    started = time.perf_counter()
    parts = [ids[i::connections] for i in range(connections)]
    await asyncio.gather(*(submit(server.port, trainer, part, generation) for part in parts if part))
    while Trainer.completed < len(ids):
        await asyncio.sleep(0.002)
        if time.perf_counter() - started > 300:
            raise RuntimeError(f"only {Trainer.completed} of {len(ids)} completed")
    return time.perf_counter() - started


async def throughput(trainer: int, port: int, count: int, rounds: int) -> dict[str, Any]:
    found: dict[str, list[tuple[float, float, float]]] = {}
    async with (
        Server("bare_server.py", port, "100") as bare,
        Server("our_server.py", port + 1, "100") as loop,
        Server("our_server.py", port + 2, "100", "workflow") as workflow,
    ):
        cases = {
            "bare": (bare, "0.2"),
            "loop": (loop, "0.2"),
            "workflow 0.3": (workflow, "0.3"),
            "workflow 0.4": (workflow, "0.4"),
        }
        for turn in range(rounds + 1):
            for name, (server, generation) in cases.items():
                tag = name.replace(" ", "-")
                cpu = server.usage[0]
                ids = [f"{tag}-{turn}-{i}" for i in range(count if turn else 200)]  # the first turn warms up
                took = await carry(server, trainer, ids, 16, generation)
                after = server.usage
                if turn:
                    found.setdefault(name, []).append((count / took, (after[0] - cpu) / count * 1000, after[1]))
    report: dict[str, Any] = {}
    for name, values in found.items():
        rates, cpus, memory = zip(*values, strict=True)
        pairs = list(zip(values, found["bare"], strict=True))
        report[name] = {
            "rollouts_per_s": round(statistics.median(rates), 1),
            "cpu_ms": round(statistics.median(cpus), 3),
            "MiB": round(memory[-1], 1),
            "rate_of_bare": round(statistics.median(ours[0] / theirs[0] for ours, theirs in pairs), 3),
            "cpu_of_bare": round(statistics.median(ours[1] / theirs[1] for ours, theirs in pairs), 3),
        }
    return {**report, "errors": Trainer.errors}


async def inflight(trainer: int, port: int, count: int, rounds: int) -> dict[str, Any]:
    async with Server("our_server.py", port, str(count), str(NAP_S)) as server:
        memory, took = [], []
        for turn in range(rounds):
            ids = [f"r-{turn}-{i}" for i in range(count)]
            took.append(round(await carry(server, trainer, ids, 16), 2))
            await asyncio.sleep(12)  # finished rollouts are remembered for a few seconds here
            memory.append(round(server.usage[1], 1))
    lag = json.loads(server.output.splitlines()[-1]) if server.output.strip() else {}
    return {"in_flight": count, "seconds": took, "MiB_after_each_round": memory, **lag, "errors": Trainer.errors}


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rollouts", type=int, nargs="?", default=2000, help="per round")
    parser.add_argument("--rounds", type=int, help="5, in flight 3")
    parser.add_argument("--inflight", type=int, metavar="N", help="N rollouts at once: lag and memory")
    given = parser.parse_args()
    loop = asyncio.get_running_loop()
    trainer = await loop.create_server(Trainer, "127.0.0.1", 0, backlog=4096)
    trainer_port = trainer.sockets[0].getsockname()[1]
    port = 20_000 + os.getpid() % 20_000
    if given.inflight:
        report = await inflight(trainer_port, port, given.inflight, given.rounds or 3)
    else:
        report = await throughput(trainer_port, port, given.rollouts, given.rounds or 5)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    asyncio.run(main())
