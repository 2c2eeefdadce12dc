"""What tests of several folders share: the trainer's environment, built once per session by the product itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from osmosis.jobs.trainer_environment import TrainerEnvironment
from osmosis.testing.trainer_environment import NoTorch, trainer_environment


@pytest.fixture(scope="session")
def trainer_cache(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A cache folder in which the trainer's environment is built at most once, however many processes test."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "trainer-cache"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def trainer(trainer_cache: Path) -> Iterator[TrainerEnvironment]:
    """The trainer's environment with the CPU build of torch; where that cannot be had, the test is skipped."""
    try:
        yield trainer_environment(trainer_cache)
    except NoTorch as reason:
        pytest.skip(f"needs the CPU build of torch: {reason}")
