import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError as PydanticError
from pydantic_core import ErrorDetails

from osmosis.base.jsonable import JsonObject, parse_or_text
from osmosis.base.net import is_http
from osmosis.cli.eval.flags import BY_NAME, RunFlags
from osmosis.errors import NotFound, UsageError, ValidationError
from osmosis.local.run_options import check_name, generated_name, parse_model, write_foreign_dataset
from osmosis.metrics.decide import parse_question
from osmosis.metrics.score_values import reducer
from osmosis.records.base import describe_fields
from osmosis.records.config.check import find_unread_keys, list_issues
from osmosis.records.config.run_config import EvalConfig
from osmosis.records.run.plan import AUTO_CONCURRENCY, NO_ENDPOINT, NO_MODEL, EvalPlan, ModelSpec, choose_endpoint
from osmosis.records.run.study import Question
from osmosis.records.sandbox import SandboxKind
from osmosis.sdk.foreign import is_foreign
from osmosis.sdk.messages import FOLDER, SUFFIX, prompt_variable

_IDENTITY = ("name", "agent", "model", "dataset", "dataset_hash", "score_fns", "provenance", "max_tokens_total")
SETTABLE = tuple(name for name in EvalPlan.model_fields if name not in (*_IDENTITY, "branch"))
_NO_PARAMS = {
    "messages": "the agent brings them",
    "tools": "the agent brings them",
    "model": "use --model",
    "n": "use --n: each attempt is a call of its own",
    "stream": "answers are read whole",
}


def name_scorers(functions: Sequence[str], rubrics: Sequence[str]) -> list[str]:
    return [*functions, *(f"rubric:{rubric.removeprefix('rubric:')}" for rubric in rubrics)]


def build_plan(flags: RunFlags, *, base_dir: Path, runs_dir: Path) -> EvalPlan:
    agent = _agent(flags)
    brings_rows = flags.dataset is None and is_foreign(agent)
    if flags.dataset is None and not brings_rows:
        raise UsageError("missing option -d/--dataset", hint="-d data.jsonl")
    check_together(flags)
    name = generated_name(agent, str(flags.dataset or "")) if flags.name is None else flags.name
    dataset = str(write_foreign_dataset(agent, base_dir, runs_dir) if brings_rows else flags.dataset)
    name, model = check_name(name, "--name"), _model(flags, runs_dir)
    scores = name_scorers(flags.eval_fn, flags.rubric)
    plan = EvalPlan(name=name, agent=agent, model=model, dataset=dataset, score_fns=scores, **AUTO_CONCURRENCY)
    return apply_settings(plan, flags.settings, flags.set)


def config_plan(config: EvalConfig, flags: RunFlags, dataset: Path) -> EvalPlan:
    check_together(flags)
    name = generated_name(config.experiment.rollout, str(dataset)) if flags.name is None else flags.name
    name, model = check_name(name, "--name"), config_model(config, flags)
    plan = EvalPlan.from_config(config, name=name, dataset=str(dataset), model=model)
    if "batch_size" not in config.evaluation.model_fields_set:
        plan = plan.model_copy(update=AUTO_CONCURRENCY)
    return apply_settings(plan, flags.settings, flags.set)


def config_model(config: EvalConfig, flags: RunFlags) -> ModelSpec:
    spec = ModelSpec.from_config(config)
    if flags.model is not None or flags.base_url is not None:
        base_url, key = choose_endpoint(config, flags.model, flags.base_url)
        name = flags.model if flags.model is not None else config.experiment.model_path
        key = flags.api_key_env or key
        spec = parse_model(name, base_url=base_url, api_key_env=key, params=spec.params, option="--base-url")
    elif flags.api_key_env:
        spec.api_key_env = flags.api_key_env
    spec.params = {**spec.params, **sampling(flags.settings, flags.param)}
    return spec


def apply_settings(plan: EvalPlan, settings: Mapping[str, Any], assignments: Sequence[str] = ()) -> EvalPlan:
    """Return the plan with flags and `--set KEY=VALUE` written into it; raise UsageError that names the wrong one."""
    data: dict[str, Any] = plan.to_dict()
    labels: dict[str, str] = {}
    for label, path, value in [*_flag_values(plan, settings), *_assigned(assignments)]:
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{label} must be a finite number, got {value}")
        table = data
        *tables, name = path.split(".")
        for key in tables:
            table = table.setdefault(key, {})
        table[name] = value
        labels[path] = label
    try:
        changed = EvalPlan.model_validate(data)
    except PydanticError as error:
        first = error.errors()[0]
        label = labels.get(".".join(map(str, first["loc"])), "--set")
        raise UsageError(_explain(label, first), hint="see osmosis eval --help") from error
    _check_plan(changed, labels)
    return changed


