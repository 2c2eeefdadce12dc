"""Prints 1 when the file holds the row's label, else 0."""

import json
import sys
from pathlib import Path

answer, row = (Path(name) for name in sys.argv[1:])
try:
    right = abs(float(answer.read_text()) - float(json.loads(row.read_text())["label"])) < 1e-2
except (OSError, ValueError):
    right = False
print(int(right))
