"""The script by which a scheduler starts a job, or one of several: what the job reads is in it, on standard input.

It carries a ticket and no secret. Nothing that people chose is read by the shell: words are quoted, the entry is data.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from .executor import JobStart

_END = "OSMOSIS"


def lines(jobs: Sequence[JobStart], command: Sequence[str], *, index_variable: str = "") -> str:
    """Lines for `sh`. With several jobs the variable says which one of them this task is, from 0 on."""
    if len(jobs) == 1 and not index_variable:
        return _one(jobs[0], command)
    cases = "".join(f"{number})\n{_one(job, command)};;\n" for number, job in enumerate(jobs))
    return f'case "${{{index_variable}}}" in\n{cases}esac\n'


def script(jobs: Sequence[JobStart], command: Sequence[str], *, index_variable: str = "") -> str:
    """A whole one."""
    return f"#!/bin/sh\n{lines(jobs, command, index_variable=index_variable)}"


def _one(job: JobStart, command: Sequence[str]) -> str:
    entry = job.entry.model_dump_json()  # one line, so it cannot be the last one
    return f"exec {shlex.join([*command, '--run', job.url])} <<'{_END}'\n{entry}\n{_END}\n"
