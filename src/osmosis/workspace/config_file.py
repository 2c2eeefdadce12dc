"""TOML configs of a workspace: read, checked whole, reported as `file:line: key: what (fix: ...)`, edited in place.

Every problem of a file is found before anything is raised. What the keys mean is `records.config`; here are files,
lines and the rules about where a config and its rollout lie. Reading never changes a file.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from osmosis.errors import NotFound, ValidationError
from osmosis.records.config import EvalConfig, TrainingConfig
from osmosis.records.config_check import ConfigIssue, check_config, unread
from osmosis.records.problem import Problem

from .layout import CONFIG_KINDS, ConfigKind, Workspace
from .tomlpos import Positions, line_of, positions

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same parser under its older name
    import tomli as tomllib

_AT = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")
UNREAD = "unread-key"
_COMMANDS = {"eval": "osmosis eval submit", "training": "osmosis train submit"}
# Which variable a provider of LiteLLM-style names reads its key from.
PROVIDER_KEYS = {
    "openai": "OPENAI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "xai": "XAI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
    "cerebras": "CEREBRAS_API_KEY",
    "mistral": "MISTRAL_API_KEY",
    "groq": "GROQ_API_KEY",
    "deepseek": "DEEPSEEK_API_KEY",
}


@dataclass(slots=True)
class ConfigFile:
    """One TOML file as read: its text, its data, and where each key stands."""

    kind: ConfigKind
    path: Path
    shown: str
    """Path as it is printed."""
    text: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    lines: Positions = field(default_factory=dict)

    def where(self, key: str) -> str:
        """`file:line` of a key."""
        return f"{self.shown}:{line_of(self.lines, key) or 1}"


def load_eval_config(path: Path, root: Path, *, to_run: bool = False) -> tuple[EvalConfig, list[Problem]]:
    """An eval config and the warnings about it. Raises ValidationError with every problem in `issues`."""
    config, warnings = load_config(path, root, "eval", to_run=to_run)
    return cast(EvalConfig, config), warnings


def load_training_config(path: Path, root: Path) -> tuple[TrainingConfig, list[Problem]]:
    """A training config and the warnings about it. Raises ValidationError with every problem in `issues`."""
    config, warnings = load_config(path, root, "training")
    return cast(TrainingConfig, config), warnings


def load_config(
    path: Path, root: Path, kind: ConfigKind, *, to_run: bool = False
) -> tuple[EvalConfig | TrainingConfig, list[Problem]]:
    """Like the two above, for a kind known at run time. With `to_run` the config runs here: what nothing reads is an
    error then, as it is on the platform."""
    workspace = Workspace(root)
    file = locate(path, workspace, kind)
    config, problems = check_file(file, workspace)
    errors = [p for p in problems if p.severity == "error" or (to_run and p.code == UNREAD)]
    if config is None or errors:
        raise refused(file, errors)
    return config, [p for p in problems if p.severity != "error"]


def locate(path: Path, workspace: Workspace, kind: ConfigKind) -> ConfigFile:
    """The file, after the rules about where a config lies. Raises ValidationError or NotFound."""
    home = workspace.root / "configs" / kind
    real = workspace.root / path  # an absolute path stays as it is
    shown = workspace.relative(real)
    if real.suffix != ".toml":
        raise ValidationError(f"{shown} is not a .toml file", hint=f"configs of this kind are configs/{kind}/*.toml")
    resolved = real.resolve()
    if not resolved.is_relative_to(home.resolve()):
        other = next(
            (k for k in CONFIG_KINDS if resolved.is_relative_to((workspace.root / "configs" / k).resolve())), ""
        )
        hint = f"this is another kind of config: {_COMMANDS[other]} {shown}" if other else f"move it to configs/{kind}/"
        raise ValidationError(f"{shown} must live under configs/{kind}/", hint=hint)
    if not real.is_file():
        names = [p.name for _, p in workspace.configs(kind)]
        near = get_close_matches(real.name, names, 1, 0.5)
        if near:
            hint = f"did you mean configs/{kind}/{near[0]}?"
        else:
            hint = f"there are: {', '.join(names)}" if names else "osmosis rollout new NAME creates one"
        raise NotFound(f"no such config: {shown}", hint=hint)
    return ConfigFile(kind, real, shown)


def read(file: ConfigFile) -> list[Problem]:
    """Fill in text, data and lines. The one problem of a file that is not TOML, or none."""
    try:
        file.text = file.path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        what = f"is not UTF-8 text (byte {error.start})"
        return [Problem(code="not-utf8", what=what, where=file.shown, fix="save the file as UTF-8")]
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        return [Problem(code="unreadable", what=what, where=file.shown, fix=f"ls -l {file.shown}")]
    try:
        file.data = tomllib.loads(file.text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        return [_syntax(file, error)]
    file.lines = positions(file.text)
    return []


def _syntax(file: ConfigFile, error: Exception) -> Problem:
    said = str(error) or "nested too deeply"
    place = _AT.search(said)
    last = file.text.count("\n") + 1
    line = int(place[1]) if place and place[1] else last
    column = f":{place[2]}" if place and place[2] else ""
    what = _AT.sub("", said)
    twice = re.match(r"cannot (?:overwrite a value|declare .* twice|mutate immutable namespace.*)", what, re.IGNORECASE)
    rows = file.text.split("\n")
    row = rows[line - 1].strip() if 0 < line <= len(rows) else ""
    where = f"{file.shown}:{line}{column}"
    if twice:
        thing = "table" if row.startswith("[") else "key"
        what = f"not valid TOML: duplicate {thing}"
        return Problem(code="toml-syntax", what=what, where=where, fix=f"keep one of them: {row[:60]}")
    what = f"not valid TOML: {what[:1].lower()}{what[1:]}"
    return Problem(code="toml-syntax", what=what, where=where, fix=_syntax_fix(row))


def _syntax_fix(row: str) -> str:
    found = re.match(r"^([A-Za-z0-9_.-]+)\s*=\s*([^\"'\[{#]+?)\s*(#.*)?$", row)
    if found and re.match(r"^[A-Za-z_./-]", found[2]) and found[2] not in ("true", "false", "inf", "nan"):
        literal = found[2].lower()
        return (
            f"{found[1]} = {literal}"
            if literal in ("true", "false")
            else f'put text in quotes: {found[1]} = "{found[2]}"'
        )
    if row.count('"') % 2 and row.count('"""') == 0:
        return f'close the quote: {row[:60]}"'
    if re.match(r"^[A-Za-z0-9_.-]+\s*:", row):
        return "put = between key and value"
    return f"correct this line: {row[:60]}" if row else "close the open bracket or quote"


