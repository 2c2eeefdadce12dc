"""Groups whose commands are loaded when invoked, and the words of a line: options anywhere on it, older spellings."""

import dataclasses
import difflib
import functools
import importlib
import inspect
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from osmosis.cli.core.context import current
from osmosis.cli.core.output import Mode
from osmosis.errors import UsageError, ValidationError

Rewrite = Callable[[list[str]], list[str]]


def respell(words: list[str]) -> list[str]:
    for size in (3, 2, 1):
        rewrite = OLD.get(" ".join(words[:size]))
        if rewrite is not None and len(words) >= size:
            rest = words[size:]
            return [*rewrite([]), "--help"] if {"-h", "--help"} & set(rest) else rewrite(rest)
    return words


def _as(command: str, *options: str) -> Rewrite:
    return lambda rest: [*command.split(), *rest, *options]


def _edit(noun: str, option: str) -> Rewrite:
    def rewrite(rest: list[str]) -> list[str]:
        name, *values = [word for word in rest if word != "--"] or [""]
        return [noun, "edit", *([name] if name else []), *(f"{option}={value}" for value in values)]

    return rewrite


def _tag(rest: list[str]) -> list[str]:
    words: list[str] = []
    remaining = iter(rest)
    for word in remaining:
        if word.startswith("--remove"):
            words.append(f"--remove-tag={word.partition('=')[2] or next(remaining, '')}")
        else:
            words += [word] if not words else [f"--tag={word}"]
    return ["eval", "edit", *words]


def _pin(rest: list[str]) -> list[str]:
    return ["eval", "edit", *(word for word in rest if word != "--undo"), "--unpin" if "--undo" in rest else "--pin"]


def _limits(words: Iterable[str]) -> Iterator[str]:
    remaining = iter(words)
    for word in remaining:
        key, equals, value = word.partition("=")
        yield f"--set={key[2:]}={value if equals else next(remaining, '')}" if word.startswith("--") else word


def _retry(rest: list[str]) -> list[str]:
    named = next((i for i, word in enumerate(rest) if not word.startswith("-")), None)
    return ["eval", "resume", *(f"platform:{word}" if i == named else word for i, word in enumerate(rest))]


def _worker_token(rest: list[str]) -> list[str]:
    words = [word.removeprefix("--name=") for word in rest if word != "--name"]
    return ["token", "create", *words, *(["--scope", "worker"] if words else [])]


def _apply_template(rest: list[str]) -> list[str]:
    name = next((word for word in rest if not word.startswith("-")), None)
    return ["rollout", "new", *rest, *(["--template", name] if name else [])]


OLD: dict[str, Rewrite] = {
    "benchmark info": _as("benchmark show"),
    "benchmark runs download": _as("benchmark download"),
    "benchmark runs info": _as("benchmark show"),
    "benchmark runs list": _as("benchmark list", "--runs"),
    "benchmark runs logs": _as("benchmark logs"),
    "benchmark runs show": _as("benchmark show"),
    "benchmark runs stop": _as("benchmark stop"),
    "benchmark runs wait": _as("benchmark wait"),
    "eval bisect": _as("eval why"),
    "eval note": _edit("eval", "--note"),
    "eval pin": _pin,
    "eval priority": _edit("eval", "--priority"),
    "eval quarantine add": _as("eval quarantine"),
    "eval quarantine delete": _as("eval quarantine", "--delete"),
    "eval quarantine list": _as("eval quarantine"),
    "eval quarantine remove": _as("eval quarantine", "--delete"),
    "eval rename": _edit("eval", "--name"),
    "eval report": _as("eval show", "--report"),
    "eval retry": _retry,
    "eval set": _as("eval run"),
    "eval tag": _tag,
    "model info": _as("model show"),
    "platform audit": _as("workspace audit", "--everywhere"),
    "platform quota": lambda rest: ["workspace", "quota", *_limits(rest)],
    "platform user remove": _as("platform user delete"),
    "platform user unlink": _as("platform user link", "--undo"),
    "rollout init": _as("rollout new"),
    "sync status": _as("sync --status"),
    "template apply": _apply_template,
    "template list": _as("template show"),
    "template check": _as("template update --check"),
    "token revoke": _as("token delete"),
    "train info": _as("train show"),
    "train priority": _edit("train", "--priority"),
    "train retry": _as("train resume", "--fresh"),
    # `check` without a name checks all configs; `validate` never did.
    "validate": lambda rest: ["check", *rest, *([""] if all(word.startswith("-") for word in rest) else [])],
    "worker drain": _as("worker delete", "--drain"),
    "worker remove": _as("worker delete"),
    "worker token create": _worker_token,
    "worker token list": _as("token list"),
    "worker token revoke": _as("token delete"),
    "workspace current": _as("workspace show"),
    "workspace invite": _as("workspace members"),
    "workspace remove": _as("workspace members", "--delete"),
    "workspace role": lambda rest: ["workspace", "members", *rest[:1], *(f"--role={word}" for word in rest[1:])],
    "workspace webhook": _as("workspace show", "--webhook"),
}


