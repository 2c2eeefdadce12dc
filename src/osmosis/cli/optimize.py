"""`osmosis optimize`: improve a rollout's prompts on this machine."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast

from typer import Argument, Option

from osmosis.base.files import file_sha256, write_json, write_text
from osmosis.cli.core import completion
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.environment import SecretsFile
from osmosis.cli.core.results import DetailResult, NextStep
from osmosis.cli.core.rollout_environment import continue_inside
from osmosis.cli.eval.flags import RunFlags
from osmosis.cli.eval.plan import config_plan
from osmosis.cli.eval.progress import Terminal, let_through, print_aside, run_stoppable
from osmosis.cli.eval.run import apply_environment, find_dataset
from osmosis.datasets.keys import SelectedRows
from osmosis.datasets.scan import scan_dataset
from osmosis.engine.loader import source_hash
from osmosis.engine.provenance import digest, folder_files
from osmosis.local.candidates import SEED, Candidates, read_texts
from osmosis.local.optimization import Search, split_rows
from osmosis.local.prepare import check_price, prepare
from osmosis.local.reflection import Reflection
from osmosis.local.run_options import RunOptions, key_for, parse_model
from osmosis.metrics.formats import dollars
from osmosis.records.config.optimize import OptimizeConfig
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.report import Report
from osmosis.workspace.config_file import load_config
from osmosis.workspace.layout import Workspace, find_workspace, pick_config


def optimize(
    config: Annotated[
        str | None, Argument(help="A config under configs/optimize/", autocompletion=completion.optimize_configs)
    ] = None,
    apply: Annotated[bool, Option("--apply", help="Write texts that are better to the working tree")] = False,
    secrets_file: SecretsFile = None,
) -> DetailResult:
    """Improve the prompts of a rollout: a model reads how rollouts went and rewrites them; the best are tested.

    The test is on rows that the search never saw. After Ctrl-C the same command goes on, also with a larger budget; it
    begins anew with another config, other rows, code or texts. Needs the extra `optimize`.

    Example:
        osmosis optimize configs/optimize/multiply.toml
        osmosis optimize multiply --apply
    """
    ctx = current()
    workspace = find_workspace(ctx.cwd)
    path = ctx.path(config if config and config.endswith(".toml") else pick_config(workspace, "optimize", config))
    loaded = cast(OptimizeConfig, load_config(path, workspace.root, "optimize", to_run=True)[0])
    python = continue_inside(ctx, workspace.root, loaded.experiment.rollout, "optimize")
    apply_environment(ctx, loaded.env, loaded.secret_names(), secrets_file)
    search = _prepare(ctx, workspace, loaded, path.stem, python)
    with print_aside():
        data = search.run()
    folder, steps = Path(data["folder"]), []
    write_text(folder / "winner.diff", data["diff"])
    write_json(folder / "optimization.json", data)
    data["is_applied"] = apply and data["verdict"] == "better"
    if data["is_applied"]:
        search.candidates.apply(data["winner"])
    elif data["diff"]:
        command = f"git apply {workspace.relative(folder)}/winner.diff"
        steps = [NextStep("write the new texts to the working tree", command=command)]
    spent = f"{data['rollouts']:,} rollouts, {data['reflections']:,} reflections, {dollars(data['cost_usd'])}"
    texts = {"result": data["conclusion"], "stopped": data["stopped"], "spent": spent, "diff": data["diff"]}
    return DetailResult(data, next_steps=steps, brief={**texts, "applied": data["is_applied"]})


def _prepare(ctx: AppContext, workspace: Workspace, config: OptimizeConfig, stem: str, python: str | None) -> Search:
    options, selected, rollout = config.optimize, SelectedRows(), Path("rollouts") / config.experiment.rollout
    dataset = find_dataset(ctx, workspace, config, None).resolve()
    scan_dataset(dataset, rows=selected).refuse_bad(dataset)
    texts = read_texts(workspace.root / rollout, options)
    begun = config.model_copy(update={"optimize": options.model_copy(update={"max_rollouts": 1, "max_cost": None})})
    code = source_hash(folder_files(workspace.root / rollout))
    folder = workspace.state_dir / "optimize" / f"{stem}-{digest(begun.to_dict(), file_sha256(dataset), code, texts)}"
    plan = config_plan(config, RunFlags(name=SEED), dataset)
    plan.budget.max_cost_usd = options.max_cost
    model = parse_model(options.reflection_model, option="reflection_model")
    check_price(plan.model_copy(update={"model": model}))
    run_options = RunOptions(
        workspace.root,
        folder / "runs",
        ctx.environ,
        secrets=config.secret_names(),
        server_python=python,
        needs_scores=False,
        watcher=Terminal(ctx.output),
    )
    return Search(
        plan,
        run_options,
        options,
        Candidates(folder / "candidates", workspace.root, rollout, texts),
        split_rows(selected, options),
        Reflection(model, key_for(model, ctx.environ, None), folder / "reflections.json"),
        lambda plan, run_options: _run(ctx, plan, run_options),
    )


def _run(ctx: AppContext, plan: EvalPlan, options: RunOptions) -> Report:
    terminal = Terminal(ctx.output, title=f"candidate {plan.name}")
    prepared = prepare(plan, replace(options, watcher=terminal))
    try:
        let_through(ctx, prepared)
        run, interrupted = run_stoppable(prepared.run, terminal.say)
    finally:
        terminal.close()
        prepared.close()
    if interrupted:
        raise KeyboardInterrupt
    return run.report