def _flag_values(plan: EvalPlan, settings: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    attempts = settings.get("n") or plan.attempts
    for name, value in settings.items():
        flag = BY_NAME[name]
        label = flag.label
        if name == "batch_size":
            value, adaptive = parse_concurrency(value)
            yield label, "adaptive", adaptive
        elif name == "max_retries":
            yield label, "retry.max_attempts", _attempts(label, value)
            continue
        elif name == "score_range":
            try:
                low, high = (float(part) for part in value.split(","))
            except ValueError:
                low = high = math.nan
            if not (low < high and math.isfinite(high - low)):
                raise UsageError(f"--score-range {value!r} is not MIN,MAX", hint="--score-range 0,5")
            value = dict.fromkeys([*plan.score_fns, "reward"], (low, high))
        elif name == "seed":
            yield label, "model.seed", value
            yield label, "model.params.seed", value
        elif name == "reduce":
            value = parse_reducers(value, attempts)
        elif name == "group_by":
            value = list(dict.fromkeys(value))
        elif name in _READERS:
            value = _READERS[name](value)
        yield label, flag.path, value


def _assigned(assignments: Sequence[str]) -> Iterator[tuple[str, str, Any]]:
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text!r} is not KEY=VALUE", hint="--set limits.cost=5; all: --set help")
        label, path = f"--set {key.strip()}", plan_path(key.strip())
        parsed = parse_or_text(value)
        if path == "retry.max_retries":
            path, parsed = "retry.max_attempts", _attempts(label, parsed)
        yield label, path, parsed


def _attempts(label: str, retries: object) -> int:
    if not isinstance(retries, int) or retries < 0:
        raise UsageError(f"{label} must be at least 0, got {retries}")
    return retries + 1


def _explain(label: str, error: ErrorDetails) -> str:
    kind, bounds, value = error["type"], error.get("ctx", {}), error["input"]
    if kind == "literal_error":
        return f"{label} {value} is not one of {', '.join(get_args(SandboxKind))}"
    for key, words in (("gt", "above"), ("ge", "at least")):
        if key in bounds:
            return f"{label} must be {words} {bounds[key]:g}, got {value}"
    return f"{label}: {error['msg']}, got {value}"


def plan_path(key: str) -> str:
    table, _, name = key.rpartition(".")
    fields = EvalPlan.model_fields
    if table in SETTABLE and hasattr(fields[table].annotation, "model_fields"):
        inner: Any = fields[table].annotation
        names = [field for field in inner.model_fields if field == name] or [
            field for field in inner.model_fields if name and name in field.split("_")
        ]
        if key == "retry.max_retries":
            return key
        if len(names) == 1:
            return f"{table}.{names[0]}"
        options = ", ".join(f"{table}.{field}" for field in inner.model_fields)
        raise UsageError(f"--set {key}: there is no such option", hint=f"one of: {options}")
    if not table and name in SETTABLE and not hasattr(fields[name].annotation, "model_fields"):
        return name
    raise UsageError(f"--set {key}: there is no such option", hint=f"one of: {', '.join(SETTABLE)}")


def list_settings() -> list[JsonObject]:
    rows: list[JsonObject] = []
    for name, field in describe_fields(EvalPlan).model_fields.items():
        inner: Any = field.annotation
        if name not in SETTABLE:
            continue
        if hasattr(inner, "model_fields"):
            for key, value in inner.model_fields.items():
                rows.append({"key": f"{name}.{key}", "default": value.get_default(), "about": value.description or ""})
        else:
            default = field.get_default(call_default_factory=True)
            rows.append({"key": name, "default": default, "about": field.description or ""})
    return rows


