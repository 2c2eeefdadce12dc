"""A run of the platform on this machine, as far as looking into it needs: its config as a plan, its dataset, one
rollout as a recording, the times of some. Fetched, used, thrown away; `eval download` is what keeps a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from osmosis.base.git import Git, GitError
from osmosis.client import PlatformClient
from osmosis.engine.why import Why, explain_sample
from osmosis.errors import ValidationError
from osmosis.local.platform_config import config_of
from osmosis.local.request import Request
from osmosis.records.contract.run_bodies import RunDetail
from osmosis.records.plan import EvalPlan
from osmosis.records.rollout import Rollout
from osmosis.workspace.layout import Workspace, find_workspace

from .context import AppContext
from .local_eval.run_config import surround
from .own_environment import continue_inside

SAMPLE = 40
"""So many rollouts are fetched whole to see where the time went."""


@dataclass(frozen=True)
class Recording:
    """One attempt that can be replayed: the request for it, and the folder with its recorded answers."""

    request: Request
    folder: Path
    rollout: Rollout
    run: str


@contextmanager
def recording(
    ctx: AppContext, client: PlatformClient, name: str, place: tuple[int, int], secrets_file: Path | None
) -> Iterator[Recording]:
    """The attempt, while the block lasts: the code is this workspace's, what it ran on is fetched.

    Raises WorkspaceRequired outside one, and ValidationError where no answer of the model was recorded.
    """
    seen = client.evals.get(name)
    rollout = client.evals.rollout(seen.run.name, *place)
    if not any(message.get("role") == "assistant" for message in rollout.messages):
        where = f"row {place[0]} attempt {place[1]} of {seen.run.name}"
        raise ValidationError(
            f"{where} has no recorded answer of the model: there is nothing to replay",
            hint=f"osmosis eval show {seen.run.name} {place[0]}/{place[1]} says why it ended",
        )
    workspace, config = find_workspace(ctx.cwd), config_of(seen)
    continue_inside(ctx, workspace.root, config.experiment.rollout)
    surround(ctx, config.env, config.secret_names(), secrets_file)
    _say_commit(ctx, workspace, seen)
    with TemporaryDirectory(prefix="osmosis-replay-") as made:
        folder = Path(made)
        (folder / "rollouts.jsonl").write_bytes(rollout.to_line())
        dataset = workspace.local_dataset(config.experiment.dataset)
        if dataset is None:
            named = client.datasets.get(config.experiment.dataset)
            dataset = folder / f"dataset.{named.file_format or 'jsonl'}"
            client.datasets.download(config.experiment.dataset, dataset)
        request = Request(
            EvalPlan.from_config(config, name=seen.run.name, dataset=str(dataset)),
            workspace.root,
            None,
            ctx.environ,
            secrets=config.secret_names(),
            rollout=config.experiment.rollout,
            env=config.env,
            needs_scores=False,
        )
        yield Recording(request, folder, rollout, seen.run.name)


def _say_commit(ctx: AppContext, workspace: Workspace, seen: RunDetail) -> None:
    try:
        here = Git(workspace.root).text("rev-parse", "HEAD").strip()
    except GitError:
        return
    if seen.commit_sha and here != seen.commit_sha:
        ctx.output.say(f"the run was of commit {seen.commit_sha[:10]}; this replays the code that is here", style="dim")


def explained(client: PlatformClient, name: str) -> Why:
    """What a platform's run waits for, from its status and some of its rollouts."""
    seen = client.evals.get(name)
    run = seen.run
    done, total = seen.counted
    ends, places = [], []
    for outcome in client.evals.outcomes(run.name):
        if outcome.started_at is not None:
            ends.append(outcome.started_at.timestamp() + (outcome.duration_ms or 0.0) / 1000)
        places.append(outcome.place)
    step = max(1, len(places) // SAMPLE)
    sample = [client.evals.rollout(run.name, *place).to_dict() for place in places[::step][:SAMPLE]]
    plan = EvalPlan.from_config(config_of(seen), name=run.name, dataset="")
    began = _seconds(run.started_at)
    until = _seconds(run.completed_at) if run.over else None
    return explain_sample(
        run.name,
        "over" if run.over else "pending" if run.status == "pending" else "running",
        sample,
        ends,
        done=max(done, len(places)),
        total=total or None,
        began=began,
        until=until,
        concurrency=plan.concurrency,
        stage=seen.stage,
        failure=seen.failure.message if seen.failure else None,
    )


def _seconds(moment: str | datetime | None) -> float | None:
    if moment is None:
        return None
    return (datetime.fromisoformat(moment) if isinstance(moment, str) else moment).timestamp()
