"""Owns that what a caller asks goes by the caller's label: here alone, so that no route can forget it.

Must not know keys or routes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from appliance.answer.types import Event, Question
from appliance.http.ports import Backend
from appliance.retrieval.types import SearchRequest, SearchResult


class LabelledBackend:
    """A backend as one caller sees it: answers, passages and prompts are kept, and found again, under its label."""

    def __init__(self, backend: Backend, label: str) -> None:
        self._backend = backend
        self._label = label

    def ask(self, question: Question) -> AsyncGenerator[Event]:
        """See `Library`."""
        return self._backend.ask(replace(question, label=self._label))

    async def search(self, request: SearchRequest) -> SearchResult:
        """See `Library`."""
        return await self._backend.search(replace(request, label=self._label))

    if not TYPE_CHECKING:  # all else is the same for all

        def __getattr__(self, name: str) -> Any:
            return getattr(self._backend, name)