def check_file(file: ConfigFile, workspace: Workspace) -> tuple[EvalConfig | TrainingConfig | None, list[Problem]]:
    """Everything wrong with one file, and the config when nothing is (warnings may remain)."""
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
    return Problem(
        code=issue.code, what=issue.what, where=f"{file.where(issue.key)}: {issue.key}", fix=issue.fix, near=issue.near
    )


def _line(problem: Problem) -> int:
    found = re.search(r":(\d+)", problem.where)
    return int(found[1]) if found else 0


def _paths(file: ConfigFile, workspace: Workspace) -> Iterable[Problem]:
    """The rollout and its entrypoint exist here, unless the code is pinned elsewhere."""
    experiment = file.data.get("experiment")
    if not isinstance(experiment, dict):
        return
    rollout, entrypoint = experiment.get("rollout"), experiment.get("entrypoint")
    if not _segment(rollout):
        return
    severity = "warning" if experiment.get("commit_sha") or experiment.get("branch") else "error"
    folder = workspace.root / "rollouts" / cast(str, rollout)
    if not folder.is_dir():
        names = [r.name for r in workspace.rollouts()]
        near = get_close_matches(cast(str, rollout), names, 1, 0.5)
        fix = f'did you mean "{near[0]}"?' if near else f"osmosis rollout new {rollout}"
        where = f"{file.where('experiment.rollout')}: experiment.rollout"
        what = f"there is no folder rollouts/{rollout}/"
        yield Problem(code="no-rollout", what=what, where=where, fix=fix, severity=severity)
        return
    if not isinstance(entrypoint, str) or not entrypoint or not _inside(entrypoint):
        return
    if not (folder / entrypoint).is_file():
        found = sorted(p.name for p in folder.glob("*.py"))
        near = get_close_matches(entrypoint, found, 1, 0.4) or found[:1]
        fix = f'did you mean "{near[0]}"?' if near else f"create rollouts/{rollout}/{entrypoint}"
        where = f"{file.where('experiment.entrypoint')}: experiment.entrypoint"
        what = f"there is no file rollouts/{rollout}/{entrypoint}"
        yield Problem(code="no-entrypoint", what=what, where=where, fix=fix, severity=severity)
    elif not (folder / entrypoint).resolve().is_relative_to(folder.resolve()):
        where = f"{file.where('experiment.entrypoint')}: experiment.entrypoint"
        what = "the entrypoint is a link to a file outside the rollout directory"
        yield Problem(code="entrypoint-outside", what=what, where=where, fix="copy the file into the rollout directory")


