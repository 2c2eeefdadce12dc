"""The stages of every job that has a rollout server: the checkout of its commit, the environment, the start.

What kind of job it is makes no difference here: the model that the rollouts ask, and what becomes of them, is decided
by the work that calls these stages (`work`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

import uv

from osmosis.base.wheel import Wheel, build_wheel
from osmosis.records.run import Stage
from osmosis.records.sandbox import SANDBOX_VARIABLE, SandboxChoice
from osmosis.records.wire import ARTIFACT_VARIABLE
from osmosis.sandbox import Box, Network, Policy
from osmosis.sandbox import start as start_sandbox
from osmosis.sdk.sandbox_opening import THROUGH_THE_GATE
from osmosis.serve.drive.sandboxes import Sandboxes

from .artifact_cleaner import ArtifactCleaner
from .boundary import Boundary, ServerFolders
from .build_sandbox import BuildSandbox
from .checkout import Checkout, check_out, locate
from .entrypoint import Entrypoint, command_for, look_at
from .environ import rollout_environ
from .environment import Builder, Environment
from .job import JobContext, JobFailed
from .project import read_project
from .ready_server import LastServer
from .server_pool import ServerPool
from .supervisor import EndedWithoutServing, ServerCommand, ServerSupervisor


@dataclass(frozen=True, slots=True)
class PreparedRollout:
    """A rollout that can be started: where its files are, and the environment they run in."""

    found: Checkout
    environment: Environment
    wheel: Wheel


class ServerStages:
    """The stages of one job, in this order: `checkout`, `prepare`, `start`. Each raises `JobFailed`."""

    def __init__(self, context: JobContext, *, withheld: Collection[str] = ()) -> None:
        """`withheld` names the secrets that are not the rollout's."""
        self.context = context
        self._secrets = {name: value for name, value in context.secrets.items() if name not in withheld}
        self._experiment = context.spec.submitted.experiment
        self._env = context.spec.submitted.env
        self._folders = ServerFolders.under(context.work_dir)
        self.boundary = Boundary.of(context.spec)
        self._wheel: asyncio.Task[Wheel] | None = None

    def _our_wheel(self) -> asyncio.Task[Wheel]:
        """What environments get of osmosis itself: to read and hash it takes as long as git takes for the commit."""
        if self._wheel is None:
            self._wheel = asyncio.create_task(asyncio.to_thread(build_wheel, self.context.cache_dir))
        return self._wheel

    async def checkout(self) -> Checkout:
        """The commit's files, with the rollout and its entrypoint found in them."""
        spec = self.context.spec
        self._our_wheel()
        self.context.progress.sandbox = self.boundary.describe
        self.context.log.write("sandbox", self.boundary.describe, "info" if self.boundary.level else "warning")
        if self.context.server_at_hand is not None:
            await self.context.server_at_hand.take(self.context.work_dir)
        self.context.enter(Stage.CHECKOUT, f"checking out commit {spec.commit_sha[:12]}")
        source = await check_out(
            spec.repository,
            spec.commit_sha,
            self._folders.commit / "source",
            environ=self.context.environ,
            log=self.context.log,
            bundle=None if spec.repository else partial(self.context.reporter.save, "source"),
            most_mb=spec.sandbox.checkout_mb,
        )
        return locate(source, spec.commit_sha, self._experiment.rollout, self._experiment.entrypoint)

    async def prepare(self, found: Checkout) -> PreparedRollout:
        """The environment that the rollout declares, made or found in the cache."""
        wheel = await self._our_wheel()
        label, workspace = f"rollouts/{self._experiment.rollout}", self.context.spec.workspace
        self.context.enter(Stage.ENVIRONMENT, f"preparing the environment of {label}")
        builder = Builder(
            uv=uv.find_uv_bin(),
            cache_dir=self.context.cache_dir,
            wheel=wheel,
            environ=self.context.environ,
            log=self.context.log,
            started=self.context.leftovers.add,
            sandbox=BuildSandbox.of(
                self.boundary, found.source, self.context.cache_dir, self.context.environ, workspace
            ),
            workspace=workspace,
        )
        project = read_project(found.rollout_dir, label)
        environment = await builder.environment(
            project, commit_sha=found.commit_sha, install_to=self.context.work_dir / "installed"
        )
        return PreparedRollout(found, environment, wheel)

    async def start(self, prepared: PreparedRollout) -> ServerSupervisor:
        """The rollout server, healthy. The caller stops it."""
        found, environment, wheel = prepared.found, prepared.environment, prepared.wheel
        label = f"rollouts/{self._experiment.rollout}/{self._experiment.entrypoint}"
        self.context.enter(Stage.START, f"starting the rollout server: {label}")
        seen = look_at(found.entrypoint.read_text(encoding="utf-8", errors="replace"))
        read = [environment.folder, *([environment.project] if environment.project else [])]
        policy = self.boundary.of_server(self._folders, read, environment.interpreter)
        environ = self._environ(prepared, policy)

        async def started(entrypoint: Entrypoint) -> ServerSupervisor:
            argv = command_for(entrypoint, found.entrypoint, found.rollout_dir, environment, wheel)
            command = ServerCommand(
                argv,
                policy.inside(found.rollout_dir),
                environ,
                label,
                policy=policy,
                begin=self._begin,
                cleaner=ArtifactCleaner(self.context.redactor, self._folders.artifacts),
                sandboxes=self._sandboxes(prepared),
            )
            server = ServerSupervisor(command, self.context.log, self.context.leftovers)
            await server.start()
            return server

        try:
            server = await started(seen)
            self._remember(environment, wheel)
            return server
        except EndedWithoutServing as problem:
            if seen.kind == "module" or environment.osmosis_version != wheel.version:
                raise
            self.context.log.write("start", "it ended without serving: serving the objects it defines instead")
            try:
                return await started(Entrypoint("module", seen.app))
            except JobFailed:
                raise problem from None

    async def start_pool(self, prepared: PreparedRollout, count: int) -> ServerPool:
        """So many of them, all healthy; the first alone, for what is wrong with one is wrong with each. The caller
        stops them."""
        servers = [await self.start(prepared)]
        more = [asyncio.create_task(self.start(prepared)) for _ in range(count - 1)]
        try:
            servers += await asyncio.gather(*more)
        except BaseException:
            for task in more:
                task.cancel()
            ended = await asyncio.gather(*more, return_exceptions=True)
            servers += [one for one in ended if isinstance(one, ServerSupervisor)]
            await asyncio.gather(*(server.stop() for server in servers))
            raise
        for number, server in enumerate(servers, 1):
            server.name = f"rollout server {number} of {count}"
        return ServerPool(servers, self.context.log, sandboxes=servers[0].command.sandboxes)

    async def _begin(self, argv: Sequence[str], policy: Policy) -> Box:
        at_hand = self.context.server_at_hand
        box = await at_hand.begin(argv, policy) if at_hand is not None else None
        if box is None:
            return await start_sandbox(argv, policy)
        self.context.log.write("start", "its process stood ready", "debug")
        return box

    def _remember(self, environment: Environment, wheel: Wheel) -> None:
        """For the process that stands ready for the next run, where one of this environment could."""
        network = self.boundary.network is not Network.NONE
        if network and environment.project is None and environment.osmosis_version == wheel.version:
            last = LastServer(
                environment=str(environment.folder),
                interpreter=str(environment.interpreter),
                sandbox=self.boundary.settings,
            )
            last.keep(self.context.cache_dir)

    def _sandboxes(self, prepared: PreparedRollout) -> Sandboxes:
        advanced, folder = self.context.spec.submitted.advanced, self.context.work_dir / "sandboxes"
        choice = SandboxChoice(kind=advanced.sandbox, image=advanced.sandbox_image)
        return Sandboxes(lambda: self.boundary.of_tools(choice, prepared.environment.python, folder))

    def _environ(self, prepared: PreparedRollout, policy: Policy) -> dict[str, str]:
        """The variables of the rollout server's process."""
        environment = prepared.environment
        environ = rollout_environ(
            self.context.environ,
            env=self._env,
            secrets=self._secrets,
            venv=str(environment.folder),
        )
        paths = [str(policy.inside(prepared.found.rollout_dir))]
        paths += [str(environment.project)] if environment.project else []
        environ["PYTHONPATH"] = ":".join([*paths, *([environ["PYTHONPATH"]] if "PYTHONPATH" in environ else [])])
        environ[ARTIFACT_VARIABLE] = str(policy.inside(self._folders.artifacts))
        environ[SANDBOX_VARIABLE] = THROUGH_THE_GATE
        return environ
