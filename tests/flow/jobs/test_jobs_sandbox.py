"""What a rollout can read and reach at level 1, and that no secret is in any byte that a job writes."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis.records.run.status import RunStatus
from osmosis.sandbox.namespaces import landlock_version, python_folders
from support.published_client import install_published_client

from .conftest import DEADLINE_S, Desk, with_before

pytestmark = pytest.mark.slow

LOOK = """
import glob, json, pathlib, socket
root = pathlib.Path(os.environ["_OSMOSIS_ROLLOUT_ARTIFACT_ROOT"])
readable, writable = [], []
for top, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if os.path.join(top, name) not in ("/proc", "/usr", "/dev")]
    writable += [top] if os.access(top, os.W_OK) else []
    readable += [os.path.join(top, name) for name in files if os.access(os.path.join(top, name), os.R_OK)]
seen = b"".join(pathlib.Path(name).read_bytes() for name in glob.glob("/proc/[0-9]*/environ"))
reached = []
for host, port in json.loads(os.environ["PLACES"]):
    try: socket.create_connection((host, port), 2).close(); reached.append([host, port])
    except OSError: pass
(root / "seen").write_bytes(seen)
(root / "report").write_text(json.dumps({"readable": readable, "writable": writable, "reached": reached}))
"""


@pytest.mark.usefixtures("isolated")
async def test_a_rollout_reads_its_own_things_and_reaches_nothing_of_this_machine(desk: Desk) -> None:
    desk.rows = 1
    desk.secrets = {"SEARCH_KEY": "value-of-the-search-key"}
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        # Whoever answers here: the network of the sandbox has no way to the private ones.
        places = [["127.0.0.1", port], ["10.0.2.2", port], ["169.254.169.254", 80], ["192.168.0.1", 80]]
        desk.config = {
            "env": {"PLACES": json.dumps(places)},
            "secrets": {"required": ["SEARCH_KEY"]},
            "advanced": {"network": "gate"},
        }
        lines = LOOK.strip().splitlines()
        assert await desk.run(desk.write(desk.commit(main=with_before(*lines)))) == 0
    assert desk.result.status is RunStatus.FINISHED, desk.log
    assert "level 1" in desk.log
    root = desk.folder / "work" / "artifacts"
    report = json.loads((root / "report").read_text())
    assert report["reached"] == []

    own = [Path("/rollout/source"), Path("/environment"), Path("/artifacts"), Path("/etc"), Path("/tmp/home")]
    system = ("/lib", "/bin", "/sbin", *map(str, python_folders(Path(sys.executable).resolve())))
    assert [name for name in report["readable"] if not name.startswith((*map(str, own), *system))] == []
    for hidden in (desk.folder / "hub.git", desk.folder / "work" / "journal", desk.cache / "wheels"):
        assert hidden.exists()
        assert not [name for name in report["readable"] if name.startswith(str(hidden))], hidden
    assert all(name.startswith(("/tmp", "/artifacts", "/etc/../tmp")) for name in report["writable"]), report[
        "writable"
    ]

    environs = (root / "seen").read_bytes()
    assert b"SEARCH_KEY=" in environs, "it sees its own; what it writes of it is taken out"
    for folder in (desk.folder, desk.cache):
        assert str(folder).encode() not in environs, "no variable tells where the platform has its files"
    assert b"value-of-the-search-key" not in environs
    assert desk.api.token.encode() not in environs


async def test_no_byte_that_a_job_writes_has_the_lease_or_a_secret(desk: Desk) -> None:
    """Whatever the level: the work folder, the cache, the job's folder, and all that the platform was told."""
    desk.rows = 2
    canary, desk.api.token = "canary+of/a=secret", "canary-of-a-lease"
    desk.secrets = {"SEARCH_KEY": canary}
    desk.config = {"secrets": {"required": ["SEARCH_KEY"]}}
    says = "print('key', os.environ['SEARCH_KEY'], flush=True)"
    halves = "print('half', os.environ['SEARCH_KEY'][:8] + chr(10) + os.environ['SEARCH_KEY'][8:], flush=True)"
    keeps = "(ctx.artifacts_dir / 'kept.txt').write_text('the key is ' + os.environ['SEARCH_KEY'])"
    fails = "raise RuntimeError('refused ' + os.environ['SEARCH_KEY'])"
    assert await desk.run(desk.write(desk.commit(main=with_before(says, halves, keeps, fails)))) == 0
    assert "refused [redacted]" in desk.api.text()
    written = [path for folder in (desk.folder, desk.cache) for path in folder.rglob("*") if path.is_file()]
    assert len(written) > 100
    kept = [path for path in written if path.name == "kept.txt"]
    assert len(kept) == 4
    assert all(path.read_text() == "the key is [redacted]" for path in kept)
    for path in written:
        content = path.read_bytes()
        for secret in (canary, desk.api.token):
            assert secret.encode() not in content, path
    for secret in (canary, desk.api.token):
        assert secret not in desk.api.text()


