"""What the floor does is done there: a copy that comes back anywhere in the package fails here, with its place."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import osmosis

PACKAGE = Path(osmosis.__file__).parent
FLOOR = "base/"

NAMES = {
    "backoff", "backoff_delay", "git_at", "group_alive", "is_http", "is_loopback", "is_same", "kill_group", "kill_tree",
    "parse_retry_after", "redact", "run_git", "scrub", "signal_group", "start_time", "start_token", "strip_credentials",
    "sync_folder", "without_credentials", "write_once", "write_private",
}  # fmt: skip


def called(node: ast.AST) -> str:
    """`os.replace` of `os.replace(a, b)`, `.replace` of a call on anything else; empty for what is no call."""
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Name):
        return node.func.id
    if isinstance(node.func, ast.Attribute):
        owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
        return f"{owner if owner in ('os', 'random', 'tempfile') else ''}.{node.func.attr}"
    return ""


def imported(node: ast.AST, module: str) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.partition(".")[0] == module for alias in node.names)
    return isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] == module


def starts_git(node: ast.AST) -> bool:
    """A command line of git: as a list, or as the arguments of `create_subprocess_exec`."""
    words: list[ast.expr] = []
    if isinstance(node, (ast.List, ast.Tuple)):
        words = node.elts
    elif isinstance(node, ast.Call) and called(node) == ".create_subprocess_exec":
        words = node.args
    return len(words) > 1 and isinstance(words[0], ast.Constant) and words[0].value == "git"


def replaces_a_file(node: ast.AST) -> bool:
    """`os.replace`, or `Path.replace`: the one of strings has two arguments, the one of dates has names."""
    if not isinstance(node, ast.Call):
        return False
    name = called(node)
    return name == "os.replace" or (name == ".replace" and len(node.args) == 1 and not node.keywords)


RULES: dict[str, tuple[Callable[[ast.AST], bool], dict[str, str]]] = {
    "a lock is base.locks": (
        lambda node: imported(node, "fcntl") or imported(node, "filelock"),
        {"sandbox/netns.py": "asks the kernel whose a network namespace is"},
    ),
    "git is started by base.git": (
        starts_git,
        {
            "testing/training_platform.py": "a person's git, in a test",
            "cli/quickstart/steps.py": "shows the command as a person types it",
            "platform/githost/routes.py": "git http-backend, streamed",
        },
    ),
    "processes are base.processes": (
        lambda node: imported(node, "psutil") or called(node) == "os.killpg",
        {
            "testing/harbor_environment.py": "finds daemons by their environment",
            "testing/training_platform.py": "finds the processes of a run, to kill them",
        },
    ),
    "a file appears whole by base.files": (
        lambda node: replaces_a_file(node) or called(node) in ("tempfile.NamedTemporaryFile", "tempfile.mkstemp"),
        {
            "jobs/job_client.py": "names a download complete: what an interrupted one got is kept and gone on with",
            "platform/services/job_files.py": "moves what git and the reader's process made",
            "viewer/index/file.py": "puts a database in place that SQLite made",
            "client/credentials.py": "puts an unreadable store aside",
            "local/evaluate.py": "names a complete file by its content",
            "platform/objects/local_folder.py": "moves what is complete",
        },
    ),
    "what is durable is decided by base.files": (
        lambda node: called(node) == "os.fsync",
        {"engine/journal.py": "puts rollouts aside before they are dropped, and cuts off a torn line"},
    ),
    "a delay is base.backoff": (
        lambda node: called(node) == "random.uniform",
        {
            "llm/retry.py": "spreads the calls that a rate limit held back",
            "serve/server/registration.py": "spreads heartbeats",
        },
    ),
    "loopback is base.net": (
        lambda node: isinstance(node, ast.Attribute) and node.attr == "is_loopback",
        {
            "platform/services/server_probe.py": "an address that was resolved, among other kinds of addresses",
            "sandbox/netns.py": "a small process that imports nothing of ours",
        },
    ),
    "the floor's names are the floor's": (
        lambda node: isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.lstrip("_") in NAMES,
        {},
    ),
}


@cache
def places() -> dict[str, list[tuple[str, int]]]:
    """Rule -> file and line of each node that breaks it. All rules in one walk: a walk takes ten seconds."""
    found: dict[str, list[tuple[str, int]]] = {rule: [] for rule in RULES}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(FLOOR):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                for rule, (broken, _) in RULES.items():
                    if broken(node):
                        found[rule].append((name, getattr(node, "lineno", 0)))
    return found


@pytest.mark.parametrize("rule", RULES)
def test_it_is_written_once(rule: str) -> None:
    _, excepted = RULES[rule]
    found = places()[rule]
    assert [f"{name}:{line}: {rule}" for name, line in found if name not in excepted] == []
    assert {name for name, _ in found} >= set(excepted), "an exception that nothing needs any more"


@pytest.mark.parametrize(
    ("rule", "copy"),
    [
        ("a lock is base.locks", "import fcntl"),
        ("git is started by base.git", "subprocess.run(['git', 'status'])"),
        ("git is started by base.git", "await asyncio.create_subprocess_exec('git', 'status')"),
        ("processes are base.processes", "os.killpg(1, 9)"),
        ("a file appears whole by base.files", "part.replace(path)"),
        ("a file appears whole by base.files", "os.replace(part, path)"),
        ("what is durable is decided by base.files", "os.fsync(file)"),
        ("a delay is base.backoff", "delay = random.uniform(1, 2)"),
        ("loopback is base.net", "ipaddress.ip_address(host).is_loopback"),
        ("the floor's names are the floor's", "def _is_loopback(host): ..."),
    ],
)
def test_a_copy_is_seen(rule: str, copy: str) -> None:
    tree = ast.parse(copy if "await" not in copy else f"async def run():\n    {copy}")
    assert any(RULES[rule][0](node) for node in ast.walk(tree))
    assert not RULES[rule][0](ast.parse("text.replace('a', 'b')").body[0])
