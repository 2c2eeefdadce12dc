from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from osmosis.base.files import GrowingFile, create_once, replacing, write_json, write_text


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
