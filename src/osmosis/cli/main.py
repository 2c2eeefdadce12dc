"""The `osmosis` command: the table of commands, and errors as exit codes.

To add a command, write a function, or a group with `core.app.new_app`, and name it in the table with one line of
help. Its docstring is its help and holds an example, indented by four spaces under a line `Example:`. It starts with
`ctx = current()` and returns a `ListResult`, `DetailResult` or `OperationResult`; known problems are raised as
`OsmosisError`. It prints only with `ctx.output.say` and asks only with `prompts`. Global options are taken off the
line before, so no command declares them.
"""

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from osmosis._version import __version__
from osmosis.cli.core import completion
from osmosis.cli.core.app import HELP, STYLE, CommandGroup, LazyCommand, lazy_group, move_global_options, usage_error
from osmosis.cli.core.context import AppContext, GlobalOptions, current, load_environment, mode_of, using
from osmosis.cli.core.output import Output
from osmosis.cli.core.prompts import Declined
from osmosis.cli.core.results import Result
from osmosis.errors import OsmosisError, ValidationError


def _at(target: str, help: str, panel: str = "Commands") -> LazyCommand:
    return LazyCommand(target, help, panel)


def _old(target: str, help: str) -> LazyCommand:
    return LazyCommand(target, help, hidden=True)


_RUN_GUESSES = {"start": "submit", "status": "show", "cancel": "stop", "ls": "list", "rm": "delete"}

EVAL = lazy_group(
    """Evaluate an agent: on the platform (submit) or on this machine (run).

\b
On this machine, without a workspace:
  osmosis eval -m agent:agent -d data.jsonl --eval-fn rewards:fn --model gpt-5-mini""",
    {
        "submit": _at("eval.submit:submit_eval", "Submit a config under configs/eval/ to the platform"),
        "list": _at("eval.runs:EVAL.list_runs", "List evaluation runs"),
        "show": _at("eval.show:show", "Show a run, its report, or one rollout"),
        "info": _old("eval.runs:EVAL.info", "Show one run of the platform: eval show RUN"),
        "wait": _at("eval.runs:EVAL.wait", "Follow a run until it is over"),
        "logs": _at("eval.runs:EVAL.logs", "Show the log of a run"),
        "stop": _at("eval.runs:EVAL.stop", "Stop a pending or running run"),
        "delete": _at("eval.runs:EVAL.delete", "Delete a run and everything it produced"),
        "download": _at("eval.runs:download", "Download the metrics and conversations of a run"),
        "run": _at("eval.run:run", "Run a config, a set or an agent on this machine"),
        "resume": _at("eval.resume:resume", "Resume a run: what is missing, or what failed"),
        "regrade": _at("eval.resume:regrade", "Score a local run again, without model calls"),
        "compare": _at("eval.compare:compare", "Compare runs row by row"),
        "plan": _at("eval.sample_size:plan", "Plan how many rows and attempts show a difference"),
        "decide": _at("eval.decide:decide", "Answer questions about models and arms with few rollouts"),
        "edit": _at("eval.runs:EVAL.edit", "Edit tags, note, name, pin and priority of a run"),
        "history": _at("eval.rows:show", "Show a row, or a figure, across runs"),
        "quarantine": _at("eval.rows:quarantine", "List, add and remove rows known to be flaky"),
        "why": _at("eval.why:why", "Explain why a run is slow, stuck, or worse than another"),
        "share": _at("eval.runs:share", "Create a link to a run for people without an account"),
        "schedules": _at("eval.runs:schedules", "List and stop evaluations that the platform repeats"),
        "upload": _at("eval.transfer:upload", "Upload a local run to the platform"),
        "export": _at("eval.exchange:export", "Export a local run for other tools"),
        "seal": _at("eval.exchange:seal", "Seal a run in one file that anybody can verify"),
        "import": _at("eval.exchange:import_log", "Import logs of other tools as local runs"),
        "rubric": _at("eval.rubric:rubric", "Judge recorded conversations with a rubric"),
    },
    "Run",
    guesses=_RUN_GUESSES,
)
EVAL.default_command = "run"