def _check_plan(plan: EvalPlan, labels: Mapping[str, str]) -> None:
    budget, sandbox, scores = plan.budget, plan.sandbox, [*plan.score_fns, "reward"]
    if plan.primary is not None and not any(plan.primary == s or plan.primary.startswith(f"{s}.") for s in scores):
        raise UsageError(f"--primary {plan.primary}: there is no such score", hint=f"one of: {', '.join(scores)}")
    if budget.max_cost_usd is not None and not 0 < budget.max_cost_usd < math.inf:
        raise UsageError(f"--max-cost must be above 0, got {budget.max_cost_usd:g}")
    if budget.max_total_tokens is not None and budget.max_total_tokens < 1:
        raise UsageError(f"--max-tokens-total must be at least 1, got {budget.max_total_tokens}")
    for k in plan.ks or [] if "ks" in labels else []:
        if not 1 <= k <= plan.attempts:
            hint = f"--n {max(k, 1)} --k {max(k, 1)}"
            raise UsageError(f"--k {k} is not between 1 and --n {plan.attempts}", hint=hint)
    if sandbox.kind == "container" and not sandbox.image:
        raise UsageError("--sandbox container needs --sandbox-image", hint="--sandbox-image python:3.12-slim")
    if sandbox.kind in ("bubblewrap", "none") and sandbox.image:
        raise UsageError(f"--sandbox {sandbox.kind} has no image; --sandbox-image would not be used")


def check_together(flags: RunFlags) -> None:
    settings = flags.settings
    row_flags = [f"--{name}" for name in ("limit", "sample", "offset") if settings.get(name) is not None]
    if settings.get("rows") is not None and row_flags:
        raise UsageError(f"--rows and {row_flags[0]} cannot be used together", hint="--rows 3,7,10-20 lists every row")
    if flags.replay is not None:
        for name in ("model", "base_url", "api_key_env"):
            if getattr(flags, name):
                raise UsageError(f"--replay answers from a journal; --{name.replace('_', '-')} would not be used")
        for name in ("cache", "price"):
            if settings.get(name):
                raise UsageError(f"--replay answers from a journal; --{name} would not be used")
    if flags.server_key_env is not None and not flags.server:
        raise UsageError("--server-key-env needs --server")
    if flags.grader is not None and not flags.module:
        raise UsageError("--grader needs -m: it does not apply to MCP servers and rollout servers", hint="--eval-fn")
    if flags.pilot is not None and flags.pilot < 1:
        raise UsageError(f"--pilot must be at least 1, got {flags.pilot}")
    check_finite("--fail-under", flags.fail_under)


def check_finite(flag: str, value: float | None) -> None:
    if value is not None and not math.isfinite(value):
        raise UsageError(f"{flag} must be a finite number, got {value}")


def _agent(flags: RunFlags) -> str:
    names = [name for name in ("module", "mcp", "server", "agent_command") if getattr(flags, name)]
    if len(names) != 1:
        together = " and ".join(f"--{name.replace('_', '-')}" for name in names)
        message = f"{together} cannot be used together" if names else "no agent given"
        raise UsageError(message, hint="give one of -m module:agent, --mcp DIR|URL, --server URL, --agent-command")
    if flags.module:
        return flags.module
    if flags.agent_command:
        return f"command:{flags.agent_command}"
    if flags.mcp:
        if "://" in flags.mcp and not is_http(flags.mcp):
            raise UsageError(f"--mcp {flags.mcp} is not an http URL", hint="--mcp http://127.0.0.1:8000/mcp")
        return f"mcp:{flags.mcp if '/' in flags.mcp else './' + flags.mcp}"
    if not is_http(str(flags.server)):
        raise UsageError(f"--server {flags.server} is not an http URL", hint="--server http://127.0.0.1:9000")
    return f"server:{flags.server}"


def _model(flags: RunFlags, runs_dir: Path) -> ModelSpec:
    params = sampling(flags.settings, flags.param)
    if flags.replay is not None:
        journal = Path(flags.replay)
        path = journal if journal.exists() else runs_dir / flags.replay
        return ModelSpec(name=str(path), kind="replay", params=params)
    if not flags.model and (flags.module or "").startswith("a2a:"):
        return ModelSpec.parse(NO_MODEL)
    if not flags.model:
        raise UsageError("missing option --model", hint="--model to try without an account: offline/calculator")
    base_url = None if flags.base_url == NO_ENDPOINT else flags.base_url
    key = flags.api_key_env
    return parse_model(flags.model, base_url=base_url, api_key_env=key, params=params, option="--base-url")


