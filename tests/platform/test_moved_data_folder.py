"""A data folder is moved: what the database says about files still leads to them."""

from __future__ import annotations

import shutil
from pathlib import Path

import sqlalchemy as sa

from osmosis.platform import tables
from osmosis.platform.app import create_app
from osmosis.platform.embedded_worker import build_embedded_worker
from osmosis.platform.scheduling import job_spec
from osmosis.platform.settings import PlatformSettings
from support.platform_data import EVALUATION


def test_a_platform_goes_on_in_a_data_folder_that_was_moved(ready, tmp_path: Path) -> None:
    """Its repository is synced, its dataset read, and a run submitted before finds both in the new place."""
    before = ready.json("POST", "eval-runs", json=EVALUATION)
    ready.platform.db.close()
    settings = ready.platform.settings
    new = tmp_path / "elsewhere" / "data"
    new.parent.mkdir()
    shutil.move(settings.data_dir, new)
    moved = PlatformSettings(
        data_dir=new,
        worker=False,
        max_jobs=2,
        job_command=("sh", "-c", "sleep 60"),
        database_url=settings.database_url,
        environ=dict(settings.environ),
    )
    ready.platform = create_app(moved).state.platform
    ready.http.app.state.platform = ready.platform
    ready.anonymous.app.state.platform = ready.platform

    commit = ready.push({"rollouts/multiply/main.py": "print('changed')\n"})
    assert ready.json("GET", "sync")["last_synced_commit_sha"] == commit
    link = ready.json("GET", "datasets/sums/download")["presigned_url"]
    assert len(ready.anonymous.get(link.removeprefix(moved.url)).content.splitlines()) == 40
    after = ready.json("POST", "eval-runs", json=EVALUATION)
    worker = build_embedded_worker(ready.platform)
    assert worker.step()
    assert worker.step()
    for run, head in ((before, None), (after, commit)):
        with ready.platform.db.read() as session:
            job = session.scalars(sa.select(tables.Job).where(tables.Job.run_id == run["id"])).one()
            spec = job_spec.build_spec(session, moved, job)
        assert Path(spec.repository).parent.parent == new
        assert (Path(spec.repository) / "HEAD").is_file()
        assert Path(spec.dataset_path).is_relative_to(new)
        assert len(Path(spec.dataset_path).read_text().splitlines()) == 40
        assert head in (None, spec.commit_sha)
    worker.stop()
    assert not settings.data_dir.exists()
