"""A run's answers of the platform, read once into what commands show: status, figures, failure, address.

Understands any server of contract B; the report itself is there only when the platform is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError as Invalid

from ..records.report import Report
from ..records.run import RunStatus

OVER = {status.value for status in RunStatus if status.over} | {"crashed", "killed", "error"}


@dataclass(frozen=True)
class RunView:
    """One run as the platform describes it."""

    kind: str
    detail: dict[str, Any]

    @property
    def run(self) -> dict[str, Any]:
        return self.detail.get(f"{self.kind}_run") or {}

    @property
    def name(self) -> str:
        return str(self.run.get("name") or "")

    @property
    def status(self) -> str:
        return str(self.run.get("status") or "unknown")

    @property
    def over(self) -> bool:
        return self.status in OVER

    @property
    def url(self) -> str | None:
        return self.run.get("platform_url")

    @property
    def failure(self) -> dict[str, Any] | None:
        return self.detail.get("failure")

    @property
    def report(self) -> Report | None:
        body = self.detail.get("report")
        try:
            return Report.model_validate(body) if body else None
        except Invalid:
            return None

    @property
    def unscored(self) -> bool:
        """There were rollouts, and none of them has a score."""
        report = self.report
        if report is not None:
            return report.unscored
        return self.results.get("graded") == 0 and bool(self.results.get("failed"))

    @property
    def progress(self) -> tuple[str, int, int]:
        """Stage, done, total."""
        progress = self.run.get("progress") or {}
        return str(progress.get("stage") or ""), int(progress.get("completed") or 0), int(progress.get("total") or 0)

    @property
    def results(self) -> dict[str, Any]:
        return self.detail.get("results") or self.run.get("results") or {}

    def summary(self) -> dict[str, Any]:
        """The figures of contract B's `eval info`."""
        results = self.results
        _, completed, total = self.progress
        report = self.report
        if report is not None:
            completed, total = report.completed, report.total
        summary = {key: results.get(key) for key in ("pass_rate", "graded", "passed", "failed", "skipped")}
        return {
            "avg_reward": results.get("score"),
            **summary,
            "progress": {"completed": completed, "total": total or results.get("total_runs"), "unit": "rollouts"},
            "pass_threshold": results.get("pass_threshold"),
            "total_tokens": results.get("total_tokens"),
            "dataset_rows": results.get("total_dataset_rows"),
        }

    def head(self) -> dict[str, Any]:
        """What people see first."""
        config = self.detail.get("config") or {}
        dataset = self.detail.get("dataset") or {}
        commit = str(self.detail.get("commit_sha") or "")[:12]
        branch = self.detail.get("branch")
        stage, completed, total = self.progress
        going = f"{self.status} ({stage} {completed}/{total})" if stage and not self.over else self.status
        return {
            "name": self.name,
            "status": going,
            "rollout": (self.detail.get("rollout") or {}).get("name") or config.get("rollout"),
            "model": config.get("model_path"),
            "dataset": dataset.get("name"),
            "code": f"{commit} ({branch})" if commit and branch else commit or None,
            "created": self.run.get("created_at"),
            "page": self.url,
        }
