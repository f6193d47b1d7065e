"""Owns the one error hierarchy: every fault a user can meet, with its code, HTTP status and remedy.

Must not know how an error is shown: `http/` turns it into JSON and `cli/` into a line, each in one place.
"""

from __future__ import annotations


class ApplianceError(Exception):
    """A fault that can be told to a user in one sentence, with what to do about it.

    Attributes:
        code: stable machine-readable name, `snake_case`.
        status: the HTTP status it becomes.
        kind: OpenAI's `error.type`.
        exit_code: the exit code of a command that ends with it (1: the job failed, 2: bad usage).
        param: the request field or setting at fault, if one is.
    """

    code = "internal_error"
    status = 500
    kind = "server_error"
    exit_code = 1

    def __init__(self, message: str, *, remedy: str = "", param: str | None = None) -> None:
        self.message = message
        self.remedy = remedy
        self.param = param
        super().__init__(self.text)

    @property
    def text(self) -> str:
        """The message and the remedy as one line."""
        return f"{self.message} {self.remedy}".strip()


class BadRequest(ApplianceError):
    """The request itself is at fault; the same request will fail again."""

    code, status, kind, exit_code = "invalid_request", 400, "invalid_request_error", 2


class BadSetting(ApplianceError):
    """A configuration value, key or file is wrong."""

    code, status, exit_code = "bad_setting", 500, 2


class NotFound(ApplianceError):
    """A collection, document or model that was named does not exist."""

    code, status, kind = "not_found", 404, "invalid_request_error"


class NothingIngested(ApplianceError):
    """A question was asked, but the collection holds no documents."""

    code, status, kind = "no_documents", 409, "invalid_request_error"


class PromptTooLong(BadRequest):
    """The prompt does not fit the model's context; carries the numbers in its message."""

    code, exit_code = "context_length_exceeded", 1


class TooLarge(ApplianceError):
    """A body or file is over its limit."""

    code, status, kind = "too_large", 413, "invalid_request_error"


class UnreadableDocument(ApplianceError):
    """A file cannot be read as a document; the message says why."""

    code, status, kind = "unreadable_document", 422, "invalid_request_error"


class Overloaded(ApplianceError):
    """A bounded queue is full; try again later."""

    code, status, kind = "overloaded", 429, "rate_limit_error"

    def __init__(self, message: str, *, retry_after_s: float = 1.0, remedy: str = "Try again shortly.") -> None:
        super().__init__(message, remedy=remedy)
        self.retry_after_s = retry_after_s


class Unavailable(ApplianceError):
    """A part is starting, restarting or stopping; the same request will work later."""

    code, status = "unavailable", 503

    def __init__(self, message: str, *, retry_after_s: float = 1.0, remedy: str = "Retry in a moment.") -> None:
        super().__init__(message, remedy=remedy)
        self.retry_after_s = retry_after_s


class EngineDied(Unavailable):
    """The engine process ended while it was answering."""

    code = "engine_died"


class Quarantined(ApplianceError):
    """The request's content ended the engine more than once; it is not tried again."""

    code, status, kind = "quarantined", 422, "invalid_request_error"


class ModelMissing(ApplianceError):
    """A model file is not there."""

    code, status = "model_missing", 503


class ModelCorrupt(ApplianceError):
    """A model file is there, but it is not the file that the manifest names."""

    code, status = "model_corrupt", 503


class DataDirBusy(ApplianceError):
    """Another process owns the data directory."""

    code, status = "data_dir_busy", 503


class StoreDamaged(ApplianceError):
    """The SQLite store fails its own checks or is of a newer version than this program."""

    code = "store_damaged"


class EmbedderChanged(ApplianceError):
    """The stored vectors were made by another embedder; mixing them would make search wrong."""

    code, status = "embedder_changed", 409


class DiskFull(ApplianceError):
    """The disk has no room; nothing that was acknowledged is lost."""

    code, status = "disk_full", 507
