import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from osmosis.base.jsonable import JsonObject
from osmosis.base.net import is_http
from osmosis.base.paths import folder_inside
from osmosis.records.base import Record
from osmosis.records.config.run_config import EvalConfig, TrainingConfig
from osmosis.records.run.rollout import ModelCall
from osmosis.records.run.rows import ReducerName, Row
from osmosis.records.sandbox import SandboxChoice

NO_MODEL = "offline/none"  # The model of an agent elsewhere, which brings its own
SMOLLM2 = "offline/smollm2"  # A real language model in this process, as no other of `offline/`
ModelKind = Literal["openai", "messages", "responses", "litellm", "offline", "replay", "trained"]
"""`openai` is asked by chat completions, `messages` and `responses` by the APIs of these names. `trained` is a model of
the platform, in training or trained, which only a job of the platform can ask."""
PLATFORM_MODEL = "osmosis/"  # How the name of a model of the platform begins
NO_ENDPOINT = "none"  # A base URL that takes the config's endpoint away
AUTO_CONCURRENCY: JsonObject = {"concurrency": 256, "adaptive": True}
"""Fields of a plan whose rollouts in flight adapt to the endpoint, from 8 on."""
_ONLY_RESPONSES = re.compile(r"(openai/)?([^/]*-)?(codex|pro|deep-research)(-[^/]*)?")
"""Names of OpenAI's models that chat completions do not reach."""
RUN_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}\Z")  # The pattern of a run's name, which is that of a folder


class ModelSpec(Record):
    """The model that answers, and how it is asked. Never holds a key: only the name of its variable."""

    name: str
    """As the endpoint or LiteLLM knows it; verbatim with a base URL."""
    kind: ModelKind
    base_url: str | None = None
    """URL of an OpenAI-compatible endpoint, up to and including `/v1`, or of one of Anthropic's API, without it."""
    api_key_env: str | None = None
    """Environment variable that holds the key."""
    params: JsonObject = Field(default_factory=dict)
    """Sampling parameters sent with every call: temperature, top_p, max_tokens, seed, anything else."""
    seed: int = 0
    """Seed of the offline stand-in."""
    price: tuple[float, float] | None = None
    """US dollars per million prompt and completion tokens, when no price table knows the model."""

    @classmethod
    def parse(
        cls,
        name: str,
        *,
        base_url: str | None = None,
        api_key_env: str | None = None,
        params: Mapping[str, object] | None = None,
    ) -> "ModelSpec":
        """Parse what a person writes: `offline/...` is the stand-in, `osmosis/...` a model of the platform,
        `anthropic/...` is asked by Messages (unless the base URL ends in `/v1`), `openai/responses/...` by Responses.
        Any other name is verbatim with a base URL, else LiteLLM's (`openai/` assumed when there is no provider)."""
        params, base_url = dict(params or {}), (base_url or "").rstrip("/") or None
        kind: ModelKind = "openai" if base_url else "litellm"
        if name.startswith("offline/"):
            return cls(name=name, kind="offline", params=params)
        if name.startswith(PLATFORM_MODEL) and not base_url:
            return cls(name=name, kind="trained", params=params)
        if name.startswith("anthropic/") and not (base_url or "").endswith("/v1"):
            kind = "messages"
        elif name.startswith("openai/responses/") or (not base_url and _ONLY_RESPONSES.fullmatch(name)):
            kind = "responses"
        full = name if base_url or "/" in name else f"openai/{name}"
        return cls(name=full, kind=kind, base_url=base_url, api_key_env=api_key_env, params=params)

    @classmethod
    def from_config(cls, config: EvalConfig) -> "ModelSpec":
        """Return the model of a config, with its `[advanced]` endpoint, key variable and parameters."""
        name, advanced = config.experiment.model_path, config.advanced
        url, key = advanced.base_url, advanced.api_key_env
        return cls.parse(name, base_url=url, api_key_env=key, params=dict(advanced.params))


def split_model(text: str) -> tuple[str, str | None]:
    name, at, url = text.rpartition("@")
    return (name, url) if at and is_http(url) else (text, None)


