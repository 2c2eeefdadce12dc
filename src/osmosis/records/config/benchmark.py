"""`configs/benchmark/*.toml`: the same tasks for up to eight agents. Each agent becomes an evaluation of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field
from pydantic_core import InitErrorDetails

from osmosis.records.base import Table, broken_at, broken_rule
from osmosis.records.config.experiment import Name
from osmosis.records.config.export import Export
from osmosis.records.config.run_config import EnvName, EvalConfig, Evaluation, SecretName, Secrets, Submittable
from osmosis.records.run.plan import PLATFORM_MODEL

if TYPE_CHECKING:
    from typing import Self

_MODEL_KEYS = {"provider": {"model"}, "endpoint": {"base_url", "model"}, "hosted": {"base_model"}}
_CURSOR, _CURSOR_KEY = "cursor-cli", "CURSOR_API_KEY"
_LIMITS = {name: Evaluation.model_fields[name].default for name in ("agent_workflow_timeout_s", "grader_timeout_s")}


def _header_name(name: str) -> str:
    if name.lower() == "authorization":
        raise broken_rule("the Authorization header is not set here", 'api_key_secret = "NAME"')
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
        raise broken_rule(f"{name!r} is not the name of a header", "letters, digits and -")
    return name


class BenchmarkExperiment(Table):
    """`[experiment]`: which tasks."""

    benchmark: Name = Field(examples=["my-rollout"])
    """Name of a rollout and its dataset, as `osmosis benchmark list` shows it. `main.py` has the grader."""


class AgentModel(Table):
    """`model` of `[[agents]]`."""

    type: Literal["provider", "endpoint", "hosted"]
    model: Name | None = None
    base_url: str | None = Field(default=None, pattern="^https?://")
    api_key_secret: SecretName | None = None
    extra_headers: dict[Annotated[str, AfterValidator(_header_name)], Annotated[str, Field(pattern=r"^[^\r\n]*$")]] = (
        Field(default_factory=dict)
    )
    base_model: Name | None = None
    lora_model_name: Name | None = None

    @classmethod
    def across(cls, written: dict[str, object]) -> Iterator[InitErrorDetails]:
        kind = str(written.get("type"))
        needed = _MODEL_KEYS.get(kind, set())
        for name in sorted(needed - written.keys()):
            yield broken_at(f"{name} is missing", f'{name} = "..."', name, code="missing-key")
        optional = {"lora_model_name"} if kind == "hosted" else {"api_key_secret"}
        optional |= {"extra_headers"} if kind == "endpoint" else set()
        for name in cls.model_fields if needed else ():
            if name in written and name not in {"type", *needed, *optional}:
                yield broken_at(f'{name} has no effect with type = "{kind}"', "remove it", name)

    @property
    def path(self) -> str:
        return self.model or PLATFORM_MODEL + (self.lora_model_name or self.base_model or "")


class BenchmarkAgent(Table):
    """`[[agents]]`: one to eight."""

    harness: Name | None = Field(default=None, examples=["codex"])
    """A name of [agents](agents.md) or a command line; for Harbor tasks one of Harbor's agents, which `main.py` finds
    in `HARBOR_AGENT`. Default: the workflow of `main.py`."""
    harness_api_key_secret: SecretName | None = None
    """The secret that `cursor-cli` needs, and no other harness has: `CURSOR_API_KEY`."""
    env: dict[EnvName, str] = Field(default_factory=dict, examples=[{"LOG_LEVEL": "INFO"}])
    """Variables of this agent, besides `[env]`."""
    model: AgentModel = Field(
        examples=[{"type": "provider", "model": "openai/gpt-5-mini", "api_key_secret": "OPENAI_API_KEY"}]
    )
    """`{type = "provider", model, api_key_secret}`: a LiteLLM name, or `offline/calculator`. `{type = "endpoint",
    base_url, model, api_key_secret, extra_headers}`: an OpenAI-compatible server. `{type = "hosted", base_model,
    lora_model_name}`: a model of the platform. `api_key_secret` names a secret."""

    @classmethod
    def across(cls, written: dict[str, object]) -> Iterator[InitErrorDetails]:
        needed = _CURSOR_KEY if written.get("harness") == _CURSOR else None
        if written.get("harness_api_key_secret") != needed:
            fix = f'harness_api_key_secret = "{needed}"' if needed else "remove it"
            problem = f"{needed or 'it has no effect'} with harness = {written.get('harness')!r}"
            yield broken_at(problem, fix, "harness_api_key_secret")


class BenchmarkTasks(Table):
    """`[tasks]`: which of them. Default: all."""

    categories: list[Name] = Field(default_factory=list, examples=[["algebra"]])
    """Only tasks whose `category` is one of these."""
    task_names: list[Name] = Field(default_factory=list, examples=[["task-1"]])
    """Only these, as `osmosis benchmark show NAME` shows them."""
    task_set: Literal["parity"] | None = None
    """Only tasks whose column `task_set` names this set."""


class Execution(Table):
    """`[execution]`: how each agent runs."""

    attempts_per_task: int = Field(default=1, ge=1, le=1000)
    """Attempts per task and agent."""
    max_concurrent_attempts: int = Field(default=4, ge=1, le=4096)
    """Maximum number of concurrent attempts of an agent; agents run side by side."""
    timeout_multiplier: float = Field(default=1.0, gt=0)
    """Factor on the time limits of agent (450 s) and grader (150 s)."""
    max_retries: int = Field(default=0, ge=0, le=100)
    """Run an attempt that failed up to this many times again. Later: `osmosis eval resume RUN`."""
    pass_threshold: float = 1.0
    """Lowest score at which an attempt passes."""
    judge_model: Name | None = Field(default=None, examples=["openai/gpt-5-mini"])
    """Graders find it in the variable `JUDGE_MODEL`."""
    judge_api_key_secret: SecretName | None = Field(default=None, examples=["OPENAI_API_KEY"])
    """The secret with its key. Graders find it under its name, which is in the variable `JUDGE_API_KEY_ENV`."""


class BenchmarkConfig(Submittable):
    """`configs/benchmark/*.toml`."""

    kind: ClassVar[str] = "benchmark"
    experiment: BenchmarkExperiment
    agents: list[BenchmarkAgent] = Field(min_length=1, max_length=8)
    tasks: BenchmarkTasks = Field(default_factory=BenchmarkTasks)
    execution: Execution = Field(default_factory=Execution)
    verifier: Secrets = Field(default_factory=lambda: Secrets(required=[]))
    secrets: Secrets = Field(default_factory=lambda: Secrets(required=[]))
    env: dict[EnvName, str] = Field(default_factory=dict)
    """Non-secret environment variables of all agents."""
    export: Export | None = None

    @classmethod
    def from_request(cls, body: Mapping[str, object]) -> tuple[Self, dict[str, str]]:
        execution = body.get("execution_config")
        if isinstance(execution, dict) and "verifier_secrets" in execution:  # as clients of generation 0.3 send them
            execution = dict(execution)
            verifier = {"required": execution.pop("verifier_secrets")}
            body = {**body, "execution_config": execution, "verifier_config": verifier}
        return super().from_request(body)

    def evaluations(self, *, is_harbor: bool = False) -> list[EvalConfig]:
        """Return the evaluation of each agent. Raise pydantic's ValidationError.

        `is_harbor`: the rows name Harbor tasks, so that `main.py` runs the harness."""
        return [EvalConfig.model_validate(self._tables_of(agent, is_harbor)) for agent in self.agents]

    def _tables_of(self, agent: BenchmarkAgent, is_harbor: bool) -> dict[str, object]:
        execution, model, name = self.execution, agent.model, self.experiment.benchmark
        is_command = agent.harness is not None and not is_harbor
        harness_key = [agent.harness_api_key_secret] if agent.harness_api_key_secret else []
        others = [
            *self.verifier.required,
            *filter(None, [model.api_key_secret, execution.judge_api_key_secret]),
            *harness_key,
        ]
        for_program = [secret for secret in self.secrets.required if secret not in others]
        variables = {
            "JUDGE_MODEL": execution.judge_model,
            "JUDGE_API_KEY_ENV": execution.judge_api_key_secret,
            "HARBOR_AGENT": agent.harness if is_harbor else None,
        }
        experiment = {"rollout": name, "dataset": name, "model_path": model.path}
        params = {"extra_headers": model.extra_headers} if model.extra_headers else None
        endpoint = {"base_url": model.base_url, "api_key_env": model.api_key_secret, "params": params}
        return {
            "experiment": experiment | ({"command": agent.harness} if is_command else {"entrypoint": "main.py"}),
            "program": {"env": [*for_program, *harness_key]} if is_command else None,
            "evaluation": {
                "n": execution.attempts_per_task,
                "batch_size": execution.max_concurrent_attempts,
                "pass_threshold": execution.pass_threshold,
                "max_retries": execution.max_retries,
                **{limit: value * execution.timeout_multiplier for limit, value in _LIMITS.items()},
            },
            "advanced": {key: value for key, value in endpoint.items() if value},
            "secrets": {"required": list(dict.fromkeys([*self.secrets.required, *others]))},
            "export": self.export,
            "env": {**self.env, **agent.env, **{key: value for key, value in variables.items() if value}},
        }
