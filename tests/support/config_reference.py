"""Tables of `docs/config.md`, made from the records.

`make docs` writes them between the marker lines; a test compares.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from osmosis.records.base import describe_fields
from osmosis.records.config.benchmark import BenchmarkAgent, BenchmarkConfig
from osmosis.records.config.check import CONFIGS, describe_value, iterate_fields
from osmosis.records.config.experiment import Experiment, Mix

BEGIN = "<!-- tables: begin (made by `make docs`) -->"
END = "<!-- tables: end -->"
_TITLES = {
    "eval": "Eval configs: `configs/eval/*.toml`",
    "training": "Training configs: `configs/training/*.toml`",
    "optimize": "Optimize configs: `configs/optimize/*.toml`",
    "benchmark": "Benchmark configs: `configs/benchmark/*.toml`",
}
_SHARED = ("experiment", "program", "env", "secrets")


def config_tables() -> str:
    parts = []
    for kind, model in {**CONFIGS, "benchmark": BenchmarkConfig}.items():
        parts.append(f"## {_TITLES[kind]}\n")
        for name, inner, field in iterate_fields(describe_fields(model)):
            if kind == "training" and name in ("program", "env"):
                continue  # the same table, described once
            if kind == "optimize" and name != "optimize":
                continue  # the tables of an eval config
            parts.append(_table(name, inner, field, kind))
    return "\n".join(parts)


def _table(name: str, inner: type[BaseModel] | None, field: FieldInfo, kind: str) -> str:
    need = "required" if field.is_required() else "optional"
    both = " (both kinds of config)" if name in _SHARED and name != "secrets" and kind == "eval" else ""
    inner = {"agents": BenchmarkAgent, "mix": Mix}.get(name, inner)
    title = f"[[{name}]]" if name in ("agents", "mix") else f"[{name}]"
    lines = [f"### {title}\n", f"*{need}{both}*\n"]
    if inner is None:
        lines.append(f"{field.description} Keys are variable names, values are text.\n")
        return "\n".join(lines)
    lines += ["| key | takes | default | meaning |", "| --- | --- | --- | --- |"]
    for key, part in inner.model_fields.items():
        if kind == "training" and name == "experiment" and key in Experiment.model_fields:
            continue  # as in an eval config
        meaning = " ".join((part.description or "").split())
        lines.append(f"| `{key}` | {describe_value(part)} | {_default(part)} | {meaning} |")
    if name == "experiment" and kind == "training":
        lines.append("\nBeside the keys of an eval config. `[[mix]]` names further environments of the same run.")
    if name == "secrets" and kind == "training":
        lines.append("\nThe table is optional; if present, it must have `required`.")
    return "\n".join(lines) + "\n"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "not set"
    if isinstance(value, BaseModel):
        return "empty"
    if isinstance(value, float):
        return f"`{value:g}`".replace("e-0", "e-")
    return f"`{value}`" if value != {} else "empty"


def replace_tables(page: str) -> str:
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN!r} and {END!r}")
    return f"{head}{BEGIN}\n\n{config_tables()}\n{END}{tail}"


def main(arguments: list[str]) -> int:
    for name in arguments:
        path = Path(name)
        path.write_text(replace_tables(path.read_text("utf-8")), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
