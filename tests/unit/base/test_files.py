"""Files: written as a whole, opened without following links."""

import os
import stat
from pathlib import Path

import pytest

from osmosis.base.files import GrowingFile, create_once, replacing, write_json, write_text
from osmosis.base.safe_open import CHUNK, list_artifacts, open_artifact


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    write_text(target, "old", durable=True)
    with replacing(target) as draft:
        draft.write(b"new")
        draft.flush()
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_failed_write_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    write_json(target, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(target, {"a": float("nan")})
    with pytest.raises(TypeError), replacing(target) as draft:
        draft.write("half")  # type: ignore[arg-type]
    assert target.read_text() == '{"a": 1}\n'
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755])
def test_the_mode_is_exact_whatever_the_umask(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        write_text(tmp_path / "a", "x", mode=mode)
        write_text(tmp_path / "plain", "x")
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "a") == mode
    assert mode_of(tmp_path / "plain") == 0o600


def test_a_private_file_is_private_from_its_first_byte_on(tmp_path: Path) -> None:
    with replacing(tmp_path / "key", mode=0o600) as draft:
        assert stat.S_IMODE(os.fstat(draft.fileno()).st_mode) == 0o600


def test_the_first_creator_wins(tmp_path: Path) -> None:
    target = tmp_path / "master.key"
    assert create_once(target, b"first", mode=0o600)
    assert not create_once(target, b"second", mode=0o600)
    assert target.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["master.key"]


def test_a_file_that_grows_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    for number, size in enumerate((0, 2)):
        file = GrowingFile(path)
        assert file.size == size
        file.append(b"%d\n" % number)
        assert path.read_bytes() == b"0\n1\n"[: size + 2]
        file.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a disk that is always full")
def test_a_file_that_cannot_grow_says_so() -> None:
    file = GrowingFile(Path("/dev/full"))
    with pytest.raises(OSError, match="No space left"):
        file.append(b"line\n")
    file.close()


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
    assert list_artifacts(root, PLACE, most_bytes=MOST) == [("plots/a.txt", 5)]
    found = open_artifact(root, [*PLACE, "plots", "a.txt"], most_bytes=MOST)
    assert (found.size, b"".join(found.pieces())) == (5, b"drawn")


@pytest.mark.parametrize(
    "link", ["artifacts", "artifacts/r-1", "artifacts/r-1/artifacts", "artifacts/r-1/artifacts/plots"]
)
def test_a_folder_that_became_a_link_leads_nowhere(root: Path, link: str) -> None:
    at = root / link
    at.rename(root.parent / "moved")
    at.symlink_to(root.parent / "moved")
    assert not list_artifacts(root, PLACE, most_bytes=MOST)
    assert open_artifact(root, [*PLACE, "plots", "a.txt"], most_bytes=MOST) is None


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
    assert list_artifacts(root, PLACE, most_bytes=MOST) == [("plots/a.txt", 5)]
    for name in names:
        assert open_artifact(root, [*PLACE, name], most_bytes=MOST) is None, name


@pytest.mark.parametrize("parts", [["..", "x"], ["plots", "..", "..", "x"], [""], ["."], ["a/b"], ["a\0b"], ["plots"]])
def test_no_part_of_a_path_is_special(root: Path, parts: list[str]) -> None:
    assert open_artifact(root, [*PLACE, *parts], most_bytes=MOST) is None


def test_sizes_are_bounded_and_a_large_file_comes_in_pieces(root: Path) -> None:
    folder = root.joinpath(*PLACE)
    with (folder / "sparse").open("wb") as file:
        file.truncate(MOST + 1)
    with (folder / "large").open("wb") as file:
        file.truncate(3 * CHUNK + 1)
    assert list_artifacts(root, PLACE, most_bytes=MOST) == [("large", 3 * CHUNK + 1), ("plots/a.txt", 5)]
    assert open_artifact(root, [*PLACE, "sparse"], most_bytes=MOST) is None
    found = open_artifact(root, [*PLACE, "large"], most_bytes=MOST)
    (folder / "large").open("ab").write(b"x" * CHUNK)
    pieces = [len(piece) for piece in found.pieces()]
    assert (max(pieces), sum(pieces)) == (CHUNK, 3 * CHUNK + 1)
