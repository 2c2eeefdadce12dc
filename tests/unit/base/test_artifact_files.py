"""The door for artifacts: what code of others put into a run's folder leads nowhere else, and is sent in pieces."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from osmosis.base.artifact_files import CHUNK, listed, opened

PLACE = ["artifacts", "r-1", "artifacts"]
MOST = 10 * 1024 * 1024


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "master.key").write_text("the key")
    run = tmp_path / "run"
    (run / "artifacts" / "r-1" / "artifacts" / "plots").mkdir(parents=True)
    (run / "artifacts" / "r-1" / "artifacts" / "plots" / "a.txt").write_text("drawn")
    return run


def test_plain_files_are_listed_and_read(root: Path) -> None:
    assert listed(root, PLACE, most_bytes=MOST) == [("plots/a.txt", 5)]
    found = opened(root, [*PLACE, "plots", "a.txt"], most_bytes=MOST)
    assert found is not None
    assert (found.size, b"".join(found.pieces())) == (5, b"drawn")


@pytest.mark.parametrize(
    "link", ["artifacts", "artifacts/r-1", "artifacts/r-1/artifacts", "artifacts/r-1/artifacts/plots"]
)
def test_a_folder_that_became_a_link_leads_nowhere(root: Path, link: str) -> None:
    at = root / link
    at.rename(root.parent / "moved")
    at.symlink_to(root.parent / "moved")
    assert not listed(root, PLACE, most_bytes=MOST)
    assert opened(root, [*PLACE, "plots", "a.txt"], most_bytes=MOST) is None


def test_links_second_names_devices_and_pipes_are_not_there(root: Path) -> None:
    folder = root.joinpath(*PLACE)
    key = root.parent / "secret" / "master.key"
    (folder / "link").symlink_to(key)
    os.link(key, folder / "second-name")
    os.mkfifo(folder / "pipe")
    names = ["link", "second-name", "pipe"]
    if os.geteuid() == 0:
        os.mknod(folder / "device", 0o666 | 0o020000, os.makedev(1, 5))
        names.append("device")
    assert listed(root, PLACE, most_bytes=MOST) == [("plots/a.txt", 5)]
    for name in names:
        assert opened(root, [*PLACE, name], most_bytes=MOST) is None, name


@pytest.mark.parametrize("parts", [["..", "x"], ["plots", "..", "..", "x"], [""], ["."], ["a/b"], ["a\0b"], ["plots"]])
def test_no_part_of_a_path_is_special(root: Path, parts: list[str]) -> None:
    assert opened(root, [*PLACE, *parts], most_bytes=MOST) is None


def test_sizes_are_bounded_and_a_large_file_comes_in_pieces(root: Path) -> None:
    folder = root.joinpath(*PLACE)
    with (folder / "sparse").open("wb") as file:
        file.truncate(MOST + 1)
    with (folder / "large").open("wb") as file:
        file.truncate(3 * CHUNK + 1)
    assert listed(root, PLACE, most_bytes=MOST) == [("large", 3 * CHUNK + 1), ("plots/a.txt", 5)]
    assert opened(root, [*PLACE, "sparse"], most_bytes=MOST) is None
    found = opened(root, [*PLACE, "large"], most_bytes=MOST)
    assert found is not None
    (folder / "large").open("ab").write(b"x" * CHUNK)
    pieces = [len(piece) for piece in found.pieces()]
    assert (max(pieces), sum(pieces)) == (CHUNK, 3 * CHUNK + 1)
