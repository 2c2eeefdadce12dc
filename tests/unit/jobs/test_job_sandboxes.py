"""What a job's processes get at each level, and what is refused where a level is missing."""

from __future__ import annotations

import pytest

from osmosis.jobs.context import JobFailed
from osmosis.jobs.sandboxes import JobSandbox
from osmosis.records.run.job import JobSpec
from osmosis.sandbox import Abilities, Level, Network

EXPERIMENT = {"rollout": "r", "entrypoint": "main.py", "dataset": "d", "model_path": "offline/calculator"}
NONE = Abilities(Level.NONE, "the kernel has no Landlock", fix="install bubblewrap")
LANDLOCK = Abilities(Level.LANDLOCK, "namespaces cannot be made here", version="version 3", fix="allow namespaces")
NAMESPACES = Abilities(Level.NAMESPACES, "", router="/usr/bin/slirp4netns")


def spec(*, secrets: tuple[str, ...] = (), network: str = "open", **sandbox: object) -> JobSpec:
    config = {
        "experiment": EXPERIMENT,
        "evaluation": {},
        "secrets": {"required": list(secrets)},
        "advanced": {"network": network},
    }
    fields = {"run_id": "1", "run_name": "r-1", "kind": "eval", "config": config, "secret_names": list(secrets)}
    return JobSpec.model_validate({**fields, "sandbox": sandbox})


@pytest.mark.parametrize(
    ("wanted", "abilities", "message", "fix"),
    [
        (spec(required=True), LANDLOCK, "no sandbox of level 1 works on this machine", "allow namespaces"),
        (spec(secrets=("KEY",)), NONE, "this run has secrets (KEY), and nothing keeps a rollout", "--no-sandbox"),
        (spec(network="gate"), LANDLOCK, "needs a sandbox with a network of its own", "remove it"),
    ],
)
def test_what_needs_more_than_there_is_is_refused(
    wanted: JobSpec, abilities: Abilities, message: str, fix: str
) -> None:
    with pytest.raises(JobFailed) as refusal:
        JobSandbox.for_job(wanted, abilities)
    assert message in refusal.value.failure.message
    assert fix in str(refusal.value.failure.fix)


@pytest.mark.parametrize(
    ("wanted", "abilities", "level", "network", "description"),
    [
        (spec(), NONE, Level.NONE, Network.SHARED, "level 0: nothing keeps a rollout"),
        (spec(secrets=("KEY",), off=True), NAMESPACES, Level.NONE, Network.SHARED, "switched off on this platform"),
        (spec(secrets=("KEY",)), LANDLOCK, Level.LANDLOCK, Network.SHARED, "Landlock (version 3): a rollout can open"),
        (spec(), NAMESPACES, Level.NAMESPACES, Network.OPEN, "level 1 (own namespaces, without bubblewrap); net"),
        (spec(network="gate"), NAMESPACES, Level.NAMESPACES, Network.NONE, "reaches only its model endpoint"),
    ],
)
def test_the_strongest_level_is_used_and_named(
    wanted: JobSpec, abilities: Abilities, level: Level, network: Network, description: str
) -> None:
    sandbox = JobSandbox.for_job(wanted, abilities)
    assert (sandbox.level, sandbox.network) == (level, network)
    assert description in sandbox.description
