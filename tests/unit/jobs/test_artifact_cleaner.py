"""What rollouts leave is cleaned before they count."""

from __future__ import annotations

import asyncio
from pathlib import Path

from osmosis.base.redact import Redactor
from osmosis.jobs.artifacts import ArtifactCleaner

SECRET = "a-secret-of-the-run"


def left(folder: Path, rollout_id: str) -> Path:
    (folder / rollout_id).mkdir()
    file = folder / rollout_id / "kept.txt"
    file.write_text(f"it is {SECRET}")
    return file


async def test_each_is_cleaned_before_it_counts(tmp_path: Path) -> None:
    cleaner = ArtifactCleaner(Redactor([SECRET]), tmp_path)
    files = {f"r{number}": left(tmp_path, f"r{number}") for number in range(20)}

    async def ended(rollout_id: str) -> str:
        await cleaner.clean(rollout_id)
        return files[rollout_id].read_text()

    first, *rest = files
    assert await ended(first) == "it is [redacted]"
    assert all(SECRET in files[name].read_text() for name in rest)
    assert set(await asyncio.gather(*map(ended, rest))) == {"it is [redacted]"}


async def test_all_of_a_run(tmp_path: Path) -> None:
    file = left(tmp_path, "of-an-earlier-job")
    await ArtifactCleaner(Redactor([SECRET]), tmp_path).clean()
    assert SECRET not in file.read_text()
