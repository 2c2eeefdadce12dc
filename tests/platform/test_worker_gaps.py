"""What costs a run nothing: a machine that was suspended, a job whose run is over, a start that the disk refuses."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy as sa

from osmosis.platform import tables
from osmosis.platform.embedded_worker import LeaseReaper, build_embedded_worker
from osmosis.platform.settings import PlatformSettings
from osmosis.records.base import utc_now
from support.platform_data import EVALUATION, a_worker


def with_settings(site: Any, **changes: object) -> Any:
    """The same platform, told otherwise. Its reaper, which was told the first settings, would give jobs more time at
    its first look, whenever that comes."""
    site.http.app.state.reaper.stop()
    settings: PlatformSettings = site.platform.settings.model_copy(update=changes)
    site.platform = replace(site.platform, settings=settings)
    site.http.app.state.platform = site.anonymous.app.state.platform = site.platform
    return site


def job_of(site: Any, run_id: str) -> tables.Job:
    return site.only(sa.select(tables.Job).where(tables.Job.run_id == run_id))


def lines_of(site: Any, run_id: str) -> str:
    return "\n".join(site.stored(sa.select(tables.RunLog.message).where(tables.RunLog.run_id == run_id)))


def test_after_a_gap_leases_are_extended_before_a_job_counts_as_silent(ready) -> None:
    site = with_settings(ready, lease_s=1.0, poll_s=0.05, job_command=("sh", "-c", "sleep 60"))
    run = site.json("POST", "eval-runs", json=EVALUATION)
    worker = build_embedded_worker(site.platform)
    try:
        assert worker.step()
        pid = job_of(site, run["id"]).handle["pid"]
        time.sleep(1.5)  # nobody looks: suspended, with the job
        worker.step()
        assert psutil.pid_exists(pid)
        assert job_of(site, run["id"]).starts == 1
        assert "was suspended for" in lines_of(site, run["id"])
        deadline = time.monotonic() + 30
        while job_of(site, run["id"]).starts == 1 and time.monotonic() < deadline:
            worker.step()  # somebody looks, and the job still says nothing
            time.sleep(0.05)
        assert job_of(site, run["id"]).starts == 2
    finally:
        worker.stop()


def test_a_job_whose_run_is_over_is_no_zombie(ready) -> None:
    site = with_settings(ready, job_command=("sh", "-c", "sleep 0.2"))
    run = site.json("POST", "eval-runs", json=EVALUATION)
    worker = build_embedded_worker(site.platform)
    try:
        assert worker.step()
        pid = job_of(site, run["id"]).handle["pid"]
        with site.platform.db.write() as session:  # it reported its end, and nobody asks after it any more
            session.execute(sa.update(tables.Run).values(status="finished"))
            session.execute(sa.update(tables.Job).values(state="over", lease_hash=None))
        deadline = time.monotonic() + 30
        while psutil.pid_exists(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
            worker.step()
        assert not psutil.pid_exists(pid)
    finally:
        worker.stop()


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc").exists(), reason="needs a folder that cannot be written")
def test_a_start_that_the_disk_refuses_says_so_on_the_run(ready) -> None:
    site = with_settings(ready, max_starts=2, start_pause_s=0.0)
    run = site.json("POST", "eval-runs", json=EVALUATION)
    runs = site.platform.settings.runs_dir
    runs.rmdir()
    runs.write_text("where folders should be")  # no folder can be made in it, whoever asks
    worker = build_embedded_worker(site.platform)
    try:
        assert worker.step()
        assert worker.step()
    finally:
        worker.stop()
    ended = site.row(tables.Run, run["id"])
    assert (ended.status, job_of(site, run["id"]).lost) == ("failed", 2)
    assert "could not be started: " in lines_of(site, run["id"])


def test_the_files_of_a_deleted_dataset_go_with_the_last_run_that_needed_them(ready) -> None:
    run = ready.json("POST", "eval-runs", json=EVALUATION)
    ready.json("POST", f"eval-runs/{run['id']}/stop", json={})
    file = ready.platform.settings.located(ready.row(tables.Run, run["id"]).dataset_path)
    assert ready.http.delete("/api/cli/datasets/sums").status_code == 204
    assert file.exists(), "the run can be retried"
    assert ready.http.delete(f"/api/cli/eval-runs/{run['id']}").status_code == 204
    assert not file.exists()
    assert not file.parent.exists()


def test_a_worker_does_not_wait_for_its_next_round_when_there_is_work(ready) -> None:
    site = with_settings(ready, poll_s=120.0, job_command=("sh", "-c", "sleep 60"))
    worker = build_embedded_worker(site.platform)
    worker.start()
    try:
        time.sleep(0.5)  # it has looked, and found nothing
        run = site.json("POST", "eval-runs", json=EVALUATION)
        deadline = time.monotonic() + 30
        while job_of(site, run["id"]).handle is None:
            assert time.monotonic() < deadline, "nobody woke it"
            time.sleep(0.02)
    finally:
        worker.stop()


def test_no_job_is_silent_while_the_loop_that_hears_it_stands_still(ready) -> None:
    site = with_settings(ready, lease_s=1.0, poll_s=0.05)
    run = site.json("POST", "eval-runs", json=EVALUATION)
    reaper, loop, over = LeaseReaper(site.platform), asyncio.new_event_loop(), threading.Event()

    def late() -> None:
        """As a job is that has not been heard for a while, and whose worker is gone."""
        with site.platform.db.write() as session:
            job = session.scalars(sa.select(tables.Job).where(tables.Job.run_id == run["id"])).one()
            job.state, job.lease_until, job.worker_id = "held", utc_now() - timedelta(seconds=30), gone

    with site.platform.db.write() as session:
        worker = a_worker(session)
        worker.last_seen = utc_now() - timedelta(hours=1)
        gone = worker.id
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    watch = asyncio.run_coroutine_threadsafe(reaper.note_loop_alive(), loop)
    try:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(30)  # by now it hears
        reaper.step()
        loop.call_soon_threadsafe(over.wait)  # somebody computes where requests are answered
        time.sleep(1.5)
        for _ in range(3):
            late()
            reaper.step()
            assert job_of(site, run["id"]).state == "held"
        assert "was suspended for" in lines_of(site, run["id"])
        over.set()
        deadline = time.monotonic() + 60
        while job_of(site, run["id"]).state == "held" and time.monotonic() < deadline:
            late()
            reaper.step()
        assert job_of(site, run["id"]).state == "waiting"
    finally:
        over.set()
        watch.cancel()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()