TRAIN = lazy_group(
    """Train a model with reinforcement learning.

\b
On the platform:
  osmosis train submit configs/training/multiply.toml --wait""",
    {
        "submit": _at("train:submit_train", "Submit a config under configs/training/ to the platform"),
        "list": _at("eval.runs:TRAIN.list_runs", "List training runs"),
        "show": _at("eval.runs:TRAIN.info", "Show one training run: status, curves, checkpoints"),
        "compare": _at("train:compare", "Compare training runs: figures, and the config keys that differ"),
        "wait": _at("eval.runs:TRAIN.wait", "Follow a training run until it is over"),
        "metrics": _old("train:metrics", "Show the curves of a training run"),
        "logs": _at("eval.runs:TRAIN.logs", "Show the log of a training run"),
        "stop": _at("eval.runs:TRAIN.stop", "Stop a pending or running training run"),
        "edit": _at("eval.runs:TRAIN.edit", "Edit tags, note, name, pin and priority of a run"),
        "delete": _at("eval.runs:TRAIN.delete", "Delete a training run that is over"),
        "resume": _at("train:resume", "Continue a training run from its last checkpoint, or start it anew"),
        "checkpoints": _old("train:checkpoints", "List the checkpoints of a training run"),
    },
    "Run",
    guesses=_RUN_GUESSES,
)

OPTIMIZE = lazy_group(
    """Improve the prompts of a rollout by reflection: on this machine (run) or on the platform (submit).

There it is an evaluation: osmosis eval show, wait, logs and stop are for it, too.""",
    {
        "run": _at("optimize:run", "Improve them on this machine: osmosis optimize CONFIG"),
        "submit": _at("optimize:submit", "Submit a config under configs/optimize/ to the platform"),
        "apply": _at("optimize:apply", "Write the texts that a run of the platform found better"),
    },
    "Run",
)
OPTIMIZE.default_command, OPTIMIZE.is_default_for_words = "run", True

PLATFORM = lazy_group(
    """The platform on this machine: start, inspect and maintain it.

\b
It keeps everything in the user data directory (OSMOSIS_DATA_DIR moves it) and listens on 127.0.0.1:7575.
  osmosis platform start""",
    {
        "start": _at("platform.commands:start", "Start the platform in the background"),
        "status": _at("platform.commands:status", "Show whether it is running, where and since when"),
        "stop": _at("platform.commands:stop", "Stop it; unfinished runs continue at the next start"),
        "open": _at("platform.commands:open_pages", "Open its pages in a browser"),
        "logs": _at("platform.commands:logs", "Show its log"),
        "backup": _at("platform.commands:backup", "Write everything it holds to one file, even while it is running"),
        "restore": _at("platform.commands:restore", "Restore a platform from a backup"),
        "gc": _at("platform.commands:gc", "Remove files that are no longer needed"),
        "doctor": _old("platform.commands:doctor", "Check for problems with it: osmosis doctor --platform"),
        "user": _at("platform.admin:app", "People: add, list, delete, link"),
    },
    "Start",
)

MODEL = lazy_group(
    """Base models and trained adapters.

\b
On the platform:
  osmosis model upload ./tiny-qwen
  osmosis model deploy multiply-1 --wait
  osmosis model download multiply-1-step-20""",
    {
        "list": _at("model:list_models", "List base models and adapters"),
        "show": _at("model:info", "Show one model, an adapter or a base model"),
        "upload": _at("model:upload", "Check a base model and upload it"),
        "download": _at("model:download", "Download a model"),
        "merge": _at("model:merge", "Merge an adapter into its base model"),
        "deploy": _at("model:deploy", "Serve a model on the platform"),
        "undeploy": _at("model:undeploy", "Stop serving a model"),
        "use": _at("model:use", "Show how agent programs use a deployed model"),
        "logs": _at("model:logs", "Show the log of a model's deployment"),
        "serve": _at("model:serve", "Serve a model on this machine, until Ctrl-C"),
        "delete": _at("model:delete", "Delete a model and its files"),
    },
    "Run",
    guesses={"ls": "list", "rm": "delete", "push": "upload", "pull": "download", "stop": "undeploy"},
)

