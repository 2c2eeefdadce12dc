"""A person at a terminal, in an empty folder: real processes, a real platform, a real git push."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support import RUN

DEADLINE_S = 240.0
_NOT_OURS = re.compile(r"^(OSMOSIS_|_OSMOSIS_|.*_API_KEY$)")


@dataclass
class Person:
    """Types commands. Everything they make stays in `folder`."""

    folder: Path
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kept = {name: value for name, value in os.environ.items() if not _NOT_OURS.match(name)}
        self.environ = {**kept, "OSMOSIS_DATA_DIR": str(self.data), "OSMOSIS_CONFIG_DIR": str(self.demo / "config")}

    @property
    def demo(self) -> Path:
        return self.folder / "demo"

    @property
    def data(self) -> Path:
        return self.demo / "platform"

    @property
    def workspace(self) -> Path:
        return self.demo / "demo"

    def popen(self, *words: str, cwd: Path | None = None) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "osmosis", *words]
        where = cwd or (self.workspace if self.workspace.exists() else self.folder)
        return subprocess.Popen(
            argv, cwd=where, env=self.environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def types(self, *words: str, expect: int = 0, cwd: Path | None = None) -> str:
        """What the command printed; the test fails on another exit code than `expect`."""
        process = self.popen(*words, cwd=cwd)
        printed, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == expect, f"osmosis {' '.join(words)} -> {process.returncode}\n{printed}"
        return printed

    def asks(self, *words: str, expect: int = 0) -> Any:
        """The `--json` answer of a command; its error envelope when `expect` is not 0."""
        printed = self.types(*words, "--json", expect=expect)
        return json.loads(printed.strip().splitlines()[-1])

    def fetch(self, url: str) -> tuple[int, str]:
        """A page, with the stored login."""
        store = json.loads((self.demo / "config" / "credentials.json").read_text())
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {_token(store)}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()

    def platform_pid(self) -> int:
        return int(json.loads((self.data / "platform.json").read_text())["pid"])

    def kill_platform(self) -> None:
        """SIGKILL, by the pid that this person's own platform wrote."""
        pid = self.platform_pid()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not _alive(pid), "the platform is gone")


def _token(store: Any) -> str:
    if isinstance(store, dict):
        for key, value in store.items():
            if key == "access_token" or (key == "token" and isinstance(value, str)):
                return str(value)
            if found := _token(value):
                return found
    return ""


def _alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return status != "Z"


def wait_until(condition: Callable[[], Any], what: str, within: float = DEADLINE_S) -> Any:
    deadline = time.monotonic() + within
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {within:g} s: {what}"
        time.sleep(0.1)
    return found


@contextmanager
def a_person(folder: Path) -> Iterator[Person]:
    """Someone in an empty folder, whose platform is stopped at the end."""
    someone = Person(folder)
    try:
        yield someone
    finally:
        if (someone.data / "platform.json").exists():
            someone.types("platform", "stop", cwd=folder)


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    with a_person(tmp_path) as someone:
        yield someone


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Callable[..., str]]:
    with endpoints(tmp_path) as start:
        yield start


@contextmanager
def endpoints(folder: Path) -> Iterator[Callable[..., str]]:
    """Starts OpenAI-compatible endpoints in processes of their own; returns their base URLs."""
    started: list[subprocess.Popen[str]] = []

    def start(*flags: str, **variables: str) -> str:
        errors = folder / f"endpoint-{len(started)}.err"  # a file: a pipe nobody reads would fill up
        with errors.open("w") as stderr:
            process = subprocess.Popen(
                [*RUN, "stand_in", *flags],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, **variables},
            )
        started.append(process)
        url = process.stdout.readline().strip()
        assert url.startswith("http://"), f"the endpoint did not start, it said {url!r}\n{errors.read_text()}"
        return url

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.wait()
