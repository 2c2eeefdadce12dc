"""Which platform is meant: normalised, and safe to send a token to."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from osmosis.client.http import normalize_url, platform_url
from osmosis.errors import ValidationError


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        ("http://127.0.0.1:7575/", "http://127.0.0.1:7575"),
        ("127.0.0.1:7575", "http://127.0.0.1:7575"),
        ("localhost", "http://localhost"),
        ("platform.example.com", "https://platform.example.com"),
        ("HTTPS://Platform.Example.com:443//", "https://platform.example.com"),
        ("http://localhost:80", "http://localhost"),
        ("https://example.com:8443/base/", "https://example.com:8443/base"),
        ("http://[::1]:7575", "http://[::1]:7575"),
        (" https://example.com ", "https://example.com"),
    ],
)
def test_every_way_to_type_it_is_one_url(typed: str, url: str) -> None:
    assert normalize_url(typed) == url
    assert normalize_url(url) == url


@pytest.mark.parametrize(
    "typed",
    ["", "http://", "ftp://x", "http://u:p@x", "https://x?token=1", "https://x#y", "http://a b", "http://x:99999",
     "http://[::1", "//x", "https://x\n.com"],
)  # fmt: skip
def test_what_is_no_platform_url_is_refused(typed: str) -> None:
    with pytest.raises(ValidationError) as refused:
        normalize_url(typed)
    assert "u:p" not in refused.value.message


def test_no_text_ends_in_a_traceback() -> None:
    letters = "ht:p/s@[]%#?. \x00\n1a.:-\\é"
    chance = random.Random(7)
    for _ in range(3000):
        text = "".join(chance.choice(letters) for _ in range(chance.randrange(14)))
        try:
            assert normalize_url(normalize_url(text)) == normalize_url(text)
        except ValidationError:
            continue


def test_plain_http_beyond_this_machine_needs_a_word(tmp_path: Path) -> None:
    environ = {"OSMOSIS_DATA_DIR": str(tmp_path)}
    with pytest.raises(ValidationError, match="plain http"):
        platform_url(environ, "http://10.0.0.1:7575")
    allowed = {**environ, "OSMOSIS_ALLOW_INSECURE_PLATFORM_URL": "1"}
    assert platform_url(allowed, "http://10.0.0.1:7575") == "http://10.0.0.1:7575"
    assert platform_url(environ, "http://127.9.9.9:1") == "http://127.9.9.9:1"


def test_flag_over_variable_over_this_machine(tmp_path: Path) -> None:
    environ = {"OSMOSIS_DATA_DIR": str(tmp_path)}
    assert platform_url(environ) == "http://127.0.0.1:7575"
    (tmp_path / "port").write_text("7600\n")
    assert platform_url(environ) == "http://127.0.0.1:7600"
    (tmp_path / "platform.json").write_text(json.dumps({"url": "http://127.0.0.1:7601"}))
    assert platform_url(environ) == "http://127.0.0.1:7601"
    (tmp_path / "platform.json").write_text("{half")
    assert platform_url(environ) == "http://127.0.0.1:7600"
    environ["OSMOSIS_PLATFORM_URL"] = "https://a.example"
    assert platform_url(environ) == "https://a.example"
    assert platform_url(environ, "https://b.example") == "https://b.example"


def test_a_bad_variable_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"OSMOSIS_PLATFORM_URL: .* ftp:// is not") as refused:
        platform_url({"OSMOSIS_DATA_DIR": str(tmp_path), "OSMOSIS_PLATFORM_URL": "ftp://x"})
    assert (refused.value.hint or "").startswith("export OSMOSIS_PLATFORM_URL=http")
