"""The rollout record and the folder of a checkpoint: whole, or refused."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from osmosis import errors
from osmosis.records.run.rollout import (
    CallTokens,
    Category,
    Failure,
    ModelCall,
    Phase,
    Rollout,
    RolloutStatus,
    Score,
    Usage,
)
from osmosis.records.run.training import MANIFEST, CheckpointManifest, describe_files, is_complete, read_manifest


def test_usage_adds_and_an_unknown_price_is_not_free() -> None:
    known = Usage(prompt_tokens=1, completion_tokens=2, cost_usd=0.5)
    unknown = Usage(prompt_tokens=10, completion_tokens=20)
    assert (known + unknown).cost_usd == 0.5
    assert (unknown + unknown).cost_usd is None
    assert (known + unknown).total_tokens == 33


def test_a_rollout_survives_a_journal_line() -> None:
    failure = Failure(phase=Phase.SCORE, category=Category.SCORE_ERROR, message="boom")
    rollout = Rollout(
        rollout_id="r",
        row_index=3,
        attempt=1,
        status=RolloutStatus.SUCCESS,
        messages=[{"role": "user", "content": "\u2028 [/red] \x00"}],
        scores={"reward": Score(name="reward", value=1.0), "broken": Score(name="broken", failure=failure)},
    )
    line = rollout.to_line()
    assert line.count(b"\n") == 1
    again = Rollout.model_validate_json(line)
    assert again == rollout
    assert again.value("broken") is None
    assert again.key == (0, "@3", 1)


def test_a_journal_line_is_what_the_record_says() -> None:
    call = ModelCall(started_ms=0.25, duration_ms=1e16, usage=Usage(cost_usd=0.1), tokens=CallTokens(logprobs=[-1.0]))
    rollout = Rollout(
        rollout_id="r",
        row_index=3,
        attempt=1,
        row_key="k",
        status=RolloutStatus.FAILED,
        messages=[{"role": "assistant", "content": None, "tool_calls": [{"id": 1, "f": None}]}, {"content": "é\u2028"}],
        scores={"f": Score(0.5, "why", {"n": None}, {"a": 1.0}, usage=Usage(prompt_tokens=2))},
        failure=Failure(phase=Phase.MODEL, category=Category.TIMEOUT, message="late"),
        calls=[call],
        info={"deep": [{"x": 1.5}]},
        hashes={"row": "h"},
    )
    assert rollout.to_line().decode() == rollout.model_dump_json(exclude_none=True) + "\n"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_score_is_finite(value: float) -> None:
    with pytest.raises(ValidationError):
        Score(name="x", value=value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "weights.safetensors").write_bytes(b"weights")
    (tmp_path / "optimizer.pt").write_bytes(b"moments")
    manifest = CheckpointManifest(
        run="r", step=3, kind="regular", method="grpo", fingerprint="f", base_model="m", created_at="now", versions={},
        files=describe_files(tmp_path),
    )  # fmt: skip
    (tmp_path / MANIFEST).write_text(manifest.model_dump_json())
    return tmp_path


def test_a_complete_one_is_read(folder: Path) -> None:
    manifest = read_manifest(folder)
    assert manifest.step == 3
    assert [file.name for file in manifest.files] == ["adapter/weights.safetensors", "optimizer.pt"]


def test_a_partial_one_is_refused_with_what_is_missing(folder: Path) -> None:
    (folder / "optimizer.pt").unlink()
    with pytest.raises(errors.ValidationError, match=r"optimizer\.pt is missing"):
        read_manifest(folder)
    (folder / "optimizer.pt").write_bytes(b"moment")
    with pytest.raises(errors.ValidationError, match="6 bytes instead of 7"):
        read_manifest(folder)
    (folder / "optimizer.pt").write_bytes(b"momentS")
    with pytest.raises(errors.ValidationError, match=r"content of optimizer\.pt changed"):
        read_manifest(folder)
    (folder / MANIFEST).unlink()
    with pytest.raises(errors.ValidationError, match=r"has no manifest\.json"):
        read_manifest(folder)
    assert not is_complete(folder)


def test_a_manifest_cannot_name_files_outside(folder: Path) -> None:
    text = (folder / MANIFEST).read_text().replace("optimizer.pt", "../optimizer.pt")
    (folder / MANIFEST).write_text(text)
    with pytest.raises(errors.ValidationError, match="outside"):
        read_manifest(folder)


def test_a_broken_manifest_is_an_error_of_ours(folder: Path) -> None:
    (folder / MANIFEST).write_text("{")
    with pytest.raises(errors.ValidationError, match="cannot be read"):
        read_manifest(folder)
