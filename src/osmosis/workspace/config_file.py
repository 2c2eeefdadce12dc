"""TOML configs: every problem is reported as `file:line: key: what (fix: ...)` before anything is raised."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError as PydanticError

from osmosis.base.files import tomllib
from osmosis.base.paths import folder_inside
from osmosis.errors import NotFound, ValidationError
from osmosis.records.base import Problem, Severity, describe_fields
from osmosis.records.config.benchmark import BenchmarkConfig
from osmosis.records.config.check import CONFIGS, ConfigIssue, check_config, find_unread_keys, list_issues
from osmosis.records.config.run_config import EvalConfig, TrainingConfig, list_environment_tables
from osmosis.workspace.layout import CONFIG_KINDS, ConfigKind, Workspace

_AT = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)\Z")
UNREAD = "unread-key"
_COMMANDS = {"eval": "osmosis eval submit", "training": "osmosis train submit", "optimize": "osmosis optimize"}
# Which variable a provider of LiteLLM-style names reads its key from.
_PROVIDERS = ("openai", "anthropic", "gemini", "xai", "openrouter", "cerebras", "mistral", "groq", "deepseek")
PROVIDER_KEYS = {name: f"{name.upper()}_API_KEY" for name in _PROVIDERS}
Positions = dict[tuple[str, ...], int]
_KEY = re.compile(r"[ \t]*(?:([A-Za-z0-9_-]+)|\"((?:[^\"\\\n]|\\.)*)\"|'([^'\n]*)')[ \t]*")
_BLANK = re.compile(r"(?:[ \t\r\n\ufeff]|#[^\n]*)+")
_STRINGS = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*', re.DOTALL)


@dataclass(slots=True)
class ConfigFile:
    kind: ConfigKind
    path: Path
    shown: str
    text: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    lines: Positions = field(default_factory=dict)

    def where(self, key: str) -> str:
        parts = tuple(key.split("."))
        matches = (self.lines.get(parts[:count]) for count in range(len(parts), 0, -1))
        return f"{self.shown}:{next(filter(None, matches), 1)}"


def load_eval_config(path: Path, root: Path, *, to_run: bool = False) -> tuple[EvalConfig, list[Problem]]:
    config, warnings = load_config(path, root, "eval", to_run=to_run)
    return cast(EvalConfig, config), warnings


def load_config(
    path: Path, root: Path, kind: ConfigKind, *, to_run: bool = False
) -> tuple[EvalConfig | TrainingConfig, list[Problem]]:
    """Load a config of either kind. With `to_run` unknown keys are errors, as on the platform."""
    workspace = Workspace(root)
    file = locate(path, workspace, kind)
    config, problems = check_file(file, workspace)
    errors = [p for p in problems if p.severity == "error" or (to_run and p.code == UNREAD)]
    if config is None or errors:
        raise config_error(file, errors)
    return config, [p for p in problems if p.severity != "error"]


def check_benchmark(file: ConfigFile) -> tuple[BenchmarkConfig | None, list[Problem]]:
    if unreadable := read(file):
        return None, unreadable
    try:
        config = BenchmarkConfig.model_validate(file.data, strict=True)
        config.evaluations()
    except PydanticError as error:
        return None, [_problem(file, issue) for issue in list_issues(BenchmarkConfig, error)]
    return config, []


def locate(path: Path, workspace: Workspace, kind: ConfigKind) -> ConfigFile:
    home = workspace.root / "configs" / kind
    real = workspace.root / path  # an absolute path stays as it is
    name = workspace.relative(real)
    if real.suffix != ".toml":
        problem = f"{name} is not a .toml file" if real.suffix or real.exists() else f"there is no config or set {name}"
        near = get_close_matches(real.name, [path.stem for _, path in workspace.configs(kind)], 1, 0.5)
        hint = f"did you mean {near[0]}?" if near else f"configs of this kind are configs/{kind}/*.toml"
        raise ValidationError(problem, hint=hint)
    resolved = real.resolve()
    if not resolved.is_relative_to(home.resolve()):
        configs = (workspace.root / "configs").resolve()
        other = next((k for k in CONFIG_KINDS if resolved.is_relative_to((configs / k).resolve())), "")
        hint = f"this is another kind of config: {_COMMANDS[other]} {name}" if other else f"move it to configs/{kind}/"
        raise ValidationError(f"{name} must live under configs/{kind}/", hint=hint)
    if not real.is_file():
        names = [p.name for _, p in workspace.configs(kind)]
        near = get_close_matches(real.name, names, 1, 0.5)
        if near:
            hint = f"did you mean configs/{kind}/{near[0]}?"
        else:
            hint = f"there are: {', '.join(names)}" if names else "osmosis rollout new NAME creates one"
        raise NotFound(f"no such config: {name}", hint=hint)
    return ConfigFile(kind, real, name)


def read(file: ConfigFile) -> list[Problem]:
    try:
        file.text = file.path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 text (byte {error.start})"
        return [Problem.error("not-utf8", problem, file.shown, "save the file as UTF-8")]
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        return [Problem.error("unreadable", problem, file.shown, f"ls -l {file.shown}")]
    try:
        file.data = tomllib.loads(file.text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        return [_syntax(file, error)]
    file.lines = find_lines(file.text)
    return []


def _syntax(file: ConfigFile, error: Exception) -> Problem:
    message = str(error) or "nested too deeply"
    position = _AT.search(message)
    last = file.text.count("\n") + 1
    line = int(position[1]) if position and position[1] else last
    column = f":{position[2]}" if position and position[2] else ""
    problem = _AT.sub("", message)
    twice = re.match(r"(?i)cannot (?:overwrite a value|declare .* twice|mutate immutable namespace.*)", problem)
    rows = file.text.split("\n")
    row = rows[line - 1].strip() if 0 < line <= len(rows) else ""
    where = f"{file.shown}:{line}{column}"
    if twice:
        thing = "table" if row.startswith("[") else "key"
        problem = f"not valid TOML: duplicate {thing}"
        return Problem.error("toml-syntax", problem, where, f"keep one of them: {row[:60]}")
    problem = f"not valid TOML: {problem[:1].lower()}{problem[1:]}"
    return Problem.error("toml-syntax", problem, where, _syntax_fix(row))


def _syntax_fix(row: str) -> str:
    match = re.match(r"^([A-Za-z0-9_.-]+)\s*=\s*([^\"'\[{#]+?)\s*(#.*)?\Z", row)
    if match and re.match(r"^[A-Za-z_./-]", match[2]) and match[2] not in ("true", "false", "inf", "nan"):
        literal = match[2].lower()
        quoted = f'put text in quotes: {match[1]} = "{match[2]}"'
        return f"{match[1]} = {literal}" if literal in ("true", "false") else quoted
    if row.count('"') % 2 and row.count('"""') == 0:
        return f'close the quote: {row[:60]}"'
    if re.match(r"^[A-Za-z0-9_.-]+\s*:", row):
        return "put = between key and value"
    return f"correct this line: {row[:60]}" if row else "close the open bracket or quote"


