"""Owns the first lines of the frozen program: whether this processor can run it at all.

Must not import anything of the program, or anything compiled, before that is known.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

# x86-64-v2, which numpy's and ONNX Runtime's builds are made for; the kernel calls SSE3 "pni".
NEEDED = ("cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3")


def lacking(cpuinfo: str) -> list[str]:
    """What of `NEEDED` a processor has not, by the text of /proc/cpuinfo; nothing is known: nothing lacks."""
    for line in cpuinfo.splitlines():
        name, _, flags = line.partition(":")
        if name.strip() == "flags":
            return sorted(set(NEEDED) - set(flags.split()))
    return []


def main() -> None:
    """Run the program, or end with one sentence where it would die of an illegal instruction."""
    info = Path("/proc/cpuinfo")
    if platform.machine() == "x86_64" and info.exists():
        lacks = lacking(info.read_text())
        if lacks:
            sys.exit(f"Error: This processor cannot run the appliance: it lacks {', '.join(lacks)} (x86-64-v2).")
    from appliance.cli import main as run

    run()


if __name__ == "__main__":
    main()
