"""Before a training run is submitted: can its reward be had for nothing? `osmosis reward test`, in its own process.

Only where the rollout's code can be loaded as it is here and its dataset lies in the workspace: a submit builds no
environment. What is found is a warning, never a refusal: a person may pay for a format on purpose.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from osmosis.base.json_types import JsonObject

from .context import AppContext
from .environment import INSIDE

TIME_LIMIT_S = 60
ROWS = 20
SHOWN = 3


def check_reward(ctx: AppContext, root: Path, rollout: str, env: Mapping[str, str]) -> str:
    """One line for the plan; each worthless answer that earns something is a warning. `env`: the config's variables."""
    command = [sys.executable, "-m", "osmosis", "reward", "test", rollout, "--json", "--limit", str(ROWS)]
    # As if this were the rollout's environment: none is built for this.
    environ = {**ctx.environ, **env, INSIDE: "none"}
    try:
        done = subprocess.run(
            command, cwd=root, env=environ, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not tried within {TIME_LIMIT_S} s: osmosis reward test {rollout}"
    found = _scores(done.stdout)
    if found is None:
        return f"could not be tried here: osmosis reward test {rollout}"
    findings = [one for score in found for one in score["findings"] if one["severity"] != "info"]
    worst = sorted(findings, key=lambda one: one["severity"] != "error")
    for one in worst[:SHOWN]:
        ctx.output.warn("REWARD", f"the reward: {one['what']}" + (f" (fix: {one['fix']})" if one["fix"] else ""))
    if not worst:
        return f"tried with worthless answers on {found[0]['rows']} rows: none earns anything"
    return f"{len(worst)} finding{'s' if len(worst) > 1 else ''}: osmosis reward test {rollout}"


def _scores(text: str) -> list[JsonObject] | None:
    """The batteries that were printed; None when something else was."""
    try:
        scores: list[JsonObject] = json.loads(text.strip().splitlines()[-1])["data"]["scores"]
    except (IndexError, KeyError, TypeError, ValueError):
        return None
    return scores or None
