import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import PlainSerializer, PlainValidator

from osmosis.base.files import tomllib
from osmosis.base.installation import DISTRIBUTION
from osmosis.base.safe_open import folder_at, is_plain, open_artifact, walk
from osmosis.jobs.context import setup_failure

Generation = Literal["ours", "theirs", "unasked"]

JUDGES = frozenset(
    {"evaluate_rubric", "evaluate_rubric_async", "osmosis_rubric", "OsmosisLitellmModel", "SimulatedUser"}
)
MOST_SOURCES = 500
MOST_ENTRIES = 20_000
MOST_SOURCE_BYTES = 256 * 1024  # Of a Python file that is parsed: its syntax tree takes up to 700 times as much memory
MOST_BYTES = 16 * 1024 * 1024
INDEX_SETTINGS = frozenset(
    {
        *("package", "managed", "sources", "dev-dependencies", "default-groups", "environments"),
        *("required-environments", "required-version", "prerelease", "resolution", "exclude-newer", "index-strategy"),
    }
)
"""Keys of [tool.uv] with which everything still comes from an index."""


@dataclass(frozen=True, slots=True)
class RolloutProject:
    folder: Path
    label: str
    requirements_file: Path | None
    """`pyproject.toml` or `requirements.txt`, for `uv -r`; None: no dependency is declared."""
    dependencies: list[Annotated[Requirement, PlainValidator(Requirement), PlainSerializer(str)]] = field(
        default_factory=list
    )
    requires_python: Annotated[SpecifierSet, PlainValidator(SpecifierSet), PlainSerializer(str)] = field(
        default_factory=SpecifierSet
    )
    installable: bool = False
    lock: Path | None = None
    local_sources: bool = False
    """True unless all that is installed comes from an index: else it depends on files of the checkout."""
    own_sources: bool = False
    judges: str | None = None

    @property
    def where(self) -> str:
        name = self.requirements_file.name if self.requirements_file else "pyproject.toml"
        return f"{self.label}/{name}"

    def generation(self, base_version: str) -> Generation:
        requirements = [r for r in self.dependencies if canonicalize_name(r.name) == DISTRIBUTION and _applies(r)]
        if not requirements:
            return "unasked"
        if any(r.url for r in requirements):
            return "theirs"
        return "ours" if all(r.specifier.contains(base_version, prereleases=True) for r in requirements) else "theirs"

    def judge_reason(self) -> str | None:
        older = next((str(requirement) for requirement in self.dependencies if _predates_1_0(requirement)), None)
        return self.judges or (f"it requires {older}" if older else None)


def read_project(folder: Path, label: str) -> RolloutProject:
    pyproject, requirements, lock = (folder / name for name in ("pyproject.toml", "requirements.txt", "uv.lock"))
    lines = read_text(folder, requirements.name, label)
    text = read_text(folder, pyproject.name, label)
    table = _load(text or "", label)
    project = _table(table, "project")
    uv_table = _table(_table(table, "tool"), "uv")
    installable = bool(_table(table, "build-system")) and uv_table.get("package") is not False
    sources = _table(uv_table, "sources")
    dynamic = "dependencies" in (project.get("dynamic") or ())
    declares = bool(project.get("dependencies")) or (installable and (dynamic or not project))
    source_file = requirements if lines is not None and not declares else None if text is None else pyproject
    dependencies = (
        _parse(project.get("dependencies") or (), label) if source_file is pyproject else _parse_lines(lines or "")
    )
    locked = read_text(folder, lock.name, label) if source_file is pyproject else None
    outer = folder.parents[:2] if folder.parent.name == "rollouts" else ()
    tables = (read_text(parent, "pyproject.toml", str(parent)) or "" for parent in outer)
    from_index = (
        not any((place / "uv.toml").exists() for place in (folder, *outer))
        and not any("tool.uv" in text for text in tables)
        and not (dynamic and installable)
        and uv_table.keys() <= INDEX_SETTINGS
        and all(map(_is_index, sources.values()))
        and not any(dependency.url for dependency in dependencies)
        and (source_file is pyproject or _is_plain(lines or ""))
        and (locked is None or _is_locked_to_index(_load(locked, label, lock.name)))
    )
    return RolloutProject(
        folder=folder,
        label=label,
        requirements_file=source_file,
        dependencies=dependencies,
        requires_python=_python(project.get("requires-python"), label),
        installable=installable,
        lock=None if locked is None else lock,
        local_sources=not from_index,
        own_sources=any(canonicalize_name(name) == DISTRIBUTION for name in sources),
        judges=judge_imports(folder),
    )


