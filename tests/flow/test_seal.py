"""A run sealed in one file and verified: what was changed afterwards is found, whatever it is."""

import hashlib
import json
import random
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BytesIO
from itertools import accumulate
from pathlib import Path

import pytest

from osmosis.base.jsonable import JsonObject
from osmosis.cli.core.context import online
from osmosis.engine.loader import forget_modules
from osmosis.errors import UsageError
from osmosis.local.seal import extend_chain, verify
from support.command_line import CommandRun, run_command

AGENT = """
from pathlib import Path
from osmosis import RolloutAgentLoop

def double(n):
    return n * int(Path("factor").read_text())

class Chat(RolloutAgentLoop):
    name = "chat"
    def get_tools(self, request):
        return []
    async def run(self, ctx):
        messages = [{"role": "system", "content": f"Twice 4 is {double(4)}."}, *ctx.request.messages]
        messages.append((await ctx.chat(messages)).message)
        if messages[1]["content"].startswith("What is 3"):
            raise LookupError("no idea")
        return ctx.complete(messages)

agent = Chat()
"""
SCORE = """
import socket
from pathlib import Path
from osmosis import Score
from osmosis.records.run.rollout import Usage

def judge(solution_str, ground_truth, extra_info=None):
    if Path("asks").exists():
        socket.create_connection(("192.0.2.1", 9), timeout=5)
    return {"right": float(solution_str.endswith(f"#### {ground_truth}")), "short": 1.0}

def model(solution_str, ground_truth, extra_info=None):
    return Score(0.5, usage=Usage(prompt_tokens=7))
"""
LINE = "eval -m sealed_agent:agent -d rows.jsonl --model offline/calculator --n 2 --group-by kind"
Change = Callable[[dict[str, bytes]], None]


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of five rows, and the file it was sealed in."""
    folder = tmp_path_factory.mktemp("sealed")
    (folder / "sealed_agent.py").write_text(AGENT)
    (folder / "sealed_score.py").write_text(SCORE)
    (folder / "factor").write_text("2")
    rows = [{"user_prompt": f"What is {i} * 7?", "ground_truth": str(i * 7), "kind": i % 2} for i in range(6)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        go(folder, f"{LINE} --eval-fn sealed_score:judge --rows 1-5 --name night")
        done = go(folder, "eval seal night")
    assert done.code == 0, done.err
    return folder


@pytest.fixture
def place(sealed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "place"
    shutil.copytree(sealed, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(folder)
    for name in ("sealed_agent", "sealed_score"):
        sys.modules.pop(name, None)
    yield folder
    online()


def go(folder: Path, line: str) -> CommandRun:
    return run_command(*line.split(), cwd=folder)


def check(folder: Path, options: str = "", code: int = 0) -> JsonObject:
    run = go(folder, f"verify night.seal.zip --json {options}")
    assert run.code == code, run.out + run.err
    data: JsonObject = run.json["data"]
    return data


def places(data: JsonObject) -> list[str]:
    return sorted(difference["where"] for difference in data["differences"])


def reseal(path: Path, change: Change, *, chain: bool = True) -> None:
    """Change what is in the file and make it look untouched, as somebody with this code could."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    manifest = json.loads(members["manifest.json"])
    if chain:
        manifest["chain"] = [*accumulate(members["journal.jsonl"].splitlines(keepends=True), extend_chain, initial="")]
    members["manifest.json"] = json.dumps(manifest).encode()
    draft = BytesIO()
    with zipfile.ZipFile(draft, "w") as archive:
        archive.comment = b"0" * 64
        for name, content in members.items():
            archive.writestr(name, content)
    content = draft.getvalue()[:-64]
    path.write_bytes(content + hashlib.sha256(content).hexdigest().encode())


def in_line(number: int, old: bytes, new: bytes) -> Change:
    def change(members: dict[str, bytes]) -> None:
        lines = members["journal.jsonl"].splitlines(keepends=True)
        assert old in lines[number]
        lines[number] = lines[number].replace(old, new)
        members["journal.jsonl"] = b"".join(lines)

    return change


