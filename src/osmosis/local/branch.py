"""Continue a stored rollout from one of its steps, in a run of its own: the agent and its tools run again with the
recorded answers before the step, then the model answers. A search for the fatal step makes many."""

from collections.abc import Callable, Mapping
from pathlib import Path

from osmosis.base.files import write_bytes
from osmosis.base.jsonable import JsonObject
from osmosis.engine.journal import Journal
from osmosis.engine.provenance import digest
from osmosis.engine.rollout_model import REWARD
from osmosis.errors import ValidationError
from osmosis.local.bisect import NOT_THE_CODE
from osmosis.metrics.fatal_step import CERTAIN, Count, FatalStep, find_fatal_step
from osmosis.metrics.intervals import bounded_interval
from osmosis.records.run.plan import RECORDING, TOOL_RESULT, Branch, EvalPlan, ModelSpec, Selection
from osmosis.records.run.report import Branched
from osmosis.records.run.rollout import Rollout, RolloutStatus


def check_step(recorded: Rollout, step: int, texts: Mapping[str, str]) -> None:
    if step > (steps := len(recorded.answers)):
        hint = "the calls of one conversation are steps: no examples in the row, no compaction, not the agent's own"
        hint = "osmosis view numbers them" if steps else hint
        raise ValidationError(f"this rollout cannot be continued from step {step}: it has {steps} steps", hint=hint)
    if TOOL_RESULT in texts and recorded.find_result(step) is None:
        problem = f"no tool result comes between step {step} and the one before, so --tool-result changes nothing"
        raise ValidationError(problem, hint="choose a step that follows a tool call")


def begin_branch(plan: EvalPlan, model: ModelSpec, recorded: Rollout, branch: Branch, n: int, runs: Path) -> EvalPlan:
    """Write the recording into the folder of the branch's run, and return its plan, for at least `n` continuations."""
    suffix = f"-{digest(branch.texts, model.to_dict())[:6]}" if branch.texts or model != plan.model else ""
    name = f"{plan.name[:60]}-{branch.row_index}.{branch.attempt}-step{branch.step}{suffix}"
    if (journal := Journal(runs / name)).exists:
        n = max(n, journal.plan().attempts)
    (runs / name / RECORDING).mkdir(parents=True, exist_ok=True)
    write_bytes(Journal(runs / name / RECORDING).rollouts_path, recorded.to_line())
    update: JsonObject = {"name": name, "model": model, "attempts": n, "branch": branch, "cache": False}
    return plan.model_copy(update={**update, "selection": Selection(rows=[branch.row_index])})


def search_steps(steps: int, counts: dict[int, Count], measure: Callable[[int, int], Count], budget: int) -> FatalStep:
    """Continue until the fatal step is certain, or there are so many; `measure(step, n)` brings a step to n of them."""
    tried = {step: n for step, (_, n) in counts.items()}
    while True:
        fatal = find_fatal_step(steps, counts)
        left = budget - sum(tried.values())
        if left <= 0 or (tried and fatal.chance >= CERTAIN):
            return fatal
        step = fatal.next_step
        tried[step] = tried.get(step, 0) + min(2, left)
        counts[step] = measure(step, tried[step])


def find_branches(runs: Path, rollout_id: str) -> list[Branched]:
    journals = [Journal(path.parent) for path in sorted(runs.glob(f"*/{RECORDING}"))]
    branches = [read_branch(journal) for journal in journals if journal.exists]
    return [branched for branched in branches if branched.branch.rollout_id == rollout_id]


def read_branch(journal: Journal) -> Branched:
    plan, rollouts = journal.plan(), [each for each in journal.rollouts() if each.status is not RolloutStatus.SKIPPED]
    rollouts = [each for each in rollouts if each.failure is None or each.failure.category not in NOT_THE_CODE]
    values = [float(is_passed(each, plan)) for each in rollouts]
    differs_at = [step for each in rollouts for step in each.info.get("branch", {}).get("differs", [])[:1]]
    chance = bounded_interval(values, [1] * len(values)) if values else None
    figures = {"passed": int(sum(values)), "continuations": len(values), "interval": chance, "inexact": len(differs_at)}
    names = {"run": journal.folder.name, "model": plan.model.name, "branch": plan.branch}
    return Branched(**names, **figures, differs_at_step=min(differs_at, default=None))


def is_passed(rollout: Rollout, plan: EvalPlan) -> bool:
    first = REWARD if REWARD in rollout.scores else next(iter(rollout.scores), REWARD)
    value = rollout.value(plan.primary or first)
    return value is not None and value >= plan.pass_threshold
