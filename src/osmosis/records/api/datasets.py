from typing import Annotated, ClassVar, Literal

from pydantic import AliasChoices, Field

from osmosis.base.jsonable import JsonObject
from osmosis.records.api.body import Body, Moment, OrEmpty, Page, RequestBody

MAX_IMPORT_PATHS = 100


class NewDataset(RequestBody):
    file_name: str
    file_size: int
    extension: str
    overwrite_dataset_id: str | None = None


class SentPart(RequestBody):
    """An uploaded part of a file; the names are those of the object store."""

    PartNumber: int
    ETag: str


class CompleteDataset(RequestBody):
    file_extension: str | None = None
    parts: list[SentPart] | None = None
    upload_id: str | None = None


class AbortDataset(RequestBody):
    upload_id: str | None = None
    """Upload of the dataset; default: the latest."""


class UploadPart(Body):
    part_number: int
    presigned_url: str
    size: int | None = None


class UploadPlan(Body):
    expires_in: int | None = None
    """Seconds."""
    s3_key: str | None = None
    """Read by clients of generation 0.2 only."""
    upload_id: str | None = None
    method: str | None = None
    presigned_url: str | None = Field(None, validation_alias=AliasChoices("presigned_url", "presignedUrl"))
    upload_headers: dict[str, str] = Field(default_factory=dict)
    part_size: int | None = None
    """Bytes of every part but the last."""
    total_parts: int | None = None
    presigned_urls: list[UploadPart] = Field(default_factory=list)


class DatasetEntry(Body):
    id: str
    file_name: str | None = None
    """Stem of the file: the name by which configs refer to it."""
    file_size: int | None = None
    status: str | None = None
    """`uploaded` is ready; `pending`, `uploading` and `processing` lead to it; `error`, `cancelled`."""
    data_preview: list[object] | str | None = None
    file_format: str | None = None
    original_file_format: str | None = None
    row_count: int | None = None
    original_file_size: int | None = None
    sha256: str | None = None
    error: str | None = None
    creator_name: str | None = None
    created_at: Moment | None = None
    updated_at: Moment | None = None
    """Changes with the content: the version of a downloaded file."""
    platform_url: str | None = None

    @property
    def in_progress(self) -> bool:
        return self.status in ("pending", "uploading", "processing")

    @property
    def ready(self) -> bool:
        return self.status == "uploaded"

    def brief(self) -> dict[str, object]:
        return {key: value for key, value in self.to_dict().items() if key not in ("data_preview", "is_internal_user")}


class CreatedDataset(DatasetEntry):
    upload: UploadPlan


class DatasetPage(Page[DatasetEntry]):
    rows_key = "datasets"
    datasets: Annotated[list[DatasetEntry], OrEmpty] = Field(default_factory=list)


class DatasetDownload(Body):
    presigned_url: str = Field(validation_alias=AliasChoices("presigned_url", "presignedUrl"))
    expires_in: int | None = None
    """Seconds."""
    file_name: str | None = None


class ImportPaths(RequestBody):
    paths: list[str] = Field(max_length=MAX_IMPORT_PATHS)


class ImportPart(RequestBody):
    part_number: int
    etag: str


class ImportSent(RequestBody):
    path: str
    parts: list[ImportPart] | None = None


class ImportFile(Body):
    path: str
    size: int | None = None
    sha256: str | None = None
    state: str | None = None


class ImportSession(Body):
    session_id: str
    status: str
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
        return [file for file in self.files if file.state != "uploaded"]


class ImportUpload(ImportFile):
    upload: UploadPlan


class ImportUploads(Body):
    files: Annotated[list[ImportUpload], OrEmpty] = Field(default_factory=list)


class ProductionCallEntry(Body):
    id: str
    external_id: str
    """`TRACE:SPAN` of a trace, or the id of a deployment's answer; either id names the call."""
    source: str
    model: str
    messages: list[JsonObject]
    answer: str
    label: str
    dataset: str
    """The dataset of which it became a row; empty before."""
    created_at: Moment


class ProductionCallPage(Page[ProductionCallEntry]):
    rows_key: ClassVar[str] = "calls"
    calls: list[ProductionCallEntry]


class ReceivedTraces(Body):
    """OTLP's ExportTraceServiceResponse."""

    partial_success: JsonObject = Field(default_factory=dict, alias="partialSuccess")


class CallJudgement(RequestBody):
    label: Literal["", "up", "down"]
    dataset: str = ""
    """The dataset of which it becomes a row; empty: of none."""
    ground_truth: str | None = None
    """The right answer, where a person knows it."""
