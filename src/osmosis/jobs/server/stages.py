import asyncio
import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial

import uv

from osmosis.base.installation import Wheel, build_wheel
from osmosis.engine.agent import Agent
from osmosis.errors import OsmosisError
from osmosis.jobs.artifacts import ArtifactCleaner
from osmosis.jobs.commands import rollout_environ
from osmosis.jobs.context import JobContext, JobFailed, setup_failure
from osmosis.jobs.prepare.checkout import Checkout, check_out, locate
from osmosis.jobs.prepare.entrypoints import Entrypoint, build_command, read_rollout
from osmosis.jobs.prepare.environment import Builder, Environment
from osmosis.jobs.sandboxes import BuildSandbox, JobSandbox, ServerFolders
from osmosis.jobs.server.pool import ServerPool
from osmosis.jobs.server.supervisor import EndedWithoutServing, ServerCommand, ServerSupervisor
from osmosis.records.config.experiment import Environment as RolloutEnvironment
from osmosis.records.protocol.messages import ARTIFACT_VARIABLE
from osmosis.records.run.job import Stage
from osmosis.records.run.plan import EvalPlan
from osmosis.records.sandbox import SANDBOX_VARIABLE, SandboxChoice
from osmosis.sandbox import Level, Policy
from osmosis.sdk.sandbox import GATE
from osmosis.serve.client.model_proxy import ModelProxy
from osmosis.serve.client.program_agent import GradedProgram, ProgramAgent
from osmosis.serve.client.sandboxes import Sandboxes


@dataclass(frozen=True, slots=True)
class PreparedRollout:
    found: Checkout
    environment: Environment
    wheel: Wheel
    entrypoint: Entrypoint


