import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import yaml

from osmosis.base.jsonable import JsonObject
from osmosis.engine.rubrics.conversations import digest_of, is_number, read_text
from osmosis.engine.scoring import Range, run_score
from osmosis.engine.task import Deadline
from osmosis.errors import LoadError, OsmosisError, ValidationError
from osmosis.records.run.rollout import Rollout, Score
from osmosis.records.run.rows import Row
from osmosis.sdk.judge import Judge, make_question
from osmosis.sdk.judge_model import ModelInfo
from osmosis.sdk.messages import solution_of

SUPPORTED_VERSION = 1
MAX_DEPTH = 50
MAX_VALUES = 100_000
_ENTRY_KEYS = frozenset(
    {"id", "rubric", "model_info", "score_min", "score_max", "system_prompt", "original_input", "ground_truth"}
)
_ENTRY_EXTRAS = frozenset({"title", "description", "name", "tags"})
_DEFAULTED = ("model_info", "score_min", "score_max", "system_prompt", "original_input", "ground_truth")


@dataclass(frozen=True)
class RubricConfig:
    id: str
    rubric: str
    model_info: dict[str, object]
    score_min: float | None = None
    score_max: float | None = None
    system_prompt: str | None = None
    original_input: str | None = None
    ground_truth: str | None = None
    label: str = ""
    source_label: str = ""
    line: int = 0

    def judge_info(self) -> dict[str, object]:
        prompts = [p for p in (self.system_prompt, self.model_info.get("system_prompt")) if p]
        info = dict(self.model_info)
        if prompts:
            info["system_prompt"] = "\n\n".join(str(prompt).strip() for prompt in prompts)
        return info

    def digest(self) -> str:
        """Return a digest that changes when a judgement could: resume compares it. It contains no key."""
        info = {key: value for key, value in self.model_info.items() if key != "api_key"}
        data = [self.rubric, info, self.score_min, self.score_max, self.system_prompt, self.original_input]
        return digest_of([*data, self.ground_truth])


@dataclass(frozen=True)
class ParsedItem:
    label: str
    payload: dict[str, object]
    line: int
    problems: tuple[str, ...] = ()


@dataclass
class RubricSuite:
    path: Path
    version: int | None
    configs: dict[str, RubricConfig]
    warnings: list[str] = field(default_factory=list)

    def available_ids(self) -> list[str]:
        return list(self.configs)

    def get(self, rubric_id: str) -> RubricConfig:
        if rubric_id in self.configs:
            return self.configs[rubric_id]
        alike = [config for name, config in self.configs.items() if name.lower() == rubric_id.lower()]
        if len(alike) == 1:
            return alike[0]
        near = difflib.get_close_matches(rubric_id, self.configs, n=1)
        message = f"there is no rubric {rubric_id!r} in {self.path}; it has: {', '.join(self.configs)}"
        raise ValidationError(message, hint=f"--rubric {near[0]}" if near else None)


def load_rubric_suite(path: Path) -> RubricSuite:
    reading = _Reading(path)
    configs: dict[str, RubricConfig] = {}
    for entry, defaults in reading.entries():
        config = reading.config(entry, defaults)
        if config is not None:
            configs[config.id] = config
    if not reading.issues and not configs:
        reading.issue(1, "rubrics", "no rubric found: an entry needs `id`, `rubric` and `model_info`")
    reading.stop_if_wrong()
    return RubricSuite(path, reading.version, configs, reading.warnings)


def load_rubric_configs(path: Path) -> list[ParsedItem]:
    reading = _Reading(path)
    items: list[ParsedItem] = []
    for entry, defaults in reading.entries():
        issue_count = len(reading.issues)
        reading.config(entry, defaults)
        problems = tuple(issue["message"] for issue in reading.issues[issue_count:] if not issue.get("fatal"))
        reading.issues[issue_count:] = [issue for issue in reading.issues[issue_count:] if issue.get("fatal")]
        items.append(ParsedItem(entry.label, entry.value, entry.line, problems))
    reading.stop_if_wrong()
    return items


