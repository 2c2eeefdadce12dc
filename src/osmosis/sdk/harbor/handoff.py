"""Hand a rollout to a trial: endpoint, key and request in memory, never in Harbor's files; code and SDK, packed."""

import hashlib
import inspect
import io
import os
import re
import secrets
import sys
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from osmosis.base.files import tomllib
from osmosis.base.installation import DISTRIBUTION, build_wheel
from osmosis.base.jsonable import JsonObject
from osmosis.base.net import is_loopback
from osmosis.records.run.rollout import Message
from osmosis.sdk.types import AgentWorkflowConfig

URL_VARIABLE = "OSMOSIS_CHAT_COMPLETIONS_URL"
KEY_VARIABLE = "OSMOSIS_API_KEY"
ID_VARIABLE = "OSMOSIS_ROLLOUT_ID"


@dataclass(frozen=True, slots=True)
class Endpoint:
    url: str
    key: str
    rollout_id: str
    model_host: str | None = None  # name of this machine inside a sandbox, when it cannot reach its loopback

    @property
    def inside_url(self) -> str:
        parts = urlsplit(self.url)
        if self.model_host is None or not (is_loopback(parts.hostname) or parts.hostname == "0.0.0.0"):
            return self.url
        port = f":{parts.port}" if parts.port else ""
        return urlunsplit(parts._replace(netloc=f"{self.model_host}{port}"))

    def environment(self, *, native: bool) -> dict[str, str]:
        variables = {URL_VARIABLE: self.inside_url, KEY_VARIABLE: self.key, ID_VARIABLE: self.rollout_id}
        if native:
            variables |= {
                "OPENAI_BASE_URL": self.inside_url,
                "OPENAI_API_BASE": self.inside_url,
                "OPENAI_API_KEY": self.key,
            }
        # Some clients take an empty key for a mistake of their own; a missing one they name.
        return {name: value for name, value in variables.items() if value}


@dataclass(frozen=True, slots=True)
class Delivery:
    sdk: Path
    sdk_id: str
    code: Path | None
    python_paths: tuple[str, ...]


@dataclass(slots=True)
class Ticket:
    endpoint: Endpoint
    messages: list[Message] = field(default_factory=list)
    instruction: str = ""
    request: JsonObject = field(default_factory=dict)
    delivery: Delivery | None = None
    native: JsonObject = field(default_factory=dict)
    id: str = field(default_factory=lambda: secrets.token_hex(8))


_OPEN: dict[str, Ticket] = {}


def open_ticket(ticket: Ticket) -> str:
    _OPEN[ticket.id] = ticket
    return ticket.id


def find_ticket(ticket_id: str) -> Ticket:
    try:
        return _OPEN[ticket_id]
    except KeyError:
        raise LookupError(
            "this trial was made by HarborBackend for one rollout, which has ended: send the rollout again"
        ) from None


def close_ticket(ticket_id: str) -> None:
    _OPEN.pop(ticket_id, None)


SKIPPED = {
    *(".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", ".osmosis", ".env", ".envrc", ".tox", ".nox"),
    *(".mypy_cache", ".ruff_cache", ".pytest_cache", ".DS_Store"),
}


@dataclass(frozen=True, slots=True)
class Code:
    folder: Path
    prefix: str  # folder inside the sandbox's code folder: names of packages above `folder`, or empty
    paths: tuple[str, ...]


def code_of(workflow: type | None, code_dir: Path | None) -> Code | None:
    if code_dir is not None and not code_dir.is_dir():
        raise ValueError(f"code_dir {code_dir} is not a folder")
    if workflow is None:
        return None if code_dir is None else Code(code_dir, "", _roots(code_dir))
    root, _ = home_of(workflow)
    if code_dir is None:
        return Code(root, "", ("",))
    file = Path(inspect.getfile(workflow)).resolve()
    if not file.is_relative_to(code_dir):
        raise ValueError(f"{workflow.__name__} is defined in {file}, which is not in code_dir {code_dir}")
    if root.is_relative_to(code_dir):
        relative = root.relative_to(code_dir).as_posix()
        return Code(code_dir, "", tuple(dict.fromkeys(["" if relative == "." else relative, *_roots(code_dir)])))
    return Code(code_dir, code_dir.relative_to(root).as_posix(), ("",))


def home_of(cls: type) -> tuple[Path, str]:
    try:
        file = Path(inspect.getfile(cls)).resolve()
    except (TypeError, OSError):
        raise ValueError(f"{cls.__name__} is not defined in a file, so it cannot be sent into a sandbox") from None
    parts = cls.__module__.split(".")
    stem = file.parent if file.name == "__init__.py" else file.with_suffix("")
    if list(stem.parts[-len(parts) :]) == parts:
        return stem.parents[len(parts) - 1], cls.__module__
    # `python main.py`, or a file loaded under another name: there it is imported by its file's name.
    return file.parent, file.stem


