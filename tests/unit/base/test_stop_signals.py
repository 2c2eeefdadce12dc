"""A signal that arrives while the main thread holds a lock is dealt with once the lock is free."""

from __future__ import annotations

import subprocess
import sys

HOLDS = """
import os, signal, threading, time
from osmosis.base.stop_signals import on_stop

lock, over = threading.Lock(), threading.Event()

def stop():
    with lock:
        over.set()

on_stop(stop)
for number in (signal.SIGTERM, signal.SIGINT):
    with lock:
        os.kill(os.getpid(), number)
        time.sleep(0.1)
    assert over.wait(30)
    over.clear()
print("ended")
"""


def test_a_signal_waits_for_a_lock_that_the_main_thread_holds() -> None:
    done = subprocess.run([sys.executable, "-c", HOLDS], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("ended\n", 0), done.stderr