def test_a_sealed_run_is_right_in_every_part(place: Path) -> None:
    data = check(place)
    assert (data["rollouts"], data["graded"], data["replayed"], data["differing"]) == (10, 8, 10, 0)
    assert data["figures"] > 100
    assert data["not_checked"] == []
    before = (place / "night.seal.zip").read_bytes()
    assert go(place, "eval seal night").code == 0
    assert (place / "night.seal.zip").read_bytes() == before
    assert data["sha256"] == hashlib.sha256(before).hexdigest()
    with zipfile.ZipFile(place / "night.seal.zip") as archive:
        assert archive.namelist() == ["manifest.json", "journal.jsonl"]
        manifest = archive.read("manifest.json").decode()
    assert str(place.parent.parent) not in manifest
    assert "all that could be checked is right" in go(place, "verify night.seal.zip").out


def test_without_code_it_says_what_it_did_not_do(place: Path, sealed: Path) -> None:
    assert check(place, "--no-code")["not_checked"] == ["scores and conversations: no code was given"]
    (place / "elsewhere").mkdir()
    for folder in (place.parent, sealed.parent):
        forget_modules(folder)
    data = check(place, "--code elsewhere")
    assert (data["graded"], data["replayed"]) == (0, 0)
    assert all("there is no module" in reason for reason in data["not_checked"])
    assert len(data["not_checked"]) == 2


@pytest.mark.parametrize("kind", ["flip", "delete", "insert"])
def test_every_changed_byte_is_found(place: Path, kind: str) -> None:
    content, chance = (place / "night.seal.zip").read_bytes(), random.Random(kind)
    path = place / "changed.zip"
    missed = []
    for at in chance.sample(range(len(content)), 334):
        new = {"flip": bytes([content[at] ^ 1 << chance.randrange(8)]), "delete": b"", "insert": chance.randbytes(1)}
        path.write_bytes(content[:at] + new[kind] + content[at + (kind != "insert") :])
        with suppress(UsageError):
            missed += [at] if not verify(path).differing else []
    assert missed == []


def test_a_file_that_is_none_is_refused(place: Path) -> None:
    (place / "night.seal.zip").write_text("hello")
    run = go(place, "verify night.seal.zip")
    assert (run.code, "cannot be read as a sealed run" in run.err) == (2, True)


def test_a_file_that_would_fill_the_memory_is_refused(place: Path) -> None:
    file = place / "bomb.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("journal.jsonl", b"")
        archive.filelist[0].file_size = 3 << 30
    with pytest.raises(UsageError, match="more than 2 GiB"):
        verify(file)


def test_lines_that_changed_places_are_found(place: Path) -> None:
    def swap(members: dict[str, bytes]) -> None:
        lines = members["journal.jsonl"].splitlines(keepends=True)
        lines[3], lines[4] = lines[4], lines[3]
        members["journal.jsonl"] = b"".join(lines)

    reseal(place / "night.seal.zip", swap, chain=False)
    data = check(place, code=1)
    assert places(data)[0].startswith("journal: line 4: ")
    assert data["not_checked"] == ["scores and conversations: the file was changed after it was sealed"]


def test_an_altered_report_is_found_by_computing_it_again(place: Path) -> None:
    def praise(members: dict[str, bytes]) -> None:
        manifest = json.loads(members["manifest.json"])
        manifest["report"]["scores"][0]["mean"] = 0.99
        members["manifest.json"] = json.dumps(manifest).encode()

    reseal(place / "night.seal.zip", praise)
    [difference] = check(place, code=1)["differences"]
    assert (difference["where"], difference["sealed"]) == ("report: scores.sealed_score:judge.right.mean", 0.99)


