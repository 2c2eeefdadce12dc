"""Slow work of one workspace holds up nobody else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import sqlalchemy as sa

from osmosis.platform import tables
from osmosis.platform.gitsync import mirror
from osmosis.testing.platform_app import running_platform


def test_many_syncs_that_wait_for_a_lock_stop_no_request(tmp_path: Path) -> None:
    with running_platform(tmp_path / "data") as platform, ThreadPoolExecutor(60) as many:
        with platform.parts.db.read() as session:
            repository = session.scalars(sa.select(tables.Repository)).one()
            place = mirror.MirrorPlace.of(repository, platform.parts.settings)
        mirror.prepare(place, platform.parts.settings)
        with httpx.Client(base_url=platform.url, headers=platform.headers, timeout=60) as http:
            with mirror.locked(place):
                waiting = [many.submit(http.post, "/api/cli/sync?wait=true") for _ in range(50)]
                pushes = [many.submit(http.post, "/demo/repository/sync") for _ in range(5)]
                for path in ("/health", "/api/cli/verify", "/api/cli/datasets"):
                    with httpx.Client(base_url=platform.url, headers=platform.headers, timeout=20) as other:
                        assert other.get(path).status_code == 200, path
                assert not any(one.done() for one in waiting)
            for one in waiting:
                assert one.result(60).status_code == 202, one.result().text
            assert all(one.result(60).status_code == 303 for one in pushes)
