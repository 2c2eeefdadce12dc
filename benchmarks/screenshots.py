"""Pictures of the viewer's pages, wide and on a phone, light and dark: `make screenshots`, into build/screenshots; and
the two that the README shows, into docs/images.

Makes a few runs with the public fakes, serves them as `osmosis view` does, and walks them in a Chromium.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright

from osmosis.datasets.scan import row_hash
from osmosis.local.run import mark
from osmosis.local.viewing.library import LocalLibrary
from osmosis.local.viewing.server import ViewAccess, ViewServer, application, listen
from osmosis.records.run.annotations import Annotation, MarkChange
from osmosis.records.run.rollout import ModelCall, Rollout, Score

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from support.platform_data import rollout, timeout
from support.stored_run import stored_run

IMAGES = Path(__file__).parents[1] / "docs" / "images"
ROWS = 40
PAGES = {
    "runs": "/",
    "run": "/runs/tuned",
    "rollouts": "/runs/tuned/rollouts",
    "rollout": "/runs/tuned/rollouts/4/0?outcome=not-passed",
    "failure": "/runs/tuned/rollouts/3/1",
    "config": "/runs/tuned/config",
    "compare": "/compare?run=baseline&run=tuned",
    "compare-pair": "/compare?run=baseline&run=tuned&row=12&attempt=0",
    "history": "/history",
    "history-row": "/history?row=row-4",
    "missing": "/nope",
}
LOOKS = {
    "wide": {"viewport": {"width": 1400, "height": 900}, "color_scheme": "light"},
    "wide-dark": {"viewport": {"width": 1400, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 400, "height": 850}, "color_scheme": "light"},
    "phone-dark": {"viewport": {"width": 400, "height": 850}, "color_scheme": "dark"},
}

README = {"viewer": PAGES["rollouts"], "comparison": PAGES["compare"]}
"""What the README shows, as one sees it without scrolling."""


def runs(folder: Path) -> None:
    rows = [{"user_prompt": f"What is {row + 2} times 3?", "ground_truth": str((row + 2) * 3)} for row in range(ROWS)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, chance in (("baseline", 0.5), ("tuned", 0.8)):
        draw = random.Random(3)
        made = [judged(row, attempt, draw.random() < chance, draw) for row in range(ROWS) for attempt in range(3)]
        for one in made:
            one.hashes["row"] = row_hash(rows[one.row_index])
            one.row_key = f"row-{one.row_index}"
        made[10] = rollout(3, 1, failure=timeout())
        stored_run(folder / name, made, rows=ROWS, attempts=3)
    mark(folder / "baseline", MarkChange(add_tags=["baseline"]))
    mark(folder / "tuned", MarkChange(add_tags=["nightly", "prompt:v3"], note="the new prompt", pinned=True))
    said = Annotation(row_index=4, attempt=0, label="wrong", comment="the tool had it right", author="ada")
    (folder / "tuned" / "annotations.jsonl").write_bytes(said.to_line())


def judged(row: int, attempt: int, right: bool, draw: random.Random) -> Rollout:
    one = rollout(row, attempt, float(right))
    one.scores["style"] = Score(name="style", value=round(draw.random(), 2), reason="short and to the point")
    first, second = 300 + 900 * draw.random(), 200 + 500 * draw.random()
    one.calls = [
        ModelCall(started_ms=20, duration_ms=first, usage=one.usage, finish_reason="tool_calls"),
        ModelCall(started_ms=first + 220, duration_ms=second, usage=one.usage, finish_reason="stop"),
    ]
    one.duration_ms = first + second + 260
    return one


@contextmanager
def served(folder: Path, cache: Path) -> Iterator[ViewAccess]:
    listener = listen(0)
    access = ViewAccess(listener.getsockname()[1])
    app = application(LocalLibrary([folder], cache, "ada"), access)
    ready = threading.Event()
    server = ViewServer(app, ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    ready.wait(30)
    try:
        yield access
    finally:
        server.should_exit = True
        thread.join()


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "build/screenshots")
    out.mkdir(parents=True, exist_ok=True)
    IMAGES.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        runs(Path(folder))
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        with served(Path(folder), Path(folder, "cache")) as access:
            first = browser.new_context()
            first.new_page().goto(access.link())
            state = first.storage_state()
            for look, settings in LOOKS.items():
                page = browser.new_context(storage_state=state, **settings).new_page()
                for name, path in PAGES.items():
                    page.goto(access.url.rstrip("/") + path)
                    page.screenshot(path=out / f"{name}-{look}.png")
            page = browser.new_context(storage_state=state, viewport={"width": 1400, "height": 820}).new_page()
            for name, path in README.items():
                page.goto(access.url.rstrip("/") + path)
                page.wait_for_load_state("networkidle")
                page.screenshot(path=IMAGES / f"{name}.png")
        browser.close()
    print(f"{len(PAGES) * len(LOOKS)} pictures in {out}, {len(README)} in {IMAGES}")


if __name__ == "__main__":
    main()
