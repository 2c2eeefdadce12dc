"""Whole training jobs, but for the model: real processes, a real rollout server, and kills in the middle of a step."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from osmosis.jobs.commands import PROCESSES_FILE
from osmosis.records.config.run_config import TrainingConfig
from osmosis.records.run.job import JobSpec, Stage
from osmosis.records.run.status import RunStatus
from osmosis.records.run.training import plan_training, read_manifest
from osmosis.sandbox import probe
from osmosis.sdk.foreign import PACKAGES
from osmosis.training.protocol.plans import rows_of_step
from osmosis.training.step_journal import StepJournal
from support import RUN
from support.event_files import read_events
from support.waiting import until

from .conftest import DEADLINE_S, PYPROJECT, Desk

pytestmark = [pytest.mark.network, pytest.mark.slow]

MAIN = """
import asyncio, os
from pathlib import Path
from osmosis.sdk.workflow import AgentWorkflow
from osmosis.sdk.workflow import Grader
from osmosis.sdk.types import AgentWorkflowConfig, ConcurrencyConfig


class Asks(AgentWorkflow):
    async def run(self, ctx):
        hold = Path(os.environ.get("HOLD") or os.environ["_OSMOSIS_ROLLOUT_ARTIFACT_ROOT"] + "/hold")
        messages = list(ctx.prompt)
        async with ctx.chat(max_attempts=1) as chat:
            for said in ("once more", None):
                answer = await chat.complete(messages)
                messages.append(answer.message)
                if said:
                    messages.append({"role": "user", "content": said})
        while hold.exists() and hold.read_text() == messages[0]["content"]:
            await asyncio.sleep(0.02)
        return messages


class Judge(Grader):
    async def grade(self, ctx):
        if os.environ.get("SCORE"):
            ctx.set_reward(float(os.environ["SCORE"]))
        elif not os.environ.get("SILENT"):
            ctx.set_reward(float(int(ctx.sample.messages[-1]["content"]) % 2))


config = AgentWorkflowConfig(name="asks", concurrency=ConcurrencyConfig(max_concurrent=16))
"""


class TrainingDesk:
    """A training run to be, at the desk of a job."""

    def __init__(self, desk: Desk, **training: Any) -> None:
        self.desk = desk
        self.main, self.pyproject, self.files = MAIN, PYPROJECT, dict[str, str]()
        self.rows: list[dict[str, Any]] = [{"user_prompt": f"row {n}", "ground_truth": "0"} for n in range(10)]
        self.hold = desk.folder / "work" / "artifacts" / "hold"  # where a rollout may read, in a sandbox, too
        self.hold.parent.mkdir(parents=True)
        self.config: dict[str, Any] = {
            "experiment": {"rollout": "multiply", "entrypoint": "main.py", "dataset": "d", "model_path": "base"},
            "training": {"rollout_batch_size": 2, "n_samples_per_prompt": 4, "total_epochs": 1, "lr": 1e-3, **training},
            "checkpoints": {"eval_interval": 2, "checkpoint_save_freq": 2},
            "advanced": {"validation_rows": 2},
            "env": {},
        }

    def write(self) -> Path:
        desk = self.desk
        commit = desk.commit(main=self.main, pyproject=self.pyproject, **self.files)
        dataset = desk.folder / "d.jsonl"
        dataset.write_text("".join(json.dumps(row) + "\n" for row in self.rows))
        spec = JobSpec(
            run_id=desk.api.run_id,
            run_name="multiply-1",
            kind="training",
            repository=str(desk.folder / "hub.git"),
            commit_sha=commit,
            config=TrainingConfig.model_validate(self.config),
            dataset_path=str(dataset),
            dataset_rows=10,
            rows=list(range(10)),
            models_dir=str(desk.folder / "models"),
        )
        desk.api.spec = spec
        return desk.folder / "work"

    def hold_row_of(self, step: int) -> None:
        """The rollouts of one of this step's two rows wait until `hold` is gone."""
        config = TrainingConfig.model_validate(self.config)
        plan = plan_training(config, range(10))
        row = rows_of_step(plan.rows, plan.batch, step, config.advanced.seed)[0]
        self.hold.write_text(f"row {row}")

    async def start(self, job: Path) -> asyncio.subprocess.Process:
        return await self.desk.start(job, program=(*RUN, "fake_training_job"))

    async def run(self) -> int:
        return await ended(await self.start(self.write()))

    @property
    def done(self) -> dict[int, int]:
        """How many rollouts there are of each step, validations included."""
        found: dict[int, int] = {}
        for step, _, _ in self.desk.api.rollouts:
            found[step] = found.get(step, 0) + 1
        return found

    def curve(self, key: str) -> list[int]:
        return [point.step for point in self.desk.api.metrics if point.key == key]

    def lives(self) -> bool:
        """Whether there is a trainer now."""
        try:
            return self.trainer().is_running()
        except (StopIteration, psutil.NoSuchProcess, FileNotFoundError):
            return False

    def trainer(self) -> psutil.Process:
        """The trainer's process: a child of what ties it to the job."""
        known = json.loads((self.desk.folder / "work" / PROCESSES_FILE).read_text())
        leaders = [psutil.Process(int(pid)) for pid in known if psutil.pid_exists(int(pid))]
        children = [child for leader in leaders for child in leader.children()]
        return next(child for child in children if "tests.support.fake_trainer" in child.cmdline())


