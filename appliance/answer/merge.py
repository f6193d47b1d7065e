"""Owns the reading of several streams at once, as one.

Must not know what they carry.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple, TypeVar

Item = TypeVar("Item")

# A reader that is slow holds the streams back after this many items.
BUFFERED = 64


class _End(NamedTuple):
    """A stream ended, by this error if there is one."""

    error: Exception | None


async def merged(streams: Sequence[AsyncGenerator[Item]]) -> AsyncGenerator[Item]:
    """The items of all streams as they come; ends with the last stream, or with the first error of one.

    However it ends, all streams are closed then. Each is read and closed by one task.
    """
    queue: asyncio.Queue[Item | _End] = asyncio.Queue(BUFFERED)
    tasks = [asyncio.create_task(_pump(stream, queue)) for stream in streams]
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if not isinstance(item, _End):
                yield item
            elif item.error is not None:
                raise item.error
            else:
                running -= 1
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(stream: AsyncGenerator[Item], queue: asyncio.Queue[Item | _End]) -> None:
    failure: Exception | None = None
    try:
        async with contextlib.aclosing(stream) as items:
            async for item in items:
                await queue.put(item)
    except Exception as error:
        failure = error
    await queue.put(_End(failure))