@dataclass(frozen=True)
class _Entry:
    label: str
    value: dict[str, object]
    line: int
    lines: dict[str, int]

    def line_of(self, key: str) -> int:
        return self.lines.get(key.partition(".")[0], self.line)


class _Reading:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.version: int | None = None
        self.issues: list[JsonObject] = []
        self.warnings: list[str] = []
        self._seen: dict[str, int] = {}
        self._versions: set[int | None] = set()
        try:
            self._nodes = list(yaml.compose_all(read_text(path), Loader=yaml.SafeLoader))
            for node in self._nodes:
                _check_size(node, path)
        except RecursionError as exc:
            raise ValidationError(f"{path}: nested more than {MAX_DEPTH} levels deep") from exc
        except yaml.YAMLError as exc:
            mark = getattr(exc, "problem_mark", None)
            where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
            problem = getattr(exc, "problem", None) or str(exc)
            raise ValidationError(f"{where}: not YAML: {problem}") from exc

    def issue(self, line: int, key: str, message: str, *, fatal: bool = False) -> None:
        issue = {"key": key, "message": message, "where": f"{self.path}:{line}: {key}"}
        self.issues.append({**issue, "fatal": True} if fatal else issue)

    def stop_if_wrong(self) -> None:
        if not self.issues:
            return
        for issue in self.issues:
            issue.pop("fatal", None)
        first = self.issues[0]
        raise ValidationError(f"{first['where']}: {first['message']}", issues=self.issues)

    def entries(self) -> Iterator[tuple[_Entry, dict[str, object]]]:
        for position, node in enumerate(self._nodes):
            if node is None:
                continue
            defaults = self._defaults(node) if isinstance(node, yaml.MappingNode) else {}
            for entry in self._walk(node, ""):
                yield _Entry(entry.label or f"document[{position}]", entry.value, entry.line, entry.lines), defaults

    def _defaults(self, node: yaml.MappingNode) -> dict[str, object]:
        value, lines = yaml.SafeLoader("").construct_object(node, deep=True), _lines(node)
        if isinstance(value.get("rubric"), str):
            return {}
        self._version(value.get("version"), lines.get("version", node.start_mark.line + 1))
        if "default_extra_info" in value:
            self.issue(lines["default_extra_info"], "default_extra_info", _NO_EXTRA, fatal=True)
        for key in ("default_score_min", "default_score_max"):
            if value.get(key) is not None and not is_number(value[key]):
                self.issue(lines[key], key, f"must be a number, got {value[key]!r}", fatal=True)
        return {key: value[f"default_{key}"] for key in _DEFAULTED if value.get(f"default_{key}") is not None}

    def _version(self, version: object, line: int) -> None:
        if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 0):
            self.issue(line, "version", f"must be a whole number, got {version!r}", fatal=True)
        elif version is not None and version != SUPPORTED_VERSION:
            self.issue(line, "version", f"version {version} is not known; {SUPPORTED_VERSION} is", fatal=True)
        self._versions.add(version if isinstance(version, int) else None)
        if len(self._versions) > 1:
            self.issue(line, "version", "the documents of this file have different versions", fatal=True)
        self.version = version if isinstance(version, int) else self.version

    def _walk(self, node: yaml.Node, label: str) -> Iterator[_Entry]:
        line = node.start_mark.line + 1
        if isinstance(node, yaml.MappingNode):
            value = yaml.SafeLoader("").construct_object(node, deep=True)
            if isinstance(value.get("rubric"), str):
                yield _Entry(label, value, line, _lines(node))
                return
            for key_node, child in node.value:
                key = str(key_node.value)
                if not key.startswith("default_"):
                    yield from self._walk(child, f"{label}.{key}" if label else key)
        elif isinstance(node.value, list):
            for position, child in enumerate(node.value):
                yield from self._walk(child, f"{label}[{position}]")

    def config(self, entry: _Entry, defaults: JsonObject) -> RubricConfig | None:
        before = len(self.issues)
        value = {**defaults, **{key: item for key, item in entry.value.items() if item is not None}}
        problem = partial(self._problem, entry)
        name = value.get("id")
        if not isinstance(name, str) or not name.strip():
            problem("id", "must be a non-empty string")
        elif name in self._seen:
            problem("id", f"{name!r} is already used on line {self._seen[name]}", fatal=True)
        else:
            self._seen[name] = entry.line
        if not value["rubric"].strip():
            problem("rubric", "must not be empty")
        info = value.get("model_info")
        if not isinstance(info, dict):
            problem("model_info", "must be a mapping with provider and model (or set default_model_info)")
        else:
            for key in ("provider", "model"):
                if not isinstance(info.get(key), str) or not info[key].strip():
                    problem(f"model_info.{key}", "must be a non-empty string")
            for key in sorted(set(info) - set(ModelInfo.__annotations__)):
                self._warn(entry.line_of("model_info"), "model_info", key, ModelInfo.__annotations__)
        if "extra_info" in entry.value:
            problem("extra_info", _NO_EXTRA, fatal=True)
        low, high = self._bounds(value, info, problem)
        for key in sorted(set(map(str, entry.value)) - _ENTRY_KEYS - _ENTRY_EXTRAS - {"extra_info"}):
            self._warn(entry.line_of(key), entry.label, key, _ENTRY_KEYS)
        if len(self.issues) > before:
            return None
        optional = {key: value.get(key) for key in ("system_prompt", "original_input", "ground_truth")}
        return RubricConfig(
            id=value["id"],
            rubric=value["rubric"],
            model_info=dict(value["model_info"]),
            score_min=low,
            score_max=high,
            label=entry.label,
            source_label=f"{self.path}:{entry.label}",
            line=entry.line,
            **{key: text for key, text in optional.items() if isinstance(text, str) and text.strip()},
        )

    def _bounds(
        self, value: JsonObject, info: object, problem: Callable[..., None]
    ) -> tuple[float | None, float | None]:
        said_low, said_high = (self._bound(value, info, key, problem) for key in ("score_min", "score_max"))
        low, high = 0.0 if said_low is None else said_low, 1.0 if said_high is None else said_high
        if high <= low:
            key = "score_max" if value.get("score_max") is not None else "score_min"
            problem(key, f"score_max must be greater than score_min, got {low:g} to {high:g}")
        return said_low, said_high

    def _bound(self, value: JsonObject, info: object, key: str, problem: Callable[..., None]) -> float | None:
        bound = value.get(key)
        if bound is None and isinstance(info, dict):
            bound = info.get(key)
        if bound is None:
            return None
        if not is_number(bound):
            problem(key, f"must be a number, got {bound!r}")
            return None
        return float(bound)

    def _problem(self, entry: _Entry, key: str, message: str, *, fatal: bool = False) -> None:
        self.issue(entry.line_of(key), f"{entry.label}.{key}", message, fatal=fatal)

    def _warn(self, line: int, label: str, key: str, known: Iterable[str]) -> None:
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        self.warnings.append(f"{self.path}:{line}: {label}.{key} is unknown and ignored{hint}")


