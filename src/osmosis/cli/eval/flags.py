"""The options of local evaluations. `PLAN_FLAGS` are those that change the plan; what has no flag is set with `--set`.
A flag without a help text is an older spelling, which still parses."""

import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from typer import Argument, Option

from osmosis.cli.core import completion
from osmosis.cli.core.context import SecretsFile
from osmosis.records.config.export import TOOLS

DEBUG_FOLDER = "local_debug"


class PlanFlag(NamedTuple):
    names: str
    path: str
    kind: Any
    help: str = ""
    metavar: str | None = None

    @property
    def name(self) -> str:
        return self.names.split()[0].lstrip("-").replace("-", "_")

    @property
    def label(self) -> str:
        return self.names.split()[0]

    def parameter(self) -> inspect.Parameter:
        option = Option(*self.names.split(), help=self.help, metavar=self.metavar, hidden=not self.help)
        kind: Any = self.kind
        annotation: Any = Annotated[kind | None, option]
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


PLAN_FLAGS = (
    PlanFlag("--n", "attempts", int, "Attempts per row, for pass@k [1]."),
    PlanFlag("--limit", "selection.limit", int, "Run the first N rows."),
    PlanFlag("--offset", "selection.offset", int, "Skip the first N rows."),
    PlanFlag("--rows", "selection.rows", str, "Run only these row indices: 3,7,10-20."),
    PlanFlag("--sample", "selection.sample", str),
    PlanFlag("--seed", "selection.seed", int, "Seed for the model (plus the attempt's number), and for a sample."),
    PlanFlag(
        *("--batch-size --concurrency --max-in-flight", "concurrency", str),
        *("Maximum number of concurrent rollouts, or auto.", "N|auto"),
    ),
    PlanFlag("--temperature", "model.params.temperature", float, "Sampling temperature."),
    PlanFlag("--top-p", "model.params.top_p", float),
    PlanFlag("--max-tokens", "model.params.max_tokens", int, "Maximum tokens per completion."),
    PlanFlag("--max-turns", "max_turns", int, "Maximum number of turns per rollout [10]."),
    PlanFlag("--max-cost", "budget.max_cost_usd", float, "Pause the run after spending this many USD."),
    PlanFlag("--max-tokens-total", "budget.max_total_tokens", int),
    PlanFlag("--price", "model.price", str, "Price in USD per million tokens: PROMPT,COMPLETION."),
    PlanFlag("--pass-threshold", "pass_threshold", float, "Lowest score with which a rollout passes [1.0]."),
    PlanFlag("--primary", "primary", str, "Score that counts first [the grader's reward, else the first one]."),
    PlanFlag(
        *("--reduce", "reducers", list[str]),
        "Figure to add, over a row's attempts: mean, median, mode, max, at-least-K, pass@K, pass^K. Repeatable.",
    ),
    PlanFlag("--group-by", "group_by", list[str], "Column of the dataset to report each score by. Repeatable."),
    PlanFlag("--cache", "cache", bool),
    PlanFlag("--k", "ks", list[int]),
    PlanFlag("--score-range", "score_bounds", str),
    PlanFlag("--skip-bad-rows", "skip_bad_rows", bool),
    PlanFlag("--require-ground-truth", "require_ground_truth", bool),
    PlanFlag("--agent-timeout", "timeouts.agent_s", float),
    PlanFlag("--score-timeout", "timeouts.score_s", float),
    PlanFlag("--model-timeout", "timeouts.model_s", float),
    PlanFlag("--tool-timeout", "timeouts.tool_s", float),
    PlanFlag("--run-timeout", "timeouts.run_s", float),
    PlanFlag("--max-retries", "retry.max_retries", int),
    PlanFlag("--rate-limit-budget", "retry.rate_limit_budget_s", float),
    PlanFlag("--breaker-after", "retry.breaker_after", int),
    PlanFlag("--max-tokens-per-rollout", "limits.max_tokens", int),
    PlanFlag("--max-cost-per-rollout", "limits.max_cost_usd", float),
    PlanFlag("--max-time-per-rollout", "limits.max_time_s", float),
    PlanFlag("--max-turns-per-rollout", "limits.max_turns", int),
    PlanFlag("--max-messages-per-rollout", "limits.max_messages", int),
    PlanFlag("--sandbox", "sandbox.kind", str),
    PlanFlag("--sandbox-image", "sandbox.image", str),
)
BY_NAME = {flag.name: flag for flag in PLAN_FLAGS}


def plan_parameters(
    *names: str, helps: Mapping[str, str] | None = None, hidden: Collection[str] = ()
) -> list[inspect.Parameter]:
    flags = [BY_NAME[name] for name in names] if names else list(PLAN_FLAGS)
    texts = {**(helps or {}), **dict.fromkeys(hidden, "")}
    return [flag._replace(help=texts.get(flag.name, flag.help)).parameter() for flag in flags]


