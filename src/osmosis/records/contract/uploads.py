"""Files that travel beside the API: datasets, and the files of a run that was made on somebody's machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from .body import Body, Moment, OrEmpty, Page, RequestBody, spelled

MAX_IMPORT_PATHS = 100
"""Files of a local run that one call may ask addresses for."""


class NewDataset(RequestBody):
    """`POST datasets`."""

    file_name: str
    """The file's stem: the dataset's name."""
    file_size: int
    extension: str
    overwrite_dataset_id: str | None = None


class SentPart(RequestBody):
    """A part of a dataset's file that was stored; the names are those of the object store."""

    PartNumber: int
    ETag: str


class CompleteDataset(RequestBody):
    """`POST datasets/{id}/complete`."""

    file_extension: str | None = None
    parts: list[SentPart] | None = None
    """Of a file that was sent in parts."""
    upload_id: str | None = None
    """Which upload, when the dataset has several; clients before 1.1 do not say."""


class AbortDataset(RequestBody):
    """`POST datasets/{id}/abort`."""

    upload_id: str | None = None
    """Which upload; the latest unless it is said."""


class UploadPart(Body):
    """Where one part of a file goes."""

    part_number: int
    presigned_url: str
    size: int | None = None


class UploadPlan(Body):
    """How to send a file: whole, or in parts."""

    expires_in: int | None = None
    """Seconds."""
    s3_key: str | None = None
    """Read by clients of generation 0.2 only."""
    upload_id: str | None = None
    method: str | None = None
    """`simple` or `multipart`."""
    presigned_url: str | None = Field(None, validation_alias=spelled("presigned_url", "presignedUrl"))
    """Of a simple upload."""
    upload_headers: dict[str, str] = Field(default_factory=dict)
    part_size: int | None = None
    """Bytes of every part but the last."""
    total_parts: int | None = None
    presigned_urls: list[UploadPart] = Field(default_factory=list)


class DatasetEntry(Body):
    """A dataset."""

    id: str
    file_name: str | None = None
    """The name by which configs refer to it: the file's stem."""
    file_size: int | None = None
    status: str | None = None
    """`uploaded` is ready; `pending`, `uploading` and `processing` are on the way there; `error`, `cancelled`."""
    data_preview: list[object] | str | None = None
    """The first rows."""
    file_format: str | None = None
    original_file_format: str | None = None
    row_count: int | None = None
    original_file_size: int | None = None
    sha256: str | None = None
    error: str | None = None
    creator_name: str | None = None
    created_at: Moment | None = None
    updated_at: Moment | None = None
    """Changes with the content: the version by which clients keep a downloaded file."""
    platform_url: str | None = None

    @property
    def in_progress(self) -> bool:
        return self.status in ("pending", "uploading", "processing")

    @property
    def ready(self) -> bool:
        return self.status == "uploaded"

    def brief(self) -> dict[str, object]:
        """Without its rows."""
        return {key: value for key, value in self.to_dict().items() if key not in ("data_preview", "is_internal_user")}


class CreatedDataset(DatasetEntry):
    """`POST datasets`: the dataset, and how to send its file."""

    upload: UploadPlan


class DatasetPage(Page):
    datasets: Annotated[list[DatasetEntry], OrEmpty] = Field(default_factory=list)

    @property
    def rows(self) -> Sequence[DatasetEntry]:
        return self.datasets


class DatasetDownload(Body):
    """Where a dataset's file can be fetched."""

    presigned_url: str = Field(validation_alias=spelled("presigned_url", "presignedUrl"))
    expires_in: int | None = None
    """Seconds."""
    file_name: str | None = None


class ImportPaths(RequestBody):
    """`POST eval-runs/imports/{id}/uploads`."""

    paths: list[str] = Field(max_length=MAX_IMPORT_PATHS)


class ImportPart(RequestBody):
    """A part of a run's file that was stored."""

    part_number: int
    etag: str


class ImportSent(RequestBody):
    """`POST eval-runs/imports/{id}/uploads/complete`."""

    path: str
    parts: list[ImportPart] | None = None
    """Of a file that was sent in parts."""


class ImportFile(Body):
    """A file of a local run."""

    path: str
    size: int | None = None
    sha256: str | None = None
    state: str | None = None
    """`pending` or `uploaded`."""


class ImportSession(Body):
    """A local run on its way to the platform."""

    session_id: str
    status: str
    """`uploading` or `finalized`."""
    expected_files: int | None = None
    uploaded_files: int | None = None
    files: Annotated[list[ImportFile], OrEmpty] = Field(default_factory=list)
    expires_at: Moment | None = None
    eval_run_id: str | None = None
    """The run it became; absent before that, like the two below."""
    eval_run_name: str | None = None
    platform_url: str | None = None

    @property
    def finalized(self) -> bool:
        return self.status == "finalized"

    @property
    def pending(self) -> list[ImportFile]:
        """What is still to be sent."""
        return [file for file in self.files if file.state != "uploaded"]


class ImportUpload(ImportFile):
    """A file of a local run, and how to send it."""

    upload: UploadPlan


class ImportUploads(Body):
    files: Annotated[list[ImportUpload], OrEmpty] = Field(default_factory=list)