_VALUED = ("--platform", "--workspace", "--env-file")
_PLATFORM_SWITCHES = ["init"], ["doctor"]  # Their --platform has no value


def move_global_options(argv: Sequence[str]) -> list[str]:
    """Move the global options to the front of a command line, from anywhere before a bare `--`.

    A `--platform` without a value stays in place: `init` and `doctor` have a flag of that name.
    `help X` becomes `X --help`, and an older spelling today's. Raise UsageError for a missing value and for `--json`
    with `--plain`."""
    front: list[str] = []
    rest: list[str] = []
    words = iter(range(len(argv)))
    for i in words:
        word = argv[i]
        name, equals, _ = word.partition("=")
        if word == "--":
            rest.extend(argv[i:])
            break
        if word == "--help":  # also where an option would take it for its value
            rest = [*itertools.takewhile(lambda word: not word.startswith("-"), rest), word]
            continue
        if word in ("--json", "--plain", "--offline", "--yes", "-y") or (name in _VALUED and equals):
            front.append(word)
        elif name in _VALUED and i + 1 < len(argv) and not argv[i + 1].startswith("-"):
            front += [word, argv[next(words)]]
        elif name in _VALUED and "--help" not in argv and (name != "--platform" or rest[:1] not in _PLATFORM_SWITCHES):
            raise UsageError(f"option {name} needs a value")
        else:
            rest.append(word)
    if {"--json", "--plain"} <= set(front):
        raise UsageError("--json and --plain cannot be used together")
    if rest[:1] == ["help"]:
        rest = [*rest[1:], "--help"]
    return [*front, *respell(rest)]


F = TypeVar("F")
R = TypeVar("R")
Word = TypeVar("Word", bound=str)
HELP = ("-h", "--help")
STYLE: dict[str, Any] = {"rich_markup_mode": None}
SYNONYMS = {
    word: name
    for name, words in {
        "list": "ls",
        "show": "info get describe status",
        "delete": "rm remove revoke del",
        "create": "add new",
        "upload": "push",
        "download": "pull",
        "stop": "cancel kill",
        "logs": "tail log",
        "switch": "use",
        "submit": "start run",
        "check": "lint validate",
    }.items()
    for word in words.split()
}