COMMANDS: dict[str, LazyCommand | CommandGroup] = {
    "quickstart": _at("quickstart:quickstart", "From nothing to a scored run, step by step", "Start"),
    "platform": PLATFORM,
    "login": _at("auth:login", "Log in to a platform", "Start"),
    "logout": _at("auth:logout", "Log out", "Start"),
    "whoami": _at("auth:whoami", "Show who is logged in, and where", "Start"),
    "auth": _old("auth:app", "Login, logout, whoami"),
    "worker": _at("worker:app", "Machines that run jobs for a platform", "Start"),
    "init": _at("workspace.init:init", "Create a workspace folder", "Workspace"),
    "status": _at("workspace.status:status", "Show where you are and what to do next", "Workspace"),
    "doctor": _at("workspace.doctor:doctor", "Check for problems", "Workspace"),
    "rollout": _at("workspace.rollout:app", "Create and list rollouts", "Workspace"),
    "template": _at("workspace.rollout:template_app", "Rollout templates: show, update", "Workspace"),
    "config": _at("workspace.config:app", "Show and change configs", "Workspace"),
    "sync": _at("workspace.status:sync", "What the platform has synced of this repository", "Workspace"),
    "workspace": _at("workspace.commands:app", "Workspaces on the platform: list, create, switch", "Workspace"),
    "dataset": _at("dataset:app", "Upload, list, show and download datasets", "Workspace"),
    "secret": _at("secret:app", "Set, list and import secrets", "Workspace"),
    "token": _at("token:app", "Create, list and delete tokens for machines", "Workspace"),
    "serve": _at("serve:serve", "Serve an agent over HTTP", "Run"),
    "check": _at("check:check", "Check an agent, a config or a dataset", "Run"),
    "test": _at("agent_test:test", "Run an agent on a few rows and show each conversation", "Run"),
    "eval": EVAL,
    "verify": _at("eval.exchange:verify", "Check a sealed run: bytes, figures, scores, conversations", "Run"),
    "optimize": OPTIMIZE,
    "reward": _at("reward:app", "Test a reward before training with it", "Run"),
    "judge": _at("judge:app", "Compare judges with human labels", "Run"),
    "benchmark": _at("benchmark:app", "Benchmarks: the same tasks for several agents", "Run"),
    "view": _at("view:view", "Look at local runs in the browser", "Run"),
    "eval-rubric": _old("eval.rubric:eval_rubric", "Judge conversations with a rubric of a file: eval rubric"),
    "preview": _old("eval.rubric:preview", "Show a rubric or conversation file"),
    "train": TRAIN,
    "model": MODEL,
    "completion": _at("core.completion:completion", "Print the shell completion script", "Help"),
    "schema": _at("schema:schema", "Print the JSON Schema of a command's output", "Help"),
    "upgrade": _at("workspace.doctor:upgrade", "Show how to upgrade this installation", "Help"),
    "__complete": _old("core.completion:answer", "Answer the completion script of an older version"),
}
GUESSES = {
    "run": "eval submit",
    "submit": "eval submit",
    "start": "platform start",
    "stop": "platform stop",
    "up": "platform start",
    "logs": "eval logs",
    "upload": "dataset upload",
    "new": "rollout new",
    "create": "init",
    "push": "sync",
    "signin": "login",
    "signup": "login",
    "me": "whoami",
    "eval-run": "eval run",
    "secrets": "secret",
    "datasets": "dataset",
    "tokens": "token",
    "link": "init",
    "deploy": "model deploy",
    "undeploy": "model undeploy",
    "deployment": "model list",
    "version": "--version",
}


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        current().output.stdout.write(f"osmosis-ai {__version__}\n")
        raise typer.Exit