def baseline_specs(flags: RunFlags) -> list[ModelSpec]:
    params = sampling(flags.settings, flags.param)
    specs = [parse_model(text, params=params) for text in flags.baseline]
    if flags.baseline_model is not None:
        url = flags.baseline_base_url
        specs.append(parse_model(flags.baseline_model, base_url=url, params=params, option="--baseline-base-url"))
    elif flags.baseline_base_url is not None:
        raise UsageError("--baseline-base-url needs --baseline-model", hint="or --baseline NAME@URL")
    return specs


def sampling(settings: Mapping[str, Any], texts: Sequence[str]) -> JsonObject:
    params: JsonObject = {
        name: settings[name] for name in ("temperature", "top_p", "max_tokens", "seed") if name in settings
    }
    if not 0 <= params.get("temperature", 0) <= 2:
        raise UsageError(f"--temperature must be between 0 and 2, got {params['temperature']}")
    if not 0 < params.get("top_p", 1) <= 1:
        raise UsageError(f"--top-p must be above 0 and at most 1, got {params['top_p']}")
    if params.get("max_tokens", 1) < 1:
        raise UsageError(f"--max-tokens must be at least 1, got {params['max_tokens']}")
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise UsageError(f"--param {text!r} is not key=value", hint="--param top_k=40")
        if key in _NO_PARAMS:
            raise UsageError(f"{key} is not a sampling parameter", hint=_NO_PARAMS[key])
        if key in params:
            raise UsageError(f"{key} is given twice", hint=f"keep either --param {key}=... or the other option")
        params[key] = parse_or_text(value)
    return params


def parse_reducers(names: Sequence[str], attempts: int) -> list[str]:
    try:
        return [reducer(name, attempts=attempts).name for name in dict.fromkeys(names)]
    except ValidationError as error:
        raise UsageError(f"--reduce: {error.message}", hint=error.hint) from error


def parse_concurrency(text: str) -> tuple[int, bool]:
    if text.strip().lower() == "auto":
        return AUTO_CONCURRENCY["concurrency"], True
    try:
        number = int(text)
    except ValueError:
        raise UsageError(f"--batch-size must be a number or auto, got {text!r}") from None
    if number < 1:
        raise UsageError(f"--batch-size must be at least 1, got {number}")
    return number, False


def parse_rows(text: str) -> list[int]:
    rows: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if not match:
            message = f"--rows {text!r}: {part.strip()!r} is not a row index or a range"
            raise UsageError(message, hint="--rows 3,7,10-20")
        low, high = int(match.group(1)), int(match.group(2) or match.group(1))
        if high < low:
            raise UsageError(f"--rows {text!r}: {part.strip()} is an empty range", hint=f"--rows {high}-{low}")
        rows.update(range(low, high + 1))
    return sorted(rows)


