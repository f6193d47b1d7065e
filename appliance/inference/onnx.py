"""Owns how an ONNX session is made (provider, threads, bounded memory) and fed with token ids.

Must not know what a model is for.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from appliance.config import ModelSettings
from appliance.errors import BadSetting, ModelCorrupt
from appliance.packs.files import require_intact

if TYPE_CHECKING:
    import onnxruntime

log = logging.getLogger(__name__)

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def choose_provider(device: str, available: Sequence[str]) -> str:
    """The execution provider for `models.device` among those that this build of the runtime has.

    Raises:
        BadSetting: "gpu" is wanted and there is none, or the word is none of "auto", "cpu", "gpu".
    """
    if device not in ("auto", "cpu", "gpu"):
        raise BadSetting(
            f"models.device is {device!r}.", remedy='Set it to "auto", "cpu" or "gpu".', param="models.device"
        )
    if device == "gpu" and CUDA not in available:
        raise BadSetting(
            'models.device is "gpu", but the ONNX runtime that is installed has no CUDA.',
            remedy='Install the extra "gpu", or set models.device to "auto".',
            param="models.device",
        )
    return CUDA if device != "cpu" and CUDA in available else CPU


class OnnxModel:
    """One loaded graph over token ids. Threads may run it at the same time."""

    def __init__(self, path: Path, sha256: str, settings: ModelSettings) -> None:
        """Load the graph `path` of that sum.

        Raises:
            BadSetting: see `choose_provider`.
            ModelMissing: there is no such file.
            ModelCorrupt: it is another file, or the runtime cannot load it.
        """
        require_intact(path, sha256)
        # Builds from 1.29 on report to their maker over the network unless this is set before they are loaded.
        # The pinned one has no such code; nothing may leave the machine whichever is installed.
        os.environ["ORT_DISABLE_TELEMETRY"] = "1"
        import onnxruntime

        onnxruntime.set_default_logger_severity(3)  # errors; its warnings are about graphs, not for users
        provider = choose_provider(settings.device, onnxruntime.get_available_providers())
        try:
            self._session = _session(path, provider, settings.onnx_threads)
        except Exception as error:  # the runtime's errors have no common base but this
            if provider == CPU or settings.device == "gpu":
                raise ModelCorrupt(
                    f"The ONNX runtime cannot load the model {path}: {error}.",
                    remedy="`appliance models verify` says which file is at fault.",
                ) from error
            log.warning("%s cannot run on the GPU and runs on the CPU: %s", path.name, error)
            self._session = _session(path, CPU, settings.onnx_threads)
        self.provider = str(self._session.get_providers()[0])
        self._inputs = {graph_input.name for graph_input in self._session.get_inputs()}
        self._output = self._session.get_outputs()[0].name

    def run(
        self, token_ids: Sequence[Sequence[int]], type_ids: Sequence[Sequence[int]], pad_id: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Run one batch of ragged rows, padded to the longest.

        Returns:
            Output 0 as float32, and the attention mask `(batch, tokens)` int64.
        """
        longest = max(map(len, token_ids))
        ids = np.full((len(token_ids), longest), pad_id, np.int64)
        types, mask = np.zeros_like(ids), np.zeros_like(ids)
        for place, (row, row_types) in enumerate(zip(token_ids, type_ids, strict=True)):
            ids[place, : len(row)] = row
            types[place, : len(row)] = row_types
            mask[place, : len(row)] = 1
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        found: list[Any] = self._session.run(
            [self._output], {name: value for name, value in feeds.items() if name in self._inputs}
        )
        return np.asarray(found[0], np.float32), mask


def _session(path: Path, provider: str, threads: int) -> onnxruntime.InferenceSession:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # A count of 0 would have the runtime pin its threads to cores, also to cores that this process may not use.
    options.intra_op_num_threads = threads or len(os.sched_getaffinity(0))
    options.inter_op_num_threads = 1
    # A thread that spins while it waits takes the core that the generator needs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Batches differ in shape: a memory plan kept per shape and an arena that only grows are leaks here.
    options.enable_mem_pattern = False
    options.enable_cpu_mem_arena = False
    providers: list[Any] = [CPU]
    if provider == CUDA:
        providers = [(CUDA, {"arena_extend_strategy": "kSameAsRequested"}), CPU]
    return onnxruntime.InferenceSession(str(path), options, providers=providers)
