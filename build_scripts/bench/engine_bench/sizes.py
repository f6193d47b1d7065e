"""Owns the one table of how much is asked in each workload, and how many KV cells there are for it.

Must not know what is asked or by whom it is answered.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a workload; tokens are about."""

    requests: int  # in d: turns of each user; in e: long ones; in the overhead: nothing
    users: int  # at once; in d: taking turns, half of them at once; in e: asking short questions all the time
    instructions: int  # tokens that all prompts begin with
    passage: int  # tokens of each passage; in d: of a question, in e: of a long prompt
    answer: int  # tokens
    kv: int  # cells of each engine: enough for all that is in flight; in d less than for all users


SCALES: dict[str, dict[str, Size]] = {
    # The figures of the design, for a machine that reads thousands of tokens in a second.
    "full": {
        "a": Size(requests=16, users=1, instructions=250, passage=600, answer=128, kv=4096),
        "b8": Size(requests=24, users=8, instructions=250, passage=600, answer=128, kv=12288),
        "b16": Size(requests=48, users=16, instructions=250, passage=600, answer=128, kv=20480),
        "c": Size(requests=200, users=8, instructions=250, passage=120, answer=96, kv=16384),
        "d": Size(requests=10, users=16, instructions=250, passage=30, answer=64, kv=18432),
        "e": Size(requests=6, users=4, instructions=250, passage=3000, answer=64, kv=12288),
        "f": Size(requests=6, users=1, instructions=0, passage=300, answer=256, kv=4096),
        "kv": Size(requests=24, users=8, instructions=250, passage=1200, answer=128, kv=16384),
        "overhead": Size(requests=0, users=16, instructions=0, passage=100, answer=128, kv=8192),
    },
    # For two cores and a model of 135 million parameters: five rounds in less than half an hour.
    "small": {
        "a": Size(requests=3, users=1, instructions=250, passage=600, answer=64, kv=4096),
        "b8": Size(requests=8, users=8, instructions=250, passage=400, answer=64, kv=8192),
        "b16": Size(requests=16, users=16, instructions=250, passage=400, answer=64, kv=14336),
        "c": Size(requests=40, users=8, instructions=250, passage=65, answer=24, kv=12288),
        "d": Size(requests=5, users=16, instructions=120, passage=20, answer=24, kv=6144),
        "e": Size(requests=2, users=3, instructions=120, passage=3000, answer=32, kv=8192),
        "f": Size(requests=3, users=1, instructions=0, passage=200, answer=128, kv=4096),
        "kv": Size(requests=8, users=8, instructions=120, passage=600, answer=48, kv=8192),
        "overhead": Size(requests=0, users=16, instructions=0, passage=60, answer=64, kv=4096),
    },
    # To see that everything works, and for models that read a dozen tokens in a second.
    "tiny": {
        "a": Size(requests=2, users=1, instructions=60, passage=60, answer=12, kv=2048),
        "b8": Size(requests=8, users=8, instructions=60, passage=40, answer=8, kv=4096),
        "b16": Size(requests=16, users=16, instructions=60, passage=40, answer=8, kv=4096),
        "c": Size(requests=10, users=4, instructions=60, passage=25, answer=8, kv=4096),
        "d": Size(requests=3, users=4, instructions=40, passage=5, answer=8, kv=1024),
        "e": Size(requests=1, users=2, instructions=40, passage=400, answer=12, kv=2048),
        "f": Size(requests=1, users=1, instructions=0, passage=80, answer=32, kv=2048),
        "kv": Size(requests=8, users=8, instructions=60, passage=40, answer=8, kv=4096),
        "overhead": Size(requests=0, users=16, instructions=0, passage=20, answer=12, kv=4096),
    },
}
