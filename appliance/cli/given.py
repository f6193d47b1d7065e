"""Owns what a text argument becomes before a command sees it.

Must not know commands.
"""

from __future__ import annotations

import click


class Text(click.ParamType[str]):
    """Text as Unicode. Bytes of the command line that are no UTF-8 become U+FFFD; only paths may keep them."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text of `value`."""
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


TEXT = Text()
