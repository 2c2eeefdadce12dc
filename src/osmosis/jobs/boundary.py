"""The boundary of a job: what of its run, of this machine and of the network each of its sandboxed processes gets.

The job itself is the trusted half: it holds the lease, the model's key, the journal. The building of the environment
and the rollout server are the other one: they run what somebody wrote, see the run's own files and nothing else, and
talk to the trusted half alone. Which level that is, is decided once, here, and said in the run's log and progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from osmosis.records.run import JobSpec
from osmosis.records.sandbox import SandboxSettings
from osmosis.sandbox import Abilities, Level, Limits, Network, Policy, Unavailable, probe
from osmosis.sandbox.bubblewrap import python_folders

from .job import setup_failed

GATE = ("127.0.0.1", 7576)
"""Where a rollout finds its model endpoint, in a network of its own."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """The boundary of one job. `describe` is what people are told."""

    level: Level
    network: Network
    """Of the rollout server."""
    describe: str
    settings: SandboxSettings

    @classmethod
    def of(cls, spec: JobSpec, abilities: Abilities | None = None) -> Boundary:
        """What this machine can do for the job. Raises `JobFailed` when the platform demands more."""
        here = abilities or probe()
        settings = spec.sandbox
        try:
            if settings.required:
                here.require(Level.NAMESPACES)
        except Unavailable as problem:
            message = f"this platform runs rollouts in a sandbox only: {problem.message}"
            raise setup_failed(message, fix=problem.hint) from None
        level = Level.NONE if settings.off else here.level
        gate_only = spec.config.advanced.network == "gate"
        if gate_only and level is Level.NONE:
            raise setup_failed(
                '[advanced] network = "gate" needs a sandbox, and this job has none: '
                + ("it is switched off on this platform" if settings.off else here.reason),
                fix='remove it, or run the platform where `osmosis doctor` says "sandbox: level 1"',
            )
        network = Network.SHARED
        if level is not Level.NONE:
            network = Network.NONE if gate_only else Network.OPEN if here.router else Network.SHARED
        return cls(level, network, _words(level, network, here, settings), settings)

    def of_server(self, read: Sequence[Path], python: Path, artifacts: Path) -> Policy:
        """The sandbox of the rollout server: it reads `read` and its Python, and writes artifacts."""
        if self.level is Level.NONE:
            return Policy(limits=self._limits())
        artifacts.mkdir(parents=True, exist_ok=True)
        return Policy(
            level=self.level,
            network=self.network,
            listen=(GATE, *self.settings.endpoints()),
            read=(*read, *python_folders(python)),
            write=(artifacts,),
            tmp_mb=self.settings.tmp_mb,
            limits=self._limits(),
        )

    def _limits(self) -> Limits:
        return Limits(
            memory_mb=self.settings.memory_mb,
            processes=self.settings.processes,
            file_mb=self.settings.artifacts_mb,
        )


def _words(level: Level, network: Network, here: Abilities, settings: SandboxSettings) -> str:
    if level is Level.NONE:
        why = "switched off on this platform" if settings.off else here.reason
        return f"level 0: nothing keeps a rollout from this machine's files and network ({why})"
    reach = {
        Network.NONE: "network gate: it reaches its model endpoint alone",
        Network.OPEN: "network open: it reaches outside hosts, not this machine's or private addresses",
        Network.SHARED: "network shared with this machine: neither slirp4netns nor pasta is here",
    }[network]
    return f"level {level.value} (bubblewrap {here.version}); {reach}"
