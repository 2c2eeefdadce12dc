"""`osmosis rollout replay RUN ROW[/ATTEMPT]`: the agent runs again, the model's answers are the recorded ones.

Exit 0 when it ends as it should, 1 when it fails (again) or goes another way. `--pdb` opens the debugger where user
code raised.
"""

from __future__ import annotations

import pdb
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis.base.json_types import JsonObject
from osmosis.errors import InteractiveRequired
from osmosis.local.replay import Replayed, replay

from .context import AppContext, current
from .draw_rollout import draw_message, draw_rollout
from .drawing import Canvas, Line
from .local_eval.resume import stored_run
from .local_eval.terminal import print_aside
from .output import Mode
from .platform_run import Recording, recording
from .results import DetailResult, clean
from .rollout_show import MeantRollout, stored_rollout
from .run_finder import RunFinder

if TYPE_CHECKING:
    from osmosis.client import PlatformClient

_NEAR = 1
"""Messages shown before the one at which the two part."""


def replay_rollout(
    run: Annotated[str, typer.Argument(help="Name of a local run or of a platform's.")],
    place: Annotated[str, typer.Argument(metavar="ROW[/ATTEMPT]", help="Which rollout, counted from 0.")],
    debugger: Annotated[
        bool, typer.Option("--pdb", help="Open the debugger where the agent or a score function raised.")
    ] = False,
    whole: Annotated[bool, typer.Option("--whole", help="Do not shorten long messages.")] = False,
    secrets_file: Annotated[
        Path | None, typer.Option(help="File of NAME=value lines, when the run came from a config")
    ] = None,
) -> DetailResult:
    """Run one attempt again with the model's recorded answers: no calls, no cost, the same conversation.

    Breakpoints in your code work. When the agent asks for something other than it did in the recording, the replay
    ends and says so. For a run on the platform, the recording is fetched, and the dataset too when it is not in data/;
    the code is that of the workspace.

    Example:

        osmosis rollout replay nightly 12
        osmosis rollout replay nightly 12/2 --pdb
        osmosis rollout replay platform:multiply-3 12
    """
    ctx = current()
    wanted = MeantRollout.parse(place)
    if debugger and not (ctx.mode is Mode.RICH and ctx.stdin.isatty()):
        raise InteractiveRequired("--pdb needs a terminal", hint="remove --pdb, --json and --plain")
    with ExitStack() as stack:
        runs = stack.enter_context(RunFinder(ctx))

        def here(folder: Path) -> Recording:
            return Recording(
                stored_run(ctx, str(folder), secrets_file), folder, stored_rollout(folder, wanted), folder.name
            )

        def there(client: PlatformClient, name: str) -> Recording:
            place = (wanted.row, wanted.attempt)
            return stack.enter_context(recording(ctx, client, name, place, secrets_file))

        found_run = runs.find(run, of_folder=here, of_platform=there)
        recorded, name = found_run.rollout, found_run.run
        with print_aside():
            found = replay(found_run.request, found_run.folder, recorded, no_limits=debugger)
    if debugger:
        _debug(ctx, found)
    part = found.parts_at
    data: JsonObject = {
        "run": name,
        "row_index": wanted.row,
        "attempt": wanted.attempt,
        "same": part is None,
        "parts_at": part,
        "row_changed": found.row_changed,
        "rollout": found.rollout.to_dict(),
        "recorded_scores": {name: score.value for name, score in recorded.scores.items()},
    }
    failed = found.rollout.failure is not None or part is not None
    return DetailResult(
        data, exit_code=1 if failed else 0, human=lambda console: _draw(console, found, name, whole=whole)
    )


def _debug(ctx: AppContext, found: Replayed) -> None:
    if not found.errors:
        ctx.output.say("nothing was raised: put breakpoint() where you want to stop")
        return
    error = found.errors[-1]
    ctx.output.say(f"{type(error).__name__}: {error}", style="red")
    traceback = error.__traceback__
    if traceback is not None:
        pdb.post_mortem(traceback)
    sys.stdout.flush()


def _draw(console: Canvas, found: Replayed, run: str, *, whole: bool) -> None:
    rollout, recorded, part = found.rollout, found.recorded, found.parts_at
    console.print(Line(f"replay of {clean(run)} row {recorded.row_index} attempt {recorded.attempt}", style="bold"))
    if found.row_changed:
        console.print(Line("the row was edited since the run", style="yellow"))
    expected = found.row.ground_truth
    draw_rollout(console, rollout, expected=expected, whole=whole)
    if part is None:
        console.print(Line("the conversation is the recorded one", style="green"))
    else:
        console.print(Line(f"differs from the recording at message {part}, which was:", style="yellow"))
        for message in recorded.messages[part : part + _NEAR]:
            draw_message(console, message, whole=whole)
        if part >= len(recorded.messages):
            console.print(Line("(the recording had ended)", style="dim"))
    for name, score in recorded.scores.items():
        now = rollout.value(name)
        if now != score.value:
            console.print(Line(clean(f"{name}: {score.value} then, {now} now"), style="yellow"))
