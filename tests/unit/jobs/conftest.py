"""What the job tests share: real git repositories in temporary folders and a log that can be read."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from osmosis.jobs.context import JobLog
from osmosis.records.run.job import LogLine

GIT_ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "A Person",
    "GIT_AUTHOR_EMAIL": "person@example.org",
    "GIT_COMMITTER_NAME": "A Person",
    "GIT_COMMITTER_EMAIL": "person@example.org",
}


def git(folder: Path, *args: str) -> str:
    done = subprocess.run(["git", *args], cwd=folder, env=GIT_ENV, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def commit() -> Callable[[Path, dict[str, str]], str]:
    """`commit(repository, files)`: writes the files into the working tree of `repository` and commits them."""

    def make(folder: Path, files: dict[str, str]) -> str:
        if not (folder / ".git").is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            git(folder, "init", "--quiet", "-b", "main")
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        git(folder, "add", "-A")
        git(folder, "commit", "--quiet", "-m", "work")
        return git(folder, "rev-parse", "HEAD")

    return make


@pytest.fixture
def log_lines() -> list[LogLine]:
    return []


@pytest.fixture
def log(log_lines: list[LogLine]) -> JobLog:
    return JobLog(None, log_lines.append)
