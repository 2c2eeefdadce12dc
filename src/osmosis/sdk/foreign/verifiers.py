"""`verifiers:ID?option=value`: tasksets of verifiers 0.4; options are the fields of the taskset's config. verifiers
runs the rollout and scores it; its model is the rollout's own endpoint. A task without tools is answered in this
process; one with tools runs verifiers' own chat program. Refused by name: environments of several agents, tools that
all tasks share, tasks that a simulated user begins, infinite tasksets without a `size`."""

# verifiers is in the rollout's environment, never where the checker runs.
# mypy: disable-error-code="import-not-found,misc"

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from uuid import uuid4

import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.envs.single_agent import SingleAgentEnv
from verifiers.v1.harnesses.null import NullHarness
from verifiers.v1.runtimes import ProgramResult
from verifiers.v1.utils.loaders import default_harness_id, environment_class, load_taskset, taskset_config_type

from osmosis.base.jsonable import JsonObject
from osmosis.errors import LoadError, OsmosisError
from osmosis.records.run.rollout import Message
from osmosis.sdk.backend import LocalBackend
from osmosis.sdk.chat import MODEL_ID, ChatClient
from osmosis.sdk.foreign import ForeignEnvironment, ForeignWorkflow, KeepReward
from osmosis.sdk.types import AgentWorkflowConfig, RolloutSample
from osmosis.sdk.workflow import AgentWorkflowContext, WorkflowRollout


class TasksetConfig(AgentWorkflowConfig):
    first: vf.Task  # a task of the set: the others are made as this one was
    harness: str


class OneAnswer(NullHarness):
    """Asks once in this process where there is no tool to call; verifiers' program takes a process for each rollout."""

    async def setup(self, runtime: object) -> None: ...

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None):  # type: ignore[no-untyped-def]
        if mcp_urls:
            await super().setup(runtime)
            return await super().launch(ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url)
        try:
            async with ChatClient(endpoint, api_key=secret, max_attempts=1) as chat:
                await chat.complete(_opening(data), model=ctx.model)
        except OsmosisError as error:
            return ProgramResult(1, "", str(error))
        return ProgramResult(0, "", "")


class TasksetWorkflow(ForeignWorkflow[TasksetConfig]):
    async def run(self, ctx: AgentWorkflowContext[TasksetConfig]) -> None:
        config, rollout = self.config, ctx.rollout
        task = type(config.first)(type(config.first.data).model_validate(ctx.metadata["task"]), config.first.config)
        with _key_variable(rollout) as variable:
            client = vf.EvalClientConfig(base_url=rollout.chat_completions_url, api_key_var=variable)
            harness, runtime = {"id": config.harness}, vf.SubprocessConfig()
            agent = vf.make_agent(vf.AgentConfig(model=MODEL_ID, client=client, harness=harness, runtime=runtime))
            if config.harness == "null":
                agent.harness = OneAnswer(agent.harness.config)
            async with agent:
                trace = await agent.run(task)
        if trace.errors and not trace.ok:
            error = trace.errors[-1]
            raise RuntimeError(f"{error.type}: {error.message}")
        rewards = {name: reward for name, reward in trace.rewards.items() if reward is not None}
        self.sample = RolloutSample(
            messages=list(map(message_to_wire, trace.messages)),
            reward=trace.reward if rewards else None,
            parts={name: reward.score for name, reward in rewards.items()} if len(rewards) > 1 else None,
            metrics={name: value for name, value in trace.metrics.items() if value is not None},
            extra_fields={"stop_condition": trace.stop_condition} if trace.stop_condition else {},
        )
        rollout.set_sample_source(self)


def open_environment(name: str, options: JsonObject, base_dir: Path) -> ForeignEnvironment:
    size = options.pop("size", None)
    taskset = load_taskset(taskset_config_type(name)(id=name, **options))
    if (environment := environment_class(name)) is not SingleAgentEnv:
        problem = f"verifiers:{name} has an environment of its own ({environment.__name__})"
        raise LoadError(problem, hint="only tasksets of a single agent can be run: vf-eval runs the others")
    if type(taskset).toolsets(taskset.config):
        raise LoadError(f"verifiers:{name} has tools that all its tasks share", hint="vf-eval runs such tasksets")
    if size is None and not taskset.bounded:
        raise LoadError(f"verifiers:{name} is infinite", hint=f"verifiers:{name}?size=100")
    harness = default_harness_id(name)
    if harness == "bash":
        harness = "null"  # bash would give the model this machine
    config = TasksetConfig(name=name, first=next(iter(taskset)), harness=harness)
    backend = LocalBackend(TasksetWorkflow, config, KeepReward)
    return ForeignEnvironment(backend, partial(_make_rows, name, taskset, size))


def _make_rows(name: str, taskset: "vf.Taskset", size: int | None) -> Iterator[JsonObject]:
    for task in islice(taskset, size):
        data = task.data.model_dump(mode="json", exclude_defaults=True)
        if task.data.prompt is None:
            raise LoadError(f"verifiers:{name}: task {task.key} has no prompt: its user begins, which is not supported")
        row = {"id": task.data.id or task.key, "messages": _opening(task.data), "metadata": {"task": data}}
        yield {**row, "ground_truth": answer} if isinstance(answer := data.get("answer"), str) else row


def _opening(data: "vf.TaskData") -> list[Message]:
    system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    if isinstance(data.prompt, str):
        return [*system, {"role": "user", "content": data.prompt}]
    return [*system, *map(message_to_wire, data.prompt)]


@contextmanager
def _key_variable(rollout: WorkflowRollout) -> Iterator[str]:
    """Yield the variable that holds the endpoint's key: verifiers reads keys from the environment alone."""
    variable = f"OSMOSIS_ROLLOUT_KEY_{uuid4().hex}"
    os.environ[variable] = rollout.api_key or "none-needed"
    try:
        yield variable
    finally:
        del os.environ[variable]
