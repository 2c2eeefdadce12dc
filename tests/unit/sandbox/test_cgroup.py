"""Control groups: what is written where, on a tree of plain files; and the kernel's own, where a part of it is ours."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from osmosis.records.sandbox import EndedBy
from osmosis.sandbox import Level, Limits, Policy, resource_usage, run
from osmosis.sandbox.namespaces import python_folders


def tree(folder: Path, *, delegated: bool, enabled: str = "") -> tuple[Path, Path]:
    """A tree as the kernel shows it, and what `/proc/self/cgroup` says in it."""
    controllers = "cpu memory pids"
    root, service = folder / "cgroup", folder / "cgroup" / "system.slice" / "osmosis.service"
    service.mkdir(parents=True)
    (root / "cgroup.controllers").write_text(controllers)
    for name, text in (("controllers", controllers), ("subtree_control", enabled), ("procs", "11\n12\n")):
        (service / f"cgroup.{name}").write_text(text)
    if delegated:
        os.setxattr(service, "user.delegate", b"1")
    own = folder / "own"
    own.write_text("1:name=systemd:/\n0::/system.slice/osmosis.service\n")
    return root, own


def can_mark(folder: Path) -> bool:
    try:
        os.setxattr(folder, "user.delegate", b"0")
    except OSError:
        return False
    return True


def test_a_delegated_group_is_divided(tmp_path: Path) -> None:
    if not can_mark(tmp_path):
        pytest.skip("this file system has no user attributes")
    root, own = tree(tmp_path, delegated=True)
    main = root / "system.slice" / "osmosis.service" / resource_usage.MAIN
    main.mkdir()
    found = resource_usage.find_parent_group(root, own)
    assert found == main.parent
    assert (main / "cgroup.procs").read_text() in ("11", "12"), "its processes were moved aside, one by one"
    assert (found / "cgroup.subtree_control").read_text() == "+cpu"


def test_a_group_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    root, own = tree(tmp_path, delegated=False)
    before = sorted(root.rglob("*"))
    assert resource_usage.find_parent_group(root, own) is None
    assert sorted(root.rglob("*")) == before


def test_what_is_divided_already_is_used(tmp_path: Path) -> None:
    root, own = tree(tmp_path, delegated=False, enabled="memory")
    own.write_text(f"0::/system.slice/osmosis.service/{resource_usage.MAIN}\n")
    assert resource_usage.find_parent_group(root, own) == root / "system.slice" / "osmosis.service"


@pytest.mark.parametrize("said", ["", "4:memory:/x\n", "0::/nowhere\n"])
def test_where_there_is_none_nothing_is_made(tmp_path: Path, said: str) -> None:
    root, own = tree(tmp_path, delegated=False, enabled="memory")
    own.write_text(said)
    assert resource_usage.find_parent_group(root, own) is None
    assert resource_usage.ControlGroup.make(Limits(memory_mb=64), None) is None


def test_limits_are_written(tmp_path: Path) -> None:
    group = resource_usage.ControlGroup.make(Limits(memory_mb=64, cpus=1.5), tmp_path)
    assert group is not None
    assert (group.path / "memory.max").read_text() == str(64 * 1024 * 1024)
    assert (group.path / "cpu.max").read_text() == "150000 100000"
    group.add(17)
    assert (group.path / "cgroup.procs").read_text() == "17"
    assert not group.out_of_memory
    (group.path / "memory.events").write_text("low 0\noom 2\noom_kill 2\n")
    assert group.out_of_memory


def test_without_a_limit_there_is_no_group(tmp_path: Path) -> None:
    assert resource_usage.ControlGroup.make(Limits(processes=5), tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_the_kernel_keeps_memory_of_all_processes(level: Level) -> None:
    below = resource_usage.find_parent_group()
    if below is None:
        pytest.skip("no control group of version 2 with memory is ours here")
    code = "import os, time\nfor _ in range(3): os.fork()\nkept = bytearray(os.urandom(1) * 40_000_000)\ntime.sleep(60)"
    policy = Policy(level=level, limits=Limits(memory_mb=128, wall_s=60), read=python_folders(Path(sys.executable)))
    done = run([sys.executable, "-I", "-S", "-c", code], policy)
    assert done.ended is EndedBy.MEMORY
    assert not list(below.glob("osmosis-[0-9a-f]*")), "the group goes with it"
