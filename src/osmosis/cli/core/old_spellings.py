from collections.abc import Callable, Iterable, Iterator

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
    given = iter(rest)
    for word in given:
        if word.startswith("--remove"):
            words.append(f"--remove-tag={word.partition('=')[2] or next(given, '')}")
        else:
            words += [word] if not words else [f"--tag={word}"]
    return ["eval", "edit", *words]


def _pin(rest: list[str]) -> list[str]:
    return ["eval", "edit", *(word for word in rest if word != "--undo"), "--unpin" if "--undo" in rest else "--pin"]


def _limits(words: Iterable[str]) -> Iterator[str]:
    given = iter(words)
    for word in given:
        key, equals, value = word.partition("=")
        yield f"--set={key[2:]}={value if equals else next(given, '')}" if word.startswith("--") else word


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