def choose_endpoint(config: EvalConfig, model: str | None, base_url: str | None) -> tuple[str | None, str | None]:
    """Return base URL and key variable for another model; the config's key is sent nowhere else."""
    advanced = config.advanced
    if base_url is not None:
        return (None if base_url == NO_ENDPOINT else base_url), None
    if model is not None and (model.startswith(("offline/", PLATFORM_MODEL)) or is_http(model.rpartition("@")[2])):
        return None, None
    return advanced.base_url, advanced.api_key_env


class Selection(Record):
    """The rows of the dataset that run. `rows` wins over everything; then offset, limit; then sample."""

    limit: int | None = Field(default=None, ge=1)
    offset: int = Field(default=0, ge=0)
    rows: list[int] | None = None
    """Explicit zero-based indices."""
    sample: float | None = Field(default=None, gt=0, le=1)
    """A random fraction of the rows, at least one, drawn with `seed`."""
    seed: int = 0


class Timeouts(Record):
    """Seconds; None = no limit."""

    agent_s: float | None = Field(default=450.0, gt=0)
    score_s: float | None = Field(default=150.0, gt=0)
    model_s: float | None = Field(default=300.0, gt=0)
    tool_s: float | None = Field(default=None, gt=0)
    run_s: float | None = Field(default=None, gt=0)
    """Time for the whole run; on the platform for each of its jobs."""

    def ran_out(self) -> str | None:
        return None if self.run_s is None else f"time limit: the run did not finish within {self.run_s:g} s"


class Retry(Record):
    """How often a model call is retried, and how long to wait in between. A 429 is waited for, not counted."""

    max_attempts: int = Field(default=6, ge=1)
    rollouts: int = Field(default=0, ge=0, le=100)
    """How often a rollout that failed is run again before its failure is stored."""
    base_delay_s: float = 0.5
    max_delay_s: float = 30.0
    rate_limit_budget_s: float = Field(default=600.0, ge=0)
    """The longest one call may wait for rate limits in total, in seconds."""
    breaker_after: int = Field(default=20, ge=1)
    """Stop the run after this many equal infrastructure failures in a row with no success between."""


class Budget(Record):
    """Limits that pause a run; None = none."""

    max_cost_usd: float | None = None
    max_total_tokens: int | None = None

    def used_up(self, cost_usd: float, tokens: int) -> str | None:
        reached = self.reached(cost_usd, tokens)
        if reached is None:
            return None
        if reached == "max_cost":
            return f"budget: {cost_usd:.4f} of {self.max_cost_usd:g} USD spent"
        return f"budget: {tokens} of {self.max_total_tokens} tokens used"

    def reached(self, cost_usd: float, tokens: int) -> Literal["max_cost", "max_tokens_total"] | None:
        if self.max_cost_usd is not None and cost_usd >= self.max_cost_usd:
            return "max_cost"
        if self.max_total_tokens is not None and tokens >= self.max_total_tokens:
            return "max_tokens_total"
        return None


class RolloutLimits(Record):
    """Limits that end one rollout, which is then scored as far as it came; None = none.

    They are looked at before each model call: the one that would go beyond is not made. Only the time cuts in."""

    max_tokens: int | None = Field(default=None, ge=1)
    """Prompt and completion tokens of all calls."""
    max_cost_usd: float | None = Field(default=None, gt=0)
    max_time_s: float | None = Field(default=None, gt=0)
    """Seconds of the agent, without waits for rate limits. `timeouts.agent_s` fails a rollout, this one does not."""
    max_turns: int | None = Field(default=None, ge=1)
    """Model calls."""
    max_messages: int | None = Field(default=None, ge=1)
    """Messages of the conversation that would be sent."""

    def reached(self, calls: Sequence[ModelCall], messages: int, *, in_flight: int = 0) -> str | None:
        """Return the finish reason of a rollout before its next call; None: go on. A call in flight counts as a turn,
        and reserves what the greatest call took so far, all there is without one."""
        if self.max_turns is not None and sum(call.error is None for call in calls) + in_flight >= self.max_turns:
            return "max_turns"
        if self.max_messages is not None and messages > self.max_messages:
            return "max_messages"
        if _uses_up(self.max_tokens, [call.usage.total_tokens for call in calls], in_flight):
            return "max_tokens"
        if _uses_up(self.max_cost_usd, [call.usage.cost_usd or 0.0 for call in calls], in_flight):
            return "max_cost"
        return None

    @property
    def calls_differ(self) -> bool:
        """Return whether any limit but the time is set."""
        limits = (self.max_tokens, self.max_cost_usd, self.max_turns, self.max_messages)
        return any(limit is not None for limit in limits)