def import_string(cls: type) -> str:
    if "<locals>" in cls.__qualname__:
        raise ValueError(f"{cls.__qualname__} is defined inside a function: a sandbox can only import it from a module")
    return f"{home_of(cls)[1]}:{cls.__qualname__}"


def describe_config(config: AgentWorkflowConfig | None, workflow: type | None) -> JsonObject | None:
    """Describe the workflow's config: `{"object": "module:name"}` when it is in the workflow's module, else
    `{"class": ..., "values": ...}`. `ValueError` when it is neither there nor JSON."""
    if config is None:
        return None
    module = sys.modules.get(workflow.__module__) if workflow is not None else None
    for name, value in vars(module).items() if module is not None else ():
        if value is config and workflow is not None:
            return {"object": f"{home_of(workflow)[1]}:{name}"}
    cls = type(config)
    try:
        values = config.model_dump(mode="json")
        same = cls.model_validate(values) == config
    except ValueError:  # pydantic's errors of both directions
        same = False
    if not same:
        raise ValueError(
            f"the workflow's config ({cls.__name__}) holds objects that are not JSON: make it a module-level name of "
            "the module that defines the workflow, so that the sandbox can import it"
        )
    named = f"{cls.__module__}:{cls.__qualname__}" if cls is AgentWorkflowConfig else import_string(cls)
    return {"class": named, "values": values}


def pack(code: Code, leave_out: Sequence[Path]) -> bytes:
    import gzip

    raw = io.BytesIO()
    with gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
        for path in _files(code.folder, [excluded.resolve() for excluded in leave_out]):
            member = tarfile.TarInfo("/".join(filter(None, (code.prefix, path.relative_to(code.folder).as_posix()))))
            body = path.read_bytes()
            member.size = len(body)
            member.mode = 0o755 if os.access(path, os.X_OK) else 0o644
            archive.addfile(member, io.BytesIO(body))
    return raw.getvalue()


def _files(folder: Path, leave_out: Sequence[Path]) -> Iterator[Path]:
    for base, dirs, names in os.walk(folder):
        base_path = Path(base)
        dirs[:] = sorted(d for d in dirs if d not in SKIPPED and (base_path / d).resolve() not in leave_out)
        for name in sorted(names):
            secret = name in SKIPPED or name.startswith(".env.")
            path = base_path / name
            if not secret and not name.endswith((".pyc", ".pyo")) and path.is_file() and not path.is_symlink():
                yield path


def _roots(folder: Path) -> tuple[str, ...]:
    return ("", "src") if (folder / "src").is_dir() else ("",)


ROOT = "/osmosis"
SDK = f"{ROOT}/sdk"
CODE = f"{ROOT}/code"
PROTOCOL = "1"  # Version of `entrypoint.py`'s request and result; an SDK in an image must speak the same
IN_CONTEXT = "osmosis-sdk"


def make_sdk(into: Path, cache_dir: Path, code_dir: Path | None) -> str:
    wheel = build_wheel(cache_dir)
    into.mkdir(parents=True)
    (into / wheel.path.name).write_bytes(wheel.path.read_bytes())
    (into / "requirements.txt").write_text("\n".join(requirements(code_dir, wheel.path.name)) + "\n", encoding="utf-8")
    script = Path(__file__).with_name("install.sh").read_text(encoding="utf-8")
    (into / "install.sh").write_text(script.replace("@PROTOCOL@", PROTOCOL), encoding="utf-8")
    digest = hashlib.sha256()
    for path in sorted(into.iterdir()):
        digest.update(f"{path.name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\0".encode())
    identity = digest.hexdigest()[:16]
    (into / "id").write_text(identity, encoding="utf-8")
    return identity


def requirements(code_dir: Path | None, wheel: str) -> list[str]:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    extras: set[str] = set()
    others: list[str] = []
    path = None if code_dir is None else code_dir / "pyproject.toml"
    text = path.read_text(encoding="utf-8") if path is not None and path.is_file() else ""
    for line in map(str, (tomllib.loads(text).get("project") or {}).get("dependencies") or []):
        requirement = Requirement(line)
        if canonicalize_name(requirement.name) == DISTRIBUTION:
            extras |= set(requirement.extras)
        else:
            others.append(line)
    # What drives the trials is no part of them.
    inside = sorted(extras - {"harbor"})
    return [f"./{wheel}" + (f"[{','.join(inside)}]" if inside else ""), *others]


def patch_dockerfile(text: str) -> str:
    users = re.findall(r"(?im)^\s*(FROM|USER)\s+(\S+)", text)
    user = None
    for word, value in users:
        user = None if word.upper() == "FROM" else value
    lines = ["", "# added by osmosis: the SDK, so that a trial need not install it"]
    if user is not None:
        lines.append("USER root")
    lines += [f"COPY {IN_CONTEXT}/ {SDK}/", f"RUN sh {SDK}/install.sh"]
    if user is not None:
        lines.append(f"USER {user}")
    return text.rstrip("\n") + "\n" + "\n".join(lines) + "\n"
