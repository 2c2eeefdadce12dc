"""What the machine of a worker has for jobs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from osmosis.base.machine import gpus, memory_bytes
from osmosis.records.worker import Resources

MB = 1024 * 1024


def machine_resources(environ: Mapping[str, str], folder: Path) -> Resources:
    """Processors that this process may use, memory, GPUs that the driver shows, free space where `folder` is or will
    be."""
    while not folder.exists():
        folder = folder.parent
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Resources(
        cpus=cpus,
        memory_mb=memory_bytes() // MB,
        gpus=len(gpus(environ)),
        disk_mb=shutil.disk_usage(folder).free // MB,
    )
