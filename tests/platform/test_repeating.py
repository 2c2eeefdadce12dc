"""A step of the platform's process that is repeated outlives its failures, and ends when it is stopped."""

import threading

import pytest

from osmosis.platform.background import RepeatingThread


def test_a_step_that_fails_is_logged_and_the_next_one_comes(caplog: pytest.LogCaptureFixture) -> None:
    tries: list[int] = []
    came_again = threading.Event()

    def step() -> None:
        tries.append(len(tries))
        if len(tries) == 1:
            raise RuntimeError("the disk is away")
        came_again.set()

    thread = RepeatingThread("cleaning up", 0.01, step, first_s=0.0)
    thread.start()
    assert came_again.wait(20)
    thread.stop()
    seen = len(tries)
    assert "cleaning up failed" in caplog.text
    assert "the disk is away" in caplog.text
    threading.Event().wait(0.1)
    assert len(tries) == seen, "none comes after the end"


def test_the_first_step_has_a_time_of_its_own() -> None:
    came = threading.Event()
    thread = RepeatingThread("cleaning up", 3600.0, came.set, first_s=0.0)
    thread.start()
    assert came.wait(20)
    thread.stop(wait_s=0)
