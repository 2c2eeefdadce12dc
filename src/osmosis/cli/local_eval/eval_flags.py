"""The flags of a local eval, each declared once: `EvalFlags`, and those that `osmosis test`, `eval run` and
`eval resume` share with it. What they mean is said in `plan`.
"""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated

import typer

from osmosis.base.light_dataclass import dataclass

DEBUG_FOLDER = "local_debug"

Module = Annotated[str | None, typer.Option("--module", "-m", "--agent", help="The agent: module:attribute.")]
Mcp = Annotated[str | None, typer.Option("--mcp", help="MCP server instead of an agent: a folder or a URL.")]
Dataset = Annotated[Path | None, typer.Option("--dataset", "-d", help="Rows: .jsonl, .json, .csv or .parquet.")]
EvalFn = Annotated[list[str], typer.Option("--eval-fn", help="Score function: module:function. Repeatable.")]
Rubric = Annotated[list[str], typer.Option("--rubric", help="Rubric to score with: file.yaml#id. Repeatable.")]
Price = Annotated[str | None, typer.Option(help="Price in USD per million tokens: PROMPT,COMPLETION.")]
BaseUrl = Annotated[str | None, typer.Option("--base-url", help="OpenAI-compatible endpoint, up to /v1.")]
ApiKey = Annotated[
    str | None, typer.Option("--api-key", help="API key (visible in the process list; prefer --api-key-env).")
]
ApiKeyEnv = Annotated[str | None, typer.Option("--api-key-env", help="Environment variable with the API key.")]
Limit = Annotated[int | None, typer.Option("--limit", help="Run the first N rows.")]
Offset = Annotated[int, typer.Option("--offset", help="Skip the first N rows.")]
SkipBadRows = Annotated[bool, typer.Option("--skip-bad-rows", help="Skip invalid rows.")]
BatchSize = Annotated[
    str,
    typer.Option(
        "--batch-size", "--concurrency", help="Maximum number of concurrent rollouts, or auto.", metavar="N|auto"
    ),
]
Workers = Annotated[
    str,
    typer.Option(
        "--workers",
        help="Number of processes, for agents and score functions that use much CPU, or auto.",
        metavar="N|auto",
    ),
]
MaxTurns = Annotated[int, typer.Option("--max-turns", help="Maximum number of turns per rollout.")]
Temperature = Annotated[float | None, typer.Option("--temperature", help="Sampling temperature.")]
TopP = Annotated[float | None, typer.Option("--top-p", help="Nucleus sampling (top-p).")]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", help="Maximum tokens per completion.")]
Param = Annotated[
    list[str], typer.Option("--param", help="Any other sampling parameter: key=value (JSON). Repeatable.")
]
Classes = Annotated[
    list[str], typer.Argument(metavar="[CLASS]...", help="With --retry-failed: failure categories or phases.")
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Retry failed rollouts [CLASS...].")]
SecretsFile = Annotated[
    Path | None,
    typer.Option("--secrets-file", help="File of NAME=value lines, when the run came from a config; - is stdin."),
]
OutputFile = Annotated[Path | None, typer.Option("--output", "-o", help="Write the results as JSON to this file.")]
FailUnder = Annotated[
    float | None, typer.Option("--fail-under", help="Exit with 1 when the first score's pass rate is below this.")
]
Reduce = Annotated[
    list[str],
    typer.Option(
        help="Figure to add, over a row's attempts: mean, median, mode, max, at-least-K, pass@K, pass^K. Repeatable."
    ),
]
GroupBy = Annotated[
    list[str], typer.Option("--group-by", help="Column of the dataset to report each score by. Repeatable.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Answer yes to every question.")]
NoReport = Annotated[bool, typer.Option("--quiet", "-q", help="Do not print the report.")]


@dataclass(frozen=True)
class EvalFlags:
    """What `osmosis eval` is told, before it is a plan."""

    classes: Annotated[
        list[str],
        typer.Argument(metavar="[CLASS]...", help="Failure categories or phases for --retry-failed.", hidden=True),
    ] = field(default_factory=list)
    module: Module = None
    mcp: Mcp = None
    server: Annotated[str | None, typer.Option(help="Rollout server instead of an agent: its URL.")] = None
    server_key_env: Annotated[
        str | None, typer.Option(help="Environment variable with the rollout server's API key.")
    ] = None
    grader: Annotated[str | None, typer.Option(help="Grader for a workflow: module:Class.")] = None
    dataset: Dataset = None
    eval_fn: EvalFn = field(default_factory=list)
    rubric: Rubric = field(default_factory=list)
    model: Annotated[str | None, typer.Option(help="Model: its name at --base-url, provider/name, offline/...")] = None
    base_url: BaseUrl = None
    api_key: ApiKey = None
    api_key_env: ApiKeyEnv = None
    baseline: Annotated[
        list[str], typer.Option(help="Baseline model to compare with: NAME or NAME@URL. Repeatable.")
    ] = field(default_factory=list)
    baseline_model: Annotated[
        str | None, typer.Option(help="Baseline model, its endpoint given by --baseline-base-url.")
    ] = None
    baseline_base_url: Annotated[
        str | None, typer.Option(help="OpenAI-compatible endpoint of --baseline-model, up to /v1.")
    ] = None
    n: Annotated[int, typer.Option("--n", help="Attempts per row, for pass@k.")] = 1
    k: Annotated[list[int], typer.Option("--k", help="Additional k for pass@k. Repeatable.")] = field(
        default_factory=list
    )
    pass_threshold: Annotated[float, typer.Option(help="Lowest score with which a rollout passes.")] = 1.0
    score_range: Annotated[
        str | None,
        typer.Option(help="Lowest and highest possible score, if the functions do not declare them: MIN,MAX."),
    ] = None
    reduce: Reduce = field(default_factory=list)
    group_by: GroupBy = field(default_factory=list)
    batch_size: BatchSize = "1"
    workers: Workers = "1"
    limit: Limit = None
    offset: Offset = 0
    rows: Annotated[str | None, typer.Option(help="Run only these row indices: 3,7,10-20.")] = None
    sample: Annotated[str | None, typer.Option(help="Run a random percentage of the rows: 10%.")] = None
    seed: Annotated[
        int | None, typer.Option(help="Seed for --sample and for the model (plus the attempt's number).")
    ] = None
    skip_bad_rows: SkipBadRows = False
    require_ground_truth: Annotated[
        bool, typer.Option("--require-ground-truth", help="Refuse rows without a ground_truth.")
    ] = False
    temperature: Temperature = None
    top_p: TopP = None
    max_tokens: MaxTokens = None
    param: Param = field(default_factory=list)
    max_turns: MaxTurns = 10
    agent_timeout: Annotated[float | None, typer.Option(help="Time limit per rollout, in seconds [450].")] = None
    score_timeout: Annotated[float | None, typer.Option(help="Time limit per score, in seconds [150].")] = None
    model_timeout: Annotated[float | None, typer.Option(help="Time limit per model call, in seconds [300].")] = None
    tool_timeout: Annotated[float | None, typer.Option(help="Time limit per tool call, in seconds.")] = None
    run_timeout: Annotated[float | None, typer.Option(help="Time limit of the whole run, in seconds.")] = None
    max_retries: Annotated[int | None, typer.Option(help="Maximum retries of a failed call [5].")] = None
    rate_limit_budget: Annotated[
        float | None, typer.Option(help="Longest total wait of one call for rate limits, in seconds [600].")
    ] = None
    breaker_after: Annotated[int | None, typer.Option(help="Stop after N identical failures in a row [20].")] = None
    max_cost: Annotated[float | None, typer.Option(help="Pause the run after spending this many USD.")] = None
    max_tokens_total: Annotated[int | None, typer.Option(help="Pause the run after this many tokens.")] = None
    max_tokens_per_rollout: Annotated[
        int | None, typer.Option(help="End a rollout after this many tokens, and score it.")
    ] = None
    max_cost_per_rollout: Annotated[
        float | None, typer.Option(help="End a rollout after spending this many USD, and score it.")
    ] = None
    max_time_per_rollout: Annotated[
        float | None, typer.Option(help="End a rollout after this many seconds, and score it.")
    ] = None
    max_turns_per_rollout: Annotated[
        int | None, typer.Option(help="End a rollout after this many model calls, and score it.")
    ] = None
    max_messages_per_rollout: Annotated[
        int | None, typer.Option(help="End a rollout before it sends more messages than this, and score it.")
    ] = None
    sandbox: Annotated[
        str | None,
        typer.Option(help="Where ctx.sandbox runs code: auto, bubblewrap, container or none [auto].", metavar="KIND"),
    ] = None
    sandbox_image: Annotated[
        str | None, typer.Option(help="Image of the container for ctx.sandbox; it must be on this machine.")
    ] = None
    price: Price = None
    pilot: Annotated[int | None, typer.Option(help="Run N rollouts, forecast the cost of the rest, then ask.")] = None
    cache: Annotated[bool, typer.Option("--cache", help="Cache completions, by request and attempt.")] = False
    replay: Annotated[str | None, typer.Option(help="Answer from the journal of this run instead of a model.")] = None
    name: Annotated[str | None, typer.Option(help="Name of the run; an existing run is resumed.")] = None
    retry_failed: RetryFailed = False
    output: OutputFile = None
    fail_under: FailUnder = None
    on: Annotated[
        str | None,
        typer.Option(help="Platform to run on instead; needs a config, and prints the command to use.", metavar="URL"),
    ] = None
    secret: Annotated[
        list[str], typer.Option(help="Environment variable whose value is redacted in all output. Repeatable.")
    ] = field(default_factory=list)
    debug: Annotated[
        bool, typer.Option("--debug", help=f"Write what agents log with log_event to ./{DEBUG_FOLDER}.")
    ] = False
    yes: Yes = False
    quiet: NoReport = False