def _segment(value: object) -> bool:
    return isinstance(value, str) and bool(value) and value not in (".", "..") and not re.search(r"[/\\\0]", value)


def _inside(value: str) -> bool:
    return not value.startswith("/") and ".." not in value.replace("\\", "/").split("/") and "\0" not in value


def _warnings(file: ConfigFile, config: EvalConfig | TrainingConfig) -> Iterable[Problem]:
    for issue in unread(config):
        sent = "sent as it is, but this version does not use it"
        yield _problem(file, issue).model_copy(
            update={"code": UNREAD, "what": f"{issue.what}: {sent}", "severity": "warning"}
        )
    if isinstance(config, EvalConfig):
        provider = config.experiment.model_path.partition("/")[0]
        needed = PROVIDER_KEYS.get(provider)
        if needed and not config.advanced.base_url and needed not in {*config.secret_names(), *config.env}:
            yield Problem(
                code="model-key",
                what=f"{config.experiment.model_path} usually needs {needed}, which is not in [secrets].required",
                where=f"{file.where('secrets.required')}: secrets.required",
                fix=f'required = ["{needed}"], then: osmosis secret set {needed}',
                severity="warning",
            )
        return
    calls = config.training.rollout_batch_size * config.training.n_samples_per_prompt
    if calls > 256:
        yield Problem(
            code="many-calls",
            what=f"{calls} rollouts at once (rollout_batch_size x n_samples_per_prompt) can time out on a small server",
            where=f"{file.where('training.rollout_batch_size')}: training.rollout_batch_size",
            fix="lower rollout_batch_size, or make sure the policy server can handle that many calls",
            severity="warning",
        )


def refused(file: ConfigFile, problems: list[Problem]) -> ValidationError:
    """One error with all problems of a file."""
    count = f"{len(problems)} problems" if len(problems) != 1 else "1 problem"
    return ValidationError(
        f"invalid {file.kind} config {file.shown}: {count}",
        hint=f"osmosis config check {file.shown}",
        issues=[issue_of(p) for p in problems],
    )


def issue_of(problem: Problem) -> dict[str, Any]:
    """A problem in the shape of the platform's `issues`."""
    key = problem.where.partition(": ")[2]
    message = f"{problem.what} (fix: {problem.fix})" if problem.fix else problem.what
    issue = {"key": key, "message": message, "where": problem.where, "code": problem.code, "fix": problem.fix}
    if problem.near:
        issue["key_correction"] = problem.near
    return issue
