"""How fast a large log of inspect_ai is imported: 100 samples of 2.7 MB, as `.eval` (zstd) and as `.json`.

python benchmarks/bridges.py [--samples 100]
"""

from __future__ import annotations

import argparse
import random
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from multiprocessing import get_context
from pathlib import Path

import orjson
import pyarrow as pa

from osmosis.bridges import inspect_ai

FIXTURE = Path(__file__).parents[1] / "tests" / "fixtures" / "bridges" / "inspect_ai.eval"
IMPORT = """
import resource
import sys
from pathlib import Path
from osmosis.bridges.import_run import import_run, read_logs
path, folder = Path(sys.argv[1]), Path(sys.argv[2])
for run in read_logs(path):
    import_run(run, folder, source=path)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def write_logs(folder: Path, samples: int) -> list[Path]:
    with zipfile.ZipFile(FIXTURE) as archive:
        members = {info.filename: info for info in archive.infolist()}
    header = orjson.loads(inspect_ai.read_member(FIXTURE, members["header.json"]))
    sample = orjson.loads(inspect_ai.read_member(FIXTURE, members["samples/two_epoch_1.json"]))
    event = next(event for event in sample["events"] if event["event"] == "model")
    chance = random.Random(1)
    words = ["".join(chance.choices("abcdefghij", k=7)) for _ in range(5000)]
    documents = []
    for number in range(samples):
        events = [{**event, "call": {"request": {"text": " ".join(chance.choices(words, k=2600))}}} for _ in range(128)]
        documents.append({**sample, "id": f"s{number}", "uuid": f"u{number}", "events": events})
    (folder / "big.json").write_bytes(orjson.dumps({**header, "samples": documents}))
    codec = pa.Codec("zstd")
    with zipfile.ZipFile(folder / "big.eval", "w") as archive:
        for document in documents:
            archive.writestr(
                f"samples/{document['id']}_epoch_1.json", codec.compress(orjson.dumps(document), asbytes=True)
            )
        archive.writestr("header.json", codec.compress(orjson.dumps(header), asbytes=True))
    packed = bytearray((folder / "big.eval").read_bytes())
    for mark, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):  # the members are zstd, method 93
        place = packed.find(mark)
        while place >= 0:
            packed[place + offset : place + offset + 2] = struct.pack("<H", inspect_ai.ZSTD)
            place = packed.find(mark, place + 4)
    (folder / "big.eval").write_bytes(packed)
    return [folder / "big.eval", folder / "big.json"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        # In a process of its own: the peak of a child is at least what its parent had when it began.
        with get_context("spawn").Pool(1) as pool:
            logs = pool.apply(write_logs, (Path(made), options.samples))
        for path in logs:
            began = time.perf_counter()
            command = [sys.executable, "-c", IMPORT, str(path), str(Path(made) / path.suffix[1:])]
            peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
            took = time.perf_counter() - began
            print(f"{path.name}: {path.stat().st_size / 1e6:.0f} MB in {took:.1f} s, peak {peak} MiB")


if __name__ == "__main__":
    main()
