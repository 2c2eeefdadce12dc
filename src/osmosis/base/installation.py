"""Describe how this copy was installed, and build the wheel that a rollout's environment gets: exactly this code,
pinned by its hash, requiring what the SDK and a rollout server import."""

import base64
import hashlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from osmosis.base.files import read_object, replacing
from osmosis.base.jsonable import JsonObject
from osmosis.base.locks import lock_if_free
from osmosis.errors import InternalError


def install_command(*packages: str) -> str:
    """Return the command that installs packages into this Python; one that `uv` made has no pip."""
    python = shlex.quote(sys.executable)
    has_pip = importlib.util.find_spec("pip") is not None
    return " ".join(
        [f"{python} -m pip install" if has_pip else f"uv pip install --python {python}", *map(shlex.quote, packages)]
    )


def extra_command(extra: str) -> str:
    """Return the command that installs what an extra needs, whether or not an index has this distribution."""
    packages = [
        requirement.strip()
        for requirement, _, marker in (line.partition(";") for line in metadata.requires(DISTRIBUTION) or [])
        if (match := _EXTRA.search(marker)) and match[1] == extra
    ]
    if packages:
        return install_command(*packages)
    return f"add osmosis-ai[{extra}] to dependencies in the rollout's pyproject.toml"  # the wheel of rollouts has few


def module_command(module: str) -> str | None:
    """Return the command that installs the requirement that has a module; None for a module of no requirement."""
    name, requirements = module.partition(".")[0].lower(), metadata.requires(DISTRIBUTION) or []
    having = [line.partition(";")[0].strip() for line in requirements if name in _name(line).replace("-", "_")]
    return install_command(min(having, key=len)) if name and having else None