class _Root(CommandGroup):
    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return super().make_context(info_name, move_global_options(args), parent, **extra)


_SETTINGS = {"help_option_names": [*HELP], "max_content_width": 110}
_START = "\b\nStart here:\n  osmosis quickstart"
_app = typer.Typer(cls=_Root, add_completion=False, context_settings=_SETTINGS, epilog=_START, **STYLE)


@_app.callback()
def start(
    json: Annotated[bool, typer.Option("--json", help="Print results as one line of JSON on stdout")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Print results as tab-separated lines, no colours")] = False,
    platform: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Platform to use (or OSMOSIS_PLATFORM_URL); default http://127.0.0.1:7575",
            autocompletion=completion.nothing,
        ),
    ] = None,
    workspace: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Workspace to use; default: the one this checkout is connected to",
            autocompletion=completion.workspaces,
        ),
    ] = None,
    env_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Read variables from FILE (or OSMOSIS_ENV_FILE) instead of the nearest .env"),
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Refuse connections beyond this machine, except to --base-url")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Answer yes to every question")] = False,
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Show the version", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Evaluate and train LLM agents."""
    ctx = current()
    ctx.options = GlobalOptions(ctx.mode, platform, workspace, env_file, offline, yes)
    if not ctx.command.startswith("__"):
        load_environment(ctx)


ROOT = typer.main.get_group(_app)
ROOT.commands.update(COMMANDS)
ROOT.guesses = GUESSES  # type: ignore[attr-defined]  # it is a _Root


def run(words: Sequence[str]) -> Any:
    try:
        with ROOT.make_context("osmosis", list(words)) as line:
            return ROOT.invoke(line)
    except typer.Exit as done:
        return done.exit_code
    except Declined as declined:
        return declined.result
    except (typer.Abort, EOFError):
        raise KeyboardInterrupt from None
    except typer.TyperException as wrong:
        raise usage_error(wrong, f"osmosis {current().command}") from wrong


def main(
    argv: Sequence[str] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: TextIO | None = None,
) -> int:
    """Run one command line and return the exit code: 0 done, 1 known error, 2 usage, 3 a bug, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    environ = dict(os.environ if environ is None else environ)
    output = Output(mode_of(words), environ=environ)
    try:
        cwd = cwd or Path.cwd()
    except FileNotFoundError:
        return output.error(ValidationError("the current folder no longer exists", hint="cd to an existing folder"), "")
    ctx = AppContext(environ, cwd, GlobalOptions(output.mode), output, stdin=stdin or sys.stdin, words=tuple(words))
    try:
        with using(ctx), ctx.closing:
            if completion.VARIABLE in os.environ:
                return completion.answer_shell(ROOT)
            result = run(words)
            if isinstance(result, Result):
                return output.show(result)
            return result if isinstance(result, int) and not isinstance(result, bool) else 0
    except OsmosisError as error:
        return output.error(error, ctx.command)
    except KeyboardInterrupt:
        output.say("interrupted", style="yellow")
        return 130
    except BrokenPipeError:
        # The reader went away (`| head`): that is its decision, and Python must not complain on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as bug:  # noqa: BLE001 - the border of the process: a bug becomes a report
        from osmosis.cli.core.errors import explain_exception  # what only a failure needs

        if isinstance(bug, OSError) and bug.errno == errno.EBADF:
            hint = "something closed it while the command ran; what was stored is kept"
            closed = OsmosisError("standard output is closed: the result cannot be written", hint=hint)
            return output.error(closed, ctx.command)
        return output.error(explain_exception(bug, words, environ), ctx.command)
