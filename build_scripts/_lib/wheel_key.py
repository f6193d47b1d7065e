"""Owns the name under which a wheel that was compiled for this machine is kept.

Must not know how it is compiled. Standard library only: it runs before anything is installed.

Run: `python wheel_key.py NAME VERSION`; prints the key.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

# What a compiler with -march=native may use; the other flags of a processor change with the kernel.
INSTRUCTION_SETS = re.compile(
    r"^(sse|ssse|avx|amx|fma|f16c|bmi|abm|lzcnt|popcnt|movbe|adx|aes|vaes|pclmul|vpclmul|sha|gfni|asimd|sve|sme"
    r"|fp$|fphp$|i8mm|bf16|atomics|crc32|pmull)"
)
# hnswlib looks at this one: set, it compiles for any processor.
NO_NATIVE = "HNSWLIB_NO_NATIVE"
BUILD_VARIABLES = ("CC", "CXX", "CFLAGS", "CXXFLAGS", "CMAKE_ARGS")


def instruction_sets(cpuinfo: str) -> list[str]:
    """The instruction set extensions in the text of /proc/cpuinfo (of x86 or ARM), sorted."""
    listed = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    return sorted({flag for flag in listed[1].split() if INSTRUCTION_SETS.match(flag)}) if listed else []


def wheel_key(name: str, version: str, *, cpuinfo: str, environ: Mapping[str, str]) -> str:
    """A folder name that is the same exactly where the compiled wheel can be used again."""
    parts = [
        f"{name}=={version}",
        f"{sys.implementation.cache_tag} {sysconfig.get_platform()} {' '.join(platform.libc_ver())}",
        " ".join(instruction_sets(cpuinfo)),
        *(f"{variable}={environ.get(variable, '')}" for variable in BUILD_VARIABLES),
        *([NO_NATIVE] if environ.get(NO_NATIVE) else []),
    ]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return f"{name}-{version}-{digest[:16]}"


def main() -> int:
    name, version = sys.argv[1:]
    info = Path("/proc/cpuinfo")
    print(wheel_key(name, version, cpuinfo=info.read_text() if info.exists() else "", environ=os.environ))
    return 0


if __name__ == "__main__":
    sys.exit(main())
