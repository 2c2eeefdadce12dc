"""Programs of a test: processes of their own that answer somewhere, and end with all that they started."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from .platform_process import until

OSMOSIS = (sys.executable, "-m", "osmosis")
LOG = "program.log"
"""What a program prints, in its folder."""


@contextmanager
def running_program(
    *words: str, cwd: Path, url: str, environ: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield the process once something answers at `url`; end its group with the block."""
    with (cwd / LOG).open("ab") as output:
        process = subprocess.Popen(
            words, cwd=cwd, env=environ or os.environ, stdout=output, stderr=output, start_new_session=True
        )

    def answers() -> bool:
        assert process.poll() is None, (cwd / LOG).read_text()
        with suppress(httpx.HTTPError):
            return httpx.get(url, trust_env=False, timeout=5).status_code > 0
        return False

    try:
        until(answers, f"{url} answers")
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
