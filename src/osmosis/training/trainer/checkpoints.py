"""Checkpoints on the disk: a run killed at any moment leaves complete ones and at most a draft."""

import contextlib
import shutil
from importlib import metadata
from pathlib import Path
from typing import Literal

from osmosis.base.files import write_text
from osmosis.errors import ValidationError
from osmosis.records.base import utc_now
from osmosis.records.run.job import hold_file
from osmosis.records.run.training import MANIFEST, CheckpointManifest, describe_files, read_manifest
from osmosis.training.protocol.messages import Checkpointed
from osmosis.training.protocol.plans import TrainerPlan
from osmosis.training.trainer.service import TrainingFailed

Kind = Literal["regular", "stop", "final"]
_DRAFT = ".draft-"
_LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes", "tinker")


def versions() -> dict[str, str]:
    installed = {}
    for name in _LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def load_resume_point(plan: TrainerPlan) -> CheckpointManifest | None:
    """Return the checkpoint that the plan resumes from. Raise `TrainingFailed` if it is partial or of another plan."""
    if plan.resume_from is None:
        return None
    try:
        manifest = read_manifest(Path(plan.resume_from))
    except ValidationError as error:
        raise TrainingFailed(error.message, kind="data", hint=error.hint) from error
    if manifest.fingerprint != plan.fingerprint:
        raise TrainingFailed(
            f"{plan.resume_from} was written with other settings, or by a version of osmosis that trains otherwise",
            kind="data",
            hint=f"osmosis train resume {plan.run} --fresh starts anew; to go on from what was learned: "
            f"osmosis model merge {plan.run}, and its result as model_path",
        )
    if manifest.step > plan.steps:
        message = f"{plan.resume_from} is of step {manifest.step}, and the plan ends at step {plan.steps}"
        raise TrainingFailed(message, kind="data")
    return manifest


class CheckpointStore:
    def __init__(self, plan: TrainerPlan) -> None:
        self._plan = plan
        self._folder = Path(plan.output_dir)
        self._folder.mkdir(parents=True, exist_ok=True)
        for left in self._folder.glob(f"{_DRAFT}*"):
            shutil.rmtree(left)
        manifests = []
        for folder in sorted(self._folder.glob("step-*")):
            with contextlib.suppress(ValidationError):
                manifests.append(read_manifest(folder))
        self._rewards = {manifest.step: manifest.reward for manifest in manifests}

    def has(self, step: int) -> bool:
        return step in self._rewards

    def draft(self, step: int) -> Path:
        draft = self._folder / f"{_DRAFT}{step:06d}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        return draft

    def finish(self, written: Path, step: int, kind: Kind, reward: float | None) -> Checkpointed:
        manifest = CheckpointManifest(
            run=self._plan.run,
            step=step,
            kind=kind,
            method=self._plan.method,
            fingerprint=self._plan.fingerprint,
            base_model=self._plan.model_path,
            reward=reward,
            created_at=utc_now().isoformat(),
            versions=versions(),
            files=describe_files(written),
        )
        write_text(written / MANIFEST, manifest.model_dump_json(indent=2) + "\n")
        folder = self.path(step)
        if folder.exists():
            shutil.rmtree(folder)
        written.rename(folder)
        self._rewards[step] = reward
        best = self.best()
        return Checkpointed(
            step=step, path=str(folder), kind=kind, reward=reward, best=best == step, removed=self._prune(keeping=step)
        )

    def path(self, step: int) -> Path:
        return self._folder / f"step-{step:06d}"

    def best(self) -> int | None:
        scored = [(reward, step) for step, reward in self._rewards.items() if reward is not None]
        return max(scored)[1] if scored else None

    def _prune(self, *, keeping: int) -> list[str]:
        if self._plan.keep is None:
            return []
        newest = sorted(self._rewards)[-self._plan.keep :]
        resumed = Path(self._plan.resume_from).resolve() if self._plan.resume_from else None
        removed = []
        for step in sorted(set(self._rewards) - {*newest, self.best(), keeping}):
            path = self.path(step)
            if hold_file(path).exists():  # looked at again when the next one is saved
                continue
            if path.resolve() != resumed:
                shutil.rmtree(path, ignore_errors=True)
                removed.append(str(path))
            del self._rewards[step]
        return removed
