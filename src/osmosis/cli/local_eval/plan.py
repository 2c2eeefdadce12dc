"""From flags to an `EvalPlan`: parses what people type, checks every number, spends nothing and opens nothing.

A new flag of the local eval is an option in `command`, a field of `LocalFlags` and one line in `build_plan`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError as PydanticError

from ...base.net import is_http
from ...errors import UsageError, ValidationError
from ...records.base import utc_now
from ...records.plan import Budget, EvalPlan, ModelSpec, Retry, Selection, Timeouts
from .checks import check_limits, check_together

RUN_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")
AUTO_CEILING = 256
_FLAGS = {
    "agent_s": "--agent-timeout",
    "score_s": "--score-timeout",
    "model_s": "--model-timeout",
    "tool_s": "--tool-timeout",
    "run_s": "--run-timeout",
}
"""Keys of a plan that are called otherwise on the command line."""
_NO_PARAMS = {
    "messages": "the agent brings them",
    "tools": "the agent brings them",
    "model": "use --model",
    "n": "use --n: each attempt is a call of its own",
    "stream": "answers are read whole",
}


@dataclass
class LocalFlags:
    """What the command line says, before it is a plan. Names follow the flags."""

    module: str | None = None
    mcp: str | None = None
    server: str | None = None
    server_key_env: str | None = None
    grader: str | None = None
    dataset: str = ""
    eval_fn: list[str] = field(default_factory=list)
    rubric: list[str] = field(default_factory=list)
    model: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    price: str | None = None
    n: int = 1
    batch_size: str = "1"
    pass_threshold: float = 1.0
    k: list[int] = field(default_factory=list)
    max_turns: int = 10
    limit: int | None = None
    offset: int = 0
    rows: str | None = None
    sample: str | None = None
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    param: list[str] = field(default_factory=list)
    agent_timeout: float | None = None
    score_timeout: float | None = None
    model_timeout: float | None = None
    tool_timeout: float | None = None
    run_timeout: float | None = None
    max_retries: int | None = None
    breaker_after: int | None = None
    max_cost: float | None = None
    max_tokens_total: int | None = None
    cache: bool = False
    replay: str | None = None
    skip_bad_rows: bool = False
    require_ground_truth: bool = False
    name: str | None = None


def build_plan(flags: LocalFlags, *, runs_dir: Path) -> EvalPlan:
    """The plan of these flags; `UsageError` or `ValidationError` names the flag that is wrong."""
    agent = _agent(flags)
    if not flags.dataset:
        raise UsageError("missing option -d/--dataset", hint="-d data.jsonl")
    check_together(flags)
    check_limits(max_cost=flags.max_cost, max_tokens_total=flags.max_tokens_total)
    concurrency, adaptive = parse_concurrency(flags.batch_size)
    name = generated_name(agent, flags.dataset) if flags.name is None else flags.name
    check_name(name)
    for flag, value, least in (
        ("--n", flags.n, 1),
        ("--max-turns", flags.max_turns, 1),
        ("--limit", flags.limit, 1),
        ("--offset", flags.offset, 0),
        ("--max-retries", flags.max_retries, 0),
    ):
        if value is not None and value < least:
            raise ValidationError(f"{flag} must be at least {least}, got {value}")
    for k in flags.k:
        if not 1 <= k <= flags.n:
            raise ValidationError(
                f"--k {k} is not between 1 and --n {flags.n}", hint=f"--n {max(k, 1)} --k {max(k, 1)}"
            )
    try:
        return EvalPlan(
            name=name,
            agent=agent,
            model=model_spec(flags, runs_dir),
            dataset=flags.dataset,
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
            max_turns=flags.max_turns,
            timeouts=_timeouts(flags),
            retry=_retry(flags),
            budget=Budget(max_cost_usd=flags.max_cost, max_total_tokens=flags.max_tokens_total),
            cache=flags.cache,
            skip_bad_rows=flags.skip_bad_rows,
            require_ground_truth=flags.require_ground_truth,
        )
    except PydanticError as error:
        first = error.errors()[0]
        key = str(first["loc"][-1]) if first["loc"] else "the plan"
        flag = _FLAGS.get(key, "--" + key.replace("_", "-"))
        raise ValidationError(
            f"{flag}: {first['msg']}, got {first['input']}", hint="see osmosis eval --help"
        ) from error


def _agent(flags: LocalFlags) -> str:
    given = [name for name in ("module", "mcp", "server") if getattr(flags, name)]
    if len(given) != 1:
        what = " and ".join(f"--{name}" for name in given) + " exclude each other" if given else "no agent is named"
        raise UsageError(what, hint="give one of -m module:agent, --mcp DIR|URL, --server URL")
    if flags.module:
        return flags.module
    if flags.mcp:
        _, found, _ = flags.mcp.partition("://")
        if found and not is_http(flags.mcp):
            raise ValidationError(f"--mcp {flags.mcp} is no http URL", hint="--mcp http://127.0.0.1:8000/mcp")
        return f"mcp:{flags.mcp if '/' in flags.mcp else './' + flags.mcp}"
    if not is_http(str(flags.server)):
        raise ValidationError(f"--server {flags.server} is no http URL", hint="--server http://127.0.0.1:9000")
    return f"server:{flags.server}"


def agent_kind(agent: str) -> tuple[str, str]:
    """What a plan's agent is (`server`, `mcp` or `module`) and where.

    A module may be called `server` or `mcp`: only what follows, a URL or a path, makes it something else.
    """
    kind, _, target = agent.partition(":")
    if kind == "server" and target.startswith(("http://", "https://")):
        return kind, target
    if kind == "mcp" and "/" in target:
        return kind, target
    return "module", agent


def model_spec(flags: LocalFlags, runs_dir: Path) -> ModelSpec:
    """The model as the flags describe it, with every sampling parameter."""
    params = sampling(flags)
    if flags.replay is not None:
        journal = Path(flags.replay)
        path = journal if journal.exists() else runs_dir / flags.replay
        return ModelSpec(name=str(path), kind="replay", params=params)
    if not flags.model:
        raise UsageError("missing option --model", hint="--model offline/calculator needs no account")
    spec = parse_model(flags.model, base_url=flags.base_url, api_key_env=flags.api_key_env, params=params)
    spec.seed = flags.seed or 0
    spec.price = None if flags.price is None else _price(flags.price)
    return spec


def parse_model(
    text: str, *, base_url: str | None = None, api_key_env: str | None = None, params: Mapping[str, Any] | None = None
) -> ModelSpec:
    """A model as typed; `name@http://host/v1` brings its own endpoint."""
    if not text.strip():
        raise UsageError("the model has no name", hint="--model offline/calculator needs no account")
    name, at, url = text.rpartition("@")
    if at and url.startswith(("http://", "https://")):
        text, base_url = name, url
    if base_url is not None:
        if not is_http(base_url):
            raise ValidationError(f"--base-url {base_url} is no http URL", hint="http://localhost:8000/v1")
        if text.startswith("offline/"):
            raise UsageError(f"{text} is in this process: --base-url would not be used", hint="leave one of them out")
    return ModelSpec.parse(text, base_url=base_url, api_key_env=api_key_env, params=dict(params or {}))


def sampling(flags: LocalFlags) -> dict[str, Any]:
    """Every sampling parameter that was given, under its name in a request."""
    named = {"temperature": flags.temperature, "top_p": flags.top_p, "max_tokens": flags.max_tokens, "seed": flags.seed}
    params = {key: value for key, value in named.items() if value is not None}
    if flags.temperature is not None and not 0 <= flags.temperature <= 2:
        raise ValidationError(f"--temperature must be between 0 and 2, got {flags.temperature}")
    if flags.top_p is not None and not 0 < flags.top_p <= 1:
        raise ValidationError(f"--top-p must be above 0 and at most 1, got {flags.top_p}")
    if flags.max_tokens is not None and flags.max_tokens < 1:
        raise ValidationError(f"--max-tokens must be at least 1, got {flags.max_tokens}")
    for text in flags.param:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--param {text!r} is not key=value", hint="--param top_k=40")
        key = key.strip()
        if key in _NO_PARAMS:
            raise UsageError(f"{key} is no sampling parameter", hint=_NO_PARAMS[key])
        if key in params:
            raise UsageError(f"{key} is given twice", hint=f"leave out --param {key}=... or the other one")
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
        raise ValidationError(f"--batch-size must be at least 1, got {number}")
    return number, False


def parse_rows(text: str) -> list[int]:
    """Row indices from `3,7,10-20`."""
    found: dict[int, None] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if not match:
            raise UsageError(f"--rows {text!r}: {part.strip()!r} is no row or range", hint="--rows 3,7,10-20")
        low, high = int(match.group(1)), int(match.group(2) or match.group(1))
        if high < low:
            raise UsageError(f"--rows {text!r}: {part.strip()} runs backwards", hint=f"--rows {high}-{low}")
        found.update(dict.fromkeys(range(low, high + 1)))
    return sorted(found)


def parse_share(text: str) -> float:
    """A share from `10%` or `0.1`."""
    try:
        value = float(text.rstrip("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise UsageError(f"--sample {text!r} is no share", hint="--sample 10%") from None
    if not 0 < value <= 1:
        raise ValidationError(f"--sample must be above 0 and at most 100%, got {text}")
    return value


def generated_name(agent: str, dataset: str) -> str:
    """`<agent>-<dataset>-<time>`: tells runs apart in a listing."""
    tail = agent.rpartition(":")[2] if "://" not in agent else agent.partition("://")[2]
    stem = re.sub(r"[^A-Za-z0-9]+", "-", f"{Path(tail).stem}-{Path(dataset).stem}").strip("-") or "run"
    return f"{stem[:60]}-{utc_now():%Y%m%d-%H%M%S}-{utc_now().microsecond // 1000:03d}"


def check_name(name: str) -> None:
    if not RUN_NAME.match(name):
        raise ValidationError(
            f"--name {name!r} cannot name a run",
            hint="1 to 96 letters, digits, . _ and -, starting with a letter or digit",
        )


def key_for(spec: ModelSpec, environ: Mapping[str, str], given: str | None) -> str | None:
    """The key of this model: the one given, its variable's, or its provider's usual variable's."""
    if given:
        return given
    if spec.kind in ("offline", "replay"):
        return None
    if spec.api_key_env:
        key = environ.get(spec.api_key_env)
        if not key:
            raise ValidationError(f"{spec.api_key_env} is not set", hint=f"export {spec.api_key_env}=...")
        return key
    if spec.kind == "openai":
        return environ.get("OPENAI_API_KEY")
    from ...sdk.judge_model import key_variable

    return environ.get(key_variable(spec.name.partition("/")[0]))


