"""Base models in transfer: file by file, in parts, each with its checksum. An interrupted upload is announced again
with the same files; the response lists what is missing."""

from typing import Annotated, Literal

from pydantic import Field

from osmosis.records.api.body import Body, OrEmpty, RequestBody
from osmosis.records.api.datasets import UploadPlan


class AnnouncedFile(RequestBody):
    path: str
    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class NewModel(RequestBody):
    name: str
    files: list[AnnouncedFile] = Field(max_length=1000)


class MergeRequest(RequestBody):
    name: str | None = None
    """Name of the new model; None: the adapter's, with `-merged`."""
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    """Type of the weights; `auto`: the base model's."""


class ModelMerge(Body):
    id: str | None = None
    model_name: str | None = None
    merged_from: str | None = None
    status: str | None = None
    stage: str | None = None
    message: str | None = None
    fix: str | None = None


class ModelPath(RequestBody):
    path: str


class ModelFile(Body):
    path: str
    size: int
    sha256: str | None = None
    state: str | None = None
    parts: Annotated[list[int], OrEmpty] = Field(default_factory=list)
    """Numbers of the parts that arrived, of a pending file."""
    url: str | None = None


class ModelUpload(Body):
    id: str
    name: str
    status: str
    part_size: int
    """Bytes of every part but the last."""
    files: Annotated[list[ModelFile], OrEmpty] = Field(default_factory=list)

    @property
    def pending(self) -> list[ModelFile]:
        return [file for file in self.files if file.state != "uploaded"]

    @property
    def missing_bytes(self) -> int:
        return sum(max(0, file.size - len(file.parts) * self.part_size) for file in self.pending)


class ModelFileUpload(Body):
    """Addresses of the next missing parts of a file; none when it can be completed."""

    path: str
    upload: UploadPlan


class ModelFiles(Body):
    name: str
    type: str
    base_model: str | None = None
    files: Annotated[list[ModelFile], OrEmpty] = Field(default_factory=list)
