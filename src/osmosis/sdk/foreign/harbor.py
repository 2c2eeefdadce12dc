"""`harbor:FOLDER` of Harbor tasks, or `harbor:NAME@VERSION` of a registry, downloaded once into `.osmosis/harbor`.

Each rollout is a trial: `agent` is Harbor's (`terminus-2`; `oracle` and `nop` check the tasks) or a workflow; its
model is the rollout's own endpoint. `environment` is its sandbox (`docker`), `model_host` what that calls this machine,
`registry` a registry's file. Harbor's telemetry is off."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harbor.publisher.packager import Packager
from harbor.registry.client.factory import RegistryClientFactory

from osmosis.base.jsonable import JsonObject
from osmosis.errors import LoadError
from osmosis.records.protocol.messages import RolloutInit
from osmosis.records.run.rollout import Phase
from osmosis.sdk.backend import LocalBackend
from osmosis.sdk.foreign import ForeignEnvironment, ForeignWorkflow
from osmosis.sdk.harbor.backend import HarborBackend
from osmosis.sdk.harbor.trials import is_task
from osmosis.sdk.types import AgentWorkflowConfig, RolloutSample
from osmosis.sdk.workflow import AgentWorkflowContext, Grader, GraderContext

PROBLEM = "verifier_problem"


class TasksConfig(AgentWorkflowConfig):
    trials: HarborBackend


class TrialWorkflow(ForeignWorkflow[TasksConfig]):
    async def run(self, ctx: AgentWorkflowContext[TasksConfig]) -> None:
        init = RolloutInit(
            initial_messages=ctx.prompt,
            metadata=ctx.metadata,
            rollout_id=ctx.rollout.rollout_id,
            chat_completions_url=ctx.rollout.chat_completions_url,
            llm_api_key=ctx.rollout.api_key,
        )
        done = await self.config.trials.execute(init)
        self.sample = done.sample or RolloutSample(messages=ctx.prompt)
        ctx.rollout.set_sample_source(self)
        if done.err_phase is Phase.SCORE:
            self.sample.extra_fields[PROBLEM] = done.err_message
        elif done.status != "success":
            raise RuntimeError(done.err_message)


class TrialGrader(Grader[object]):
    async def grade(self, ctx: GraderContext) -> None:
        assert ctx.sample is not None
        if problem := ctx.sample.extra_fields.get(PROBLEM):
            raise RuntimeError(problem)


def open_environment(name: str, options: JsonObject, base_dir: Path) -> ForeignEnvironment:
    for variable, value in (("HARBOR_TELEMETRY", "off"), ("LITELLM_LOCAL_MODEL_COST_MAP", "True")):
        os.environ.setdefault(variable, value)
    agent, environment = options.pop("agent", "terminus-2"), options.pop("environment", "docker")
    registry, model_host = options.pop("registry", None), options.pop("model_host", None)
    if options:
        hint = "its options: agent, environment, model_host, registry"
        raise LoadError(f"harbor:{name} has no option {next(iter(options))!r}", hint=hint)
    folder = base_dir / name
    if not folder.is_dir():
        folder = _download(name, base_dir, base_dir / registry if registry else None)
    trials = HarborBackend(
        tasks_dir=folder,
        agent=agent,
        workflow_config=AgentWorkflowConfig(name=name),
        environment_config=environment,
        model_host=model_host,
    )
    backend = LocalBackend(TrialWorkflow, TasksConfig(name=name, trials=trials), TrialGrader)
    return ForeignEnvironment(backend, lambda: _make_rows(folder))


def _download(name: str, base_dir: Path, registry: Path | None) -> Path:
    folder = base_dir / ".osmosis" / "harbor" / name
    if "@" not in name:
        hint = "harbor:FOLDER, or harbor:NAME@VERSION of a registry"
        raise LoadError(f"there is no folder {base_dir / name}, and no version of a dataset is given", hint=hint)
    if not folder.is_dir():
        draft = folder.with_name(f".{folder.name}")
        client = RegistryClientFactory.create(registry_path=registry)
        with ThreadPoolExecutor(1) as thread:  # a loop may be running in this one
            download = client.download_dataset(name, output_dir=draft, export=True)
            items = thread.submit(asyncio.run, download).result()
        for path in (item.downloaded_path for item in items if draft not in item.downloaded_path.parents):
            shutil.copytree(path, draft / path.name, dirs_exist_ok=True)  # a task of this machine
        draft.rename(folder)
    return folder


def _make_rows(folder: Path) -> Iterator[JsonObject]:
    for task in [folder] if is_task(folder) else sorted(filter(is_task, folder.iterdir())):
        digest = f"sha256:{Packager.compute_content_hash(task)[0]}"
        prompt = (task / "instruction.md").read_text(encoding="utf-8")
        yield {"id": task.name, "user_prompt": prompt, "metadata": {"task_name": task.name, "digest": digest}}