class ServerStages:
    def __init__(
        self, context: JobContext, environment: RolloutEnvironment | None = None, *, withheld: Collection[str] = ()
    ) -> None:
        self.context = context
        self._secrets = {name: value for name, value in context.secrets.items() if name not in withheld}
        self._experiment = environment or context.spec.submitted.experiment
        self._env = context.spec.submitted.env
        self._folders = ServerFolders.under(context.work_dir)
        self.sandbox = JobSandbox.for_job(context.spec)
        self._wheel: asyncio.Task[Wheel] | None = None
        self._prepared: PreparedRollout | None = None

    def _our_wheel(self) -> asyncio.Task[Wheel]:
        if self._wheel is None:
            self._wheel = asyncio.create_task(asyncio.to_thread(build_wheel, self.context.cache_dir))
        return self._wheel

    async def checkout(self) -> Checkout:
        spec = self.context.spec
        self._our_wheel()
        self.context.progress.sandbox = self.sandbox.description
        self.context.log.write("sandbox", self.sandbox.description, "info" if self.sandbox.level else "warning")
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
        return locate(source, spec.commit_sha, self._experiment.rollout, self._experiment.file)

    async def prepare(self, checkout: Checkout) -> PreparedRollout:
        wheel = await self._our_wheel()
        label = f"rollouts/{self._experiment.rollout}"
        # Builds run code that a person chose, with a cache that they write to: it serves nobody else.
        owner = "-".join(filter(None, (self.context.spec.workspace, self.context.spec.person)))
        self.context.enter(Stage.ENVIRONMENT, f"preparing the environment of {label}")
        builder = Builder(
            uv=uv.find_uv_bin(),
            cache_dir=self.context.cache_dir,
            wheel=wheel,
            environ=self.context.environ,
            log=self.context.log,
            started=self.context.leftovers.add,
            sandbox=BuildSandbox.of(self.sandbox, checkout.source, self.context.cache_dir, self.context.environ, owner),
            owner=owner,
        )
        read = await asyncio.to_thread(read_rollout, checkout.source, self._experiment.rollout, self._experiment.file)
        environment = await builder.environment(
            read.project,
            commit_sha=checkout.commit_sha,
            install_to=self.context.work_dir / "installed" / self._experiment.rollout,
        )
        entrypoint = read.entrypoint if self._experiment.command is None else Entrypoint("grader")
        return PreparedRollout(checkout, environment, wheel, entrypoint)

    async def start(self, prepared: PreparedRollout) -> ServerSupervisor:
        self._prepared = prepared
        checkout, environment, wheel = prepared.found, prepared.environment, prepared.wheel
        label = checkout.entrypoint.relative_to(checkout.source).as_posix()
        self.context.enter(Stage.START, f"starting the rollout server: {label}")
        seen = prepared.entrypoint
        policy = self.sandbox.server_policy(
            self._folders, environment.interpreter, environment.folder, environment.project
        )
        environ = self._environ(prepared, policy)

        async def started(entrypoint: Entrypoint) -> ServerSupervisor:
            argv = build_command(
                entrypoint, checkout.entrypoint, checkout.rollout_dir, environment, wheel, policy=policy
            )
            advanced, folder = self.context.spec.submitted.advanced, self.context.work_dir / "sandboxes"
            choice = SandboxChoice(kind=advanced.sandbox, image=advanced.sandbox_image)
            command = ServerCommand(
                argv,
                policy.inside(checkout.rollout_dir),
                environ,
                label,
                policy=policy,
                cleaner=ArtifactCleaner(self.context.redactor, self._folders.artifacts),
                sandboxes=Sandboxes(lambda: self.sandbox.tool_sandbox_kind(choice, environment.python, folder)),
            )
            server = ServerSupervisor(command, self.context.log, self.context.leftovers)
            await server.start()
            return server

        try:
            return await started(seen)
        except EndedWithoutServing as problem:
            if seen.kind != "script" or environment.osmosis_version != wheel.version:
                raise
            self.context.log.write("start", "it ended without serving: serving the objects it defines instead")
            try:
                return await started(Entrypoint("module", seen.app))
            except JobFailed:
                raise problem from None

    async def start_pool(self, prepared: PreparedRollout, count: int) -> ServerPool:
        """Start `count` servers, the first alone, since one fails like all. The caller stops them."""
        servers = [await self.start(prepared)]
        more = [asyncio.create_task(self.start(prepared)) for _ in range(count - 1)]
        try:
            servers += await asyncio.gather(*more)
        except BaseException:
            for task in more:
                task.cancel()
            ended = await asyncio.gather(*more, return_exceptions=True)
            servers += [started for started in ended if isinstance(started, ServerSupervisor)]
            await asyncio.gather(*(server.stop() for server in servers))
            raise
        for number, server in enumerate(servers, 1):
            server.name = f"rollout server {number} of {count}"
        return ServerPool(servers, self.context.log, sandboxes=servers[0].command.sandboxes)

    async def start_sealed(self, prepared: PreparedRollout, file: str) -> ServerPool:
        """Start the server of the grader in `file`, and of nothing else. The caller stops it."""
        checkout = prepared.found
        located = locate(checkout.source, checkout.commit_sha, self._experiment.rollout, file, "[advanced].sealed")
        server = await self.start(replace(prepared, found=located, entrypoint=Entrypoint("grader")))
        return ServerPool([server], self.context.log)

    def agent(self, server: Agent, proxy: ModelProxy, plan: EvalPlan) -> Agent:
        """Return the agent of a run: its server or, beside it in sandboxes of their own, programs that it grades."""
        prepared = self._prepared
        if self._experiment.command is None or prepared is None:
            return server
        search_path = f"{prepared.environment.python.parent}:{self.context.environ.get('PATH', os.defpath)}"
        environ = {**self._secrets, **self._env, "PATH": search_path}
        sandbox = SandboxChoice(kind="none" if self.sandbox.level is Level.NONE else "auto")
        plan = plan.model_copy(update={"sandbox": sandbox})
        try:
            memory_mb = min(8192, self.sandbox.settings.memory_mb or 8192)
            program = ProgramAgent(plan, proxy, prepared.found.source, environ, memory_mb=memory_mb)
        except OsmosisError as problem:
            raise setup_failure(problem.message, fix=problem.hint) from None
        return GradedProgram(program, server)

    def _environ(self, prepared: PreparedRollout, policy: Policy) -> dict[str, str]:
        environment = prepared.environment
        environ = rollout_environ(
            self.context.environ, env=self._env, secrets=self._secrets, venv=str(policy.inside(environment.folder))
        )
        paths = [str(policy.inside(prepared.found.rollout_dir))]
        paths += [str(policy.inside(environment.project))] if environment.project else []
        environ["PYTHONPATH"] = ":".join([*paths, *([environ["PYTHONPATH"]] if "PYTHONPATH" in environ else [])])
        environ[ARTIFACT_VARIABLE] = str(policy.inside(self._folders.artifacts))
        environ[SANDBOX_VARIABLE] = GATE
        return environ