class CommandGroup(TyperGroup):
    def __init__(self, *, guesses: Mapping[str, str] | None = None, **attrs: Any) -> None:
        super().__init__(**attrs)
        self.options_metavar = None
        self.guesses = guesses or {}
        self.default_command: str | None = None
        """Name of the command that runs when the first word is an option: `osmosis eval -m ...`."""
        self.is_default_for_words = False
        """True when it also runs for a word that names no command: `osmosis optimize CONFIG`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if self.is_default_for_words and args and not args[0].startswith("-") and args[0] not in self.commands:
            args = [str(self.default_command), *args]
        if not ctx.resilient_parsing and not args and not self.invoke_without_command:
            if current().mode is Mode.JSON:
                raise UsageError("missing command", hint=f"{ctx.command_path} --help")
            args = ["--help"]
        if self.default_command is not None and args and args[0].startswith("-") and args[0] not in HELP:
            args = [self.default_command, *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        command = self.commands.get(name)
        path = ctx.command_path.split()[1:]
        if command is None:
            if ctx.resilient_parsing:
                return None, None, args[1:]
            visible = [name for name, command in self.commands.items() if not command.hidden]
            raise unknown_command(name, path, visible, self.guesses)
        if isinstance(command, LazyCommand):
            command = command.load()
        if not ctx.resilient_parsing:
            current().command = " ".join([*path, *([] if name == self.default_command else [name])])
        elif not isinstance(command, TyperGroup):  # global options are completed anywhere on the line
            command.params = [*command.params, *ctx.find_root().command.params]
        return name, command, args[1:]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            if not command.hidden:
                panel = getattr(command, "rich_help_panel", None) or "Commands"
                panels.setdefault(panel, []).append((name, command.get_short_help_str(200).rstrip(".")))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        titles = {"Options" if ctx.parent else "Options accepted anywhere on the line": self.params}
        if isinstance(command := self.commands.get(self.default_command or ""), LazyCommand):
            titles[f"Options of {ctx.command_path} {self.default_command}"] = command.load().params
        for title, params in titles.items():
            rows = [param.get_help_record(ctx) for param in params if param.param_type_name == "option"]
            if any(rows):
                with formatter.section(title):
                    formatter.write_dl([row for row in rows if row])


class LazyCommand(TyperCommand):
    """A command whose module is imported only when it is invoked; lists show its short help."""

    def __init__(self, target: str, help: str, panel: str = "Commands", *, hidden: bool = False) -> None:
        super().__init__(None, short_help=help, help=help, rich_help_panel=panel, hidden=hidden)
        self.target = target

    def load(self) -> Any:
        module, _, attribute = self.target.partition(":")
        target = operator.attrgetter(attribute)(importlib.import_module(f"osmosis.cli.{module}"))
        if isinstance(target, typer.Typer):
            command: Any = typer.main.get_group(target)
        else:
            app = typer.Typer(rich_markup_mode=None, add_completion=False)
            app.command(help=inspect.getdoc(target))(target)
            command = typer.main.get_command(app)
        _prepare(command)
        command.hidden = self.hidden
        return command


def lazy_group(
    help: str, commands: Mapping[str, Any], panel: str = "Commands", guesses: Mapping[str, str] | None = None
) -> CommandGroup:
    return CommandGroup(help=help, commands=dict(commands), rich_help_panel=panel, guesses=guesses, **STYLE)


def new_app(help: str, **settings: Any) -> typer.Typer:
    return typer.Typer(cls=CommandGroup, help=help, add_completion=False, **STYLE, **settings)


def _prepare(command: Any) -> None:
    command.rich_markup_mode = None
    for param in command.params:
        if param.default is False:  # what is off needs no --no-NAME
            param.secondary_opts = []
    if command.help:
        blocks = inspect.cleandoc(command.help).split("\n\n")
        command.help = "\n\n".join(f"\b\n{b}" if "\n " in b or b.startswith(" ") else b for b in blocks)
    for child in getattr(command, "commands", {}).values():
        _prepare(child)


def find_command(root: TyperGroup, words: Sequence[str]) -> tuple[Any, list[str], list[str]]:
    command: Any = root
    path: list[str] = []
    rest = respell(list(words))
    while isinstance(command, TyperGroup) and rest and not rest[0].startswith("-"):
        child = command.commands.get(rest[0])
        if child is None and getattr(command, "is_default_for_words", False):
            break
        if child is None:
            visible = [name for name, entry in command.commands.items() if not entry.hidden]
            raise unknown_command(rest[0], path, visible, getattr(command, "guesses", {}))
        command = child.load() if isinstance(child, LazyCommand) else child
        path.append(rest.pop(0))
    default = getattr(command, "default_command", None)
    if default is not None and rest and rest[0] not in HELP:
        command = command.commands[default].load()
    return command, path, rest


def unknown_command(word: str, path: Sequence[str], names: Sequence[str], guesses: Mapping[str, str]) -> UsageError:
    guess = guesses.get(word) or nearest(word, names)
    where = " ".join(["osmosis", *path])
    message = f"no such command: {where} {word}" + (f"; did you mean {guess}?" if guess else "")
    return UsageError(message, hint=f"{where} {guess}" if guess else f"{where} --help", known=list(names))


def nearest(word: str, known: Iterable[str]) -> str | None:
    names = {name.lower(): name for name in known}
    lowered = word.lower()
    if SYNONYMS.get(lowered) in names:
        return names[SYNONYMS[lowered]]
    close = difflib.get_close_matches(lowered, names, n=1, cutoff=0.6)
    prefixed = [name for name in names if len(word) > 1 and name.startswith(lowered)]
    return next((names[name] for name in close or prefixed), None)


def guess_hint(word: str, names: Iterable[str], otherwise: str | None = None) -> str | None:
    near = nearest(word, names)
    return f"did you mean {near}?" if near else otherwise


def check_word(word: str, choices: Sequence[Word], problem: str) -> Word:
    for choice in choices:
        if word == choice:
            return choice
    raise ValidationError(problem, hint=guess_hint(word, choices))


def usage_error(wrong: Any, path: str = "osmosis") -> UsageError:
    ctx = getattr(wrong, "ctx", None)
    path = ctx.command_path if ctx else path
    message = wrong.format_message().replace("Value error, ", "")  # pydantic's prefix
    if message.startswith("No such option") and getattr(wrong, "option_name", None):
        message = f"no such option: {wrong.option_name}"
        if possible := getattr(wrong, "possibilities", None):
            message += f"; did you mean {' or '.join(sorted(possible))}?"
    return UsageError((message[:1].lower() + message[1:]).rstrip("."), hint=f"{path} --help")


def takes(record: type[F], extra: Sequence[inspect.Parameter] = ()) -> Callable[[Callable[[F], R]], Callable[..., R]]:
    """Make a command of `body(flags)`, with a parameter for each annotated field of the dataclass `record`. The values
    of `extra` parameters are collected in the record's field `settings`."""
    hints = get_type_hints(record, include_extras=True)
    parameters = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=_default(field), annotation=hints[field.name]
        )
        for field in dataclasses.fields(record)  # type: ignore[arg-type]  # a dataclass's type
        if hasattr(hints[field.name], "__metadata__")
    ]
    names = {parameter.name for parameter in extra}

    def decorate(body: Callable[[F], R]) -> Callable[..., R]:
        @functools.wraps(body)
        def command(**values: object) -> R:
            fields: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
            if names:
                fields["settings"] = {name: fields.pop(name) for name in list(fields) if name in names}
            return body(record(**fields))

        command.__signature__ = inspect.Signature([*parameters, *extra])  # type: ignore[attr-defined]  # read by typer
        command.__annotations__ = {}
        return command

    return decorate


def _default(field: dataclasses.Field[object]) -> object:
    if field.default is not dataclasses.MISSING:
        return field.default
    return None if field.default_factory is not dataclasses.MISSING else inspect.Parameter.empty
