"""Where the sandboxes of rollouts come from: which boundary it is, whoever runs the rollout decides.

An evaluation by its plan, a rollout server by its variables; on a platform the trusted half of the job runs it, beside
the rollout. Nothing is made before a rollout asks for it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import get_args

from osmosis.errors import SandboxUnavailable
from osmosis.records.sandbox import SANDBOX_VARIABLE, SandboxChoice, SandboxKind
from osmosis.sandbox import Level
from osmosis.sandbox.session import Kind, Session, choose

from .calls import in_thread
from .rollout_sandbox import Hosted, Opening, Sandbox, within
from .sandbox_door import Door

THROUGH_THE_GATE = "gate"
"""The variable's value where the rollout is in a boundary itself, and who runs it makes its sandboxes."""


@contextlib.asynccontextmanager
async def open_sandbox(kind: SandboxKind = "auto", *, image: str | None = None) -> AsyncIterator[Sandbox]:
    """A sandbox outside of any rollout, which `get_sandbox` finds inside the block: to try a tool in a script or test.

    `kind`: `auto`, `bubblewrap`, `container` (with an `image` that is on this machine), or `none`, which is no boundary
    at all. Raises `SandboxUnavailable` when what is wanted does not work here.
    """
    sandbox = Sandbox(opening_of(SandboxChoice(kind=kind, image=image)))
    await in_thread(sandbox.open)
    async with within(sandbox):
        yield sandbox


def opening_of(choice: SandboxChoice) -> Opening:
    """Makes sandboxes on this machine, all of one kind; found out at the first."""
    return _opening(choice.kind, choice.image)


@functools.lru_cache(maxsize=16)
def _opening(kind: SandboxKind, image: str | None) -> Opening:
    choice = SandboxChoice(kind=kind, image=image)
    lock, known = threading.Lock(), list[Kind]()

    def open_one() -> Hosted:
        with lock:
            if not known:
                known.append(choose(choice))
        return Session(known[0])

    return open_one


def opening_from(environ: Mapping[str, str], url: str, key: str | None) -> Opening:
    """For a rollout that a server runs: where its sandbox is made, by the variable of the server's process. `url` and
    `key` are those of the rollout's model endpoint."""
    said = environ.get(SANDBOX_VARIABLE, "auto")
    if said == THROUGH_THE_GATE:
        return lambda: Door(url, key or "")
    named, _, image = said.partition(":")
    kind = next((one for one in get_args(SandboxKind) if one == named), None)
    if kind is None:
        raise SandboxUnavailable(
            f"{SANDBOX_VARIABLE}={said} names no sandbox", hint="auto, bubblewrap, container:IMAGE or none"
        )
    return _opening(kind, image or None)


def in_somebody_elses(environ: Mapping[str, str]) -> Opening:
    """For code that is in a sandbox already, such as a trial of Harbor: that one, from the folder it works in."""
    kind = Kind(Level.NONE, environ=dict(environ))
    return lambda: Session(kind, folder=Path.cwd())