def check_file(file: ConfigFile, workspace: Workspace) -> tuple[EvalConfig | TrainingConfig | None, list[Problem]]:
    if file.kind == "benchmark":
        return None, check_benchmark(file)[1]
    if unreadable := read(file):
        return None, unreadable
    config, issues = check_config(file.kind, file.data)
    problems = [_problem(file, issue) for issue in issues]
    problems += _paths(file, workspace)
    if config is not None:
        problems += _warnings(file, config)
    problems.sort(key=lambda p: (p.severity != "error", _line(p)))
    return config, problems


def _problem(file: ConfigFile, issue: ConfigIssue) -> Problem:
    where = f"{file.where(issue.key)}: {issue.key}"
    return Problem(code=issue.code, what=issue.what, where=where, fix=issue.fix, near=issue.near)


def _line(problem: Problem) -> int:
    line = re.search(r":(\d+)", problem.where)
    return int(line[1]) if line else 0


def _paths(file: ConfigFile, workspace: Workspace) -> Iterable[Problem]:
    tables = list_environment_tables(file.data)
    is_pinned = tables["experiment"].get("commit_sha") or tables["experiment"].get("branch")
    severity: Severity = "warning" if is_pinned else "error"
    for name, table in tables.items():
        yield from _rollout_paths(file, workspace, name, table, severity)
    program = file.data.get("program")
    for key, name in program.items() if isinstance(program, dict) else ():
        try:
            if key in ("folder", "home") and isinstance(name, str):
                folder_inside(workspace.root, name, f"program.{key}")
        except (NotFound, ValidationError) as error:
            where, fix = f"{file.where(f'program.{key}')}: program.{key}", error.hint or ""
            yield Problem(code="no-folder", what=error.message, where=where, fix=fix, severity=severity)


def _rollout_paths(
    file: ConfigFile, workspace: Workspace, name: str, table: dict[str, object], severity: Severity
) -> Iterable[Problem]:
    key = "grader" if "command" in table else "entrypoint"
    rollout, entrypoint = table.get("rollout"), table.get(key, "main.py" if key == "grader" else None)
    if not isinstance(rollout, str) or rollout in ("", ".", "..") or re.search(r"[/\\\0]", rollout):
        return
    folder = workspace.root / "rollouts" / rollout
    if not folder.is_dir():
        near = get_close_matches(rollout, [r.name for r in workspace.rollouts()], 1, 0.5)
        fix = f'did you mean "{near[0]}"?' if near else f"osmosis rollout new {rollout}"
        where = f"{file.where(f'{name}.rollout')}: {name}.rollout"
        problem = f"there is no folder rollouts/{rollout}/"
        yield Problem(code="no-rollout", what=problem, where=where, fix=fix, severity=severity)
        return
    if not isinstance(entrypoint, str) or not entrypoint or not _inside(entrypoint):
        return
    if not (folder / entrypoint).is_file():
        problems = sorted(p.name for p in folder.glob("*.py"))
        near = get_close_matches(entrypoint, problems, 1, 0.4) or problems[:1]
        fix = f'did you mean "{near[0]}"?' if near else f"create rollouts/{rollout}/{entrypoint}"
        where = f"{file.where(f'{name}.{key}')}: {name}.{key}"
        problem = f"there is no file rollouts/{rollout}/{entrypoint}"
        yield Problem(code="no-entrypoint", what=problem, where=where, fix=fix, severity=severity)
    elif not (folder / entrypoint).resolve().is_relative_to(folder.resolve()):
        where = f"{file.where(f'{name}.{key}')}: {name}.{key}"
        problem = f"the {key} is a link to a file outside the rollout directory"
        yield Problem.error("entrypoint-outside", problem, where, "copy the file into the rollout directory")


