from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, cast

from typer import Argument, Option

from osmosis.base.files import file_sha256, write_json, write_text
from osmosis.cli.agents import continue_inside
from osmosis.cli.core import completion, prompts
from osmosis.cli.core.app import takes
from osmosis.cli.core.context import AppContext, SecretsFile, current
from osmosis.cli.core.results import DetailResult, NextStep, OperationResult
from osmosis.cli.eval.flags import RunFlags
from osmosis.cli.eval.plan import config_plan
from osmosis.cli.eval.progress import Terminal, let_through, print_aside, run_stoppable
from osmosis.cli.eval.run import apply_environment, find_dataset
from osmosis.cli.eval.runs import EvalName, run_state
from osmosis.cli.eval.submit import SubmitFlags, SubmitVerdict, submit_config
from osmosis.cli.eval.submit_checks import SubmitCase, SubmitOptions
from osmosis.datasets.keys import SelectedRows
from osmosis.datasets.scan import read_rows, scan_dataset
from osmosis.engine.journal import Journal
from osmosis.engine.loader import source_hash
from osmosis.engine.provenance import digest, folder_files
from osmosis.errors import Conflict, NotFound
from osmosis.local.optimization import OUTAGES, Candidates, Reflection, Search, apply_winner, read_texts, split_rows
from osmosis.local.prepare import check_price, prepare
from osmosis.local.run_options import RunOptions, key_for, parse_model
from osmosis.metrics.figures import spent_line
from osmosis.records.config.optimize import SEED, OptimizeConfig
from osmosis.records.run.plan import EvalPlan, Selection
from osmosis.workspace.config_file import load_config
from osmosis.workspace.layout import Workspace, find_workspace, pick_config

ConfigArgument = Annotated[
    str | None,
    Argument(
        help="A config of configs/optimize/ [default: the only one]", autocompletion=completion.configs_of("optimize")
    ),
]
QUESTION = "Write these texts to the working tree?"


def run(
    config: ConfigArgument = None,
    apply: Annotated[bool, Option("--apply", help="Write texts that are better to the working tree")] = False,
    secrets_file: SecretsFile = None,
) -> DetailResult:
    """Improve the prompts of a rollout on this machine: a model reads how rollouts went and rewrites them.

    The best are tested on rows that the search never saw. After Ctrl-C the same command goes on, also with a larger
    budget; it begins anew with another config, other rows, code or texts. Needs the extra `optimize`.

    Example:
        osmosis optimize configs/optimize/multiply.toml
        osmosis optimize multiply --apply
    """
    ctx = current()
    workspace = find_workspace(ctx.cwd)
    path = ctx.path(pick_config(workspace, "optimize", config))
    loaded = cast(OptimizeConfig, load_config(path, workspace.root, "optimize", to_run=True)[0])
    python = continue_inside(ctx, workspace.root, loaded.experiment.rollout, "optimize")
    apply_environment(ctx, loaded.env, loaded.secret_names(), secrets_file)
    search = _prepare(ctx, workspace, loaded, path.stem, python)
    with print_aside():
        optimization = search.run()
    folder, steps = search.candidates.folder.parent, []
    data = {"folder": str(folder), **optimization.model_dump(mode="json", exclude={"answers"})}
    write_text(folder / "winner.diff", optimization.diff)
    write_json(folder / "optimization.json", data)
    brief = {
        "result": optimization.conclusion,
        "stopped": optimization.stopped,
        "spent": spent_line(optimization),
        "diff": optimization.diff,
    }
    if is_better := optimization.verdict == "better":
        apply = apply or ctx.options.yes
        if not apply and ctx.interactive:
            ctx.output.say(f"{optimization.conclusion}\n{brief.pop('diff')}")
            apply = prompts.confirm(ctx, QUESTION)
    data["is_applied"] = apply and is_better
    if data["is_applied"]:
        apply_winner(workspace.root, optimization)
    elif optimization.diff:
        command = f"git apply {workspace.relative(folder)}/winner.diff"
        steps = [NextStep("write the new texts to the working tree", command=command)]
    return DetailResult(data, next_steps=steps, brief={**brief, "applied": data["is_applied"]})


@dataclass(frozen=True)
class OptimizeSubmitFlags(SubmitFlags):
    config: ConfigArgument = None


@takes(OptimizeSubmitFlags)
def submit(flags: OptimizeSubmitFlags) -> OperationResult:
    """Improve the prompts of a rollout on the platform, after checking config, code, dataset and secrets.

    Example:
        osmosis optimize submit configs/optimize/multiply.toml --wait
        osmosis optimize submit multiply --yes
    """

    def check_texts(case: SubmitCase) -> SubmitVerdict:
        config = cast(OptimizeConfig, case.config)
        read_texts(case.workspace.root / "rollouts" / config.experiment.rollout, config.optimize)
        return SubmitVerdict()

    return submit_config(current(), SubmitOptions.from_flags("optimize", flags), check_texts)


def apply(name: EvalName) -> OperationResult:
    """Show the texts that a run of the platform found better, and write them to the working tree.

    Example:
        osmosis optimize apply multiply-optimize-1
    """
    ctx = current()
    workspace = find_workspace(ctx.cwd)
    detail = ctx.client().evals.get(name)
    run, optimization = detail.run, detail.optimization
    if optimization is None:
        raise NotFound(f"run {run.name} has no new texts", hint=f"osmosis eval show {run.name}")
    if optimization.verdict != "better":
        problem = optimization.conclusion or f"{run.name} is {run.status}, and no candidate is tested yet"
        raise Conflict(f"nothing is better: {problem}", hint=f"osmosis eval show {run.name}")
    ctx.output.say(f"{optimization.conclusion}\n{optimization.diff}")
    prompts.agree(ctx, QUESTION, "optimize.apply", **run_state(detail))
    apply_winner(workspace.root, optimization)
    message = f"the texts of {optimization.winner} are in {optimization.folder}"
    resource = {**run_state(detail), "winner": optimization.winner, "diff": optimization.diff}
    return OperationResult("optimize.apply", message, resource, next_steps=[NextStep("see them", command="git diff")])


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
        retry_failed=OUTAGES,
    )
    terminal = Terminal(ctx.output)

    def journal_of(name: str) -> Journal:
        return Journal(folder / "runs" / name)

    def run_rows(name: str, base_dir: Path, rows: Sequence[int]) -> str | None:
        before = {rollout.row_index for rollout in journal_of(name).rollouts()}
        own = plan.model_copy(update={"name": name, "selection": Selection(rows=sorted(before.union(rows)))})
        return _run(ctx, own, replace(run_options, base_dir=base_dir))

    return Search(
        plan,
        options,
        Candidates(folder / "candidates", workspace.root, rollout, texts),
        split_rows(selected, options, plan.attempts),
        Reflection(model, key_for(model, ctx.environ, None), folder / "reflections.json"),
        lambda rows: read_rows(dataset, Selection(rows=list(rows))),
        lambda name: journal_of(name).rollouts(),
        run_rows,
        lambda: journal_of(SEED).plan().score_bounds,  # with what the grader declares
        lambda _, text: terminal.say(text) if text else None,
    )


def _run(ctx: AppContext, plan: EvalPlan, options: RunOptions) -> str | None:
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
    return run.report.stopped
