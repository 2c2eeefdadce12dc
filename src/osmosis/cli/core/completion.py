"""Shell completion with the names of things that exist, here or on the platform. A platform is asked for at most two
seconds, and any error means no suggestion. Where nothing is suggested, the shell completes file names."""

import contextlib
import io
import os
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument
from typer.completion import completion_init, shell_complete  # type: ignore[attr-defined]  # typer hides the first

from osmosis.cli.core.context import AppContext, GlobalOptions, current
from osmosis.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis.workspace.layout import Workspace

VARIABLE = "_OSMOSIS_COMPLETE"
PROGRAMS = ("osmosis", "osmosis-ai", "osmosis_ai")
TIMEOUT_S = 2.0
Suggestion = tuple[str, str]
Completer = Callable[[typer.Context], list[Suggestion]]

_ZSH = """\
#compdef osmosis osmosis-ai osmosis_ai
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
%s
[[ $funcstack[1] == _osmosis ]] && _osmosis_completion "$@"  # loaded from fpath in the middle of the first completion
"""


def completion(line: typer.Context, shell: Annotated[Literal["bash", "zsh", "fish"], Argument(help="Shell")]) -> int:
    """Print the completion script of a shell.

    Example:
        eval "$(osmosis completion bash)"
        osmosis completion zsh > ~/.zfunc/_osmosis
        osmosis completion fish > ~/.config/fish/completions/osmosis.fish
    """
    current().output.stdout.write(script_for(line.find_root().command, shell))
    return 0


def script_for(root: Any, shell: str) -> str:
    completion_init()
    with contextlib.redirect_stdout(io.StringIO()) as text:
        for program in PROGRAMS:
            shell_complete(root, {}, program, VARIABLE, f"source_{shell}")
    return _ZSH % text.getvalue().replace("#compdef", "# compdef") if shell == "zsh" else text.getvalue()


def answer_shell(root: Any) -> int:
    completion_init()
    try:
        return shell_complete(root, {}, PROGRAMS[0], VARIABLE, os.environ[VARIABLE])
    except (OsmosisError, OSError):
        return 0


def answer(
    line: typer.Context,
    words: Annotated[list[str] | None, Argument(help="The line so far; the last word is being typed")] = None,
) -> int:
    os.environ |= {VARIABLE: "complete_bash", "COMP_WORDS": shlex.join(["osmosis", *(words or [""])])}
    os.environ["COMP_CWORD"] = str(len(words or [""]))
    try:
        return answer_shell(line.find_root().command)
    finally:
        del os.environ[VARIABLE]


def _completer(list_names: Callable[[AppContext], Iterable[Suggestion]]) -> Completer:
    def complete(ctx: typer.Context) -> list[Suggestion]:
        try:
            app, options = current(), ctx.find_root().params
            app.options = GlobalOptions(app.mode, options.get("platform"), options.get("workspace"))
            return list(list_names(app))
        except (OsmosisError, OSError):
            return []

    return complete


def configs_of(kind: str) -> Completer:
    return _completer(lambda ctx: _list_configs(ctx, [kind]))


def nothing(ctx: typer.Context) -> list[Suggestion]:
    return []


# What follows imports what lists the names only when somebody presses Tab.


def _list_local_runs(ctx: AppContext) -> list[Suggestion]:
    from osmosis.local.run_options import runs_folder
    from osmosis.records.run.status import LATEST

    folders = sorted(file.parent for file in runs_folder(ctx.cwd).glob("*/run.json"))
    newest = [(LATEST, "the newest local run")] if folders else []
    return [*((folder.name, "local run") for folder in folders), *newest]


def _list_runs(ctx: AppContext) -> list[Suggestion]:
    local_runs = _list_local_runs(ctx)
    names = {name for name, _ in local_runs}
    try:
        platform_runs = _list_remote(ctx, "eval-runs", "eval_runs", "name", "status")
    except (OsmosisError, OSError):
        platform_runs = []
    return [*local_runs, *(row for row in platform_runs if row[0] not in names)]


def _find_workspace(ctx: AppContext) -> "Workspace":
    from osmosis.workspace.layout import find_workspace

    return find_workspace(ctx.cwd)


def _list_configs(ctx: AppContext, kinds: Iterable[Any]) -> Iterable[Suggestion]:
    workspace = _find_workspace(ctx)
    for kind in kinds:
        for _, path in workspace.configs(kind):
            yield (str(path.relative_to(ctx.cwd)) if path.is_relative_to(ctx.cwd) else path.stem, f"{kind} config")


def _list_sets(ctx: AppContext) -> Iterable[Suggestion]:
    folder: Path = _find_workspace(ctx).root / "configs" / "sets"
    return ((path.stem, "eval set") for path in sorted(folder.glob("*.toml")))


def _list_templates(ctx: AppContext) -> Iterable[Suggestion]:
    from osmosis.workspace.templates import list_templates

    return ((template.name, template.summary) for template in list_templates())


def _list_quarantined(ctx: AppContext) -> Iterable[Suggestion]:
    from osmosis.local import quarantine_file

    return ((row.key, row.reason) for row in quarantine_file.read(quarantine_file.file_around(ctx.cwd)).row)


def commands(ctx: typer.Context) -> list[Suggestion]:
    root: Any = ctx.find_root().command
    return [(name, command.get_short_help_str()) for name, command in root.commands.items() if not command.hidden]


def _list_remote(ctx: AppContext, path: str, key: str, name: str, text: str) -> list[Suggestion]:
    scoped = path != "workspaces"
    params = {"limit": 50} if scoped else None
    page = ctx.client(scoped=scoped).call("GET", path, params=params, scoped=scoped, timeout=TIMEOUT_S)
    return [(str(row.get(name)), str(row.get(text) or "")) for row in page.get(key) or []]


local_runs = _completer(_list_local_runs)
runs = _completer(_list_runs)
eval_configs_and_sets = _completer(lambda ctx: [*_list_configs(ctx, ["eval"]), *_list_sets(ctx)])
configs = _completer(lambda ctx: _list_configs(ctx, ["eval", "training", "optimize"]))
sets = _completer(_list_sets)
rollouts = _completer(lambda ctx: ((folder.name, "rollout") for folder in _find_workspace(ctx).rollouts()))
templates = _completer(_list_templates)
quarantined = _completer(_list_quarantined)
eval_runs = _completer(lambda ctx: _list_remote(ctx, "eval-runs", "eval_runs", "name", "status"))
training_runs = _completer(lambda ctx: _list_remote(ctx, "training-runs", "training_runs", "name", "status"))
benchmark_runs = _completer(lambda ctx: _list_remote(ctx, "benchmark-runs", "benchmark_runs", "name", "status"))
benchmarks_and_runs = _completer(
    lambda ctx: [
        *_list_remote(ctx, "benchmarks", "benchmarks", "source_ref", "task_count"),
        *_list_remote(ctx, "benchmark-runs", "benchmark_runs", "name", "status"),
    ]
)
datasets = _completer(lambda ctx: _list_remote(ctx, "datasets", "datasets", "file_name", "status"))
secrets = _completer(lambda ctx: _list_remote(ctx, "environment-secrets", "environment_secrets", "name", "scope"))
workspaces = _completer(lambda ctx: _list_remote(ctx, "workspaces", "workspaces", "name", "role"))
models = _completer(lambda ctx: _list_remote(ctx, "models/lora", "models", "model_name", "base_model"))
