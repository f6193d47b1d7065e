"""Owns which turns of a long conversation stay in the prompt.

Must not know tokens' text, templates or passages. The rule: instructions, the latest question and what follows it
always stay; between them the oldest turns are left out. They are left out in steps of a quarter of the room, so that
the prompts of the following turns begin alike and their KV is reused: dropping just what is too much would move the
beginning with every turn. Nothing is shifted inside the KV cache: what is kept is computed as the prompt that it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

STEPS = 4  # the room is given up in so many parts


def turns_left_out(costs: Sequence[int], starts: Sequence[bool], room: int) -> int | None:
    """How many of the oldest turns are left out, so that the others fit.

    Args:
        costs: tokens of each turn, the oldest first; the last one that starts is the question, which tools may follow.
        starts: whether a conversation may begin with the turn (a user's message).
        room: tokens for all of them.

    Returns:
        A count after which a turn that `starts` comes; None if not even the last such turn fits, with all after it.
    """
    over = sum(costs) - room
    if over <= 0:
        return 0
    step = max(1, room // STEPS)
    wanted = math.ceil(over / step) * step
    question = max((number for number, start in enumerate(starts) if start), default=None)
    gone = 0
    for number, cost in enumerate(costs):
        if gone >= over and starts[number] and (gone >= wanted or number == question):
            return number
        gone += cost
    return None