def test_an_altered_answer_is_found_by_scoring_it_again(place: Path) -> None:
    with zipfile.ZipFile(place / "night.seal.zip") as archive:
        lines = [json.loads(line) for line in archive.read("journal.jsonl").splitlines()]
    number = next(
        i for i, line in enumerate(lines) if line["scores"].get("sealed_score:judge.right", {}).get("value") == 1.0
    )
    row, attempt = lines[number]["row_index"], lines[number]["attempt"]
    reseal(place / "night.seal.zip", in_line(number, b"#### ", b"#### 9"))
    [difference] = check(place, code=1)["differences"]
    assert difference == {
        "where": f"score: row {row} attempt {attempt} sealed_score:judge.right",
        "sealed": 1.0,
        "now": 0.0,
    }


def test_an_altered_conversation_is_found_by_replaying_it(place: Path) -> None:
    reseal(place / "night.seal.zip", in_line(2, b"Twice 4 is 8.", b"Twice 4 is 9."))
    [difference] = check(place, code=1)["differences"]
    assert difference["where"].endswith("message 0")
    assert ("is 9." in str(difference["sealed"]), "is 8." in str(difference["now"])) == (True, True)


def test_other_code_is_named(place: Path) -> None:
    (place / "sealed_score.py").write_text(SCORE.replace('"short": 1.0', '"short": 2.0'))
    data = check(place, code=1)
    assert places(data)[0] == "code: score (sealed_score.py)"
    assert len(places(data)) == 9
    assert all(place.endswith("judge.short") for place in places(data)[1:])
    sys.modules.pop("sealed_agent")
    (place / "sealed_agent.py").write_text(AGENT.replace("{double(4)}", "{double(5)}"))
    data = check(place, code=1)
    assert [where.split()[0] for where in places(data)[:3]] == ["code:", "code:", "conversation:"]
    assert (data["graded"], data["replayed"]) == (8, 0)


def test_judges_and_hosts_elsewhere_are_not_asked(place: Path, sealed: Path) -> None:
    go(place, f"{LINE} --eval-fn sealed_score:judge --eval-fn sealed_score:model --rows 1 --name night2")
    go(place, "eval seal night2 -o night.seal.zip")
    assert check(place)["not_checked"] == [
        "2 scores of sealed_score:model: a judge is not asked again, its scores stand as recorded"
    ]
    (place / "rows.jsonl").write_text((place / "rows.jsonl").read_text().replace('"7"', '"8"'))
    assert places(check(place, code=1)) == ["dataset: row 1 attempt 0", "dataset: row 1 attempt 1"]
    shutil.copy(sealed / "rows.jsonl", place)
    (place / "asks").touch()
    refused = "scores of sealed_score:judge{}: --offline: connection to 192.0.2.1 refused"
    assert check(place)["not_checked"][1:] == [f"2 {refused.format(name)}" for name in (".right", ".short", "")]


def test_code_outside_of_the_folder_and_programs_are_not_run(place: Path) -> None:
    def point_elsewhere(members: dict[str, bytes]) -> None:
        manifest = json.loads(members["manifest.json"])
        manifest["plan"]["agent"] = "command:touch ran"
        members["manifest.json"] = json.dumps(manifest).encode()

    reseal(place / "night.seal.zip", point_elsewhere)
    data = check(place)
    assert "command:touch ran is not in" in data["not_checked"][0]
    assert (data["graded"], data["replayed"], (place / "ran").exists()) == (8, 0, False)


def test_a_run_that_has_not_ended_or_does_not_add_up_is_not_sealed(place: Path) -> None:
    folder = place / ".osmosis" / "runs" / "night"
    report = json.loads((folder / "report.json").read_text())
    report["succeeded"] += 1
    (folder / "report.json").write_text(json.dumps(report))
    run = go(place, "eval seal night")
    assert (run.code, "succeeded is 9, not 8" in run.err) == (1, True)
    (folder / "report.json").unlink()
    assert "has not ended" in go(place, "eval seal night").err