def desk_log_count(training: TrainingDesk, words: str) -> int:
    """How many lines of the run's log begin with these words."""
    return sum(1 for line in training.desk.api.logs if line.message.startswith(words))


async def ended(job: asyncio.subprocess.Process) -> int:
    try:
        return await asyncio.wait_for(job.wait(), DEADLINE_S)
    finally:
        if job.returncode is None:
            job.kill()


@pytest.fixture
def training(desk: Desk) -> TrainingDesk:
    return TrainingDesk(desk)


SEALED = """
from itertools import count
from osmosis import Grader

CALLS = count()

class Sealed(Grader):
    async def grade(self, ctx):
        assert ctx.label == "0"
        assert ctx.sample.messages[-1]["content"].isdigit()
        if next(CALLS):
            ctx.set_reward(0.25)
"""
COMPLETE = {0: 2, 1: 8, 2: 10, 3: 8, 4: 10}


async def test_a_run_from_commit_to_checkpoints(training: TrainingDesk) -> None:
    desk = training.desk
    training.config["advanced"] |= {"rollout_servers": 2, "sealed": "sealed.py"}
    training.files = {"sealed": SEALED}
    assert await training.run() == 0
    assert desk.result.status is RunStatus.FINISHED, desk.log
    assert training.curve("eval/sealed") == [0, 2, 4]
    sealed = {(r.step, r.metrics.get("sealed")) for r in desk.api.rollouts.values() if "sealed" in r.metrics}
    assert sealed == {(0, 0.25), (2, 0.25), (4, 0.25)}, "of validation rollouts, and of no others"
    assert "validation after step 0: the sealed grader gave 1 rollouts no score" in desk.log
    assert desk.log.count("the sealed grader gave") == 1
    assert training.done == COMPLETE
    assert len(desk.api.received) == sum(COMPLETE.values())
    assert desk_log_count(training, "starting the rollout server") == 3
    assert f"sandbox of the trainer: {probe().level.label}" in desk.log
    assert training.curve("rollout/raw_reward") == [1, 2, 3, 4]
    assert training.curve("eval/validation/reward") == [0, 2, 4]
    assert [saved.step for saved in desk.api.checkpoints] == [2, 4]
    assert all(read_manifest(Path(saved.path)).run == "multiply-1" for saved in desk.api.checkpoints)
    last = [beat for beat in desk.api.heartbeats if beat.stage is Stage.TRAINING][-1]
    assert (last.completed, last.total) == (4, 4)
    assert {point.step for point in desk.api.metrics} == {0, 1, 2, 3, 4}
    assert desk.servers() == []
    step = StepJournal(desk.folder / "work" / "steps", "train", 3)
    assert not step.rollouts_path.exists(), "a step that is over is packed"
    tokens = next(step.lines())["tokens"][0]
    said = [chr(t) for t, own in zip(tokens["completion_token_ids"], tokens["mask"], strict=True) if not own]
    assert "".join(said) == "<user>once more\x03<assistant>"


TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageUser
from inspect_ai.scorer import Score, accuracy, scorer
from inspect_ai.solver import generate, solver


@solver
def once_more():
    async def solve(state, generate):
        state.messages.append(ChatMessageUser(content="once more"))
        return await generate(state)

    return solve


@scorer(metrics=[accuracy()])
def odd():
    async def score(state, target):
        return Score(value=int(state.output.completion) % 2)

    return score


@task
def asks():
    samples = [Sample(id=n + 1, input=f"row {n}") for n in range(10)]
    return Task(dataset=samples, solver=[generate(), once_more()], scorer=odd())
