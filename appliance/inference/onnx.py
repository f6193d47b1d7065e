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
from appliance.native import load_onnxruntime
from appliance.packs.files import require_intact

if TYPE_CHECKING:
    import onnxruntime

log = logging.getLogger(__name__)

CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"
_GPU = (TENSORRT, CUDA)  # the faster first
_TRIALS = ((1, 8), (16, 128))  # rows and tokens of the batches that a GPU must compute before it is believed


def choose_providers(device: str, available: Sequence[str]) -> tuple[str, ...]:
    """The execution providers to try for `models.device`, the fastest first, of those that the runtime's build has.

    "auto" ends with the CPU; "cpu" is that alone; "gpu" leaves it out.

    Raises:
        BadSetting: "gpu" is wanted and there is none, or the word is none of "auto", "cpu", "gpu".
    """
    if device not in ("auto", "cpu", "gpu"):
        raise BadSetting(
            f"models.device is {device!r}.", remedy='Set it to "auto", "cpu" or "gpu".', param="models.device"
        )
    gpu = tuple(provider for provider in _GPU if provider in available)
    if device == "gpu" and not gpu:
        raise BadSetting(
            'models.device is "gpu", but the ONNX runtime that is installed has no CUDA.',
            remedy='Install the extra "gpu", or set models.device to "auto".',
            param="models.device",
        )
    return {"cpu": (CPU,), "gpu": gpu, "auto": (*gpu, CPU)}[device]


class OnnxModel:
    """One loaded graph over token ids. Threads may run it at the same time."""

    def __init__(self, path: Path, sha256: str, settings: ModelSettings, *, side_by_side: bool = False) -> None:
        """Load the graph `path` of that sum, with the first provider that computes something.

        Args:
            side_by_side: on a CPU a run uses one thread, and `runs_at_once` of them use all; for work of many batches,
                where no thread then waits for another at each node. Else one run uses all threads.

        Raises:
            BadSetting: see `choose_providers`.
            ModelMissing: there is no such file.
            ModelCorrupt: it is another file, or no provider can run it.
        """
        require_intact(path, sha256)
        onnxruntime = load_onnxruntime()
        onnxruntime.set_default_logger_severity(3)  # errors; its warnings are about graphs, not for users
        # A count of 0 would have the runtime pin its threads to cores, also to cores that this process may not use.
        threads = settings.onnx_threads or len(os.sched_getaffinity(0))
        engines = path.parent / "tensorrt" / sha256[:16]
        providers = choose_providers(settings.device, onnxruntime.get_available_providers())
        for provider, following in zip(providers, [*providers[1:], None], strict=True):
            try:
                self._take(_session(path, provider, 1 if side_by_side else threads, engines))
                if provider != CPU:
                    self._try_out(provider)
                break
            except Exception as error:  # the runtime's errors have no common base but this
                if following is None:
                    raise ModelCorrupt(
                        f"The ONNX runtime cannot load the model {path} ({provider}): {error}.",
                        remedy="`appliance models verify` says which file is at fault.",
                    ) from error
                log.warning("%s cannot run with %s and is tried with %s: %s", path.name, provider, following, error)
        self.runs_at_once = threads if side_by_side and self.provider == CPU else 1

    def _take(self, session: onnxruntime.InferenceSession) -> None:
        self._session = session
        self.provider = str(session.get_providers()[0])
        self._inputs = {graph_input.name for graph_input in session.get_inputs()}
        self._output = session.get_outputs()[0].name

    def _try_out(self, provider: str) -> None:
        """Libraries that are missing, kernels and memory show here; TensorRT learns the shapes to build for."""
        if self.provider != provider:
            raise RuntimeError(f"{provider} is in the runtime, but its libraries or its device are not there")
        for rows, tokens in _TRIALS:
            self.run([[0] * tokens] * rows, [[0] * tokens] * rows, 0)

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


def _session(path: Path, provider: str, threads: int, engines: Path) -> onnxruntime.InferenceSession:
    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # A thread that spins while it waits takes the core that the generator needs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Batches differ in shape: a memory plan kept per shape and an arena that only grows are leaks here.
    options.enable_mem_pattern = False
    options.enable_cpu_mem_arena = False
    arena = {"arena_extend_strategy": "kSameAsRequested"}
    # What the first of them has no kernel for goes to the next.
    providers: dict[str, list[Any]] = {
        CPU: [CPU],
        CUDA: [(CUDA, arena), CPU],
        TENSORRT: [(TENSORRT, _tensorrt(engines)), (CUDA, arena), CPU],
    }
    # Which provider follows one that fails is ours to decide and to tell: the runtime would print it.
    return onnxruntime.InferenceSession(str(path), options, providers=providers[provider], enable_fallback=0)


def _tensorrt(engines: Path) -> dict[str, Any]:
    # Building an engine takes minutes. The runtime names it by the graph, not by its weights: a folder for each model.
    return {
        "trt_engine_cache_enable": True,
        "trt_engine_cache_path": str(engines),
        "trt_timing_cache_enable": True,
        "trt_timing_cache_path": str(engines),
    }