TOOL = """
import json, pathlib
root = pathlib.Path(os.environ["_OSMOSIS_ROLLOUT_ARTIFACT_ROOT"])
code = "import iniconfig, os; print(open('given.txt').read(), os.getcwd(), sorted(os.environ))"
done = await ctx.sandbox.run(["python", "-c", code], files={"given.txt": "hello"})
places = f"{root} /rollout/source {os.environ['OUTSIDE']}"
seen = await ctx.sandbox.run(f"ls -d {places} 2>&1; env; id -u")
(root / "tool").write_text(json.dumps([done.output, seen.output, done.ok]))
"""


@pytest.mark.usefixtures("isolated")
async def test_a_rollouts_sandbox_is_beside_it_and_has_its_environment_only(desk: Desk) -> None:
    desk.rows = 1
    desk.secrets = {"SEARCH_KEY": "value-of-the-search-key"}
    outside = " ".join(str(desk.folder / "work" / name) for name in ("artifacts", "rollout", "journal"))
    secrets, network = {"required": ["SEARCH_KEY"]}, {"network": "gate"}
    desk.config = {"secrets": secrets, "advanced": network, "env": {"OUTSIDE": outside}}
    lines = TOOL.strip().splitlines()
    assert await desk.run(desk.write(desk.commit(main=with_before(*lines)))) == 0
    assert desk.result.status is RunStatus.FINISHED, desk.log
    said, seen, ok = json.loads((desk.folder / "work" / "artifacts" / "tool").read_text())
    assert ok, said
    assert said.startswith("hello /sandbox ["), said
    assert "SEARCH_KEY" not in said
    assert seen.count("No such file or directory") == 5, seen
    assert "value-of-the-search-key" not in seen
    assert desk.api.token not in seen
    assert list((desk.folder / "work" / "sandboxes").iterdir()) == []


async def test_a_rollout_that_fills_the_disk_is_ended_and_said(desk: Desk) -> None:
    desk.rows = 1
    desk.spec = {"sandbox": {"artifacts_mb": 2}}
    fills = [
        "root = os.environ['_OSMOSIS_ROLLOUT_ARTIFACT_ROOT']",
        "for n in range(8): open(f'{root}/{n}', 'wb').write(b'x' * 1_000_000)",
        "await asyncio.sleep(60)",
    ]
    assert await desk.run(desk.write(desk.commit(main=with_before(*fills)))) == 0
    assert "beyond the sandbox's limit of disk" in desk.log + desk.api.text()
    written = sum(path.stat().st_size for path in (desk.folder / "work" / "artifacts").iterdir())
    assert written <= 16_000_000


async def test_a_commit_that_is_too_large_says_so(desk: Desk) -> None:
    desk.spec = {"sandbox": {"checkout_mb": 1}}
    main = with_before("pass") + "\n# " + "x" * 2_000_000
    assert await desk.run(desk.write(desk.commit(main=main))) == 0
    assert desk.result.status is RunStatus.FAILED
    assert "has 2 MB of files, and a run may have 1 MB" in desk.result.failure.message
    assert "checkout_mb" in str(desk.result.failure.fix)


@pytest.mark.usefixtures("isolated")
async def test_an_endpoint_that_the_operator_allows_is_reached(desk: Desk) -> None:
    desk.rows = 1
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        desk.spec = {"sandbox": {"allow": [f"localhost:{port}"]}}
        desk.config = {"advanced": {"network": "gate"}}
        asks = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5).sendall(b'from inside')"
        assert await desk.run(desk.write(desk.commit(main=with_before(asks)))) == 0
        listening.settimeout(5)
        reached, _ = listening.accept()
        with reached:
            reached.settimeout(5)
            assert reached.recv(100) == b"from inside"
    assert desk.result.status is RunStatus.FINISHED, desk.log


