"""What a rollout folder says about itself: its dependencies, its Python, whether it can be installed.

Reads files only; nothing of the rollout is run. Whether the osmosis it asks for is ours is decided here, because
the distribution of the same name on the package index is another product generation.
"""

from __future__ import annotations

import ast
import itertools
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from osmosis.base.wheel import DISTRIBUTION

from .job import setup_failed

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Generation = Literal["ours", "theirs", "unasked"]

JUDGES = frozenset({"evaluate_rubric", "evaluate_rubric_async", "osmosis_rubric", "OsmosisLitellmModel"})
"""Names of ours that need LiteLLM, which an environment has only when it is asked for."""
MOST_SOURCES = 500


@dataclass(frozen=True, slots=True)
class RolloutProject:
    """The facts of `rollouts/<name>/`."""

    folder: Path
    label: str
    """The folder as people know it: `rollouts/<name>`."""
    requirements_file: Path | None
    """`pyproject.toml` or `requirements.txt`: what uv is given with `-r`; None = no dependency is declared."""
    dependencies: list[Requirement] = field(default_factory=list)
    requires_python: SpecifierSet = field(default_factory=SpecifierSet)
    installable: bool = False
    """It has a build system, so `pip install .` would work."""
    lock: Path | None = None
    local_sources: bool = False
    """What is installed depends on other files of the checkout: path sources, includes, dynamic dependencies."""
    own_sources: bool = False
    """`[tool.uv.sources]` says where osmosis-ai comes from; on the platform it never does."""
    judges: str | None = None
    """Why the rollout needs LiteLLM, when its sources say so: `main.py imports litellm`."""

    @property
    def where(self) -> str:
        name = self.requirements_file.name if self.requirements_file else "pyproject.toml"
        return f"{self.label}/{name}"

    def generation(self, base_version: str) -> Generation:
        """Which osmosis the rollout asks for: one that `base_version` satisfies, another one, or none."""
        asked = [r for r in self.dependencies if canonicalize_name(r.name) == DISTRIBUTION and _applies(r)]
        if not asked:
            return "unasked"
        if any(r.url for r in asked):
            return "theirs"
        return "ours" if all(r.specifier.contains(base_version, prereleases=True) for r in asked) else "theirs"

    def judge_reason(self) -> str | None:
        """Why the environment gets LiteLLM although nothing declares it; None: it does not."""
        older = next((str(asked) for asked in self.dependencies if _predates_1_0(asked)), None)
        return self.judges or (f"it requires {older}" if older else None)


def read_project(folder: Path, label: str) -> RolloutProject:
    """The project in `folder`. Raises `JobFailed` for a pyproject.toml that cannot be understood."""
    pyproject = folder / "pyproject.toml"
    requirements = folder / "requirements.txt"
    lock = folder / "uv.lock"
    if not pyproject.is_file():
        return _of_requirements(folder, label, requirements if requirements.is_file() else None)
    table = _load(pyproject, label)
    project = _table(table, "project")
    uv_table = _table(_table(table, "tool"), "uv")
    installable = bool(_table(table, "build-system")) and uv_table.get("package") is not False
    sources = _table(uv_table, "sources")
    dynamic = "dependencies" in (project.get("dynamic") or ())
    declares = bool(project.get("dependencies")) or (installable and (dynamic or not project))
    source_file = pyproject if declares or not requirements.is_file() else requirements
    return RolloutProject(
        folder=folder,
        label=label,
        requirements_file=source_file,
        dependencies=_parse(project.get("dependencies") or (), label)
        if source_file is pyproject
        else _parse_lines(requirements),
        requires_python=_python(project.get("requires-python"), label),
        installable=installable,
        lock=lock if lock.is_file() and source_file is pyproject else None,
        local_sources=any(_is_local(source) for source in sources.values())
        or (dynamic and installable)
        or (source_file == requirements and _refers_to_files(requirements)),
        own_sources=any(canonicalize_name(name) == DISTRIBUTION for name in sources),
        judges=judge_imports(folder),
    )


