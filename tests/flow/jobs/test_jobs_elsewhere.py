"""A job that shares no disk with its platform: what it needs is sent, what it leaves comes back."""

import json
from pathlib import Path

import pytest

from osmosis.datasets.row_file import write_row_file
from osmosis.platform.scheduling import job_files
from osmosis.platform.settings import PlatformSettings
from osmosis.records.run.status import RunStatus

from .conftest import Desk, with_before

pytestmark = pytest.mark.slow

LEAVES = (
    "place = ctx.artifacts_dir / 'plots'",
    "place.mkdir(parents=True, exist_ok=True)",
    "(place / 'plot.txt').write_text('drawn')",
)


def moved_away(desk: Desk, commit: str) -> None:
    """What the platform would send; then neither repository nor dataset is where a job could find it."""
    desk.spec = {"repository": "", "dataset_path": ""}
    desk.write(commit)
    settings = PlatformSettings(data_dir=desk.folder / "platform", environ=desk.environ)
    repository, dataset = desk.folder / "hub.git", desk.folder / "multiply.jsonl"
    rows = list(range(desk.rows))
    wanted = job_files.FileSources(desk.api.run_id, repository, commit, [], rows, [])
    desk.api.files["source"] = job_files.make_bundle(settings, wanted).read_bytes()
    write_row_file([(str(dataset), 0, "", rows)], desk.folder / "rows")
    desk.api.files["dataset"] = (desk.folder / "rows").read_bytes()
    repository.rename(desk.folder / "not-there.git")
    dataset.unlink()


async def test_a_job_without_the_platforms_disk_does_the_same(desk: Desk) -> None:
    moved_away(desk, desk.commit(main=with_before(*LEAVES)))
    assert await desk.run(desk.folder / "work") == 0
    assert desk.result.status is RunStatus.FINISHED, desk.log
    assert desk.keys == desk.owed
    assert desk.result.report.succeeded == 12
    assert "as the platform sent it" in desk.log
    sent = {path: body for path, body in desk.api.files.items() if path.startswith("artifacts/")}
    ids = {one.rollout_id for one in desk.api.rollouts.values()}
    assert sent == {f"artifacts/{one}/plots/plot.txt": b"drawn" for one in ids}


async def test_a_shard_does_its_own_rows_with_its_part_of_the_concurrency(desk: Desk) -> None:
    desk.spec = {"shard": {"number": 1, "count": 3, "concurrency": 1}}
    desk.api.heartbeat_reply = {"stop": False, "concurrency": 2}
    assert await desk.run(desk.write(desk.commit(main=with_before("pass")))) == 0
    assert desk.keys == [(2, 0), (2, 1), (3, 0), (3, 1)]
    report = desk.result.report
    assert (report.rows, report.total, report.completed) == (2, 4, 4)


async def test_what_another_machine_stored_is_not_done_again(desk: Desk, tmp_path: Path) -> None:
    commit = desk.commit(main=with_before("pass"))
    moved_away(desk, commit)
    assert await desk.run(desk.folder / "work") == 0
    first = dict(desk.api.rollouts)
    for key in list(first)[:5]:
        del desk.api.rollouts[key]
    desk.api.received.clear()
    assert await desk.run(tmp_path / "another-machine") == 0
    assert len(desk.api.received) == 5, "only what was missing is done"
    assert desk.keys == desk.owed
    journal = (tmp_path / "another-machine" / "journal" / "rollouts.jsonl").read_bytes().splitlines()
    assert len({json.loads(line)["rollout_id"] for line in journal}) == 12
