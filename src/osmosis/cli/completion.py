"""Shell completion: the script to source, and the answers it asks for, names of runs and datasets included.

Answers come from the command table and the commands themselves; a platform is asked for at most two seconds, and
whatever goes wrong means no suggestion, never an error while somebody is typing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal

import typer

from osmosis.base.short_names import LATEST
from osmosis.errors import OsmosisError, WorkspaceRequired
from osmosis.local import quarantine_file
from osmosis.workspace.layout import find_workspace

from .context import AppContext, current, hoist
from .main import COMMANDS, ROOT
from .resolve import Command, load

ASK_TIMEOUT_S = 2.0
FILES = ":files"
"""Tells the script to complete file names."""
GLOBALS = {
    "--json": "results as JSON",
    "--plain": "results as tab-separated lines",
    "--platform": "which platform",
    "--workspace": "which workspace",
    "--env-file": "variables from a file",
    "--offline": "no connection leaves this machine",
}
Answer = tuple[str, str]

_BASH = """\
_osmosis() {
    local line cur="${COMP_WORDS[COMP_CWORD]}"
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ $line == ":files" ]]; then
            compopt -o filenames 2>/dev/null
            while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "$cur")
        else
            COMPREPLY+=("${line%%$'\\t'*}")
        fi
    done < <(osmosis __complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _osmosis osmosis osmosis-ai osmosis_ai
"""
_ZSH = """\
#compdef osmosis osmosis-ai osmosis_ai
_osmosis() {
    local line
    local -a answers
    while IFS= read -r line; do
        if [[ $line == ":files" ]]; then
            _files
        else
            answers+=("${${line//:/\\\\:}/$'\\t'/:}")
        fi
    done < <(osmosis __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)
    (( $#answers )) && _describe 'osmosis' answers
}
if [[ $funcstack[1] == _osmosis ]]; then
    _osmosis "$@"  # loaded from fpath in the middle of the first completion
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
    compdef _osmosis osmosis osmosis-ai osmosis_ai
fi
"""
_FISH = """\
function __osmosis_complete
    set -l words (commandline -opc) (commandline -ct)
    for line in (osmosis __complete -- $words[2..-1] 2>/dev/null)
        if test "$line" = ":files"
            __fish_complete_path (commandline -ct)
        else
            echo $line
        end
    end
end
for name in osmosis osmosis-ai osmosis_ai
    complete -c $name -f -a '(__osmosis_complete)'
end
"""
Shell = Literal["bash", "zsh", "fish"]
SCRIPTS: dict[Shell, str] = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def completion(shell: Annotated[Shell, typer.Argument(help="Which shell")]) -> None:
    """Print the completion script of a shell.

    Example:
        eval "$(osmosis completion bash)"
        osmosis completion zsh > ~/.zfunc/_osmosis
        osmosis completion fish > ~/.config/fish/completions/osmosis.fish
    """
    current().output.stdout.write(SCRIPTS[shell])


def answer(
    words: Annotated[list[str] | None, typer.Argument(help="The line so far; the last word is being typed")] = None,
) -> None:
    """Answer the shell: one suggestion a line, its description behind a tab."""
    ctx = current()
    for value, text in suggestions(ctx, words or [""]):
        ctx.output.stdout.write(f"{value}\t{text}\n" if text else f"{value}\n")


def suggestions(ctx: AppContext, words: Sequence[str]) -> list[Answer]:
    """What may stand where the last word is being typed."""
    *before, typed = words
    if before and before[-1] in ("--platform", "--env-file"):
        return [(FILES, "")] if before[-1] == "--env-file" else []
    if before and before[-1] == "--workspace":
        return _matching(_named(ctx, "workspaces"), typed)
    try:
        ctx.options, rest = hoist(before)
        return _matching(_options_for(ctx, rest, typed), typed)
    except (OsmosisError, OSError):
        return []


def _matching(found: Iterable[Answer], typed: str) -> list[Answer]:
    """What begins as typed; file names only where no name does, so that a name is completed to its end."""
    found = list(found)
    names = [(value, text) for value, text in found if value != FILES and value.startswith(typed)]
    return names or [(value, text) for value, text in found if value == FILES]


def _options_for(ctx: AppContext, words: list[str], typed: str) -> Iterable[Answer]:
    group = ROOT
    path: list[str] = []
    while words:
        entry = group.commands.get(words[0])
        if entry is None:
            if group.fallback is None or not words[0].startswith("-"):
                return []
            return _within(ctx, load(group.fallback, path[-1]), [*path, ""], words, typed)
        path.append(words.pop(0))
        if isinstance(entry, Command):
            return _within(ctx, load(entry, path[-1]), path, words, typed)
        group = entry
    names = [(name, entry.help) for name, entry in group.commands.items() if not entry.hidden]
    return names if not typed.startswith("-") else GLOBALS.items()


def _within(ctx: AppContext, command: Any, path: list[str], words: list[str], typed: str) -> Iterable[Answer]:
    """Inside a command that typer knows: sub-commands, options, values."""
    command, path, words = _deepest(command, path, words)
    if hasattr(command, "commands") and not words and not typed.startswith("-"):
        return [(n, c.get_short_help_str(80)) for n, c in command.commands.items() if not c.hidden]
    options = [param for param in command.params if param.param_type_name == "option"]
    if words and (option := _option_of(options, words[-1])) is not None:
        return _values(ctx, path, option)
    if typed.startswith("-"):
        return _option_names(options)
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    place = _positionals(options, words)
    if not arguments or (place >= len(arguments) and arguments[-1].nargs != -1):
        return []
    return _values(ctx, path, arguments[min(place, len(arguments) - 1)])


def _deepest(command: Any, path: list[str], words: list[str]) -> tuple[Any, list[str], list[str]]:
    """The sub-command that the words lead to, its path, and the words that are left."""
    while hasattr(command, "commands") and words and words[0] in command.commands:
        path = [*path, words[0]]
        command, words = command.commands[words[0]], words[1:]
    return command, path, words


def _option_names(options: list[Any]) -> Iterable[Answer]:
    own = [(name, getattr(o, "help", "") or "") for o in options for name in [*o.opts, *o.secondary_opts]]
    return [*own, *GLOBALS.items(), ("--help", "help on this command")]


def _option_of(options: list[Any], word: str) -> Any:
    """The option that waits for the word being typed; None when the word before needs no value."""
    return next((o for o in options if word in o.opts and not o.is_flag), None)


def _positionals(options: list[Any], words: Sequence[str]) -> int:
    count, skip = 0, False
    for word in words:
        if skip:
            skip = False
        elif word.startswith("-"):
            skip = "=" not in word and _option_of(options, word) is not None
        else:
            count += 1
    return count


_CHOICES = {"eval download types": ["metrics", "trajectories", "artifacts", "logs", "all"]}
"""Of a command's or a group's parameter: the command's own line comes first."""
_NAMES = {
    "eval name": "eval-runs",
    "eval run name": "nothing",
    "eval resume name": "local-runs",
    "eval regrade name": "local-runs",
    "eval report name": "local-runs",
    "eval upload name": "local-runs",
    "eval compare a": "runs",
    "eval compare b": "runs",
    "eval show run": "runs",
    "eval show place": "nothing",
    "eval why name": "runs",
    "eval tag name": "runs",
    "eval tag tags": "nothing",
    "eval note name": "runs",
    "eval note text": "nothing",
    "eval rename name": "runs",
    "eval rename new": "nothing",
    "eval pin name": "runs",
    "eval quarantine add row": "nothing",
    "eval quarantine remove row": "quarantined",
    "eval bisect good": "local-runs",
    "eval bisect bad": "local-runs",
    "rollout replay run": "runs",
    "rollout replay place": "nothing",
    "view runs": "local-runs",
    "judge calibrate name": "local-runs",
    "eval config": "eval-configs",
    "eval set file": "sets",
    "eval set name": "nothing",
    "eval set baseline": "nothing",
    "train name": "training-runs",
    "train config": "training-configs",
    "dataset name": "datasets",
    "secret name": "secrets",
    "secret config": "configs",
    "workspace name": "workspaces",
    "workspace create name": "nothing",
    "model name": "models",
    "config path": "configs",
    "config paths": "configs",
    "config words": "configs",
    "serve name": "rollouts",
    "validate name": "rollouts",
    "test name": "rollouts",
    "rollout template": "templates",
    "rollout name": "nothing",
    "template name": "templates",
    "template update name": "rollouts",
    "init template": "templates",
    "init name": "nothing",
    "schema command": "commands",
}


def _values(ctx: AppContext, path: Sequence[str], parameter: Any) -> Iterable[Answer]:
    """Typer knows the values of a closed set, the tables above what names are meant; all else is a file."""
    if closed := parameter.shell_complete(None, ""):
        return [(choice.value, choice.help or "") for choice in closed]
    choices = _CHOICES.get(" ".join([*path, parameter.name]))
    if choices is not None:
        return [(choice, "") for choice in choices]
    what = named_by(path, parameter.name)
    return [(FILES, "")] if what is None else _named(ctx, what)


def named_by(path: Sequence[str], parameter: str) -> str | None:
    """What kind of thing a parameter of a command names: `local-runs`, `datasets`, ...; None: a file."""
    return _NAMES.get(" ".join([*path, parameter])) or _NAMES.get(f"{path[0]} {parameter}")


def _named(ctx: AppContext, what: str) -> list[Answer]:
    """Names of things that exist, here or on the platform; none when they cannot be had quickly."""
    local: dict[str, Callable[[AppContext], list[Answer]]] = {
        "nothing": lambda _: [],
        "local-runs": _local_runs,
        "runs": _runs,
        "rollouts": _rollouts,
        "templates": _templates,
        "commands": _commands,
        "eval-configs": lambda c: _configs(c, "eval"),
        "training-configs": lambda c: _configs(c, "training"),
        "sets": _sets,
        "quarantined": _quarantined,
        "configs": lambda c: list(dict.fromkeys([*_configs(c, "eval"), *_configs(c, "training")])),
    }
    try:
        return local[what](ctx) if what in local else _remote(ctx, what)
    except (OsmosisError, OSError):
        return []


def _rollouts(ctx: AppContext) -> list[Answer]:
    return [(folder.name, "rollout") for folder in find_workspace(ctx.cwd).rollouts()]


def _quarantined(ctx: AppContext) -> list[Answer]:
    return [(one.key, one.reason) for one in quarantine_file.read(quarantine_file.file_around(ctx.cwd)).row]


def _local_runs(ctx: AppContext) -> list[Answer]:
    from osmosis.local.request import runs_folder

    folders = sorted(file.parent for file in runs_folder(ctx.cwd).glob("*/run.json"))
    newest = [(LATEST, "the newest local run")] if folders else []
    return [*((folder.name, "local run") for folder in folders), *newest, (FILES, "")]


def _runs(ctx: AppContext) -> list[Answer]:
    """Those of this machine, then the platform's."""
    here = _local_runs(ctx)
    known = {name for name, _ in here}
    return [*here[:-1], *(one for one in _named(ctx, "eval-runs") if one[0] not in known), here[-1]]


def _configs(ctx: AppContext, kind: Any) -> list[Answer]:
    try:
        workspace = find_workspace(ctx.cwd)
    except WorkspaceRequired:
        return [(FILES, "")]
    found = []
    for _, path in workspace.configs(kind):
        inside = path.is_relative_to(ctx.cwd)
        found.append((str(path.relative_to(ctx.cwd)) if inside else path.stem, f"{kind} config"))
    return [*found, (FILES, "")]


def _sets(ctx: AppContext) -> list[Answer]:
    folder = find_workspace(ctx.cwd).root / "configs" / "sets"
    return [*((path.stem, "eval set") for path in sorted(folder.glob("*.toml"))), (FILES, "")]


def _templates(ctx: AppContext) -> list[Answer]:
    from osmosis.workspace.templates import list_templates

    return [(template.name, template.summary) for template in list_templates()]


def _commands(ctx: AppContext) -> list[Answer]:
    return [(name, entry.help) for name, entry in COMMANDS.items() if not entry.hidden]


_REMOTE = {
    "eval-runs": ("eval-runs", "eval_runs", "name", "status"),
    "training-runs": ("training-runs", "training_runs", "name", "status"),
    "datasets": ("datasets", "datasets", "file_name", "status"),
    "secrets": ("environment-secrets", "environment_secrets", "name", "scope"),
    "workspaces": ("workspaces", "workspaces", "name", "role"),
    "models": ("models/lora", "models", "model_name", "base_model"),
}


def _remote(ctx: AppContext, what: str) -> list[Answer]:
    path, key, name, text = _REMOTE[what]
    scoped = what != "workspaces"
    with ctx.client(scoped=scoped) as client:
        params = {"limit": 50} if scoped else None
        page = client.http.call("GET", path, params=params, scoped=scoped, timeout=ASK_TIMEOUT_S)
    return [(str(row.get(name)), str(row.get(text) or "")) for row in page.get(key) or []]