def _uses_up(limit: float | None, amounts: Sequence[float], in_flight: int) -> bool:
    if limit is None:
        return False
    return sum(amounts) + in_flight * (max(amounts, default=0) or limit) >= limit


class ProgramSpec(Record):
    """The surroundings of a program agent. Folders are relative to the workspace; each rollout gets copies."""

    folder: str | None = None
    """Working folder to begin with: a repository, an `AGENTS.md`."""
    home: str | None = None
    """HOME to begin with: skills, MCP servers and settings of the program. Nothing of the operator's is in it."""
    environ: list[str] = Field(default_factory=list)
    """Names of variables of this process that the program gets, too."""
    grader: str | None = None
    """Python file with the grader, relative to the workspace, or `module:Class`."""

    @classmethod
    def from_config(cls, config: EvalConfig | TrainingConfig) -> "ProgramSpec":
        experiment, program = config.experiment, config.program.to_dict() if config.program else {}
        if experiment.command is None:
            return cls()
        environ, grader = [*config.env, *program.pop("env", [])], f"rollouts/{experiment.rollout}/{experiment.file}"
        return cls(**program, environ=environ, grader=grader)

    def folders(self, base_dir: Path) -> dict[str, Path]:
        names = {"folder": self.folder, "home": self.home}
        return {key: folder_inside(base_dir, name, f"program.{key}") for key, name in names.items() if name}


TOOL_RESULT = "tool result"
RECORDING = "recording"  # Folder in that of a branch, with the journal of the rollout that it continues, as it was then


class Branch(Record):
    """The step of a stored rollout from which the rollouts of a run continue, and what is changed from there on."""

    run: str
    rollout_id: str
    row_index: int
    attempt: int
    step: int = Field(ge=1)
    """The first call that the model answers, counted from 1."""
    texts: dict[str, str] = Field(default_factory=dict)
    """In place of `prompts/NAME.md`, by name, of the row's (`row.system`, `row.user`), and of the last tool result."""

    def change_row(self, row: Row) -> Row:
        """Return the row with the changed system and user text, its hash and key unchanged."""
        texts = {role: self.texts[f"row.{role}"] for role in ("system", "user") if f"row.{role}" in self.texts}
        if row.data.get("user_prompt") is not None or not texts:
            return replace(row, data={**row.data, **{f"{role}_prompt": text for role, text in texts.items()}})
        messages = [message for message in row.messages() if message.get("role") not in texts]
        for role, text in texts.items():
            messages.insert(0 if role == "system" else len(messages), {"role": role, "content": text})
        return replace(row, data={**row.data, "messages": messages})


