"""Owns what the operating system and the GPU's driver say: memory and processor time of processes, GPUs.

Must not know which processes there are, nor why. Linux; elsewhere, and where there is no GPU, it knows nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from appliance.telemetry.metrics import Reading

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


def of_processes(pids: Mapping[str, int | None]) -> Iterator[Reading]:
    """Memory (resident) and processor time of processes, by the name that each is to have; of None, nothing."""
    for name, pid in pids.items():
        if pid is None:
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has just ended
            proc = Path("/proc") / str(pid)
            resident = int((proc / "statm").read_text().split()[1]) * _PAGE_BYTES
            # The second field, the name in parentheses, may hold spaces.
            fields = (proc / "stat").read_text().rpartition(")")[2].split()
            yield Reading("process.memory.usage", resident, (name,))
            yield Reading("process.cpu.time", (int(fields[11]) + int(fields[12])) / _TICKS, (name,))


class Gpus:
    """The GPUs of the machine, through NVML where the package for it and a driver are there."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []

    def open(self) -> None:
        """Look for GPUs."""
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception:  # no package, no driver, or one of another version: then there is nothing to say
            return
        self._nvml = pynvml
        self._handles = [pynvml.nvmlDeviceGetHandleByIndex(at) for at in range(pynvml.nvmlDeviceGetCount())]

    def close(self) -> None:
        """Let go of the driver."""
        if self._nvml is not None:
            self._handles = []
            with contextlib.suppress(Exception):
                self._nvml.nvmlShutdown()

    def readings(self) -> Iterator[Reading]:
        """Memory and utilization of each GPU, by its number; of one that does not tell, nothing."""
        for number, handle in enumerate(self._handles):
            with contextlib.suppress(self._nvml.NVMLError):
                memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
                yield Reading("hw.gpu.memory.usage", memory.used, (str(number),))
                yield Reading("hw.gpu.memory.limit", memory.total, (str(number),))
                busy = self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu
                yield Reading("hw.gpu.utilization", busy / 100, (str(number),))
