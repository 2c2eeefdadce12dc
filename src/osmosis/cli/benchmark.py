from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from rich.console import Console
from typer import Argument, Option

from osmosis.cli.core import completion
from osmosis.cli.core.app import new_app, takes
from osmosis.cli.core.connect import Everything, Limit, Offset
from osmosis.cli.core.context import current
from osmosis.cli.core.render import draw_list
from osmosis.cli.core.results import DetailResult, ListResult, OperationResult, build_columns
from osmosis.cli.eval.follow import AGENT_COLUMNS
from osmosis.cli.eval.runs import BENCHMARK_COMMANDS, BenchmarkRunName, OutputFile, Overwrite, run_info
from osmosis.cli.eval.submit import SharedFlags, SubmitVerdict, config_argument, submit_checked
from osmosis.cli.eval.submit_checks import SubmitCase, SubmitOptions
from osmosis.cli.eval.transfer import download_run
from osmosis.errors import NotFound
from osmosis.records.api.runs import BenchmarkDetail, BenchmarkPage
from osmosis.records.config.run_config import Secrets
from osmosis.workspace.config_file import check_benchmark, config_error, locate
from osmosis.workspace.layout import find_workspace, pick_config

app = new_app(
    help="""Benchmarks: the same tasks for up to eight agents. One is a synced rollout with a dataset of its name.

    Example:
        osmosis benchmark list
        osmosis benchmark submit configs/benchmark/multiply.toml --wait
    """
)


@app.command("list")
def list_benchmarks(
    runs: Annotated[bool, Option(help="List their runs instead, newest first")] = False,
    limit: Limit = None,
    offset: Offset = 0,
    everything: Everything = False,
) -> ListResult:
    """List the benchmarks of this workspace, or their runs.

    Example:
        osmosis benchmark list
        osmosis benchmark list --runs
    """
    if runs:
        return BENCHMARK_COMMANDS.list_runs(limit, offset, everything)
    client = current().client()
    rows = [row for page in client.pages(BenchmarkPage, "benchmarks") for row in page.benchmarks]
    columns = build_columns("source_ref=Benchmark", "task_count=Tasks", "category_count=Categories")
    empty = "none yet: osmosis rollout new NAME, push, osmosis dataset upload NAME.jsonl"
    return ListResult(rows, columns, empty=empty)


@app.command("show")
def show(
    name: Annotated[str, Argument(help="Name of a benchmark or a run", autocompletion=completion.benchmarks_and_runs)],
    output: OutputFile = None,
    overwrite: Overwrite = False,
) -> DetailResult:
    """Show a benchmark with the newest result of each agent, or one run: its agents, the best first.

    Each agent of a run is an evaluation of its own, NAME-agent-1 and so on.

    Example:
        osmosis benchmark show multiply
        osmosis benchmark show multiply-benchmark-1
    """
    ctx = current()
    try:
        data = ctx.client().read(BenchmarkDetail, "GET", f"benchmarks/{name}").to_dict()
    except NotFound:
        return run_info(ctx, "benchmark", name, output)

    def draw(console: Console) -> None:
        draw_list(console, ListResult(data["benchmark"]["tasks"], build_columns("name=Task", "category=Category")))
        draw_list(console, ListResult(data["leaderboard"], AGENT_COLUMNS, empty="no agent has run all tasks yet"))

    return DetailResult(data, human=draw)


@dataclass(frozen=True)
class BenchmarkFlags(SharedFlags):
    config: Annotated[str | None, config_argument("benchmark")] = None


@app.command()
@takes(BenchmarkFlags)
def submit(flags: BenchmarkFlags) -> OperationResult:
    """Submit a benchmark: an evaluation for each agent of the config.

    Example:
        osmosis benchmark submit configs/benchmark/multiply.toml --wait
    """
    ctx, config = current(), flags.config or ""
    workspace = find_workspace(ctx.cwd)
    path = ctx.path(pick_config(workspace, "benchmark", config or None))
    file = locate(path, workspace, "benchmark")
    benchmark, problems = check_benchmark(file)
    if benchmark is None:
        raise config_error(file, problems)
    evaluations = benchmark.evaluations()
    secrets = list(dict.fromkeys(name for evaluation in evaluations for name in evaluation.secret_names()))

    def describe(case: SubmitCase) -> SubmitVerdict:
        agents = [f"{agent.harness or 'main.py'} with {agent.model.path}" for agent in benchmark.agents]
        tasks = ", ".join([*benchmark.tasks.task_names, *benchmark.tasks.categories]) or "all"
        return SubmitVerdict({"model": None, "rows": None, "agents": "; ".join(agents), "tasks": tasks})

    options = replace(SubmitOptions.from_flags("benchmark", flags), every_row=True)
    checked = evaluations[0].model_copy(update={"secrets": Secrets(required=secrets)})
    return submit_checked(
        ctx, options, workspace, path, checked, describe, lambda case: benchmark.to_request(case.secrets)
    )


@app.command("download")
def download(
    name: BenchmarkRunName,
    output: Annotated[Path | None, Option("--output", "-o", help="Folder [default: .osmosis/benchmarks/NAME]")] = None,
    types: Annotated[str, Option("--type", help="summary, results, artifacts, logs, all")] = "summary,results",
    overwrite: Annotated[bool, Option(help="Download existing files again")] = False,
) -> OperationResult:
    """Download figures and results as CSV, with conversations and logs on request.

    Example:
        osmosis benchmark download multiply-benchmark-1 --type all
    """
    return download_run(current(), name, types=types, kind="benchmark", output=output, overwrite=overwrite)


for verb in ("wait", "logs", "stop"):
    app.command(verb)(BENCHMARK_COMMANDS.commands[verb])