def _of_requirements(folder: Path, label: str, found: Path | None) -> RolloutProject:
    """A rollout without pyproject.toml."""
    return RolloutProject(
        folder,
        label,
        found,
        _parse_lines(found) if found else [],
        local_sources=bool(found and _refers_to_files(found)),
        judges=judge_imports(folder),
    )


def judge_imports(folder: Path) -> str | None:
    """The first source of the rollout that imports LiteLLM, something of ours that needs it, or `osmosis_ai`."""
    sources = (path for path in sorted(folder.rglob("*.py")) if not {".venv", "node_modules"} & {*path.parts})
    for path in itertools.islice(sources, MOST_SOURCES):
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError, RecursionError):
            continue  # the import itself will report the error
        for node in ast.walk(tree):
            if (name := _judge_import(node)) is not None:
                return f"{path.relative_to(folder).as_posix()} imports {name}"
    return None


def _judge_import(node: ast.AST) -> str | None:
    modules: list[str] = []
    names: list[str] = []
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level:
        modules, names = [node.module or ""], [alias.name for alias in node.names]
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "osmosis":
        modules, names = ["osmosis"], [node.attr]
    roots = {module.partition(".")[0] for module in modules}
    if found := roots & {"litellm", "osmosis_ai"}:
        return found.pop()
    return next((name for name in names if name in JUDGES), None) if "osmosis" in roots else None


def _load(pyproject: Path, label: str) -> dict[str, Any]:
    try:
        return tomllib.loads(pyproject.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise setup_failed(
            f"{label}/pyproject.toml is not valid TOML: {problem}",
            fix="fix the file, commit, push and submit again",
        ) from None


def _parse(lines: Iterable[object], label: str) -> list[Requirement]:
    made = []
    for line in lines:
        try:
            made.append(Requirement(str(line)))
        except InvalidRequirement as problem:
            raise setup_failed(
                f"{label}/pyproject.toml: [project].dependencies: {str(line)!r} is not a requirement: {problem}",
                fix='write it as "name>=1.0,<2"',
            ) from None
    return made


def _parse_lines(requirements: Path) -> list[Requirement]:
    """What can be understood of a requirements.txt; options, includes and paths are left to uv."""
    made = []
    for line in requirements.read_text(encoding="utf-8", errors="replace").splitlines():
        text = line.split(" #")[0].strip().rstrip("\\").strip()
        try:
            made.append(Requirement(text))
        except InvalidRequirement:
            continue
    return made


def _refers_to_files(requirements: Path) -> bool:
    """Whether a requirements.txt includes other files or installs folders."""
    lines = (line.strip() for line in requirements.read_text(encoding="utf-8", errors="replace").splitlines())
    return any(line.startswith(("-r", "-c", "-e", "--req", "--con", "--edit", ".", "/")) for line in lines)


def _python(value: object, label: str) -> SpecifierSet:
    try:
        return SpecifierSet(str(value or ""))
    except InvalidSpecifier:
        raise setup_failed(
            f"{label}/pyproject.toml: [project].requires-python: {value!r} is not a version range",
            fix='write it as ">=3.10"',
        ) from None


def _table(parent: dict[str, Any], key: str) -> dict[str, Any]:
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def _is_local(source: object) -> bool:
    choices = source if isinstance(source, list) else [source]
    return any(isinstance(choice, dict) and (choice.get("path") or choice.get("workspace")) for choice in choices)


def _applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate()


def _predates_1_0(asked: Requirement) -> bool:
    """Whether it was written for an osmosis whose installation brought LiteLLM along: `osmosis-ai>=0.3.1`."""
    if canonicalize_name(asked.name) != DISTRIBUTION or not _applies(asked):
        return False
    return any(Version(one.version.removesuffix(".*")).major < 1 for one in asked.specifier if one.operator != "===")
