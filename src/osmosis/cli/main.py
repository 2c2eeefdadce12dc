"""The `osmosis` command: one table of commands, loaded when invoked; the border where errors become exit codes.

How to add a command: write `cli/<noun>.py` with a function (one command) or a `typer.Typer()` named `app` (a
group), and name it in `COMMANDS` with one line of help. The function's parameters are typer's; its docstring is
the help text and holds an example, indented by four spaces under a line `Example:`. The body starts with
`ctx = current()` (see `context`), calls down, and returns a `ListResult`, `DetailResult` or `OperationResult`
(see `results`); known problems are raised as `OsmosisError`. It prints nothing itself, except remarks through
`ctx.output.say`, and asks questions only through `prompts`. Never import a heavy library at module level.
Global options (`--json --plain --platform --workspace --env-file --offline`) are taken off the line before
the command sees it, so no command declares them. Neither does any code import `click`: newer typer brings
its own copy, so only what `typer` itself exports is the same everywhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from osmosis._version import __version__
from osmosis.errors import OsmosisError, UsageError, ValidationError

from .context import AppContext, GlobalOptions, hoist, mode_of, using
from .environment import load_environment
from .helptext import group_help
from .output import Mode, Output
from .resolve import Command, Group, invoke, resolve
from .results import Result


def _at(module: str, attr: str, help: str, section: str = "", hidden: bool = False) -> Command:
    return Command(f"osmosis.cli.{module}", attr, help, section, hidden)


_RUN_GUESSES = {"start": "submit", "status": "info", "show": "info", "cancel": "stop", "ls": "list", "rm": "delete"}

_EVAL = Group(
    "Evaluate an agent: on the platform (submit) or on this machine (run, or -m)",
    {
        "submit": _at("submit_eval", "submit_eval", "Submit a config under configs/eval/ to the platform"),
        "list": _at("runs", "EVAL.list_runs", "List evaluation runs"),
        "info": _at("runs", "EVAL.info", "Show one run: status, figures, failures"),
        "wait": _at("runs", "wait_eval", "Follow a run until it is over"),
        "logs": _at("runs", "EVAL.logs", "Show the log of a run"),
        "stop": _at("runs", "EVAL.stop", "Stop a pending or running run"),
        "priority": _at("runs", "EVAL.priority", "Set a run's priority in the queue"),
        "delete": _at("runs", "EVAL.delete", "Delete a run and everything it produced"),
        "retry": _at("runs", "retry", "Retry the failed and skipped rollouts of a run"),
        "download": _at("runs", "download", "Download the metrics and conversations of a run"),
        "run": _at("local_eval.run_config", "run", "Run a config of this workspace on this machine"),
        "set": _at("local_eval.eval_set", "eval_set", "Run a set of evaluations on this machine"),
        "resume": _at("local_eval.resume", "resume", "Resume an interrupted local run"),
        "regrade": _at("local_eval.resume", "regrade", "Score a local run again, without model calls"),
        "compare": _at("local_eval.compare", "compare", "Compare runs row by row"),
        "tag": _at("marks", "tag", "Add or remove tags of a run"),
        "note": _at("marks", "note", "Write a note on a run"),
        "rename": _at("marks", "rename", "Rename a run"),
        "pin": _at("marks", "pin", "Pin a run: lists show it first"),
        "history": _at("history", "show", "Show a row, or a figure, across runs"),
        "quarantine": _at("quarantine_rows", "app", "Rows known to be flaky, which do not count"),
        "show": _at("rollout_show", "show", "Show one rollout, or list those of a run"),
        "report": _at("local_eval.report", "report", "Report on a local run: figures, failures, HTML"),
        "bisect": _at("local_eval.bisect", "eval_bisect", "Find the commit that turned rows between two local runs"),
        "why": _at("local_eval.why", "why", "Explain why a run is slow or stuck"),
        "upload": _at("local_eval.upload", "upload", "Upload a local run to the platform"),
        "rubric": _at("rubric", "rubric", "Judge recorded conversations with a rubric"),
    },
    section="Run",
    about="On this machine, without a workspace:\n"
    "  osmosis eval -m agent:agent -d data.jsonl --eval-fn rewards:fn --model gpt-5-mini",
    fallback=_at("local_eval.command", "local_eval", "Evaluate an agent on this machine"),
    guesses=_RUN_GUESSES,
)

_TRAIN = Group(
    "Train a model with reinforcement learning",
    {
        "submit": _at("submit_train", "submit_train", "Submit a config under configs/training/ to the platform"),
        "list": _at("runs", "TRAIN.list_runs", "List training runs"),
        "info": _at("runs", "TRAIN.info", "Show one training run: status, figures, curves"),
        "wait": _at("training", "wait_train", "Follow a training run until it is over"),
        "metrics": _at("training", "metrics", "Show the curves of a training run"),
        "logs": _at("runs", "TRAIN.logs", "Show the log of a training run"),
        "stop": _at("runs", "TRAIN.stop", "Stop a pending or running training run"),
        "priority": _at("runs", "TRAIN.priority", "Set a run's priority in the queue"),
        "delete": _at("runs", "TRAIN.delete", "Delete a training run that is over"),
        "resume": _at("training", "resume", "Continue a training run from its last checkpoint"),
        "retry": _at("training", "retry", "Start a new run of the same config"),
        "checkpoints": _at("training", "checkpoints", "List the checkpoints of a training run"),
    },
    section="Run",
    about="On the platform:\n  osmosis train submit configs/training/multiply.toml --wait",
    guesses=_RUN_GUESSES,
)

_PLATFORM = Group(
    "The platform on this machine: start, inspect and maintain it",
    {
        "start": _at("platform", "start", "Start the platform in the background"),
        "status": _at("platform", "status", "Show whether it is running, where and since when"),
        "stop": _at("platform", "stop", "Stop it; unfinished runs continue at the next start"),
        "open": _at("platform", "open_pages", "Open its pages in a browser"),
        "logs": _at("platform", "logs", "Show its log"),
        "backup": _at("platform_upkeep", "backup", "Write everything it holds to one file, even while it is running"),
        "restore": _at("platform_upkeep", "restore", "Restore a platform from a backup"),
        "gc": _at("platform_upkeep", "gc", "Remove files that are no longer needed"),
        "doctor": _at("platform_upkeep", "doctor", "Check for problems with it"),
        "user": _at("platform_user", "app", "People: add, list, remove, link"),
        "audit": _at("audit", "of_platform", "Show who changed what"),
        "quota": _at("quota", "of_platform", "Show or set a workspace's quota"),
    },
    section="Start",
    about="It keeps everything in the user data directory (OSMOSIS_DATA_DIR moves it) and listens on 127.0.0.1:7575.\n"
    "  osmosis platform start",
)

_MODEL = Group(
    "Base models and trained adapters",
    {
        "list": _at("model", "list_models", "List base models and adapters"),
        "info": _at("model", "info", "Show one model, an adapter or a base model"),
        "upload": _at("model", "upload", "Check a base model and upload it"),
        "download": _at("model", "download", "Download a model"),
        "merge": _at("merge", "merge", "Merge an adapter into its base model"),
        "deploy": _at("deploy", "deploy", "Serve a model on the platform"),
        "undeploy": _at("deploy", "undeploy", "Stop serving a model"),
        "logs": _at("deploy", "logs", "Show the log of a model's deployment"),
        "serve": _at("model_serve", "serve", "Serve a model on this machine, until Ctrl-C"),
        "delete": _at("model", "delete", "Delete a model and its files"),
    },
    section="Run",
    about="On the platform:\n"
    "  osmosis model upload ./tiny-qwen\n"
    "  osmosis model deploy multiply-1 --wait\n"
    "  osmosis model download multiply-1-step-20",
    guesses={"ls": "list", "rm": "delete", "show": "info", "push": "upload", "pull": "download", "stop": "undeploy"},
)

COMMANDS: Mapping[str, Command | Group] = {
    "quickstart": _at("quickstart.quickstart", "quickstart", "From nothing to a scored run, step by step", "Start"),
    "platform": _PLATFORM,
    "login": _at("auth", "login", "Log in to a platform", "Start"),
    "logout": _at("auth", "logout", "Log out", "Start"),
    "whoami": _at("auth", "whoami", "Show who is logged in, and where", "Start"),
    "auth": _at("auth", "app", "Login, logout, whoami", "Start"),
    "worker": _at("worker", "app", "Machines that run jobs for a platform", "Start"),
    "init": _at("init", "init", "Create a workspace folder", "Workspace"),
    "status": _at("status", "status", "Show where you are and what to do next", "Workspace"),
    "doctor": _at("doctor", "doctor", "Check for problems", "Workspace"),
    "rollout": _at("rollout", "app", "Create and list rollouts", "Workspace"),
    "template": _at("template", "app", "Rollout templates: list, show, update, check", "Workspace"),
    "config": _at("config", "app", "Check, show and change configs", "Workspace"),
    "sync": _at("sync", "app", "What the platform has synced of this repository", "Workspace"),
    "workspace": _at("workspace", "app", "Workspaces on the platform: list, create, switch", "Workspace"),
    "dataset": _at("dataset", "app", "Upload, list, preview and validate datasets", "Workspace"),
    "secret": _at("secret", "app", "Set, list and check secrets", "Workspace"),
    "token": _at("token", "app", "Create, list and revoke tokens for machines", "Workspace"),
    "serve": _at("serve", "serve", "Serve an agent over HTTP", "Run"),
    "validate": _at("validate", "validate", "Check an agent without running it", "Run"),
    "test": _at("agent_test.command", "test", "Run an agent on a few rows and show each conversation", "Run"),
    "eval": _EVAL,
    "reward": _at("reward", "app", "Test a reward before training with it", "Run"),
    "judge": _at("judge", "app", "Compare judges with human labels", "Run"),
    "view": _at("view", "view", "Look at local runs in the browser", "Run"),
    "eval-rubric": _at("rubric", "eval_rubric", "Judge conversations with a rubric file", "Run"),
    "preview": _at("rubric", "preview", "Show a rubric or conversation file", "Run"),
    "train": _TRAIN,
    "model": _MODEL,
    "completion": _at("completion", "completion", "Print the shell completion script", "Help"),
    "schema": _at("schema", "schema", "Print the JSON Schema of a command's output", "Help"),
    "benchmark": _at("benchmark", "benchmark", "Not offered: run an evaluation", hidden=True),
    "__complete": _at("completion", "answer", "Answer the shell", hidden=True),
}

ROOT = Group(
    "Evaluate and train LLM agents.",
    COMMANDS,
    guesses={
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
        "check": "doctor",
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
        "help": "--help",
        "version": "--version",
        "upgrade": "doctor",
    },
)


def main(
    argv: Sequence[str] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: TextIO | None = None,
) -> int:
    """Run one command line and return the exit code: 0 done, 1 known error, 2 usage, 3 a bug, 130 interrupted.

    The keywords replace this process's environment, folder and standard input.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    surroundings = dict(os.environ if environ is None else environ)
    output = Output(mode_of(words), environ=surroundings)
    try:
        cwd = cwd or Path.cwd()
    except FileNotFoundError:
        return output.error(ValidationError("the current folder no longer exists", hint="cd to an existing folder"), "")
    ctx = AppContext(
        surroundings,
        cwd,
        GlobalOptions(mode=output.mode),
        output,
        stdin=stdin or sys.stdin,
        words=tuple(words),
    )
    try:
        options, rest = hoist(words)
        ctx.options = options
        if rest[:1] in (["--version"], ["-V"]):
            output.stdout.write(f"osmosis-ai {__version__}\n")
            return 0
        return _run(ctx, rest)
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
        from .unexpected import explained  # what only a failure needs

        return output.error(explained(bug, words, surroundings), ctx.command)


def _run(ctx: AppContext, words: Sequence[str]) -> int:
    with using(ctx):
        found = resolve(ROOT, words)
        ctx.command = " ".join(found.path)
        if found.help_of is not None:
            if ctx.mode is Mode.JSON and not found.asked_for_help:
                raise UsageError("missing command", hint=f"osmosis {ctx.command} --help".replace("  ", " "))

            ctx.output.stdout.write(group_help(found.help_of, found.path))
            return 0
        if not ctx.command.startswith("__"):
            load_environment(ctx)
        result = invoke(found, ctx)
        if isinstance(result, Result):
            return ctx.output.show(result)
        return result if isinstance(result, int) and not isinstance(result, bool) else 0
