"""Owns the order in which native libraries are loaded that disturb each other in one process.

Must not know what they are used for.

usearch makes the symbols of its kernels, and with them those of a C++ library inside, come before all that is loaded
later. ONNX Runtime loaded after it ends the process with a segmentation fault; before it, both work. Thus an index
that is opened before the first text is embedded must not load usearch first.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from typing import Any


def load_onnxruntime() -> Any:
    """The module `onnxruntime`.

    Raises:
        ImportError: neither of the extras that bring it is installed.
    """
    # Builds from 1.29 on report to their maker over the network unless this is set before they are loaded.
    # The pinned one has no such code; nothing may leave the machine whichever is installed.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    return importlib.import_module("onnxruntime")


def load_usearch() -> Any:
    """The module `usearch.index`, with ONNX Runtime loaded before it where that is installed."""
    with contextlib.suppress(ImportError):
        load_onnxruntime()
    return importlib.import_module("usearch.index")