class EvalPlan(Record):
    """One evaluation, resolved."""

    name: str
    """Run name; names the journal's folder."""
    agent: str
    """`module:attribute`, `rollouts/<name>/main.py`, `mcp:<dir or URL>`, `server:<URL>` or `command:<command>`."""
    model: ModelSpec
    dataset: str
    """Path as given."""
    dataset_hash: str | None = None
    """sha256 of the file."""
    selection: Selection = Field(default_factory=Selection)
    attempts: int = Field(default=1, ge=1)
    """n: attempts per row."""
    concurrency: int = Field(default=1, ge=1)
    """Rollouts in flight."""
    adaptive: bool = False
    """`--concurrency auto`, the default of a local evaluation: `concurrency` is then the ceiling."""
    score_fns: list[str] = Field(default_factory=list)
    primary: str | None = None
    """Score that lists, verdicts and `--fail-under` use; None: the grader's reward, else the first one."""
    score_bounds: dict[str, tuple[float, float]] = Field(default_factory=dict)
    """The least and the greatest value of each score that says so. Intervals use them."""
    pass_threshold: float = 1.0
    ks: list[int] | None = None
    """Extra k for pass@k; 1, 3, 5, 10 are always tried."""
    reducers: list[ReducerName] = Field(default_factory=list)
    """Further figures of the attempts at a row: mean, median, mode, max, at-least-K, pass@K, pass^K."""
    group_by: list[str] = Field(default_factory=list)
    """Columns of the dataset: every score is reported for each of their values, too."""
    max_turns: int = Field(default=10, ge=1)
    max_tokens_total: int | None = None
    timeouts: Timeouts = Field(default_factory=Timeouts)
    retry: Retry = Field(default_factory=Retry)
    budget: Budget = Field(default_factory=Budget)
    limits: RolloutLimits = Field(default_factory=RolloutLimits)
    """Limits of each rollout; one that reaches a limit is scored as far as it came."""
    sandbox: SandboxChoice = Field(default_factory=SandboxChoice)
    """The sandbox for code of agents, tools and graders that ask for one."""
    program: ProgramSpec = Field(default_factory=ProgramSpec)
    """The program, for an agent that is a command."""
    branch: Branch | None = None
    """The rollout that this run continues."""
    cache: bool = False
    skip_bad_rows: bool = False
    require_ground_truth: bool = False
    provenance: JsonObject = Field(default_factory=dict)
    """Versions, git commit, dirty diff hash: for the reader, not for the engine."""

    @classmethod
    def from_config(
        cls,
        config: EvalConfig,
        *,
        name: str,
        dataset: str,
        model: ModelSpec | None = None,
        selection: Selection | None = None,
        attempts: int | None = None,
        concurrency: int | None = None,
        provenance: Mapping[str, object] | None = None,
    ) -> "EvalPlan":
        """Build the plan of a config, on the platform and on this machine. Arguments win over the config."""
        experiment, options = config.experiment, config.evaluation
        return cls(
            name=name,
            agent=experiment.agent,
            model=model or ModelSpec.from_config(config),
            dataset=dataset,
            selection=selection or Selection(limit=options.limit),
            attempts=attempts or options.n,
            concurrency=concurrency or options.batch_size,
            pass_threshold=options.pass_threshold,
            score_bounds=options.score_bounds(),
            reducers=options.reduce,
            group_by=options.group_by,
            timeouts=Timeouts(
                agent_s=options.agent_workflow_timeout_s,
                score_s=options.grader_timeout_s,
                run_s=config.advanced.resources.wall_s,
            ),
            budget=Budget(max_cost_usd=options.max_cost, max_total_tokens=options.max_tokens_total),
            limits=RolloutLimits(
                max_tokens=options.max_tokens_per_rollout,
                max_cost_usd=options.max_cost_per_rollout,
                max_time_s=options.max_time_per_rollout_s,
                max_turns=options.max_turns_per_rollout,
                max_messages=options.max_messages_per_rollout,
            ),
            retry=Retry(rollouts=options.max_retries),
            sandbox=SandboxChoice(kind=config.advanced.sandbox, image=config.advanced.sandbox_image),
            program=ProgramSpec.from_config(config),
            provenance=provenance or {},
        )

    def facts(self) -> Iterator[tuple[str, str]]:
        yield "model", self.model.name + (f" at {self.model.base_url}" if self.model.base_url else "")
        yield "agent", self.agent
        yield "dataset", self.dataset + (f" (sha256 {self.dataset_hash[:12]})" if self.dataset_hash else "")
        if (branch := self.branch) is not None:
            yield "branch", f"of {branch.run} {branch.row_index}/{branch.attempt}, from step {branch.step} on"
        git = self.provenance.get("git") or {}
        if git.get("commit"):
            yield "commit", git["commit"][:12] + (" with uncommitted changes" if git.get("dirty") else "")