WITHOUT_NAMESPACES = """
import ctypes, os, struct, sys
from osmosis.sandbox.confinement import build_filter
libc, program = ctypes.CDLL(None), ctypes.create_string_buffer(build_filter())
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, struct.pack("HxxxxxxP", (len(program) - 1) // 8, ctypes.addressof(program)), 0, 0) == 0
os.execv(sys.executable, [sys.executable, "-m", "osmosis.jobs", *sys.argv[1:]])
"""
TRIES = """
key = pathlib.Path(os.environ["KEY"])
reads = []
for path in (key, pathlib.Path(os.environ["USER_HOME"]) / ".bashrc", pathlib.Path("/etc/shadow")):
    try: reads.append(path.read_text())
    except OSError: pass
(pathlib.Path(os.environ["_OSMOSIS_ROLLOUT_ARTIFACT_ROOT"]) / "read").write_text(repr(reads))
"""


async def test_where_namespaces_are_forbidden_a_rollout_still_reads_only_its_own(desk: Desk) -> None:
    """As in a container: the kernel refuses namespaces to the whole job, and a filter of ours stands for that."""
    if landlock_version() <= 0:
        pytest.skip("the kernel has no Landlock")
    key = desk.folder / "master.key"
    key.write_text("the key of the platform")
    desk.rows = 1
    desk.secrets = {"SEARCH_KEY": "value-of-the-search-key"}
    desk.config = {"env": {"KEY": str(key), "USER_HOME": str(Path.home())}, "secrets": {"required": ["SEARCH_KEY"]}}
    folder = desk.write(desk.commit(main=with_before("import pathlib", *TRIES.strip().splitlines())))
    process = await desk.start(folder, program=(sys.executable, "-c", WITHOUT_NAMESPACES))
    assert await asyncio.wait_for(process.wait(), DEADLINE_S) == 0
    assert desk.result.status is RunStatus.FINISHED, desk.log
    assert "sandbox: Landlock" in desk.log
    assert (desk.folder / "work" / "artifacts" / "read").read_text() == "[]"


async def test_a_platform_that_demands_level_1_says_so_where_there_is_none(desk: Desk) -> None:
    desk.spec = {"sandbox": {"required": True}}
    folder = desk.write(desk.commit(main=with_before("pass")))
    process = await desk.start(folder, program=(sys.executable, "-c", WITHOUT_NAMESPACES))
    assert await asyncio.wait_for(process.wait(), DEADLINE_S) == 0
    failure = desk.result.failure
    assert failure is not None
    assert "in a sandbox only: no sandbox of level 1 works on this machine: namespaces" in failure.message
    assert "allow unprivileged user namespaces" in str(failure.fix)


async def test_switched_off_it_is_said(desk: Desk) -> None:
    desk.rows = 1
    desk.spec = {"sandbox": {"off": True}}
    assert await desk.run(desk.write(desk.commit(main=with_before("pass")))) == 0
    assert desk.result.status is RunStatus.FINISHED, desk.log
    assert "level 0: nothing keeps a rollout from this machine's files and network (switched off" in desk.log


def create_scaffold(client: Path, workspace: Path) -> None:
    for name in ("rollouts", "configs/training", "configs/eval", "data"):
        (workspace / name).mkdir(parents=True)
    environ = {"PATH": os.environ["PATH"], "HOME": str(workspace)}
    for command in (["git", "init", "-q"], [str(client), "rollout", "init", "multiply"]):
        subprocess.run(command, cwd=workspace, env=environ, check=True, capture_output=True)


@pytest.mark.network
async def test_the_scaffold_of_the_published_client_is_built_and_served(desk: Desk, tmp_path: Path) -> None:
    """Its pyproject.toml names a build backend that writes beside its sources, which are read-only in a sandbox."""
    client, workspace = install_published_client(tmp_path / "published"), tmp_path / "workspace"
    create_scaffold(client, workspace)
    scaffold = workspace / "rollouts" / "multiply"
    pyproject, main = ((scaffold / name).read_text() for name in ("pyproject.toml", "main.py"))
    assert "setuptools.build_meta" in pyproject
    desk.rows = 1
    assert await desk.run(desk.write(desk.commit(main=main, pyproject=pyproject))) == 0
    assert "installing rollouts/multiply itself" in desk.log
    failures = [rollout.failure for rollout in desk.api.rollouts.values()]
    assert [failure is not None and "not implemented yet" in failure.message for failure in failures] == [True, True]
