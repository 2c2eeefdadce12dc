"""Running commands for `quickstart`: each is printed as a person would type it, run, and followed by its result.

The same command functions run as on any command line, in the demo's folders. Nothing here is simulated.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from osmosis.base.git import Git, GitError, shown, users_environ
from osmosis.cli import prompts
from osmosis.cli.context import AppContext, GlobalOptions, using
from osmosis.cli.main import ROOT
from osmosis.cli.output import Mode
from osmosis.cli.resolve import invoke, resolve
from osmosis.cli.results import OperationResult, Result
from osmosis.errors import PlatformError


class StepDeclined(Exception):
    """The person said no to a step."""


@dataclass
class Demo:
    """The surroundings of the demo's commands, and what was done so far."""

    ctx: AppContext
    root: Path
    """The demo folder."""
    workspace: Path
    """The workspace folder inside it."""
    environ: Mapping[str, str]
    yes: bool
    cwd: Path
    done: list[dict[str, object]] = field(default_factory=list)
    """`{command, ...envelope}` per command, for `--json`."""

    def heading(self, number: int, text: str) -> None:
        """The title of a step; asks before it when somebody is to be asked."""
        self.line()
        self.line(f"{number}/7  {text}", style="bold")
        if not prompts.confirm(self.ctx, "Do this step?", yes=self.yes):
            raise StepDeclined

    def line(self, text: str = "", *, style: str = "") -> None:
        """One line for people, on stdout like the results."""
        if self.ctx.mode is Mode.RICH:
            from rich.text import Text

            self.ctx.output.console().print(Text(text, style=style), soft_wrap=True)
            self.ctx.output.stdout.flush()

    def change_dir(self, folder: Path) -> None:
        if folder != self.cwd:
            self.line(f"$ cd {shlex.quote(str(folder))}", style="cyan")
            self.cwd = folder

    def osmosis(
        self,
        *words: str,
        shown: Sequence[str] | None = None,
        human: Callable[[Result], Mapping[str, object]] | None = None,
    ) -> Result:
        """Run one `osmosis` command here and show its result.

        `shown` is how the command is printed, when not as it is; `human` picks what people see of the result.
        """
        command = shlex.join(["osmosis", *(shown or words)])
        self.line(f"$ {command}", style="cyan")
        options = GlobalOptions(mode=self.ctx.mode, platform=self.ctx.options.platform)
        sub = replace(self.ctx, environ=self.environ, cwd=self.cwd, options=options)
        with using(sub):
            found = resolve(ROOT, list(words))
            sub.command = " ".join(found.path)
            result = invoke(found, sub)
        if not isinstance(result, Result):
            raise PlatformError(f"{command} gave no result")
        result.next_steps = []
        self.done.append({"command": command, **result.envelope()})
        if self.ctx.mode is Mode.RICH:
            if human is not None:
                result.brief = human(result)
            self.ctx.output.show(result)
        return result

    def git(self, *words: str, options: Sequence[str] = ()) -> str:
        """Run one git command here; its output, which is shown too."""
        command = shlex.join(["git", *words])
        self.line(f"$ {command}", style="cyan")
        lines: list[str] = []
        try:
            out = Git(self.cwd, users_environ(self.environ)).text(*options, *words, log=lines.append)
        except GitError as error:
            error.hint = error.hint or f"cd {self.cwd} && {command}"
            raise
        said = "\n".join(filter(None, (shown(out).strip(), *lines)))
        if said:
            self.line(said, style="dim")
        self.done.append({"command": command, "output": said})
        return said

    def note(self, text: str) -> None:
        """Something that needs no command, because it is done already."""
        self.line(text, style="dim")
        self.done.append({"note": text})

    def declined(self) -> OperationResult:
        """What to show when the person stopped."""
        message = "Cancelled. Run the same command to continue."
        return OperationResult("quickstart", message, {"steps": self.done}, status="cancelled")
