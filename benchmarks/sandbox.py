"""What the sandbox costs: a command from start to end, and calls across the boundary of a server that lives in one.

    python benchmarks/sandbox.py [--times 30] [--calls 2000]

Level 0 and level 1 take turns in the same run, so what else the machine does weighs on both alike.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path

from osmosis.sandbox import Level, Network, Policy, probe, run, start
from osmosis.sandbox.namespaces import python_folders

PYTHON = Path(sys.executable)
GATE = ("127.0.0.1", 7579)
CALLER = """
import socket, sys, time
calls = int(sys.argv[1])
link = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
took = []
for _ in range(calls):
    began = time.perf_counter()
    link.sendall(b"x" * 2048)
    got = 0
    while got < 2048:
        got += len(link.recv(4096))
    took.append(time.perf_counter() - began)
took.sort()
print(f"{took[len(took) // 2] * 1e6:.0f}")
"""


def command_ms(policy: Policy, times: int) -> float:
    """Median of `/bin/true`."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        assert run(["/bin/true"], policy).ok
        took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers 2 kB with 2 kB."""
    while part := await reader.read(4096):
        writer.write(part)
    writer.close()


async def call_us(level: Level, calls: int) -> str:
    """Median microseconds of a round trip from inside to us, kept alive."""
    policy = Policy(level=level, listen=(GATE,), read=python_folders(PYTHON))
    outside = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = GATE[1] if level else outside.sockets[0].getsockname()[1]
    box = await start([str(PYTHON), "-I", "-S", "-c", CALLER, str(calls), str(port)], policy)
    inside = [await asyncio.start_server(echo, sock=listener.dup()) for listener in box.listeners.values()]
    said = (await box.stdout.read()).decode().strip()
    for server in (outside, *inside):
        server.close()
    await box.close()
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--calls", type=int, default=2000)
    asked = parser.parse_args()
    print(probe().describe)
    for level in Level:
        if level > probe().level:
            continue
        print(f"level {level.value}: command {command_ms(Policy(level=level), asked.times):.1f} ms")
        if level and probe().router:
            policy = Policy(level=level, network=Network.OPEN)
            print(f"level {level.value}: command with an open network {command_ms(policy, asked.times):.1f} ms")
        print(f"level {level.value}: call to the gate, p50 {asyncio.run(call_us(level, asked.calls))} us")


if __name__ == "__main__":
    main()
