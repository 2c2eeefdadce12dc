"""Each class has `code` (JSON output and HTTP bodies), `exit_code` (the process), `http_status` (the server) and `hint`
(what to type next). The client rebuilds the class from its `code`."""

from collections.abc import Iterable
from typing import Any, ClassVar


class OsmosisError(Exception):
    """A known problem: `message` says what happened and where, `hint` what to type; `details` are for `--json`."""

    code: ClassVar[str] = "PLATFORM_ERROR"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, *, hint: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details: dict[str, Any] = details

    def __str__(self) -> str:
        return f"{self.message}; try: {self.hint}" if self.hint else self.message

    def to_wire(self) -> dict[str, Any]:
        """Return the HTTP error body: `error` and `message` have the same text, details are beside them."""
        body: dict[str, Any] = {**self.details, "error": self.message, "message": self.message}
        body["code"] = self.details.get("code", self.code)
        if self.hint:
            body["hint"] = self.hint
        return body


class ValidationError(OsmosisError):
    """The input is wrong; `issues` lists every problem: `{"key", "message"}`, maybe `"where"`, `"key_correction"`."""

    code = "VALIDATION"
    http_status = 400

    def __init__(
        self, message: str, *, hint: str | None = None, issues: Iterable[dict[str, Any]] = (), **details: Any
    ) -> None:
        super().__init__(message, hint=hint, **details)
        self.issues = list(issues)
        if self.issues:
            self.details["issues"] = self.issues


class TooLarge(ValidationError):
    http_status = 413


class UsageError(ValidationError):
    exit_code = 2


class AuthRequired(OsmosisError):
    code = "AUTH_REQUIRED"
    http_status = 401


class Forbidden(OsmosisError):
    code = "PLATFORM_ERROR"
    http_status = 403


class NotFound(OsmosisError):
    code = "NOT_FOUND"
    http_status = 404


class NotOffered(NotFound):
    """A part of the API that this platform does not have."""

    code = "NOT_OFFERED"


class Conflict(OsmosisError):
    code = "CONFLICT"
    http_status = 409


class LeaseLost(Conflict):
    """Another job has taken over the run; this job's writes are dropped."""

    code = "LEASE_LOST"


class NothingToRetry(Conflict):
    code = "NOTHING_TO_RETRY"


class UpgradeRequired(OsmosisError):
    code = "UPGRADE_REQUIRED"
    http_status = 426


class RateLimited(OsmosisError):
    """Too many requests; `details["retry_after"]` is in seconds when known."""

    code = "RATE_LIMITED"
    http_status = 429


class PlatformError(OsmosisError): ...


class DiskFull(OsmosisError):
    code = "DISK_FULL"
    http_status = 507


class NetworkError(OsmosisError):
    code = "NETWORK"
    http_status = 502


class InteractiveRequired(OsmosisError):
    """A question has to be answered without a terminal; names the flags that answer it."""

    code = "INTERACTIVE_REQUIRED"
    http_status = 400


class WorkspaceRequired(OsmosisError):
    code = "WORKSPACE_REQUIRED"
    http_status = 400


class SandboxUnavailable(OsmosisError):
    code = "SANDBOX_UNAVAILABLE"


class KeyringUnavailable(OsmosisError):
    code = "KEYRING_UNAVAILABLE"


class CredentialsUnavailable(OsmosisError):
    code = "CREDENTIALS_UNAVAILABLE"


class CredentialsParseFailed(OsmosisError):
    """The credential store is not in our format; it is set aside, never overwritten."""

    code = "CREDENTIALS_PARSE_FAILED"


class EnvTokenPlatformRequired(OsmosisError):
    """`OSMOSIS_TOKEN` is set without the platform it is for."""

    code = "ENV_TOKEN_PLATFORM_REQUIRED"


class EnvTokenPlatformMismatch(OsmosisError):
    code = "ENV_TOKEN_PLATFORM_MISMATCH"


class InternalError(OsmosisError):
    code = "INTERNAL"
    exit_code = 3


class LoadError(ValidationError): ...


class DatasetError(ValidationError):
    """A dataset file cannot be read or has bad rows; names file, line and column."""


class ModelError(OsmosisError):
    """A model call failed. `category` says whose fault it is and whether a retry can help."""

    code = "MODEL_ERROR"
    http_status = 502

    def __init__(
        self,
        message: str,
        *,
        category: str,
        status: int | None = None,
        retry_after: float | None = None,
        hint: str | None = None,
        **details: Any,
    ) -> None:
        super().__init__(message, hint=hint, category=category, status=status, **details)
        self.category = category
        self.status = status
        self.retry_after = retry_after


def _tree(cls: type[OsmosisError]) -> Iterable[type[OsmosisError]]:
    yield cls
    for child in cls.__subclasses__():
        yield from _tree(child)


_BY_STATUS: dict[int, type[OsmosisError]] = {
    400: ValidationError,
    401: AuthRequired,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    422: ValidationError,
    426: UpgradeRequired,
    429: RateLimited,
}
_SHARED_CODES = {"PLATFORM_ERROR", "VALIDATION", "MODEL_ERROR"}


def from_wire(status: int, body: dict[str, Any]) -> OsmosisError:
    """Rebuild the error that left the server from its HTTP status and body.

    An unknown `code` is kept as `details["platform_code"]`; the status then decides the class."""
    details = dict(body)
    message = str(details.pop("message", None) or details.pop("error", None) or f"HTTP {status}")
    details.pop("error", None)
    hint = details.pop("hint", None)
    code = details.pop("code", None)
    # Reversed: of a class and those below it, which may take other arguments, the class above counts.
    by_code = {c.code: c for c in reversed([*_tree(OsmosisError)]) if c.code not in _SHARED_CODES}
    cls = by_code.get(str(code)) or _BY_STATUS.get(status, PlatformError)
    details["status_code"] = status
    if code:
        details["platform_code"] = code
    if issubclass(cls, ValidationError):
        issues = [i if isinstance(i, dict) else {"key": "", "message": str(i)} for i in details.pop("issues", [])]
        return cls(message, hint=hint, issues=issues, **details)
    return cls(message, hint=hint, **details)