def upgrade_command() -> str:
    origin = json.loads(metadata.distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    url = str(origin.get("url", ""))
    if "dir_info" in origin:
        folder = shlex.quote(url2pathname(urlsplit(url).path))
        editable = "-e " if origin["dir_info"].get("editable") else ""
        return f"git -C {folder} pull && {install_command()} {editable}{folder}"
    if "vcs_info" in origin:
        return install_command("--upgrade", f"{DISTRIBUTION} @ {origin['vcs_info']['vcs']}+{url}")
    return install_command("--upgrade", "NEWER_WHEEL" if url else DISTRIBUTION)


DISTRIBUTION = "osmosis-ai"
PACKAGES = ("osmosis", "osmosis_ai")
TEMPLATES = "osmosis/_templates"
SKIPPED_DIRS = {"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"}
ROLLOUT = frozenset(
    {
        *("aiohttp", "fastapi", "filelock", "httptools", "msgspec", "orjson", "packaging", "platformdirs", "psutil"),
        *("pydantic", "pydantic-settings", "pyyaml", "rich", "starlette", "tomli", "uvicorn"),
    }
)
"""Distributions that the SDK and a rollout server import; a test imports them with nothing else installed."""
PLATFORM = frozenset(["alembic", "cryptography", "python-multipart", "sqlalchemy"])
EXTRAS: Mapping[str, Callable[[str], bool]] = {
    "server": lambda name: False,
    "rubric": lambda name: name == "litellm",
    "parquet": lambda name: name == "pyarrow",
    "eval": lambda name: name not in PLATFORM and name != "fastmcp",
    "platform": lambda name: name != "fastmcp",
    "full": lambda name: True,
}
"""Extras of older projects: what each adds to `ROLLOUT`."""


@dataclass(frozen=True, slots=True)
class Wheel:
    path: Path
    version: str
    content_hash: str

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def base_version(self) -> str:
        return self.version.partition("+")[0]


def build_wheel(cache_dir: Path) -> Wheel:
    """Build the wheel in `cache_dir/wheels/<hash>/`, unless it exists. Safe to call from several processes at once."""
    dist = _distribution()
    files = {name: path.read_bytes() for name, path in _package_files(dist)}
    base = dist.version.partition("+")[0]
    described = _dist_info(dist, base)
    content_hash = _content_hash(base, files, described)
    version = f"{base}+{content_hash}"
    path = cache_dir / "wheels" / content_hash / f"{DISTRIBUTION.replace('-', '_')}-{version}-py3-none-any.whl"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        info = f"{DISTRIBUTION.replace('-', '_')}-{version}.dist-info"
        described["METADATA"] = _with_version(described["METADATA"], version)
        files.update({f"{info}/{name}": body for name, body in described.items()})
        _write(path, files, info)
    else:
        # The folder's time says when it was last used.
        os.utime(path.parent)
    return Wheel(path=path, version=version, content_hash=content_hash)


def list_requirements(extra: str) -> list[str]:
    requirements = []
    for line in _distribution().requires or ():
        requirement, _, marker = (part.strip() for part in line.partition(";"))
        named = _EXTRA.search(marker)
        if named[1] != extra if named else _name(requirement) not in ROLLOUT:
            continue
        rest = _EXTRA.sub("", marker).strip("() ")
        requirements.append(f"{requirement}; {rest}" if rest else requirement)
    return sorted(requirements)


def unpack_wheel(wheel: Wheel) -> Path:
    folder = wheel.folder / "code"
    if folder.is_dir():
        return folder
    making = Path(tempfile.mkdtemp(prefix=".code-", dir=wheel.folder))
    with zipfile.ZipFile(wheel.path) as archive:
        archive.extractall(making)
    making.chmod(0o755)
    try:
        making.rename(folder)
    except OSError:  # another process was first
        shutil.rmtree(making, ignore_errors=True)
    return folder


def _distribution() -> metadata.Distribution:
    try:
        return metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        hint = "install it first: python -m pip install -e . in a clone, or its wheel"
        raise InternalError(f"the distribution {DISTRIBUTION} is not installed in this Python", hint=hint) from None


def _package_files(dist: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    shipped_templates = False
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise InternalError(f"the package {package} cannot be found in this Python")
        for name, path in _tree(Path(next(iter(spec.submodule_search_locations))), package):
            shipped_templates = shipped_templates or name.startswith(f"{TEMPLATES}/")
            yield name, path
    if not shipped_templates and (project := _editable_project(dist)) is not None:
        yield from _tree(project / "templates", TEMPLATES)


def _tree(root: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    for folder, dirs, names in os.walk(root):
        dirs[:] = sorted(d for d in dirs if d not in SKIPPED_DIRS)
        for name in sorted(names):
            path = Path(folder) / name
            if not name.endswith((".pyc", ".pyo")) and path.is_file():
                yield f"{prefix}/{path.relative_to(root).as_posix()}", path


def _editable_project(dist: metadata.Distribution) -> Path | None:
    origin = json.loads(dist.read_text("direct_url.json") or "{}")
    if not origin.get("dir_info", {}).get("editable"):
        return None
    return Path(unquote(urlsplit(origin["url"]).path))


def _dist_info(dist: metadata.Distribution, base: str) -> dict[str, bytes]:
    described = {
        "METADATA": split_requirements(_with_version((dist.read_text("METADATA") or "").encode(), base)),
        "WHEEL": b"Wheel-Version: 1.0\nGenerator: osmosis\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if points := dist.read_text("entry_points.txt"):
        described["entry_points.txt"] = points.encode()
    for file in dist.files or ():
        parts = file.parts
        located = Path(str(file.locate()))
        if len(parts) > 2 and parts[0].endswith(".dist-info") and parts[1] == "licenses" and located.is_file():
            described["/".join(parts[1:])] = located.read_bytes()
    return described


def split_requirements(text: bytes) -> bytes:
    """Keep a rollout's requirements in METADATA and move the others behind `EXTRAS`; idempotent."""
    head, separator, body = text.decode().partition("\n\n")
    lines: list[str] = []
    ours: dict[str, str] = {}
    for line in head.splitlines():
        key, _, value = line.partition(": ")
        requirement, _, marker = (part.strip() for part in value.partition(";"))
        extra = _EXTRA.search(marker)
        if key == "Provides-Extra" and value in EXTRAS:
            continue
        if key == "Requires-Dist" and (extra is None or extra[1] in EXTRAS):
            ours[requirement] = _EXTRA.sub("", marker).strip("() ")
        else:
            lines.append(line)
    for requirement, marker in sorted(ours.items()):
        if _name(requirement) in ROLLOUT:
            lines.append(f"Requires-Dist: {requirement}" + (f"; {marker}" if marker else ""))
    for extra_name, has in EXTRAS.items():
        lines.append(f"Provides-Extra: {extra_name}")
        for requirement, marker in sorted(ours.items()):
            if _name(requirement) not in ROLLOUT and has(_name(requirement)):
                condition = f'({marker}) and extra == "{extra_name}"' if marker else f'extra == "{extra_name}"'
                lines.append(f"Requires-Dist: {requirement}; {condition}")
    return ("\n".join(lines) + separator + body).encode()


_EXTRA = re.compile(r"""(?:\s+and\s+)?extra == ['"]([^'"]+)['"]""")


def _name(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=!~;@(]", requirement, maxsplit=1)[0]).lower()


def _content_hash(version: str, files: dict[str, bytes], described: dict[str, bytes]) -> str:
    digest = hashlib.sha256(version.encode())
    for name, body in sorted({**files, **described}.items()):
        digest.update(f"\0{name}\0{hashlib.sha256(body).hexdigest()}".encode())
    short = digest.hexdigest()[:12]
    # A local version of digits only would be read as a number and lose its leading zeros.
    return f"c{short[1:]}" if short.isdigit() else short


def _with_version(text: bytes, version: str) -> bytes:
    head, separator, body = text.decode().partition("\n\n")
    lines = [f"Version: {version}" if line.startswith("Version:") else line for line in head.splitlines()]
    return ("\n".join(lines) + (separator or "\n") + body).encode()


def _write(path: Path, files: dict[str, bytes], info: str) -> None:
    digests = {name: base64.urlsafe_b64encode(hashlib.sha256(body).digest()) for name, body in files.items()}
    record = [f"{name},sha256={digests[name].rstrip(b'=').decode()},{len(files[name])}" for name in sorted(files)]
    record.append(f"{info}/RECORD,,")
    files = {**files, f"{info}/RECORD": ("\n".join(record) + "\n").encode()}
    with replacing(path, mode=0o644) as out, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        # RECORD comes last, as the format asks for.
        for name, body in sorted(files.items(), key=lambda pair: (pair[0].endswith("/RECORD"), pair[0])):
            member = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            member.external_attr = 0o644 << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, body)


MARKER = ".osmosis-environment.json"
UNUSED_S = 14 * 24 * 3600.0


def find_unused(cache_dir: Path, *, before: float) -> Iterator[Path]:
    environments = (folder for workspace in _folders(cache_dir / "environments") for folder in _folders(workspace))
    yield from (folder for folder in environments if last_used(folder / MARKER) < before)
    yield from (folder for folder in _folders(cache_dir / "wheels") if last_used(folder) < before)


def remove(folder: Path, *, before: float) -> bool:
    if folder.parent.name == "wheels":
        shutil.rmtree(folder, ignore_errors=True)
        return True
    with lock_if_free(folder.parent / ".locks" / folder.name) as ours:
        if not ours or last_used(folder / MARKER) >= before:
            return False
        # Without its marker it is no environment any more, however far the removal gets.
        (folder / MARKER).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        return True


def prune_environments(cache_dir: Path, *, unused_s: float = UNUSED_S) -> list[str]:
    before = time.time() - unused_s
    return [folder.name for folder in find_unused(cache_dir, before=before) if remove(folder, before=before)]


def remove_folders(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def read_marker(folder: Path) -> JsonObject | None:
    marker = read_object(folder / MARKER)
    with suppress(OSError):
        os.utime(folder / MARKER)
    return marker or None


def last_used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _folders(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return [path for path in parent.iterdir() if path.is_dir() and not path.name.startswith(".")]
