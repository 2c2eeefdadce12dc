"""What a run was, in a few words: what every report of it begins with."""

from __future__ import annotations

from collections.abc import Iterator

from osmosis.records.plan import EvalPlan


def facts(plan: EvalPlan) -> Iterator[tuple[str, str]]:
    """What the run was, in pairs of name and text."""
    yield "model", plan.model.name + (f" at {plan.model.base_url}" if plan.model.base_url else "")
    yield "agent", plan.agent
    yield "dataset", plan.dataset + (f" (sha256 {plan.dataset_hash[:12]})" if plan.dataset_hash else "")
    commit = (plan.provenance.get("git") or {}).get("commit")
    if commit:
        yield "commit", commit[:12] + (" with uncommitted changes" if plan.provenance["git"].get("dirty") else "")