def _inside(value: str) -> bool:
    return not value.startswith("/") and ".." not in value.replace("\\", "/").split("/") and "\0" not in value


def _warnings(file: ConfigFile, config: EvalConfig | TrainingConfig) -> Iterable[Problem]:
    for issue in find_unread_keys(config):
        sent = "sent as it is, but this version does not use it"
        update = {"code": UNREAD, "what": f"{issue.what}: {sent}", "severity": "warning"}
        yield _problem(file, issue).model_copy(update=update)
    if isinstance(config, EvalConfig):
        needed = PROVIDER_KEYS.get(config.experiment.model_path.partition("/")[0])
        if needed and not config.advanced.base_url and needed not in {*config.secret_names(), *config.env}:
            problem = f"{config.experiment.model_path} usually needs {needed}, which is not in [secrets].required"
            where = f"{file.where('secrets.required')}: secrets.required"
            fix = f'required = ["{needed}"], then: osmosis secret set {needed}'
            yield Problem.warning("model-key", problem, where, fix)
        return
    calls = config.training.rollout_batch_size * config.training.n_samples_per_prompt
    if calls > 256:
        problem = f"{calls} rollouts at once (rollout_batch_size x n_samples_per_prompt) can time out on a small server"
        where = f"{file.where('training.rollout_batch_size')}: training.rollout_batch_size"
        fix = "lower rollout_batch_size, or make sure the policy server can handle that many calls"
        yield Problem.warning("many-calls", problem, where, fix)


def config_error(file: ConfigFile, problems: list[Problem]) -> ValidationError:
    count = f"{len(problems)} problems" if len(problems) != 1 else "1 problem"
    message = f"invalid {file.kind} config {file.shown}: {count}"
    return ValidationError(message, hint=f"osmosis check {file.shown}", issues=[to_issue(p) for p in problems])


def to_issue(problem: Problem) -> dict[str, Any]:
    key = problem.where.partition(": ")[2]
    message = f"{problem.what} (fix: {problem.fix})" if problem.fix else problem.what
    issue = {"key": key, "message": message, "where": problem.where, "code": problem.code, "fix": problem.fix}
    if problem.near:
        issue["key_correction"] = problem.near
    return issue


def find_lines(text: str) -> Positions:
    """Map the path of each key and table to its 1-based line. Entries of `[[x]]` are `("x", "0")`, `("x", "1")`, ..."""
    lines: Positions = {}
    counts: dict[tuple[str, ...], int] = {}
    prefix: tuple[str, ...] = ()
    at, size = 0, len(text)
    line, scanned = 1, 0
    while at < size:
        if blank := _BLANK.match(text, at):
            at = blank.end()
        if at >= size:
            break
        line += text.count("\n", scanned, at)
        scanned = at
        if text[at] == "[":
            double = text.startswith("[[", at)
            keys, after = _keys(text, at + (2 if double else 1))
            if keys and double:
                counts[keys] = counts.get(keys, -1) + 1
                prefix = (*keys, str(counts[keys]))
            else:
                prefix = keys or prefix
            lines.setdefault(prefix, line)
            lines.setdefault(keys, line)
            at = _line_end(text, after)
            continue
        keys, after = _keys(text, at)
        if not keys or not text.startswith("=", after):
            at = _line_end(text, at)
            continue
        for depth in range(1, len(keys) + 1):
            lines.setdefault((*prefix, *keys[:depth]), line)
        at = _value_end(text, after + 1)
    return lines


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end + 1


def _keys(text: str, at: int) -> tuple[tuple[str, ...], int]:
    keys: list[str] = []
    while match := _KEY.match(text, at):
        keys.append(next(g for g in match.groups() if g is not None))
        at = match.end()
        if not text.startswith(".", at):
            break
        at += 1
    return tuple(keys), at


def _value_end(text: str, at: int) -> int:
    depth = 0
    while at < len(text):
        char = text[at]
        if char in "\"'#":
            match = _STRINGS.match(text, at)
            at = match.end() if match else at + 1
            continue
        if char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        elif char == "\n" and depth <= 0:
            return at + 1
        at += 1
    return at


def schema_files() -> dict[str, str]:
    return {f"configs/{kind}.schema.json": schema_text(kind) for kind in (*CONFIGS, "benchmark")}


def schema_text(kind: str) -> str:
    schema = describe_fields(BenchmarkConfig if kind == "benchmark" else CONFIGS[kind]).model_json_schema()
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
