"""What tests of several folders share: the trainer's environment, built once per session by the product itself."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from osmosis.base.locks import locked
from osmosis.jobs.trainer.environment import TrainerEnvironment
from osmosis.sandbox import Level, probe
from support.tiny_task import TRAIN_TINY
from support.trainer_environment import NoTorch, trainer_environment

REQUIRED = "OSMOSIS_TEST_REQUIRE_SANDBOX"
"""Set where the sandbox has to work, as in CI: what is skipped elsewhere without one fails there."""

UNTIL = float(os.environ.get("OSMOSIS_TEST_UNTIL") or "inf")
"""Set by CI, whose time is limited: slow tests that would begin later (seconds since the epoch) are skipped."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.time() > UNTIL and item.get_closest_marker("slow"):
        pytest.skip("the time of this run is over: `make slow` runs it")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where time is limited, put the modules in an order that changes with each commit: every test has its turn."""
    if math.isfinite(UNTIL):
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True).stdout
        items.sort(key=lambda item: sha256(commit + item.path.name.encode()).digest())


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a shell leaves what it starts in the background: the processes of tests would never hear a Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

_started_by_requests: list[str] = []
_ANSWERING = "AnyIO worker thread"
"""How the threads are called in which the platform's routes are answered."""


def _watch(event: str, args: tuple[object, ...]) -> None:
    if event != "subprocess.Popen" or not threading.current_thread().name.startswith(_ANSWERING):
        return
    background = sys.modules.get("osmosis.platform.background")  # most tests do without the platform
    if background is not None and not background.is_background():
        ours = [frame for frame in traceback.extract_stack() if "/osmosis/platform/" in frame.filename]
        if ours:
            _started_by_requests.append(f"{ours[-1].filename}:{ours[-1].lineno} starts {args[0]!r}")


sys.addaudithook(_watch)


@pytest.fixture(autouse=True)
def _requests_start_no_process() -> Iterator[None]:
    """Slow work never sits in the threads that answer requests: whatever a test asks for, none of them starts git or a
    reader."""
    yield
    seen, _started_by_requests[:] = list(_started_by_requests), []
    assert not seen, f"a request's thread started a process (platform/background.py): {'; '.join(seen)}"


@pytest.fixture(scope="session")
def need_level() -> Callable[..., None]:
    """Skips the test where no sandbox of this level works, or none with a network; fails it where one has to."""

    def need(level: Level, *, router: bool = False) -> None:
        here = probe()
        lacking = ""
        if here.level < level:
            lacking = f"no sandbox of level {level.value} here: {here.reason}"
        elif router and not here.router:
            lacking = "neither slirp4netns nor pasta is here"
        if lacking and os.environ.get(REQUIRED):
            pytest.fail(f"{lacking}, and {REQUIRED} is set")
        if lacking:
            pytest.skip(lacking)

    return need


@pytest.fixture
def isolated(need_level: Callable[..., None]) -> None:
    """For tests that need level 1."""
    need_level(Level.NAMESPACES)


@pytest.fixture(scope="session")
def trainer_cache(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A cache folder in which the trainer's environment is built at most once, however many processes test.

    Of this session, or of `OSMOSIS_TEST_CACHE`, which spares the next session the minute that it takes.
    """
    folder = Path(os.environ.get("OSMOSIS_TEST_CACHE") or _shared(tmp_path_factory, worker_id) / "trainer-cache")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The temporary folder of this session, whichever of its processes asks."""
    base = tmp_path_factory.getbasetemp()
    return base if worker_id == "master" else base.parent


@pytest.fixture(scope="session")
def trainer(trainer_cache: Path) -> Iterator[TrainerEnvironment]:
    """The trainer's environment with the CPU build of torch; where that cannot be had, the test is skipped."""
    try:
        yield trainer_environment(trainer_cache)
    except NoTorch as reason:
        pytest.skip(f"needs the CPU build of torch: {reason}")


@pytest.fixture(scope="session")
def tiny_base(trainer: TrainerEnvironment, trainer_cache: Path) -> Path:
    """The tiny model of `examples/train-tiny`, a mediocre adder: made once for all processes that test."""
    sources = b"".join((TRAIN_TINY / name).read_bytes() for name in ("tiny_model.py", "tiny_task.py"))
    folder = trainer_cache / f"tiny-base-{sha256(sources).hexdigest()[:12]}"
    with locked(folder.with_suffix(".lock")):
        if not (folder / "tokenizer_config.json").exists():
            command = [str(trainer.python), str(TRAIN_TINY / "tiny_model.py"), str(folder), "--target", "0.35"]
            environ = {**os.environ, "PYTHONPATH": str(trainer.code), "OMP_WAIT_POLICY": "PASSIVE"}
            made = subprocess.run(command, env=environ, capture_output=True, text=True)
            assert made.returncode == 0, made.stderr[-4000:]
    return folder