"""


async def test_a_task_of_inspect_is_trained_by_its_own_scores(training: TrainingDesk) -> None:
    """The proxy sees every call of its solver: what is trained are the tokens of the whole conversation."""
    desk, package = training.desk, PACKAGES["inspect"]
    training.main = 'import osmosis\n\nbackend = osmosis.load_environment("inspect:task.py@asks")\n'
    training.files, training.pyproject = {"task": TASK}, PYPROJECT.replace('"iniconfig>=2"', f'"{package}"')
    training.rows = [
        {"id": str(n + 1), "user_prompt": f"row {n}", "metadata": {"sample": {"id": n + 1, "input": f"row {n}"}}}
        for n in range(10)
    ]
    assert await training.run() == 0
    assert desk.result.status is RunStatus.FINISHED, desk.log
    assert training.done == COMPLETE
    assert training.curve("rollout/raw_reward") == [1, 2, 3, 4]
    assert {rollout.value("reward") for rollout in desk.api.rollouts.values()} == {0.0, 1.0}
    tokens = next(StepJournal(desk.folder / "work" / "steps", "train", 3).lines())["tokens"][0]
    said = [chr(t) for t, own in zip(tokens["completion_token_ids"], tokens["mask"], strict=True) if not own]
    assert "".join(said) == "<user>once more\x03<assistant>"


async def test_its_steps_are_exported_whole_and_in_order(training: TrainingDesk) -> None:
    pytest.importorskip("tensorboardX", reason="extra tensorboard")
    training.config["export"] = {"targets": ["tensorboard"]}
    assert await training.run() == 0
    assert training.desk.result.status is RunStatus.FINISHED, training.desk.log
    events = read_events(training.desk.folder / "work" / "tensorboard")
    assert [step for step, _ in events["rollout/raw_reward"]] == [1, 2, 3, 4]
    assert [step for step, _ in events["eval/validation/reward"]] == [0, 2, 4]
    sent = {(point.key, point.step): point.value for point in training.desk.api.metrics}
    assert all(value == pytest.approx(sent[key, step]) for key, of in events.items() for step, value in of)


PROGRAM = """
import json, os, sys, urllib.request
messages = [{"role": "user", "content": sys.argv[1]}]
for words in ("once more", ""):
    body = {"model": os.environ["MODEL"], "max_tokens": 9, "temperature": 0, "messages": messages}
    headers = {"x-api-key": os.environ["ANTHROPIC_API_KEY"]}
    url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
    answer = json.load(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)))
    messages += [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": words}]
"""


GRADES = """
from osmosis import Grader

class Judge(Grader):
    async def grade(self, ctx):
        ctx.set_reward(float(int(ctx.sample.messages[-1]["content"]) % 2))
"""


async def test_a_program_is_trained_as_it_is(training: TrainingDesk) -> None:
    """What it asked for over the Messages API is what is trained, and its grading, afterwards, changes nothing."""
    desk = training.desk
    (desk.folder / "person").mkdir()
    (desk.folder / "person" / "ask.py").write_text(PROGRAM)
    training.main = GRADES
    del training.config["experiment"]["entrypoint"]
    training.config["experiment"]["command"] = ["python3", "ask.py", "$PROMPT"]
    training.config["program"] = {"folder": "."}
    training.config["advanced"]["sealed"] = "sealed.py"
    training.files = {"sealed": SEALED.replace("ctx.label", 'ctx.metadata["command"] and ctx.label')}
    assert await training.run() == 0
    assert desk.result.status is RunStatus.FINISHED, desk.log
    assert training.curve("eval/sealed") == [0, 2, 4]
    assert training.done == COMPLETE
    assert training.curve("rollout/raw_reward") == [1, 2, 3, 4]
    step = StepJournal(desk.folder / "work" / "steps", "train", 3)
    tokens = next(step.lines())["tokens"]
    said = [chr(t) for t, own in zip(tokens[0]["completion_token_ids"], tokens[0]["mask"], strict=True) if not own]
    assert ("".join(said), len(tokens)) == ("<user>once more\x03<assistant>", 1)


@pytest.mark.parametrize("victim", ["trainer", "job"])
async def test_a_kill_in_the_middle_loses_and_doubles_nothing(training: TrainingDesk, victim: str) -> None:
    """Killed in step 3, after the checkpoint of step 2: one of its rows is stored, the other in flight."""
    desk = training.desk
    job = training.write()
    training.hold_row_of(3)
    process = await training.start(job)
    await until(lambda: training.done.get(3) == 4, within=90, what="half of step 3")
    before = {key: one.rollout_id for key, one in desk.api.rollouts.items()}
    if victim == "trainer":
        training.trainer().send_signal(signal.SIGKILL)
        training.hold.unlink()
    else:
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        training.hold.unlink()
        process = await training.start(job)
    assert await ended(process) == 0
    assert desk.result.status is RunStatus.FINISHED, desk.log
    assert training.done == COMPLETE
    assert {key: desk.api.rollouts[key].rollout_id for key in before} == before
    assert len(desk.api.received) == sum(COMPLETE.values()), "a stored rollout was run, or sent, again"
    for key in ("rollout/raw_reward", "rollout/turns"):
        assert sorted(set(training.curve(key))) == [1, 2, 3, 4]
    assert {saved.step for saved in desk.api.checkpoints} == {2, 4}
    said = "starting the trainer from the checkpoint of step 2"
    assert said in desk.log


@pytest.mark.soak
async def test_ten_kills_lose_and_double_nothing(training: TrainingDesk) -> None:
    """Job and trainer in turn, each after a few more rollouts; the curves are those of a run left alone."""
    desk = training.desk
    training.main = MAIN.replace("async with ctx.chat", "await asyncio.sleep(0.5)\n        async with ctx.chat", 1)
    job = training.write()
    process = await training.start(job)
    total, stored = sum(COMPLETE.values()), {}
    for kill in range(10):
        await until(lambda kill=kill: len(desk.api.rollouts) >= 3 * kill + 2, within=180, what="a few more rollouts")
        await until(training.lives, within=180, what="the trainer")
        stored |= {key: rollout.rollout_id for key, rollout in desk.api.rollouts.items()}
        if kill % 2:
            training.trainer().send_signal(signal.SIGKILL)
        else:
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()
            process = await training.start(job)
    assert await ended(process) == 0
    assert desk.result.status is RunStatus.FINISHED, desk.log
    assert training.done == COMPLETE
    assert {key: desk.api.rollouts[key].rollout_id for key in stored} == stored
    assert len(desk.api.received) == total, "a stored rollout was run, or sent, again"
    assert sorted(set(training.curve("rollout/raw_reward"))) == [1, 2, 3, 4]
    assert {saved.step for saved in desk.api.checkpoints} == {2, 4}
    assert desk.servers() == []


async def test_a_stop_saves_a_checkpoint_and_the_next_job_goes_on(training: TrainingDesk) -> None:
    desk = training.desk
    job = training.write()
    training.hold_row_of(1)
    process = await training.start(job)
    await until(lambda: training.done.get(1) == 4, within=90, what="half of step 1")
    desk.api.stop = True
    assert await ended(process) == 0
    assert desk.result.status is RunStatus.STOPPED, desk.log
    assert [(saved.step, saved.kind) for saved in desk.api.checkpoints] == [(0, "stop")]
    training.hold.unlink()
    desk.api.stop = False
    assert await ended(await training.start(job)) == 0
    assert desk.result.status is RunStatus.FINISHED, desk.log
    assert training.done == COMPLETE


async def test_a_trainer_that_is_killed_again_and_again_ends_the_run_with_what_to_change(
    training: TrainingDesk,
) -> None:
    """As the kernel does it where memory runs out."""
    job = training.write()
    training.hold_row_of(1)
    process = await training.start(job)
    for life in range(1, 4):
        await until(
            lambda life=life: desk_log_count(training, "starting the trainer") == life, within=90, what="a life"
        )
        await until(lambda: training.done.get(1, 0) >= 4, within=90, what="the half of step 1")
        await until(training.lives, within=90, what="the trainer")
        training.trainer().send_signal(signal.SIGKILL)
    assert await ended(process) == 0
    failure = training.desk.result.failure
    assert "the trainer ended 3 times in a row without finishing a step" in failure.message
    assert "memory ran out" in failure.message
    assert "gradient_accumulation" in (failure.fix or "")


@pytest.mark.parametrize(
    ("change", "said", "fix"),
    [
        ({"training": {"rollout_batch_size": 9}}, "the dataset is too small: 8 rows are left", "to 8 or less"),
        ({"env": {"SILENT": "1"}}, "none of 8 rollouts has a reward", "osmosis eval submit"),
        ({"env": {"SCORE": "0"}}, "all attempts at a row had the same reward: every reward is 0", "grader"),
        ({"training": {"max_prompt_length": 5}}, "context_length", "max_prompt_length"),
    ],
    ids=["too-small", "no-reward", "all-equal", "too-long"],
)
async def test_a_run_that_can_learn_nothing_fails_with_what_to_change(
    training: TrainingDesk, change: dict[str, dict[str, Any]], said: str, fix: str
) -> None:
    for table, values in change.items():
        training.config[table] |= values
    assert await training.run() == 0
    failure = training.desk.result.failure
    assert training.desk.result.status is RunStatus.FAILED
    assert said in failure.message
    assert fix in (failure.fix or "")
