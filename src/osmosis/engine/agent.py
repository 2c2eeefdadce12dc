from typing import Protocol

from osmosis.engine.rollout_model import RolloutModel
from osmosis.engine.task import Task
from osmosis.records.run.rollout import Rollout


class Agent(Protocol):
    """Attempts tasks: an agent loop, a workflow, a rollout server, a recording, a program. An adapter is a class
    with this one method, in a file of its own. Whoever opens it (`local.agent_source`, a job) closes what it needs; the
    engine runs many tasks at once through one instance. `task` is the row, the attempt and the rollout's id;
    `task.enter(stage)` says what it does now. `model` is this rollout's own: ask it with `model.ask(request)` in code
    of this process, or hand it to whatever answers for it (`ModelProxy.open_rollout`). It counts the calls, remembers
    the conversation, keeps the limits of the plan and holds the attempt's time limit (`model.deadline`: `restart()`
    when the agent begins after a queue, `stop()` when it has ended or its time is limited elsewhere). Return
    `build_rollout(task, model, messages, failure=...)`, which adds calls, usage, tools, duration and the limit that
    ended it; with a reward of the agent's own in `scores["reward"]`. What `run` raises is the rollout's failure
    (`sdk.classify.failure_of`, phase `agent`), with the conversation as far as `model` knows it. Time limit, retries of
    model calls, sandbox, scores, hashes and the journal are not the agent's business."""

    async def run(self, task: Task, model: RolloutModel) -> Rollout: ...
