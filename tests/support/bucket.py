"""A bucket of moto's S3 server, for tests: a process on loopback that keeps everything in memory.

It checks no signatures, so nothing here shows that an address is signed rightly or expires; with `strict` it refuses
credentials that it does not know.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from osmosis.serve.server_process import free_port

from .platform_process import until

NAME = "osmosis-test"


@dataclass(frozen=True)
class Bucket:
    """A running server with one bucket."""

    endpoint: str

    def environ(self, prefix: str, *, endpoint: str = "") -> Mapping[str, str]:
        """The variables of a platform that keeps its objects below this prefix."""
        return {
            "OSMOSIS_OBJECTS": f"s3://{NAME}/{prefix}",
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_REGION": "eu-west-1",
            "AWS_ACCESS_KEY_ID": "test-key",
            "AWS_SECRET_ACCESS_KEY": "test-secret",
        }


@contextmanager
def bucket(*, strict: bool = False) -> Iterator[Bucket]:
    """A server of its own, ended with the block."""
    port = free_port()
    environ = {**os.environ, **({"INITIAL_NO_AUTH_ACTION_COUNT": "1"} if strict else {})}
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    made = Bucket(f"http://127.0.0.1:{port}")
    try:
        with httpx.Client(trust_env=False, timeout=60) as http:
            until(lambda: _answers(http, made.endpoint), "moto answers")
            http.put(f"{made.endpoint}/{NAME}").raise_for_status()
        yield made
    finally:
        server.terminate()
        server.wait(20)


def _answers(http: httpx.Client, endpoint: str) -> bool:
    try:
        return http.get(f"{endpoint}/moto-api/").status_code < 500
    except httpx.TransportError:
        return False