def read_text(folder: Path, path: str, label: str, *, most_bytes: int = MOST_BYTES) -> str | None:
    try:
        (folder / path).lstat()
    except OSError:
        return None
    file = open_artifact(folder, path.split("/"), most_bytes=most_bytes)
    if file is None:
        message = f"{label}/{path} is not a plain file of at most {most_bytes // 1024} KB"
        raise setup_failure(message, fix="commit the file itself: links are not followed")
    return b"".join(file.pieces()).decode("utf-8", "replace")


def iterate_sources(folder: Path) -> Iterator[tuple[str, bytes]]:
    with folder_at(folder, ()) as opened:
        entries = [(path, about) for path, about in walk(opened, MOST_ENTRIES) if path.endswith(".py")]
    paths = [path for path, about in entries if is_plain(about) and not {".venv", "node_modules"} & {*path.split("/")}]
    for path in paths[:MOST_SOURCES]:
        if (file := open_artifact(folder, path.split("/"), most_bytes=MOST_SOURCE_BYTES)) is not None:
            yield path, b"".join(file.pieces())


def judge_imports(folder: Path) -> str | None:
    for path, content in iterate_sources(folder):
        try:
            tree = ast.parse(content)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # the import itself will report the error
        for node in ast.walk(tree):
            if (name := _judge_import(node)) is not None:
                return f"{path} imports {name}"
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
    if names_of_roots := roots & {"litellm", "osmosis_ai"}:
        return names_of_roots.pop()
    return next((name for name in names if name in JUDGES), None) if "osmosis" in roots else None


def _load(text: str, label: str, name: str = "pyproject.toml") -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        message = f"{label}/{name} is not valid TOML: {problem}"
        raise setup_failure(message, fix="fix the file, commit, push and submit again") from None


def _parse(lines: Iterable[object], label: str) -> list[Requirement]:
    requirements = []
    for line in lines:
        try:
            requirements.append(Requirement(str(line)))
        except InvalidRequirement as problem:
            message = f"{label}/pyproject.toml: [project].dependencies: {str(line)!r} is not a requirement: {problem}"
            raise setup_failure(message, fix='write it as "name>=1.0,<2"') from None
    return requirements


def _parse_lines(requirements: str) -> list[Requirement]:
    parsed = []
    for line in _requirement_lines(requirements):
        try:
            parsed.append(Requirement(line))
        except InvalidRequirement:
            continue
    return parsed


def _requirement_lines(requirements: str) -> Iterator[str]:
    for line in requirements.splitlines():
        text = line.split(" #")[0].strip().rstrip("\\").strip()
        if text and not text.startswith(("#", "--hash=")):
            yield text.partition(" --hash=")[0]


def _is_plain(requirements: str) -> bool:
    lines, parsed = list(_requirement_lines(requirements)), _parse_lines(requirements)
    return len(parsed) == len(lines) and not any(requirement.url for requirement in parsed)


def _python(value: object, label: str) -> SpecifierSet:
    try:
        return SpecifierSet(str(value or ""))
    except InvalidSpecifier:
        message = f"{label}/pyproject.toml: [project].requires-python: {value!r} is not a version range"
        raise setup_failure(message, fix='write it as ">=3.10"') from None


def _table(parent: dict[str, Any], key: str) -> dict[str, Any]:
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def _is_index(source: object) -> bool:
    choices = source if isinstance(source, list) else [source]
    return all(isinstance(choice, dict) and choice.keys() <= {"index", "marker", "extra"} for choice in choices)


def _is_locked_to_index(lock: Mapping[str, Any]) -> bool:
    """Return whether every package of uv.lock, but for the project itself, is a version of an index."""
    packages = lock.get("package") or []
    sources = [package.get("source") for package in packages if isinstance(package, dict)]
    return all(
        isinstance(source, dict)
        and (str(source.get("registry", "")).startswith(("http://", "https://")) or "." in source.values())
        for source in sources
    )


def _applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate()


def _predates_1_0(requirement: Requirement) -> bool:
    if canonicalize_name(requirement.name) != DISTRIBUTION or not _applies(requirement):
        return False
    return any(
        Version(specifier.version.removesuffix(".*")).major < 1
        for specifier in requirement.specifier
        if specifier.operator != "==="
    )
