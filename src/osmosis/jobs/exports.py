"""The exports of a job's run: started beside it and waited for at its end. They never fail it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from osmosis.bridges.export_process import Exports
from osmosis.bridges.export_stream import ExportedRun, flatten_options, stored_run
from osmosis.engine.journal import Journal
from osmosis.errors import OsmosisError
from osmosis.jobs.commands import machine_environ
from osmosis.jobs.context import JobContext, setup_failure
from osmosis.records.config.export import VARIABLES


def open_exports(context: JobContext) -> Exports:
    """Raise `JobFailed`, before anything is spent, for a library that this machine lacks and for a folder of it."""
    options = context.spec.submitted.export
    if options and any(target.tool == "tensorboard" and target.address for target in options.list_targets()):
        message = "[export] names a folder, and a job writes its event files into its own"
        raise setup_failure(message, fix='targets = ["tensorboard"]')
    try:
        return Exports(options)
    except OsmosisError as problem:
        raise setup_failure(f"{problem.message} on the machine of the job", fix=problem.hint) from None


@asynccontextmanager
async def exporting(context: JobContext, exports: Exports, journal: Journal | None = None) -> AsyncIterator[None]:
    """Export while this is open, from the journal of an evaluation, else the figures of a training run."""
    spec, home = context.spec, context.work_dir / "export"
    part = f"-{spec.shard.number + 1}" if spec.shard.count > 1 else ""
    identity = {"id": spec.run_id + part, "name": spec.run_name + part}
    config = spec.submitted.model_dump(mode="json", exclude_defaults=True, exclude={"env", "secrets", "export"})
    params = dict(flatten_options({**config, "commit_sha": spec.commit_sha}))
    training = ExportedRun(kind="training", folder=str(context.work_dir), params=params, **identity)

    def environ(tool: str) -> dict[str, str]:
        """Return the variables of a tool; whatever a person of the machine has logged in to is not in its HOME."""
        named = {**spec.submitted.env, **context.secrets}
        own = {name: named[name] for name in VARIABLES.get(tool, "").split() if name in named}
        return {**machine_environ(context.environ), "HOME": str(home), "TRACKIO_DIR": str(home / "trackio"), **own}

    home.mkdir(parents=True, exist_ok=True)
    for pid in exports.start(stored_run(journal, **identity) if journal else training, environ, home):
        context.leftovers.add(pid)
    try:
        yield
    finally:
        for _, problem in await asyncio.to_thread(lambda: [*exports.close()]):
            context.log.write("export", problem, "warning")
