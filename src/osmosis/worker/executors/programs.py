"""The programs of a scheduler, called with an environment of a short list and a time limit.

What jobs inherit of a worker is what these programs are given: neither its token nor anybody's keys.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from osmosis.errors import PlatformError

from .local import ALLOWED

LIMIT_S = 60.0


class Programs:
    """`prefixes`: of further variables that they are given."""

    def __init__(
        self, environ: Mapping[str, str], *, names: Sequence[str] = (), prefixes: tuple[str, ...] = ()
    ) -> None:
        self._environ = {
            key: value
            for key, value in environ.items()
            if ALLOWED.match(key) or key in names or (prefixes and key.startswith(prefixes))
        }

    def say(self, words: Sequence[str], given: str = "") -> str:
        """What the program prints. PlatformError when it cannot be started, fails, or takes too long."""
        try:
            done = subprocess.run(
                list(words),
                input=given,
                env=self._environ,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=LIMIT_S,
                check=False,
            )
        except OSError as problem:
            raise PlatformError(f"{words[0]} could not be started: {problem.strerror or problem}") from problem
        except subprocess.TimeoutExpired:
            raise PlatformError(f"{words[0]} did not answer within {LIMIT_S:g} s") from None
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip())[-500:]
            raise PlatformError(f"{words[0]} failed with exit code {done.returncode}: {said}")
        return done.stdout if done.stdout.strip() else done.stderr
