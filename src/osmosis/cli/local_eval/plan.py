"""What the flags of a local eval mean: the `EvalPlan` that is made of them.

Parses what people type, checks every number, spends nothing and opens nothing. A new flag is a field of `EvalFlags` and
one line in `build_plan`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError as PydanticError

from osmosis.base.json_types import JsonObject
from osmosis.base.net import is_http
from osmosis.errors import UsageError, ValidationError
from osmosis.local.request import check_name, generated_name, parse_model
from osmosis.metrics.reducers import reducer
from osmosis.records.plan import Budget, EvalPlan, ModelSpec, Retry, RolloutLimits, Selection, Timeouts
from osmosis.records.sandbox import SandboxChoice, SandboxKind

from .eval_flags import EvalFlags

AUTO_CEILING = 256
_FLAGS = {
    "agent_s": "--agent-timeout",
    "score_s": "--score-timeout",
    "model_s": "--model-timeout",
    "tool_s": "--tool-timeout",
    "run_s": "--run-timeout",
    "rate_limit_budget_s": "--rate-limit-budget",
}
"""Keys of a plan that are called otherwise on the command line."""
_NO_PARAMS = {
    "messages": "the agent brings them",
    "tools": "the agent brings them",
    "model": "use --model",
    "n": "use --n: each attempt is a call of its own",
    "stream": "answers are read whole",
}


def build_plan(flags: EvalFlags, *, runs_dir: Path) -> EvalPlan:
    """The plan of these flags; `UsageError` names the flag that is wrong."""
    agent = _agent(flags)
    if flags.dataset is None:
        raise UsageError("missing option -d/--dataset", hint="-d data.jsonl")
    check_together(flags)
    check_limits(max_cost=flags.max_cost, max_tokens_total=flags.max_tokens_total)
    concurrency, adaptive = parse_concurrency(flags.batch_size)
    dataset = str(flags.dataset)
    name = check_name(generated_name(agent, dataset) if flags.name is None else flags.name, "--name")
    for flag, value, least in (
        ("--n", flags.n, 1),
        ("--max-turns", flags.max_turns, 1),
        ("--limit", flags.limit, 1),
        ("--offset", flags.offset, 0),
        ("--max-retries", flags.max_retries, 0),
    ):
        if value is not None and value < least:
            raise UsageError(f"{flag} must be at least {least}, got {value}")
    for k in flags.k:
        if not 1 <= k <= flags.n:
            raise UsageError(f"--k {k} is not between 1 and --n {flags.n}", hint=f"--n {max(k, 1)} --k {max(k, 1)}")
    try:
        return EvalPlan(
            name=name,
            agent=agent,
            model=model_spec(flags, runs_dir),
            dataset=dataset,
            selection=Selection(
                limit=flags.limit,
                offset=flags.offset,
                rows=None if flags.rows is None else parse_rows(flags.rows),
                sample=None if flags.sample is None else parse_share(flags.sample),
                seed=flags.seed or 0,
            ),
            attempts=flags.n,
            concurrency=concurrency,
            adaptive=adaptive,
            score_fns=[*flags.eval_fn, *(f"rubric:{r}" for r in flags.rubric)],
            pass_threshold=flags.pass_threshold,
            ks=flags.k or None,
            score_bounds=_score_bounds(flags),
            reducers=parse_reducers(flags.reduce, flags.n),
            group_by=list(dict.fromkeys(flags.group_by)),
            max_turns=flags.max_turns,
            timeouts=_timeouts(flags),
            retry=_retry(flags),
            budget=Budget(max_cost_usd=flags.max_cost, max_total_tokens=flags.max_tokens_total),
            limits=rollout_limits(flags),
            sandbox=sandbox_choice(flags),
            cache=flags.cache,
            skip_bad_rows=flags.skip_bad_rows,
            require_ground_truth=flags.require_ground_truth,
        )
    except PydanticError as error:
        first = error.errors()[0]
        key = str(first["loc"][-1]) if first["loc"] else "the plan"
        flag = _FLAGS.get(key, "--" + key.replace("_", "-"))
        raise UsageError(f"{flag}: {first['msg']}, got {first['input']}", hint="see osmosis eval --help") from error


def _score_bounds(flags: EvalFlags) -> dict[str, tuple[float, float]]:
    """What --score-range says, for every score."""
    if flags.score_range is None:
        return {}
    parts = flags.score_range.split(",")
    try:
        low, high = (float(part) for part in parts)
    except ValueError:
        low = high = math.nan
    if not (low < high and math.isfinite(high - low)):
        raise UsageError(f"--score-range {flags.score_range!r} is not MIN,MAX", hint="--score-range 0,5")
    names = [*flags.eval_fn, *(f"rubric:{one}" for one in flags.rubric), "reward"]
    return dict.fromkeys(names, (low, high))


def parse_reducers(given: Sequence[str], attempts: int) -> list[str]:
    """The names given to --reduce, each once."""
    try:
        return [reducer(name, attempts=attempts).name for name in dict.fromkeys(given)]
    except ValidationError as error:
        raise UsageError(f"--reduce: {error.message}", hint=error.hint) from error


def sandbox_choice(flags: EvalFlags) -> SandboxChoice:
    """What --sandbox and --sandbox-image say; `UsageError` when they do not fit together."""
    kind = next((one for one in get_args(SandboxKind) if one == (flags.sandbox or "auto")), None)
    if kind is None:
        raise UsageError(f"--sandbox {flags.sandbox} is not one of {', '.join(get_args(SandboxKind))}")
    if kind == "container" and not flags.sandbox_image:
        raise UsageError("--sandbox container needs --sandbox-image", hint="--sandbox-image python:3.12-slim")
    if kind in ("bubblewrap", "none") and flags.sandbox_image:
        raise UsageError(f"--sandbox {kind} has no image; --sandbox-image would not be used")
    return SandboxChoice(kind=kind, image=flags.sandbox_image)


def rollout_limits(flags: EvalFlags) -> RolloutLimits:
    """Of each rollout; `UsageError` names the flag that is wrong."""
    given = {
        "max_tokens": ("--max-tokens-per-rollout", flags.max_tokens_per_rollout),
        "max_cost_usd": ("--max-cost-per-rollout", flags.max_cost_per_rollout),
        "max_time_s": ("--max-time-per-rollout", flags.max_time_per_rollout),
        "max_turns": ("--max-turns-per-rollout", flags.max_turns_per_rollout),
        "max_messages": ("--max-messages-per-rollout", flags.max_messages_per_rollout),
    }
    for flag, value in given.values():
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{flag} must be above 0, got {value:g}")
    return RolloutLimits(**{key: value for key, (_, value) in given.items()})


def check_together(flags: EvalFlags) -> None:
    """Flags that would have no effect beside each other are refused: nothing is dropped silently."""
    beside = [f"--{name}" for name in ("limit", "sample") if getattr(flags, name) is not None]
    beside += ["--offset"] if flags.offset else []
    if flags.rows is not None and beside:
        raise UsageError(f"--rows and {beside[0]} cannot be used together", hint="--rows 3,7,10-20 lists every row")
    if flags.replay is not None:
        for name in ("model", "base_url", "api_key_env", "cache"):
            if getattr(flags, name):
                raise UsageError(f"--replay answers from a journal; --{name.replace('_', '-')} would not be used")
    if flags.server_key_env is not None and not flags.server:
        raise UsageError("--server-key-env needs --server")
    if flags.grader is not None and not flags.module:
        raise UsageError("--grader needs -m: it does not apply to MCP servers and rollout servers", hint="--eval-fn")
    if flags.price is not None and flags.replay is not None:
        raise UsageError("--replay costs nothing; --price would not be used")


def check_limits(
    *,
    max_cost: float | None = None,
    max_tokens_total: int | None = None,
    run_timeout: float | None = None,
    fail_under: float | None = None,
    pass_threshold: float | None = None,
) -> None:
    """Refuses limits that mean nothing or end a run before it begins."""
    if run_timeout is not None and not 0 < run_timeout < math.inf:
        raise UsageError(f"--run-timeout must be above 0, got {run_timeout:g}")
    if pass_threshold is not None and not math.isfinite(pass_threshold):
        raise UsageError(f"--pass-threshold must be a finite number, got {pass_threshold}")
    if max_cost is not None and not 0 < max_cost < math.inf:
        raise UsageError(f"--max-cost must be above 0, got {max_cost:g}")
    if max_tokens_total is not None and max_tokens_total < 1:
        raise UsageError(f"--max-tokens-total must be at least 1, got {max_tokens_total}")
    if fail_under is not None and not math.isfinite(fail_under):
        raise UsageError(f"--fail-under must be a finite number, got {fail_under}")


def _agent(flags: EvalFlags) -> str:
    given = [name for name in ("module", "mcp", "server") if getattr(flags, name)]
    if len(given) != 1:
        what = " and ".join(f"--{name}" for name in given) + " cannot be used together" if given else "no agent given"
        raise UsageError(what, hint="give one of -m module:agent, --mcp DIR|URL, --server URL")
    if flags.module:
        return flags.module
    if flags.mcp:
        _, found, _ = flags.mcp.partition("://")
        if found and not is_http(flags.mcp):
            raise UsageError(f"--mcp {flags.mcp} is not an http URL", hint="--mcp http://127.0.0.1:8000/mcp")
        return f"mcp:{flags.mcp if '/' in flags.mcp else './' + flags.mcp}"
    if not is_http(str(flags.server)):
        raise UsageError(f"--server {flags.server} is not an http URL", hint="--server http://127.0.0.1:9000")
    return f"server:{flags.server}"


def model_spec(flags: EvalFlags, runs_dir: Path) -> ModelSpec:
    """The model as the flags describe it, with every sampling parameter."""
    params = sampling(flags)
    if flags.replay is not None:
        journal = Path(flags.replay)
        path = journal if journal.exists() else runs_dir / flags.replay
        return ModelSpec(name=str(path), kind="replay", params=params)
    if not flags.model:
        raise UsageError("missing option --model", hint="--model to try without an account: offline/calculator")
    spec = parse_model(
        flags.model, base_url=flags.base_url, api_key_env=flags.api_key_env, params=params, option="--base-url"
    )
    spec.seed = flags.seed or 0
    spec.price = None if flags.price is None else parse_price(flags.price)
    return spec


def baseline_specs(flags: EvalFlags) -> list[ModelSpec]:
    """The models to compare with, by either of the two ways to name one."""
    params = sampling(flags)
    specs = [parse_model(text, params=params) for text in flags.baseline]
    if flags.baseline_model is not None:
        url = flags.baseline_base_url
        specs.append(parse_model(flags.baseline_model, base_url=url, params=params, option="--baseline-base-url"))
    elif flags.baseline_base_url is not None:
        raise UsageError("--baseline-base-url needs --baseline-model", hint="or --baseline NAME@URL")
    return specs


def sampling(flags: EvalFlags) -> JsonObject:
    """Every sampling parameter that was given, under its name in a request."""
    named = {"temperature": flags.temperature, "top_p": flags.top_p, "max_tokens": flags.max_tokens, "seed": flags.seed}
    params = {key: value for key, value in named.items() if value is not None}
    if flags.temperature is not None and not 0 <= flags.temperature <= 2:
        raise UsageError(f"--temperature must be between 0 and 2, got {flags.temperature}")
    if flags.top_p is not None and not 0 < flags.top_p <= 1:
        raise UsageError(f"--top-p must be above 0 and at most 1, got {flags.top_p}")
    if flags.max_tokens is not None and flags.max_tokens < 1:
        raise UsageError(f"--max-tokens must be at least 1, got {flags.max_tokens}")
    return {**params, **further(flags.param, params)}


def further(given: Sequence[str], named: Collection[str] = ()) -> JsonObject:
    """What --param says; `named` parameters have options of their own, which were used."""
    params: JsonObject = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--param {text!r} is not key=value", hint="--param top_k=40")
        key = key.strip()
        if key in _NO_PARAMS:
            raise UsageError(f"{key} is not a sampling parameter", hint=_NO_PARAMS[key])
        if key in params or key in named:
            raise UsageError(f"{key} is given twice", hint=f"keep either --param {key}=... or the other option")
        params[key] = _value(value)
    return params


def parse_concurrency(text: str) -> tuple[int, bool]:
    """How many at once, and whether it adapts: a number, or `auto`."""
    if text.strip().lower() == "auto":
        return AUTO_CEILING, True
    try:
        number = int(text)
    except ValueError:
        raise UsageError(f"--batch-size must be a number or auto, got {text!r}") from None
    if number < 1:
        raise UsageError(f"--batch-size must be at least 1, got {number}")
    return number, False


def parse_rows(text: str) -> list[int]:
    """Row indices from `3,7,10-20`."""
    found: dict[int, None] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if not match:
            raise UsageError(
                f"--rows {text!r}: {part.strip()!r} is not a row index or a range", hint="--rows 3,7,10-20"
            )
        low, high = int(match.group(1)), int(match.group(2) or match.group(1))
        if high < low:
            raise UsageError(f"--rows {text!r}: {part.strip()} is an empty range", hint=f"--rows {high}-{low}")
        found.update(dict.fromkeys(range(low, high + 1)))
    return sorted(found)


def parse_share(text: str) -> float:
    """A fraction from `10%` or `0.1`."""
    try:
        value = float(text.rstrip("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise UsageError(f"--sample {text!r} is not a percentage", hint="--sample 10%") from None
    if not 0 < value <= 1:
        raise UsageError(f"--sample must be above 0 and at most 100%, got {text}")
    return value


def _timeouts(flags: EvalFlags) -> Timeouts:
    given = {
        "agent_s": flags.agent_timeout,
        "score_s": flags.score_timeout,
        "model_s": flags.model_timeout,
        "tool_s": flags.tool_timeout,
        "run_s": flags.run_timeout,
    }
    return Timeouts(**{key: value for key, value in given.items() if value is not None})


def _retry(flags: EvalFlags) -> Retry:
    given: dict[str, object] = {}
    if flags.max_retries is not None:
        given["max_attempts"] = flags.max_retries + 1
    if flags.rate_limit_budget is not None:
        given["rate_limit_budget_s"] = flags.rate_limit_budget
    if flags.breaker_after is not None:
        given["breaker_after"] = flags.breaker_after
    return Retry(**given)


def parse_price(text: str) -> tuple[float, float]:
    try:
        prompt, completion = (float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"--price {text!r} is not two numbers", hint="--price 0.25,2 (USD per million tokens)"
        ) from None
    if not (0 <= prompt < math.inf and 0 <= completion < math.inf):
        raise UsageError(f"--price must be two finite numbers, 0 or greater, got {text}")
    return prompt, completion


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
