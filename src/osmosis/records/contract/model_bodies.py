"""Base models on their way to and from a platform: file by file, in parts, each with its checksum.

An upload that was cut off is asked for again with the same files; the answer says what is still missing.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .body import Body, OrEmpty, RequestBody
from .uploads import UploadPlan


class AnnouncedFile(RequestBody):
    """A file of a model."""

    path: str
    """Its name; a model has no folders."""
    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class NewModel(RequestBody):
    """`POST models/base`."""

    name: str
    files: list[AnnouncedFile] = Field(max_length=1000)


class MergeRequest(RequestBody):
    """`POST models/{name}/merge`."""

    name: str | None = None
    """Of the new model; None: the adapter's, with `-merged`."""
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    """Of its weights; `auto`: as the base model's."""


class ModelMerge(Body):
    """An adapter on its way into a model of its own."""

    id: str | None = None
    model_name: str | None = None
    """Of the new model."""
    merged_from: str | None = None
    status: str | None = None
    """As a run's: `pending`, `running`, `finished`, `failed` or `stopped`."""
    stage: str | None = None
    message: str | None = None
    """Why it failed."""
    fix: str | None = None


class ModelPath(RequestBody):
    """`POST models/base/{id}/uploads`, and `.../uploads/complete`."""

    path: str


class ModelFile(Body):
    """A file of a model, and how much of it has arrived."""

    path: str
    size: int
    sha256: str | None = None
    state: str | None = None
    """`pending` or `uploaded`."""
    parts: Annotated[list[int], OrEmpty] = Field(default_factory=list)
    """Numbers of the parts that are there, of one that is pending."""
    url: str | None = None
    """Where it can be fetched."""


class ModelUpload(Body):
    """A base model that waits for files, or has all of them."""

    id: str
    name: str
    status: str
    """`uploading` or `ready`."""
    part_size: int
    """Bytes of every part but the last."""
    files: Annotated[list[ModelFile], OrEmpty] = Field(default_factory=list)

    @property
    def pending(self) -> list[ModelFile]:
        """What is still to be sent."""
        return [file for file in self.files if file.state != "uploaded"]

    @property
    def missing_bytes(self) -> int:
        """How much of it."""
        return sum(max(0, file.size - len(file.parts) * self.part_size) for file in self.pending)


class ModelFileUpload(Body):
    """Where the next missing parts of a file go; none when it can be completed."""

    path: str
    upload: UploadPlan


class ModelFiles(Body):
    """The files of a model that can be fetched."""

    name: str
    type: str
    """`base`, or `lora` for an adapter."""
    base_model: str | None = None
    """Of an adapter."""
    files: Annotated[list[ModelFile], OrEmpty] = Field(default_factory=list)
