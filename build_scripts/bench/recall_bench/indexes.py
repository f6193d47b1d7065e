"""Owns where built indexes are kept, and that each is built once.

Must not know how a side builds.

    <cache>/recall/<data>/<version of the side>/             a finished index; sides of one version share it
    <cache>/recall/<data>/<version of the side>.building/    one that is being built, or was stopped
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from appliance.errors import Unavailable

from .building import Built
from .data import VectorData

_BUILT = "built.json"


def built(data: VectorData, version: str, build: Callable[[Path], Built]) -> tuple[Path, Built]:
    """The folder of the index and what building it took; `build` is asked to build, or go on, if there is none.

    Raises:
        Unavailable: another process is building it.
    """
    final = data.folder / version
    building = data.folder / f"{version}.building"
    if not final.exists():
        building.mkdir(exist_ok=True)
        with _alone(building):
            if not final.exists():
                spent = build(building)
                (building / _BUILT).write_bytes(msgspec.json.encode(spent))
                building.rename(final)
    return final, msgspec.json.decode((final / _BUILT).read_bytes(), type=Built)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise Unavailable(f"Another process is building {folder.name}.", remedy="Wait for it.") from error
    finally:
        os.close(descriptor)
