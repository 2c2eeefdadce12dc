"""`osmosis train submit`: its flags, and the check that only a training run needs: whether it can learn anything."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from osmosis.records.config import TrainingConfig

from . import prompts
from .context import current
from .results import OperationResult
from .reward_check import check_reward
from .secrets_file import SecretsFile
from .submit import AllowDirty, SnapshotOption, SubmitVerdict, WaitSync, submit_config
from .submit_case import SubmitCase, SubmitOptions, push, request_body
from .submit_overrides import Model, Overrides, Priority, RunName, RunTags
from .training_gate import check_training, plan_lines
from .training_probe import probe_config, probed


def submit_train(
    config: Annotated[
        str | None, typer.Argument(help="A config under configs/training/, by path or name [default: the only one]")
    ] = None,
    model: Model = None,
    priority: Priority = None,
    name: RunName = None,
    tag: RunTags = None,
    yes: prompts.Yes = False,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Follow the run to its end")] = False,
    wait_sync: WaitSync = False,
    allow_dirty: AllowDirty = False,
    snapshot: SnapshotOption = False,
    secrets_file: SecretsFile = None,
    force: Annotated[
        bool, typer.Option("--force", help="Submit even if the evaluation says that nothing can be learned")
    ] = False,
    probe: Annotated[
        int | None,
        typer.Option(
            "--probe", min=1, metavar="N", help="First evaluate the base model on N rows, and use that for the check"
        ),
    ] = None,
) -> OperationResult:
    """Submit a training run, after checking config, code, dataset, secrets, and whether it can learn anything.

    The last check uses the newest evaluation of the same rollout and dataset or, with --probe N, runs N rows now with
    the base model and as many attempts per row as in training.

    Example:
        osmosis train submit configs/training/multiply.toml --wait
        osmosis train submit multiply --probe 8
        osmosis train submit multiply --yes
    """
    changed = Overrides(model=model, name=name, tags=tuple(tag or ()), priority=priority)
    options = SubmitOptions(
        "training",
        config,
        yes,
        wait,
        wait_sync,
        allow_dirty,
        snapshot,
        secrets_file,
        overrides=changed,
        force=force,
        probe=probe,
    )
    return submit_config(current(), options, _check)


def _check(case: SubmitCase) -> SubmitVerdict:
    found = check_training(case.ctx, case.client, request_body(case), force=case.options.force, eval_run=_probe(case))
    reward = check_reward(case.ctx, case.workspace.root, case.config.experiment.rollout, case.config.env)
    return SubmitVerdict({**plan_lines(found), "reward": reward}, {"check": found.to_dict()})


def _probe(case: SubmitCase) -> str | None:
    """The name of an evaluation of the base model that was run just now, when one is wanted."""
    rows, config = case.options.probe, case.config
    if rows is None or not isinstance(config, TrainingConfig):
        return None
    wanted = probe_config(config, rows)
    push(case)
    body = request_body(replace(case, config=wanted))
    body.pop("name", None)  # that of the training run
    return probed(case.ctx, case.client, body, wanted)