Module = Annotated[str | None, Option("--module", "-m", "--agent", help="The agent: module:attribute.")]
Mcp = Annotated[str | None, Option(help="MCP server instead of an agent: a folder or a URL.")]
Dataset = Annotated[Path | None, Option("--dataset", "-d", "--dataset-file", help="Rows: JSONL, JSON, CSV, Parquet.")]
EvalFn = Annotated[list[str], Option(help="Score function: module:function. Repeatable.")]
Rubric = Annotated[list[str], Option(help="Rubric to score with: file.yaml#id. Repeatable.")]
Model = Annotated[str | None, Option("--model", help="Its name at --base-url, NAME@URL, provider/name, offline/...")]
BaseUrl = Annotated[str | None, Option(help="OpenAI-compatible endpoint, up to /v1; none: not the config's.")]
ApiKey = Annotated[str | None, Option(help="API key; prefer --api-key-env.", hidden=True)]
ApiKeyEnv = Annotated[str | None, Option(help="Environment variable with the API key.")]
Workers = Annotated[str, Option(help="Number of processes, for code that uses much CPU, or auto.", metavar="N|auto")]
Param = Annotated[list[str], Option(help="Any other sampling parameter: key=value (JSON). Repeatable.")]
Classes = Annotated[list[str], Argument(metavar="[CLASS]...", help="With --retry-failed: categories or phases.")]
RetryFailed = Annotated[bool, Option(help="Retry failed rollouts [CLASS...].")]
OutputFile = Annotated[Path | None, Option("--output", "-o", help="Write the results as JSON to this file.")]
FailUnder = Annotated[float | None, Option(help="Exit with 1 when the first pass rate is clearly below this.")]
NoReport = Annotated[bool, Option("--quiet", "-q", help="Do not print the report.")]
Set = Annotated[
    list[str],
    Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any option of the plan, such as limits.cost=5, timeouts.agent=60, sandbox.kind=none (`--set help` lists "
        "them), or a key of the config, such as env.LEVEL=high. Repeatable.",
    ),
]


def _unused(help: str = "Not used: no port is opened.") -> Any:
    return Option(hidden=True, help=help)


@dataclass(frozen=True)
class RunFlags:
    words: Annotated[
        list[str],
        Argument(
            metavar="[CONFIG|SET]",
            help="A config or a set of the workspace, by path or name [default: the only config]",
            autocompletion=completion.eval_configs_and_sets,
        ),
    ] = field(default_factory=list)
    module: Module = None
    mcp: Mcp = None
    server: Annotated[str | None, Option(help="Rollout server instead of an agent: its URL.")] = None
    agent_command: Annotated[
        str | None,
        Option(help="Program as the agent: claude-code, codex, ..., a shell command with $PROMPT, or acp:PROGRAM."),
    ] = None
    server_key_env: Annotated[str | None, _unused("Environment variable with the rollout server's API key.")] = None
    grader: Annotated[str | None, Option(help="Grader for a workflow: module:Class.")] = None
    dataset: Dataset = None
    eval_fn: EvalFn = field(default_factory=list)
    rubric: Rubric = field(default_factory=list)
    model: Model = None
    base_url: BaseUrl = None
    api_key: ApiKey = None
    api_key_env: ApiKeyEnv = None
    baseline: Annotated[
        list[str], Option(help="Model to compare with, NAME or NAME@URL (repeatable); of a set: an earlier execution.")
    ] = field(default_factory=list)
    baseline_model: Annotated[str | None, _unused("Baseline model.")] = None
    baseline_base_url: Annotated[str | None, _unused("Its endpoint.")] = None
    fail_on_regression: Annotated[bool, Option(help="Of a set: exit 1 if one is worse than its baseline.")] = False
    workers: Workers = "1"
    param: Param = field(default_factory=list)
    pilot: Annotated[int | None, Option(help="Run N rollouts, forecast the cost of the rest, then ask.")] = None
    replay: Annotated[str | None, Option(help="Answer from the journal of this run instead of a model.")] = None
    set: Set = field(default_factory=list)
    name: Annotated[str | None, Option(help="Name of the run; an existing run is resumed.")] = None
    fresh: Annotated[bool, Option(help="Set an existing run of this name aside, start again.")] = False
    retry_failed: RetryFailed = False
    secrets_file: SecretsFile = None
    secret: Annotated[list[str], _unused("Variable to redact in output. Repeatable.")] = field(default_factory=list)
    output: OutputFile = None
    export: Annotated[
        list[str],
        Option(
            help=f"Send the run to a tool while it goes on: {', '.join(TOOLS)}. Repeatable.",
            metavar="NAME[:ADDRESS]",
            autocompletion=lambda: list(TOOLS),
        ),
    ] = field(default_factory=list)
    fail_under: FailUnder = None
    upload: Annotated[bool, Option(help="Upload the run to the platform when it finishes")] = False
    on: Annotated[str | None, Option(help="Run on the platform at this URL: submit and follow", metavar="URL")] = None
    shards: Annotated[str | None, _unused("With --on: number of jobs to split the rows over, or auto.")] = None
    debug: Annotated[bool, Option(help=f"Write log_event calls to ./{DEBUG_FOLDER}.", hidden=True)] = False
    quiet: NoReport = False
    verbose: Annotated[bool, Option("--verbose", hidden=True, help="The opposite of --quiet.")] = False
    rollout_port: Annotated[int | None, _unused()] = None
    listener_port: Annotated[int | None, _unused()] = None
    advertise_url: Annotated[str | None, _unused()] = None
    tunnel: Annotated[str | None, _unused()] = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def names_agent(self) -> bool:
        return bool(self.module or self.mcp or self.server or self.agent_command or self.replay)
