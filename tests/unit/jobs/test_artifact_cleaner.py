"""What rollouts leave is cleaned before they count, those that end together in one step."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from osmosis.base.redact import Redactor
from osmosis.jobs.artifacts import ArtifactCleaner

SECRET = "a-secret-of-the-run"


class Counting(Redactor):
    """Notes which folders were asked for together."""

    def __init__(self) -> None:
        super().__init__([SECRET])
        self.asked: list[list[str]] = []

    def folders(self, folder: Path, names: Iterable[str]) -> int:
        self.asked.append(list(names))
        return super().folders(folder, names)


def left(folder: Path, rollout_id: str) -> Path:
    (folder / rollout_id).mkdir()
    file = folder / rollout_id / "kept.txt"
    file.write_text(f"it is {SECRET}")
    return file


async def test_those_that_end_together_are_cleaned_together_and_each_before_it_counts(tmp_path: Path) -> None:
    redactor = Counting()
    cleaner = ArtifactCleaner(redactor, tmp_path)
    files = {f"r{number}": left(tmp_path, f"r{number}") for number in range(20)}

    async def ended(rollout_id: str) -> str:
        await cleaner.clean(rollout_id)
        return files[rollout_id].read_text()

    assert set(await asyncio.gather(*map(ended, files))) == {"it is [redacted]"}
    assert redactor.asked == [list(files)]
    late = left(tmp_path, "late")
    files["late"] = late
    assert await ended("late") == "it is [redacted]"


async def test_one_that_is_cut_off_leaves_the_others_clean(tmp_path: Path) -> None:
    cleaner = ArtifactCleaner(Redactor([SECRET]), tmp_path)
    file = left(tmp_path, "stays")
    cut, stays = asyncio.create_task(cleaner.clean("cut")), asyncio.create_task(cleaner.clean("stays"))
    await asyncio.sleep(0)
    cut.cancel()
    await stays
    assert SECRET not in file.read_text()


async def test_all_of_a_run(tmp_path: Path) -> None:
    file = left(tmp_path, "of-an-earlier-job")
    await ArtifactCleaner(Redactor([SECRET]), tmp_path).clean_all()
    assert SECRET not in file.read_text()