def parse_share(text: str) -> float:
    try:
        value = float(text.rstrip("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise UsageError(f"--sample {text!r} is not a percentage", hint="--sample 10%") from None
    if not 0 < value <= 1:
        raise UsageError(f"--sample must be above 0 and at most 100%, got {text}")
    return value


def parse_price(text: str) -> tuple[float, float]:
    try:
        prompt, completion = (float(part) for part in text.split(","))
    except ValueError:
        hint = "--price 0.25,2 (USD per million tokens)"
        raise UsageError(f"--price {text!r} is not two numbers", hint=hint) from None
    if not (0 <= prompt < math.inf and 0 <= completion < math.inf):
        raise UsageError(f"--price must be two finite numbers, 0 or greater, got {text}")
    return prompt, completion


_READERS = {"rows": parse_rows, "sample": parse_share, "price": parse_price}


_TABLES = ("env", "experiment", "evaluation", "advanced")
_SAMPLING = ("temperature", "top_p", "max_tokens", "seed")


def is_config_key(key: str) -> bool:
    return key.partition(".")[0] in _TABLES


def apply_changes(config: EvalConfig, assignments: Sequence[str]) -> EvalConfig:
    """Return the config with other values, such as `env.LEVEL=high`; raise UsageError that names the wrong one."""
    tables = config.model_dump(mode="json", exclude_unset=True)
    for text in assignments:
        path, equals, value = text.partition("=")
        *parents, name = path.strip().split(".")
        table = tables
        for key in parents:
            table = table.setdefault(key, {}) if isinstance(table, dict) else {}
        if not equals or not isinstance(table, dict):
            raise UsageError(f"--set {text!r} is not KEY=VALUE of a config", hint="--set env.LEVEL=high")
        table[name] = value if parents == ["env"] else parse_or_text(value)
    try:
        changed = EvalConfig.model_validate(tables)
        issues = find_unread_keys(changed)
    except PydanticError as error:
        issues = list_issues(EvalConfig, error)
    if issues:
        raise UsageError(f"{issues[0].key}: {issues[0].what}", hint=issues[0].fix)
    return changed


def read_arms(
    words: Sequence[str], arms: Sequence[str], config: EvalConfig, folder: Path
) -> tuple[list[Question], dict[str, JsonObject]]:
    """Return the questions, and the changes of each arm that they name. What the first values change is what every
    other arm differs from in one thing; names with equal changes are one arm."""
    questions = [parse_question(word) for word in words]
    base: JsonObject = {}
    values: dict[str, JsonObject] = {}
    compared: list[tuple[str, str]] = []
    for text in arms:
        name, equals, listed = text.partition("=")
        options = list(dict.fromkeys(value.strip() for value in listed.split(",") if value.strip()))
        if not equals or len(options) < 2:
            raise UsageError(f"--arm {text!r} is not NAME=VALUE,VALUE", hint="--arm tools=on,off")
        key = _find_key(name, options, config, folder)
        values |= {f"{name}={value}": {key: value} for value in options}
        compared += [(f"{name}={value}", f"{name}={options[0]}") for value in options[1:]]
        base[key] = options[0]
    questions = [
        question.model_copy(update={side: _find_label(getattr(question, side), values) for side in ("left", "right")})
        for question in questions
    ]
    models = list(dict.fromkeys(n for q in questions for n in (q.right, q.left) if n not in values))
    if models:
        if "model" in base:
            raise UsageError(f"{models[0]} is no value of an arm", hint=f"one of: {', '.join(values)}")
        base["model"] = models[0]
        values |= {model: {"model": model} for model in models}
    typed = {name for question in questions for name in (question.left, question.right)}
    questions += [Question(left=label, right=first) for label, first in compared if label not in typed]
    for question in questions:
        if {**base, **values[question.left]} == {**base, **values[question.right]}:
            raise UsageError(f"{question.text}: both sides are the same arm", hint="name two different ones")
    if not questions:
        raise UsageError("nothing is asked", hint='osmosis eval decide "A >= B - 0.02", or --arm tools=on,off')
    return questions, {label: {**base, **change} for label, change in values.items()}


def _find_label(name: str, values: Mapping[str, object]) -> str:
    labels = [label for label in values if name in (label, label.partition("=")[2])]
    if len(labels) > 1:
        raise UsageError(f"{name} is a value of several arms", hint=f"one of: {', '.join(labels)}")
    return labels[0] if labels else name


def _find_key(name: str, values: Sequence[str], config: EvalConfig, folder: Path) -> str:
    if name in ("model", "config") or is_config_key(name):
        return name
    if name in _SAMPLING:
        return f"advanced.params.{name}"
    if name == "prompt":
        texts = {path.stem: path for path in folder.rglob(f"{FOLDER}/*{SUFFIX}")}
        if missing := [value for value in values if value not in texts]:
            message = f"--arm prompt: there is no {FOLDER}/{missing[0]}{SUFFIX} in {folder.name}"
            raise NotFound(message, hint=f"there are: {', '.join(sorted(texts)) or 'none'}")
        return f"env.{prompt_variable(values[0])}"
    try:
        return plan_path(name)
    except UsageError:
        variable = re.sub(r"[^A-Za-z0-9]", "_", name).upper()
        read, files = re.compile(rf"[\"']{variable}[\"']"), folder.rglob("*.py")
        sources = (path.read_text("utf-8", "replace") for path in files if ".venv" not in path.parts)
        if variable in config.env or any(map(read.search, sources)):
            return f"env.{variable}"
    message = f"--arm {name}: no key of the config or --set, and no file of {folder.name} reads {variable}"
    raise UsageError(message, hint=f'read os.environ["{variable}"] there, or --arm env.NAME=, model=, prompt=')
