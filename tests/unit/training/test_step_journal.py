"""The journal of a step: packed when the step is over, read the same, written again where a run goes on."""

from __future__ import annotations

from pathlib import Path

from osmosis.records.run.plan import EvalPlan, ModelSpec
from osmosis.records.run.rollout import Rollout, RolloutStatus, Score
from osmosis.training.protocol.messages import SampledAnswer
from osmosis.training.step_journal import StepJournal
from osmosis.training.token_sequences import Conversation
from support.fake_trainer import encode

PLAN = EvalPlan(name="r", agent="a", model=ModelSpec(name="m", kind="trained"), dataset="d")


def add(journal: StepJournal, row: int) -> None:
    """A rollout with tokens."""
    conversation = Conversation()
    ids = encode("a long answer, " * 50)
    conversation.add(
        [{"role": "user", "content": "q"}],
        SampledAnswer(
            prompt_ids=encode("q"), token_ids=ids, logprobs=[-0.5] * len(ids), content="a", finish_reason="stop",
            parse="content", step=1,
        ),
    )  # fmt: skip
    rollout_id = f"r{row}"
    journal.keep(rollout_id, conversation)
    scores = {"reward": Score(name="reward", value=1.0)}
    journal.append(
        Rollout(rollout_id=rollout_id, row_index=row, attempt=0, status=RolloutStatus.SUCCESS, scores=scores)
    )


def written(folder: Path, rows: int = 3) -> StepJournal:
    journal = StepJournal(folder, "train", 1)
    journal.open(PLAN)
    for row in range(rows):
        add(journal, row)
    journal.close()
    return journal


def test_a_packed_step_is_smaller_and_reads_the_same(tmp_path: Path) -> None:
    journal = written(tmp_path)
    plain, stored = journal.rollouts_path.read_bytes(), journal.stored()
    journal.pack()
    assert not journal.rollouts_path.exists()
    assert journal.packed_path.stat().st_size < len(plain) / 5
    again = StepJournal(tmp_path, "train", 1)
    assert (again.source().read(), again.stored(), len(again.finished())) == (plain, stored, 3)
    assert [one.row_index for one, _ in again.plain_lines()] == [0, 1, 2]
    again.pack()  # nothing is left to be packed
    assert again.stored() == stored


def test_a_step_that_was_never_packed_is_read(tmp_path: Path) -> None:
    journal = written(tmp_path)
    assert len(journal.stored()) == 3
    assert StepJournal(tmp_path, "validation", 1).stored() == []


def test_a_packed_step_is_written_on(tmp_path: Path) -> None:
    journal = written(tmp_path)
    before = journal.stored()
    journal.pack()
    journal.open(PLAN)
    add(journal, 9)
    assert (journal.stored()[:3], len(journal.stored())) == (before, 4)
    journal.pack()
    assert journal.rollouts_path.exists(), "one that is open is not packed"
    journal.close()
    journal.pack()
    assert len(journal.stored()) == 4


def test_a_kill_between_packing_and_removing_loses_nothing(tmp_path: Path) -> None:
    journal = written(tmp_path)
    plain = journal.rollouts_path.read_bytes()
    journal.pack()
    journal.rollouts_path.write_bytes(plain)
    journal.open(PLAN)
    add(journal, 9)
    journal.close()
    assert not journal.packed_path.exists()
    assert len(journal.stored()) == 4