def server_key(name: str | None, environ: Mapping[str, str]) -> str | None:
    """The rollout server's key, from the variable that `--server-key-env` names."""
    if name is None:
        return None
    key = environ.get(name)
    if not key:
        raise ValidationError(f"--server-key-env {name}: not set", hint=f"export {name}=...")
    if not key.isprintable():
        raise ValidationError(f"--server-key-env {name}: the key has a line break in it", hint=f"export {name}=...")
    return key


def declared_secrets(names: Sequence[str], environ: Mapping[str, str], *known: str | None) -> list[str]:
    """The values to be taken out of everything written: of the named variables, and keys in use."""
    if not all(names):
        raise UsageError("--secret needs the name of a variable", hint="--secret SERVICE_TOKEN")
    missing = [name for name in names if not environ.get(name)]
    if missing:
        raise ValidationError(f"secrets are not set here: {', '.join(missing)}", hint=f"export {missing[0]}=...")
    return [environ[name] for name in names] + [value for value in known if value]


def _timeouts(flags: LocalFlags) -> Timeouts:
    given = {
        "agent_s": flags.agent_timeout,
        "score_s": flags.score_timeout,
        "model_s": flags.model_timeout,
        "tool_s": flags.tool_timeout,
        "run_s": flags.run_timeout,
    }
    return Timeouts(**{key: value for key, value in given.items() if value is not None})


def _retry(flags: LocalFlags) -> Retry:
    given: dict[str, Any] = {}
    if flags.max_retries is not None:
        given["max_attempts"] = flags.max_retries + 1
    if flags.breaker_after is not None:
        given["breaker_after"] = flags.breaker_after
    return Retry(**given)


def _price(text: str) -> tuple[float, float]:
    try:
        prompt, completion = (float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"--price {text!r} is not two numbers", hint="--price 0.25,2 (USD per million tokens)"
        ) from None
    if not (0 <= prompt < math.inf and 0 <= completion < math.inf):
        raise ValidationError(f"--price must be two finite numbers from 0 up, got {text}")
    return prompt, completion


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
