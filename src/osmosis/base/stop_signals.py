"""What Ctrl-C and SIGTERM ask of a process whose threads wait for each other.

A handler runs between two steps of the main thread, whatever lock that holds. `threading.Event.set` takes a lock that
the main thread may hold at that moment, as in `Event.wait`: the process would wait for itself, for good. So a handler
only hands the signal to a thread, which does what is to be done.
"""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable

STOPS = (signal.SIGTERM, signal.SIGINT)


def on_stop(action: Callable[[], object], *, signals: tuple[signal.Signals, ...] = STOPS) -> None:
    """Calls `action` in a thread of its own at each of these signals, from now on. For the main thread."""
    heard: queue.SimpleQueue[int] = queue.SimpleQueue()  # its `put` may interrupt another one, and takes no lock

    def tell() -> None:
        while True:
            heard.get()
            action()

    threading.Thread(target=tell, name="stop-signals", daemon=True).start()
    for number in signals:
        signal.signal(number, lambda number, _: heard.put(number))
