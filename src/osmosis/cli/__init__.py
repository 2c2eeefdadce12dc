import gc
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

from osmosis._version import __version__

IS_PROCESS = False


def main(argv: Sequence[str] | None = None) -> int:
    global IS_PROCESS
    words = list(sys.argv[1:] if argv is None else argv)
    if words in (["--version"], ["-V"]):
        sys.stdout.write(f"osmosis-ai {__version__}\n")
        return 0
    if argv is None:  # a process of our own: it loads about 100,000 objects, which were looked at again and again
        gc.set_threshold(200_000, 20, 50)
    from osmosis.cli.main import main as run  # importing this package loads no command

    IS_PROCESS = argv is None
    code = run(words)
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread() and not thread.daemon]
    if IS_PROCESS and others:
        # A thread that an agent left behind would keep the command, whose result is out, for as long as it runs.
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    return code


__all__ = ["main"]
