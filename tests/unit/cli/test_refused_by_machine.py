"""A machine that refuses is no bug: one clear error with the place and what to look at, and no report."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from osmosis.cli.core.errors import explain_exception, refused_by_machine
from support.command_line import run_command


@pytest.mark.parametrize(
    ("number", "message", "hint"),
    [
        (errno.EACCES, "permission denied", "ls -ld "),
        (errno.EROFS, "read-only file system", "ls -ld "),
        (errno.ENOSPC, "no space left on device", "df -h "),
    ],
)
def test_what_the_machine_refuses(tmp_path: Path, number: int, message: str, hint: str) -> None:
    path = tmp_path / "a folder" / "x"
    found = refused_by_machine(OSError(number, os.strerror(number), str(path)))
    assert found is not None
    assert (found.message, found.hint) == (f"cannot use {path}: {message}", f"{hint}{tmp_path}")


def test_of_a_copy_the_target_is_named(tmp_path: Path) -> None:
    found = refused_by_machine(OSError(errno.ENOSPC, "No space left on device", "/from/x", None, f"{tmp_path}/y"))
    assert found is not None
    assert found.hint == f"df -h {tmp_path}"


def test_a_full_disk_without_a_name_and_what_stays_a_bug() -> None:
    full = refused_by_machine(OSError(errno.ENOSPC, "No space left on device"))
    assert full is not None
    assert "no space left" in full.message
    assert refused_by_machine(FileNotFoundError(errno.ENOENT, "No such file", "x")) is None
    assert refused_by_machine(OSError("nothing known")) is None


@pytest.mark.parametrize(
    ("module", "package"), [("pyarrow.parquet", "pyarrow"), ("git", "gitpython"), ("pydantic", "pydantic>")]
)
def test_a_package_that_a_small_install_left_out_is_named(module: str, package: str) -> None:
    found = explain_exception(ModuleNotFoundError(f"No module named '{module}'", name=module), [], {})
    assert found.message == f"this needs {module}, which is not installed"
    assert "pip install" in str(found.hint)
    assert package in str(found.hint).lower()


def test_a_module_of_nobody_is_no_package_to_install() -> None:
    bug = ModuleNotFoundError("No module named 'my_rewards'", name="my_rewards")
    assert "pip install" not in str(explain_exception(bug, ["eval"], {}).hint)


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="no folder here that root cannot write to")
def test_a_folder_that_nobody_can_write_to(tmp_path: Path) -> None:
    done = run_command("init", "/sys/demo", "--no-platform", "--json", cwd=tmp_path)
    assert (done.code, done.error["code"]) == (1, "VALIDATION")
    assert done.error["message"].startswith("cannot use /sys/demo: ")
    assert done.error["details"]["hint"] == "ls -ld /sys"
