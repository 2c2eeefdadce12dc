"""The log on a full disk: a real device that takes no byte."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

import pytest

from osmosis.platform.maintenance.telemetry import LogFile


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_disk_is_said_once_and_in_the_file_when_it_takes_lines_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "platform.log"
    file.symlink_to("/dev/full")
    handler = LogFile(file, maxBytes=100_000, backupCount=1, encoding="utf-8")
    log = logging.Logger("of this test")
    log.addHandler(handler)
    for number in range(3):
        log.warning("line %d", number)
    said = capsys.readouterr().err
    assert said.count("cannot be written (No space left on device)") == 1
    assert "Traceback" not in said

    with suppress(OSError):
        handler.stream.close()
    file.unlink()
    with file.open("a", encoding="utf-8") as handler.stream:
        log.warning("line 3")
        log.warning("line 4")
    assert file.read_text().splitlines() == [
        "line 3",
        "3 lines could not be written here; standard error has them",
        "line 4",
    ]
