"""Pages as files: their names, what is left out, and what an export does not overwrite."""

import re
from pathlib import Path

import pytest

from osmosis.errors import ValidationError
from osmosis.local.viewing.library import LocalLibrary
from osmosis.local.viewing.server import index_runs, render_static
from osmosis.viewer.routes import page_file, write_site
from support.platform_data import rollout
from support.stored_run import stored_run


@pytest.mark.parametrize(
    ("address", "file"),
    [
        ("/", "index.html"),
        ("/runs/a", "runs/a/index.html"),
        ("/runs/a/rollouts?outcome=failed&at=2", "runs/a/rollouts-outcome-failed-at-2.html"),
        ("/runs/a/rollouts?at=1", "runs/a/rollouts.html"),
        ("/runs/a/rollouts?q=x", None),
        ("/runs/a/rollouts?sort=tokens", None),
        ("/runs/a/rollouts/3/1?step=2", "runs/a/rollouts/2-3-1.html"),
        ("/runs/a/rollouts/3/1.json", "runs/a/rollouts/3-1.json"),
        ("/runs/a/rollouts/export.csv", "runs/a/rollouts.csv"),
        ("/runs/a/rollouts/3/1/annotate", None),
        ("/runs/..", "runs/-/index.html"),
        ("/nope", None),
    ],
)
def test_the_file_of_an_address(address: str, file: str | None) -> None:
    assert page_file(address) == file


@pytest.fixture
def library(tmp_path: Path) -> LocalLibrary:
    made = [rollout(row, attempt, float(attempt)) for row in range(30) for attempt in range(2)]
    for name in ("one", "two"):
        stored_run(tmp_path / "runs" / name, made, rows=30)
    library = LocalLibrary([tmp_path / "runs"], tmp_path / "cache", "ada")
    index_runs(library, lambda name, share: None)
    return library


def test_every_link_of_an_export_leads_to_a_file_of_it(library: LocalLibrary, tmp_path: Path) -> None:
    out = tmp_path / "out"
    told: list[int] = []
    count = write_site(library, out, render_static, told.append)
    pages = list(out.rglob("*.html"))
    assert told[-1] == count
    assert len(pages) > 120
    for page in pages:
        text = page.read_text()
        assert '<form method="post"' not in text
        assert " hx-" not in text
        for link in re.findall(r'(?:href|src)="([^"#]+)', text):
            assert link.startswith("https://") or (page.parent / link).resolve().is_file(), (page, link)


def test_an_export_replaces_itself_and_nothing_else(library: LocalLibrary, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_site(library, out, render_static, lambda count: None)
    (out / "stale.html").write_text("")
    write_site(library, out, render_static, lambda count: None)
    assert not (out / "stale.html").exists()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("x")
    with pytest.raises(ValidationError, match="holds something else"):
        write_site(library, mine, render_static, lambda count: None)
    assert (mine / "thesis.txt").exists()
