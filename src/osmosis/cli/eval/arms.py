"""Arms of `eval decide`: names and values as a person writes them, as keys of a config and of the plan."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError as PydanticError

from osmosis.base.jsonable import JsonObject, parse_or_text
from osmosis.cli.eval.plan import plan_path
from osmosis.errors import NotFound, UsageError
from osmosis.metrics.decide import parse_question
from osmosis.records.config.check import find_unread_keys, list_issues
from osmosis.records.config.run_config import EvalConfig
from osmosis.records.run.study import Question
from osmosis.sdk.messages import FOLDER, SUFFIX, prompt_variable

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
