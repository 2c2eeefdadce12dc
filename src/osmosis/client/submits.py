"""Starting runs. Apart from the runs themselves, whose records take longer to load than a submit takes."""

from __future__ import annotations

from collections.abc import Mapping

from osmosis.records.contract.submitted import SubmittedRun
from osmosis.records.run_kind import RunKind

from .http import Http

PATHS: Mapping[RunKind, str] = {"eval": "eval-runs", "training": "training-runs"}
"""Where the runs of a kind are."""


class Submits:
    """What starts runs."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def submit(self, kind: RunKind, body: Mapping[str, object]) -> SubmittedRun:
        """Start a run of a config, given as the sections of a submit."""
        return self._http.read(SubmittedRun, "POST", PATHS[kind], json=body)
