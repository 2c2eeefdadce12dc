"""The class that left the server arrives in the client."""

from __future__ import annotations

import pytest

from osmosis import errors


@pytest.mark.parametrize(
    "error",
    [
        errors.NotFound("no dataset 'x'", hint="osmosis dataset list"),
        errors.LeaseLost("another job has this run"),
        errors.Conflict("name taken", existing_dataset_id="d1"),
        errors.AuthRequired("log in", code="TOKEN_EXPIRED"),
        errors.ValidationError("bad config", issues=[{"key": "n", "message": "not a number"}]),
        errors.RateLimited("slow down", retry_after=3),
    ],
)
def test_errors_cross_the_wire_with_class_text_and_details(error: errors.OsmosisError) -> None:
    arrived = errors.from_wire(error.http_status, error.to_wire())
    assert type(arrived) is type(error)
    assert arrived.message == error.message
    assert arrived.hint == error.hint
    for key, value in error.details.items():
        assert arrived.details.get("platform_code" if key == "code" else key) == value


@pytest.mark.parametrize(
    ("status", "cls"),
    [(400, errors.ValidationError), (401, errors.AuthRequired), (403, errors.Forbidden), (418, errors.PlatformError),
     (500, errors.PlatformError), (503, errors.PlatformError)],
)  # fmt: skip
def test_foreign_servers_are_understood_by_status(status: int, cls: type[errors.OsmosisError]) -> None:
    arrived = errors.from_wire(status, {"error": "text", "code": "SOMETHING_ELSE", "extra": 1})
    assert type(arrived) is cls
    assert arrived.details["extra"] == 1
    assert arrived.details["platform_code"] == "SOMETHING_ELSE"


def test_a_code_stands_for_the_first_class_that_has_it() -> None:
    """The pages of a platform have a class below AuthRequired, which cannot be made of a body."""
    from osmosis.platform.web.session import LoginNeeded

    assert LoginNeeded.code == errors.AuthRequired.code
    assert type(errors.from_wire(401, {"message": "no", "code": "AUTH_REQUIRED"})) is errors.AuthRequired


def test_plain_issue_strings_are_kept() -> None:
    arrived = errors.from_wire(400, {"message": "bad", "issues": ["n: too big"]})
    assert isinstance(arrived, errors.ValidationError)
    assert arrived.issues == [{"key": "", "message": "n: too big"}]


def test_its_text_has_the_hint() -> None:
    error = errors.NotFound("no class Sqll", hint="did you mean Sql?")
    assert str(error) == "no class Sqll; try: did you mean Sql?"
    assert "try" not in error.to_wire()["message"]
