"""What is shown of a run that was submitted."""

from __future__ import annotations

from collections.abc import Mapping

from osmosis.records.contract.printed_submit import GitPlace, PrintedSource, PrintedSubmit
from osmosis.records.contract.submitted import SubmittedRun

from .results import NextStep, OperationResult
from .submit_case import SubmitCase


def printed(case: SubmitCase, answer: SubmittedRun) -> PrintedSubmit:
    experiment = case.config.experiment
    source = case.facts.source
    return PrintedSubmit(
        id=answer.id,
        name=answer.name,
        status=answer.status,
        model_name=experiment.model_path,
        dataset_name=experiment.dataset,
        created_at=answer.created_at,
        url=answer.platform_url,
        git=GitPlace(identity=source.identity, remote_url=source.remote_url) if source else None,
        workspace_directory=str(case.workspace.root),
        config=PrintedSource(
            rollout=experiment.rollout,
            entrypoint=experiment.entrypoint,
            model=experiment.model_path,
            dataset=experiment.dataset,
            branch=answer.branch or experiment.branch,
            commit_sha=answer.commit_sha or experiment.commit_sha,
        ),
    )


def submitted(case: SubmitCase, answer: SubmittedRun, checked: Mapping[str, object]) -> OperationResult:
    noun = case.options.noun
    steps = [NextStep("follow it", command=f"osmosis {noun} wait {answer.name}")]
    if answer.platform_url:
        steps.append(NextStep("open", url=answer.platform_url))
    message = f"{noun} run {answer.name} is {answer.status}"
    return OperationResult(f"{noun}.submit", message, {**printed(case, answer).to_dict(), **checked}, next_steps=steps)
