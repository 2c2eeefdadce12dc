"""The boundary of a job: what of its run, of this machine and of the network each of its sandboxed processes gets.

The job itself is the trusted half: it holds the lease, the model's key, the journal. The building of the environment
and the rollout server are the other one: they run what somebody wrote, see the run's own files and nothing else, and
talk to the trusted half alone. Which level that is, is decided once, here, and said in the run's log and progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from osmosis.errors import SandboxUnavailable
from osmosis.records.run import JobSpec, ModelJob
from osmosis.records.sandbox import SandboxChoice, SandboxSettings
from osmosis.sandbox import Abilities, Level, Limits, Network, Policy, probe
from osmosis.sandbox.bubblewrap import python_folders
from osmosis.sandbox.session import Kind, Most, choose

from .job import setup_failed

MODEL_TMP_MB = 2048
"""Compiled kernels of a model's process."""
GPUS = ("nvidia*", "kfd", "dri")
GATE = ("127.0.0.1", 7576)
"""Where a rollout finds its model endpoint, in a network of its own."""
COMMIT, ARTIFACTS = Path("/rollout"), Path("/artifacts")
"""What a rollout server's own folders are called inside: the same in each run, wherever that has its files."""


@dataclass(frozen=True, slots=True)
class ServerFolders:
    """The folders of a rollout server, as they are called outside."""

    commit: Path
    """The checkout lies in it."""
    artifacts: Path

    @classmethod
    def under(cls, folder: Path) -> ServerFolders:
        return cls(folder / "rollout", folder / "artifacts")


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
        gate_only = not isinstance(spec.config, ModelJob) and spec.config.advanced.network == "gate"
        return cls.under(spec.sandbox, gate_only=gate_only, abilities=abilities)

    @classmethod
    def under(cls, settings: SandboxSettings, *, gate_only: bool, abilities: Abilities | None = None) -> Boundary:
        """What these settings come to on this machine. Raises as `of` does."""
        here = abilities or probe()
        try:
            if settings.required:
                here.require(Level.NAMESPACES)
        except SandboxUnavailable as problem:
            message = f"this platform runs rollouts in a sandbox only: {problem.message}"
            raise setup_failed(message, fix=problem.hint) from None
        level = Level.NONE if settings.off else here.level
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

    def of_server(self, folders: ServerFolders, read: Sequence[Path], python: Path) -> Policy:
        """The sandbox of the rollout server: it reads its commit, `read` and its Python, and writes artifacts."""
        folders.artifacts.mkdir(parents=True, exist_ok=True)
        if self.level is Level.NONE:
            return Policy(limits=self._limits(), write=(folders.artifacts,))
        return Policy(
            level=self.level,
            network=self.network,
            listen=(GATE, *self.settings.endpoints()),
            read=(folders.commit, *read, *python_folders(python)),
            write=(folders.artifacts,),
            names={folders.commit: COMMIT, folders.artifacts: ARTIFACTS},
            tmp_mb=self.settings.tmp_mb,
            limits=self._limits(),
        )

    @classmethod
    def of_model(cls, spec: JobSpec, abilities: Abilities | None = None) -> Boundary:
        """Of a process that has a model: it reaches nothing but its socket. Raises `JobFailed` as `of` does."""
        found = cls.of(spec, abilities)
        if found.level is Level.NONE:
            return replace(found, describe=found.describe.replace("a rollout", "the model's process"))
        words = f"level {found.level.value}; the model's process has no network and can read only its own files"
        return replace(found, network=Network.NONE, describe=words)

    @classmethod
    def of_trainer(cls, spec: JobSpec, *, elsewhere: bool, abilities: Abilities | None = None) -> Boundary:
        """Of the process that trains: as one with a model, but that an engine or a sampler `elsewhere` is spoken to,
        wherever that is. Raises `JobFailed` as `of` does."""
        found = cls.of_model(spec, abilities)
        if found.level is Level.NONE or not elsewhere:
            return found
        words = (
            f"level {found.level.value}; the trainer can read only its own files and reaches the network for its server"
        )
        return replace(found, network=Network.SHARED, describe=words)

    def of_process(self, python: Path, read: Sequence[Path], write: Sequence[Path]) -> Policy:
        """The sandbox of a process of the trainer's environment: GPUs are its own to use, memory has no limit."""
        if self.level is Level.NONE:
            return Policy()
        return Policy(
            level=self.level,
            network=self.network,
            devices=gpu_devices(),
            read=(*read, *python_folders(python)),
            write=tuple(write),
            tmp_mb=MODEL_TMP_MB,
        )

    def of_tools(self, wanted: SandboxChoice, python: Path, parent: Path) -> Kind:
        """What rollouts ask for (`ctx.sandbox`): beside the server, with its Python. Raises `SandboxUnavailable`.

        Never less than the server's own boundary: whoever asked for that, it is not the rollout that takes it away.
        """
        if wanted.kind == "container" or wanted.image:
            raise SandboxUnavailable(
                "on a platform ctx.sandbox is bubblewrap, not a container",
                hint="remove sandbox and sandbox_image from [advanced]",
            )
        inside = self.level is not Level.NONE
        choice = SandboxChoice(kind="none" if wanted.kind == "none" and not inside else "auto")
        parent.mkdir(parents=True, exist_ok=True)
        own = Most()
        memory_mb = min(own.memory_mb, self.settings.memory_mb or own.memory_mb)
        return choose(
            choice,
            python=python,
            network=not inside or self.network is Network.OPEN,
            most=replace(own, memory_mb=memory_mb),
            parent=parent,
        )

    def _limits(self) -> Limits:
        return Limits(
            memory_mb=self.settings.memory_mb,
            processes=self.settings.processes,
            file_mb=self.settings.artifacts_mb,
            disk_mb=self.settings.artifacts_mb,
            cpus=self.settings.cpus,
            wall_s=self.settings.server_s,
            output_bytes=self.settings.output_mb * 1024 * 1024,
        )


def gpu_devices() -> tuple[Path, ...]:
    """The accelerators of this machine, as files."""
    return tuple(path for pattern in GPUS for path in sorted(Path("/dev").glob(pattern)))


def _words(level: Level, network: Network, here: Abilities, settings: SandboxSettings) -> str:
    if level is Level.NONE:
        why = "switched off on this platform" if settings.off else here.reason
        return f"level 0: nothing keeps a rollout from this machine's files and network ({why})"
    reach = {
        Network.NONE: "network gate: it reaches only its model endpoint",
        Network.OPEN: "network open: it reaches outside hosts, not this machine's or private addresses",
        Network.SHARED: "network shared with this machine: neither slirp4netns nor pasta is here",
    }[network]
    return f"level {level.value} (bubblewrap {here.version}); {reach}"