_NO_EXTRA = "extra_info does not belong in a rubric file: put it in the records of the data file"


def _check_size(root: yaml.Node | None, path: Path) -> None:
    """Refuse a document that is too large with its aliases written out, before anything is built."""
    sizes: dict[int, int] = {}

    def size_of(node: yaml.Node, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise RecursionError
        if id(node) not in sizes:
            inner: list[yaml.Node] = []
            for child in node.value if isinstance(node.value, list) else ():
                inner += child if isinstance(child, tuple) else (child,)
            sizes[id(node)] = 1 + sum(size_of(child, depth + 1) for child in inner)
        return sizes[id(node)]

    if root is not None and size_of(root, 0) > MAX_VALUES:
        line = root.start_mark.line + 1
        raise ValidationError(f"{path}:{line}: with its aliases written out it has more than {MAX_VALUES} values")


def _lines(node: yaml.MappingNode) -> dict[str, int]:
    return {str(key.value): key.start_mark.line + 1 for key, _ in node.value}


PREFIX = "rubric:"
_FILES = ("*rubric*.y*ml", "*judge*.y*ml")


def resolve_rubric(value: str, folder: Path, workspace: Path) -> RubricConfig:
    """Return the rubric of a text, `@file`, `FILE.yaml#ID`, or the id of one in the workspace's rubric files."""
    file, _, rubric_id = value.removeprefix(PREFIX).rpartition("#")
    if file.endswith((".yaml", ".yml")):
        return load_rubric_suite(folder / file).get(rubric_id)
    if value.startswith("@") or len(value.split()) > 1:
        text = read_text(folder / value[1:]) if value.startswith("@") else value
        return RubricConfig(" ".join(text.split())[:60], text, {})
    folders = [workspace, workspace / "examples", *sorted(workspace.glob("rollouts/*/"))]
    suites = [load_rubric_suite(path) for inner in folders for files in _FILES for path in sorted(inner.glob(files))]
    by_id = {name: suite for suite in suites for name in suite.configs}
    if value not in by_id:
        message = f"there is no rubric {value!r} in {workspace}; there is: {', '.join(by_id) or 'none'}"
        raise ValidationError(message, hint="give a text of more than one word, @file, or FILE.yaml#ID")
    return by_id[value].get(value)


class RubricScorer:
    def __init__(self, name: str, config: RubricConfig, judge: Judge, *, timeout_s: float | None = None) -> None:
        self.name = name
        self.config = config
        self.timeout_s = timeout_s
        low, high = config.score_min, config.score_max
        self.bounds: Range = (0.0 if low is None else low, 1.0 if high is None else high)
        self._judge = judge

    @classmethod
    def load(
        cls, path: str, base_dir: Path, *, timeout_s: float | None = None, environ: Mapping[str, str] | None = None
    ) -> "RubricScorer":
        """Load `rubric:file.yaml#id`; without `#id` the file must hold one rubric. The key is looked up at once."""
        file, _, rubric_id = path.removeprefix(PREFIX).partition("#")
        suite = load_rubric_suite(base_dir / file)
        if not rubric_id:
            if len(suite.available_ids()) != 1:
                ids = ", ".join(suite.available_ids())
                raise LoadError(f"{file} holds several rubrics: {ids}", hint=f"name one: {file}#{ids.split(', ')[0]}")
            rubric_id = suite.available_ids()[0]
        config = suite.get(rubric_id)
        try:
            judge = Judge(config.judge_info(), environ=environ)
        except OsmosisError:
            raise
        except (TypeError, ValueError) as error:
            raise LoadError(f"{file}#{rubric_id}: {error}") from error
        return cls(path, config, judge, timeout_s=timeout_s)

    async def score(self, rollout: Rollout, row: Row) -> Sequence[Score]:
        async def ask() -> Score:
            config = self.config
            question = make_question(
                config.rubric,
                solution_of(rollout.messages),
                config.judge_info(),
                ground_truth=config.ground_truth or row.ground_truth,
                original_input=config.original_input or row.data.get("user_prompt"),
                bounds=(config.score_min, config.score_max),
            )
            verdict = await Deadline(self.timeout_s).run(self._judge.ask(question), self.name)
            return Score(
                name=self.name,
                value=verdict.score,
                reason=verdict.explanation,
                usage=verdict.usage,
                duration_ms=verdict.duration_ms,
                replied=verdict.replied,
            )

        return await run_score(self.name, ask, self.timeout_s)

    async def close(self) -> None:
        await self._judge.close()
