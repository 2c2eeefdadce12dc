"""How the file of a dataset is sent: to one signed address, or in parts to several."""

from __future__ import annotations

from osmosis.platform import Platform, tables
from osmosis.platform.objects.addresses import address
from osmosis.platform.objects.parts import upload_key
from osmosis.records.contract.uploads import UploadPart, UploadPlan


def of(platform: Platform, upload: tables.Upload) -> UploadPlan:
    """How to upload the file."""
    place, lifetime = f"uploads/{upload.id}", platform.settings.url_lifetime_s
    key = upload_key(upload.id)
    if not upload.part_size:
        return UploadPlan(
            expires_in=lifetime,
            s3_key=place,
            upload_id=upload.id,
            method="simple",
            presigned_url=address(platform, f"{key}1", f"{place}/1", method="PUT"),
            upload_headers={},
        )
    parts = []
    for number in range(1, upload.parts + 1):
        url = address(platform, f"{key}{number}", f"{place}/{number}", method="PUT")
        parts.append(UploadPart(part_number=number, presigned_url=url, size=part_bytes(upload, number)))
    return UploadPlan(
        expires_in=lifetime,
        s3_key=place,
        upload_id=upload.id,
        method="multipart",
        part_size=upload.part_size,
        total_parts=upload.parts,
        presigned_urls=parts,
    )


def part_bytes(upload: tables.Upload, number: int) -> int:
    """The size limit of a part; a simple upload has one part."""
    if not upload.part_size:
        return upload.size
    return min(upload.part_size, upload.size - (number - 1) * upload.part_size)
