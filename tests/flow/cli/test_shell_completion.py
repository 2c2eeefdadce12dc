"""Tab in real shells: the scripts of bash, zsh and fish complete words, options and names of things that exist."""

import contextlib
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from osmosis.cli.core.completion import script_for
from osmosis.cli.main import ROOT
from osmosis.cli.platform import process as local_platform
from support.command_line import run_command

DEADLINE_S = 60.0
ENTERED = "ENTERED=["
SHELLS = [
    pytest.param(
        shell, marks=pytest.mark.skipif(not shutil.which(shell), reason=f"no {shell} here: its completion was not run")
    )
    for shell in ["bash", "fish", "zsh"]
]
ROWS = '{"user_prompt": "a", "ground_truth": "1"}\n' * 4


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A workspace with the rollout `multiply` and a local run, on a platform that has the dataset `sums`."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "sums.jsonl").write_text(ROWS)
    try:
        for words in (
            ("platform", "start", "--port", "0"),
            ("login",),
            ("init", "--here", "--no-git", "--no-platform"),
            ("workspace", "create", "w"),
            ("workspace", "switch", "w"),
            ("dataset", "upload", "sums.jsonl"),
            ("rollout", "new", "multiply", "--template", "multiply"),
        ):
            ran = run_command(*words, cwd=folder)
            assert ran.code == 0, ran.err
        (folder / ".osmosis" / "runs" / "nightly").mkdir(parents=True)
        (folder / ".osmosis" / "runs" / "nightly" / "run.json").write_text("{}")
        yield folder
    finally:
        local_platform.stop(folder / ".home" / "data", force=True)


def surroundings(home: Path) -> dict[str, str]:
    """What the shell runs with: `osmosis` of this installation first on PATH."""
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home / ".home"),
        "TERM": "dumb",
        "LANG": "C.UTF-8",
        "OSMOSIS_CONFIG_DIR": str(home / ".home" / "config"),
        "OSMOSIS_DATA_DIR": str(home / ".home" / "data"),
        "OSMOSIS_CACHE_DIR": str(home / ".home" / "cache"),
    }


def completed(shell: str, typed: str, home: Path, setup: str = "") -> str:
    """The line after Tab."""
    if shell == "fish":  # answers without a terminal
        asked = f"osmosis completion fish | source; complete -C '{typed}'"
        out = subprocess.run(
            ["fish", "--no-config", "-c", asked],
            cwd=home,
            env=surroundings(home),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        ).stdout
        found = [line.split("\t")[0] for line in out.splitlines()]
        before, _, last = typed.rpartition(" ")
        return f"{before} {os.path.commonprefix(found) or last}"  # noqa: RUF071 - of characters, as a shell does
    script = f'eval "$(osmosis completion {shell})"'
    if shell == "bash":
        return _after_tab(["bash", "--norc", "-i"], setup or script, typed, home)
    return _after_tab(["zsh", "-f", "-i"], f"unsetopt zle_bracketed_paste; {setup or script}", typed, home)


def _after_tab(command: Sequence[str], setup: str, typed: str, home: Path) -> str:
    """Type into the shell on a terminal of its own; the line is read by making it an argument of `echo`."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(home)
        os.execvpe(command[0], list(command), surroundings(home))
    try:
        os.write(terminal, f"PS1='> '; {setup}; echo REA''DY\n".encode())
        _read_until(terminal, b"READY")
        os.write(terminal, f"{typed}\t".encode())
        # The shell reads what follows only when the completion has answered.
        os.write(terminal, b"\x01echo 'ENTE''RED=[\x05]'\n")
        seen = _read_until(terminal, ENTERED.encode(), b"]")
        return seen.rpartition(ENTERED)[2].partition("]")[0].strip()
    finally:
        os.close(terminal)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _read_until(terminal: int, *marks: bytes) -> str:
    """What the terminal shows up to these marks, one after the other."""
    seen, deadline = b"", time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 65536)
        place = 0
        for mark in marks:
            place = seen.find(mark, place) + len(mark) if seen.find(mark, place) >= 0 else -1
            if place < 0:
                break
        if place >= 0:
            return seen.decode(errors="replace")
    raise AssertionError(f"{marks} never came:\n{seen.decode(errors='replace')}")


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("osmosis whoa", "osmosis whoami"),
        ("osmosis-ai eval sub", "osmosis-ai eval submit"),
        ("osmosis eval list --pl", "osmosis eval list --pla"),  # --plain and --platform
        ("osmosis dataset show su", "osmosis dataset show sums"),
        ("osmosis check mul", "osmosis check multiply"),
        ("osmosis eval show nig", "osmosis eval show nightly"),
        ("osmosis template show stra", "osmosis template show strands"),
        ("osmosis dataset upload sums.js", "osmosis dataset upload sums.jsonl"),
        ("osmosis eval submit configs/e", "osmosis eval submit configs/eval/multiply.toml"),
    ],
)
def test_tab(shell: str, typed: str, line: str, home: Path) -> None:
    assert completed(shell, typed, home) == line


@pytest.mark.skipif(not shutil.which("zsh"), reason="no zsh here: its completion was not run")
def test_a_script_in_the_fpath_of_zsh_answers_the_first_tab(home: Path, tmp_path: Path) -> None:
    (tmp_path / "_osmosis").write_text(script_for(ROOT, "zsh"))
    setup = f"fpath=({tmp_path} $fpath); autoload -Uz compinit; compinit -u"
    assert completed("zsh", "osmosis whoa", home, setup) == "osmosis whoami"
