"""Owns every call to llama.cpp that is not sampling: one model, one context, its KV cells.

Must not know requests, policy or messages. Not thread-safe: one thread, one context.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from appliance.config import EngineSettings
from appliance.engine.batch import Batch
from appliance.engine.policy import MIN_PREFILL_TOKENS
from appliance.engine.protocol import EngineConfig, Segment
from appliance.engine.room import Room, available_bytes, find_room, free_for_cells
from appliance.errors import BadSetting, ModelCorrupt, Unavailable

DRAFT_TOKENS = 32  # guessed ahead in one step, by all sequences together; at most `PREFIXES`
WARM_UP_TOKENS = 16
PREFIXES = 128  # ranges that the prefix cache may hold in the context at once; llama.cpp knows 256 sequences
NO_KV_SLOT = 1  # a return code of `Llama.decode`; below 0: the batch is lost

_log = logging.getLogger(__name__)
_GGML_GPUS = (1, 2)  # ggml's kinds of device: one with memory of its own, one that shares the system's
_GGML_LEVELS = {3: logging.WARNING, 4: logging.ERROR}  # lower ones tell every tensor that is loaded


class Llama:
    """A loaded GGUF model with one context whose KV cells all sequences share.

    Raises:
        BadSetting: the device is unknown, or a GPU is demanded and this build has none.
        ModelCorrupt: llama.cpp can't read the file.
        Unavailable: there is no memory for the context, or no backend that this processor can run.
    """

    def __init__(self, config: EngineConfig) -> None:
        import llama_cpp

        settings = config.settings
        self._api: Any = llama_cpp
        _route_logs(llama_cpp)
        llama_cpp.llama_backend_init()
        _load_backends(llama_cpp)
        if config.device not in ("auto", "cpu", "gpu"):
            raise BadSetting(f"models.device must be auto, cpu or gpu, not {config.device!r}.")
        gpu = config.device != "cpu" and llama_cpp.llama_supports_gpu_offload()
        if config.device == "gpu" and not gpu:
            raise BadSetting(
                "models.device is gpu, but this build of llama.cpp has no GPU support.",
                remedy="Install the gpu extra, or set models.device to auto.",
            )
        self.device = "gpu" if gpu else "cpu"
        model_params = llama_cpp.llama_model_default_params()
        model_params.n_gpu_layers = -1 if gpu else 0
        self._model: Any = llama_cpp.llama_model_load_from_file(os.fsencode(config.model_path), model_params)
        if not self._model:
            raise ModelCorrupt(
                f"llama.cpp can't load the model {config.model_path}.",
                remedy="Check it with `appliance models verify`.",
            )
        self._vocab: Any = llama_cpp.llama_model_get_vocab(self._model)
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(self._vocab)
        trained = config.model_context_tokens or llama_cpp.llama_model_n_ctx_train(self._model)
        room = self._room(config, trained)
        self.max_sequences = room.max_sequences
        self.prefix_sequences = range(self.max_sequences, self.max_sequences + PREFIXES)
        params = self._context_params(config, room.kv_tokens)
        self._ctx: Any = llama_cpp.llama_init_from_model(self._model, params)
        if not self._ctx:
            llama_cpp.llama_model_free(self._model)
            raise Unavailable(
                f"llama.cpp can't make a context of {room.kv_tokens} tokens.",
                remedy="Lower engine.kv_tokens, or free memory.",
            )
        self._memory: Any = llama_cpp.llama_get_memory(self._ctx)
        self.kv_tokens: int = llama_cpp.llama_n_ctx(self._ctx)
        self.context_tokens = min(settings.context_tokens or trained, trained, self.kv_tokens)
        self.batch = Batch(llama_cpp.llama_n_batch(self._ctx))
        self._pieces: dict[int, bytes] = {}
        self._eog: dict[int, bool] = {}
        self._warm_up()

    def _room(self, config: EngineConfig, trained: int) -> Room:
        """The size of the context: as set, else as memory allows."""
        settings = config.settings
        gpu = self.device == "gpu"
        free = self._gpu_free_bytes() // 2 if gpu else available_bytes()
        if free is not None and not gpu:
            free = free_for_cells(free, self._api.llama_model_size(self._model), settings.host_cache_bytes)
        room = find_room(
            kv_tokens=settings.kv_tokens,
            max_sequences=1 if settings.deterministic else settings.max_sequences,
            context_tokens=min(settings.context_tokens or trained, trained),
            token_bytes=self._cell_bytes(settings.kv_type),
            free_bytes=free,
            cores=None if gpu else _threads(settings),
        )
        _log.info("the context: %s", room.reason)
        return room

    def _cell_bytes(self, kv_type: str) -> int:
        """Memory of one token in all layers; an upper bound where layers differ."""
        api, model = self._api, self._model
        width = api.llama_model_n_embd(model) // api.llama_model_n_head(model)
        widths = sum(self._number_of(f"attention.{name}_length", width) for name in ("key", "value"))
        values: int = api.llama_model_n_layer(model) * api.llama_model_n_head_kv(model) * widths
        return values * 2 if kv_type == "f16" else values * 34 // 32  # q8_0: 32 values and their scale in 34 bytes

    def _number_of(self, key: str, default: int) -> int:
        """A number from the model file, by its name after the architecture's."""
        text = ctypes.create_string_buffer(64)
        for name in ("general.architecture", f"%s.{key}"):
            full = name.replace("%s", text.value.decode())
            if self._api.llama_model_meta_val_str(self._model, full.encode(), text, len(text)) < 0:
                return default
        return int(text.value)

    def _gpu_free_bytes(self) -> int:
        """Memory that is free on the first GPU, the model's weights being there already."""
        library = self._api.llama_cpp._lib
        for kind in _GGML_GPUS:
            library.ggml_backend_dev_by_type.restype = ctypes.c_void_p
            if device := library.ggml_backend_dev_by_type(kind):
                free, total = ctypes.c_size_t(), ctypes.c_size_t()
                library.ggml_backend_dev_memory(ctypes.c_void_p(device), ctypes.byref(free), ctypes.byref(total))
                return free.value
        return 0

    def _context_params(self, config: EngineConfig, kv_tokens: int) -> Any:
        settings = config.settings
        gpu = self.device == "gpu"
        params = self._api.llama_context_default_params()
        params.n_ctx = kv_tokens
        params.n_seq_max = self.prefix_sequences.stop
        params.kv_unified = True
        params.swa_full = True  # a sliding-window cache could not be cut back or shared
        params.n_batch = max(settings.batch_tokens, self.max_sequences + MIN_PREFILL_TOKENS) + DRAFT_TOKENS
        params.n_ubatch = min(params.n_batch, 512)
        params.n_outputs_max = params.n_seq_max  # llama.cpp reserves as many anyway, and needs no more
        kv_type = getattr(self._api, f"GGML_TYPE_{settings.kv_type.upper()}")
        params.type_k = params.type_v = kv_type
        if settings.kv_type != "f16":
            params.flash_attn_type = self._api.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.n_threads = params.n_threads_batch = _threads(settings)
        params.offload_kqv = params.op_offload = gpu
        params.no_perf = True
        return params

    @property
    def build(self) -> str:
        """What computes: versions and CPU features; KV states of one build may not fit another."""
        version = self._api.llama_version().decode()
        system = self._api.llama_print_system_info().decode().strip()
        return f"llama-cpp-python {self._api.__version__}, libllama {version}, {system}"

    @property
    def chat_template(self) -> str:
        """The Jinja template in the file, "" if there is none."""
        raw = self._api.llama_model_chat_template(self._model, None)
        return raw.decode("utf-8", "replace") if raw else ""

    @property
    def bos(self) -> str:
        """Text of the token that begins a text, "" if there is none."""
        return self._token_text(self._api.llama_vocab_bos(self._vocab))

    @property
    def eos(self) -> str:
        """Text of the token that ends a text, "" if there is none."""
        return self._token_text(self._api.llama_vocab_eos(self._vocab))

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Token ids of `text` alone, nothing added. Control tokens are seen in it only if `special`."""
        data = text.encode("utf-8", "replace")
        room = len(data) + 2
        while True:
            ids = (ctypes.c_int32 * room)()
            count = self._api.llama_tokenize(self._vocab, data, len(data), ids, room, False, special)
            if count >= 0:
                return ids[:count]
            room = -count

    def tokenize_prompt(self, prompt: Iterable[Segment]) -> list[int]:
        """Token ids of a whole prompt; begins with exactly one BOS where the model wants one."""
        ids: list[int] = []
        for segment in prompt:
            ids += self.tokenize(segment.text, special=segment.template)
        bos = self._api.llama_vocab_bos(self._vocab)
        if self._api.llama_vocab_get_add_bos(self._vocab) and bos >= 0 and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def piece(self, token: int) -> bytes:
        """The bytes of a token; control tokens have none."""
        known = self._pieces.get(token)
        if known is None:
            known = self._pieces[token] = self._render(token, special=False)
        return known

    def is_end(self, token: int) -> bool:
        """Whether the token ends the text (end of text, of turn, of message)."""
        known = self._eog.get(token)
        if known is None:
            known = self._eog[token] = bool(self._api.llama_vocab_is_eog(self._vocab, token))
        return known

    def decode(self) -> int:
        """Compute `self.batch`. Returns llama.cpp's code: 0 good, `NO_KV_SLOT`, below 0 lost."""
        code: int = self._api.llama_decode(self._ctx, self.batch.raw)
        return code

    def logits(self) -> npt.NDArray[np.float32]:
        """Logits of the last decode, `(outputs, vocabulary)`, in order of `batch.outputs`; until the next."""
        pointer = self._api.llama_get_logits(self._ctx)
        return np.ctypeslib.as_array(pointer, (len(self.batch.outputs), self.n_vocab))

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Have `target` see the cells of `source` at positions `[start, end)` too; nothing is computed or moved."""
        self._api.llama_memory_seq_cp(self._memory, source, target, start, end)

    def remove(self, sequence: int, start: int, end: int) -> None:
        """Take the cells at positions `[start, end)` from a sequence; `end` -1: all from `start` on."""
        self._api.llama_memory_seq_rm(self._memory, sequence, start, end)

    def save(self, sequence: int) -> bytes:
        """The KV of all cells of a sequence, as this build of llama.cpp lays it out."""
        size = self._api.llama_state_seq_get_size(self._ctx, sequence)
        buffer = (ctypes.c_uint8 * size)()
        written = self._api.llama_state_seq_get_data(self._ctx, buffer, size, sequence)
        return bytes(memoryview(buffer)[:written])

    def load(self, sequence: int, data: bytes) -> bool:
        """Put what `save` gave into an empty sequence; False, and the sequence is empty, where that fails."""
        buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
        done = bool(self._api.llama_state_seq_set_data(self._ctx, buffer, len(data), sequence))
        if not done:
            self.remove(sequence, 0, -1)
        return done

    def used(self, sequence: int) -> int:
        """The position after the last cell that a sequence sees, as llama.cpp itself knows it; 0: it sees none."""
        last: int = self._api.llama_memory_seq_pos_max(self._memory, sequence)
        return last + 1

    @property
    def context(self) -> Any:
        """llama.cpp's own context, for samplers."""
        return self._ctx

    @property
    def vocab(self) -> Any:
        """llama.cpp's own vocabulary, for samplers."""
        return self._vocab

    def close(self) -> None:
        """Free everything; the object can't be used afterwards."""
        self.batch.close()
        self._api.llama_free(self._ctx)
        self._api.llama_model_free(self._model)

    def _token_text(self, token: int) -> str:
        return self._render(token, special=True).decode("utf-8", "replace") if token >= 0 else ""

    def _render(self, token: int, *, special: bool) -> bytes:
        room = 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            size = self._api.llama_token_to_piece(self._vocab, token, buffer, room, 0, special)
            if size >= 0:
                return buffer.raw[:size]
            room = -size

    def _warm_up(self) -> None:
        """One small batch through the whole model: pages are read, buffers allocated; nothing of it stays.

        The second of two is timed: how long it took tells how much of a prompt fits a step.
        """
        bos = max(self._api.llama_vocab_bos(self._vocab), 0)
        for _ in range(2):
            self.batch.clear()
            self.batch.add([bos] * WARM_UP_TOKENS, 0, 0, outputs=1)
            begin = time.monotonic()
            if self.decode() != 0:
                raise Unavailable("The model was loaded, but it can't compute.", remedy="See the engine's log.")
            self.logits()
            self.warm_up_s = time.monotonic() - begin
            self._api.llama_memory_clear(self._memory, True)


def _threads(settings: EngineSettings) -> int:
    return settings.threads or len(os.sched_getaffinity(0))


def _load_backends(api: Any) -> None:
    """Have llama.cpp choose among the backends that lie beside it as modules; most builds have theirs inside.

    Raises:
        Unavailable: none of them can be loaded.
    """
    library = api.llama_cpp._lib
    library.ggml_backend_dev_count.restype = ctypes.c_size_t
    if library.ggml_backend_dev_count():
        return
    folder = api.llama_cpp._base_path
    library.ggml_backend_load_all_from_path.restype = None
    library.ggml_backend_load_all_from_path(ctypes.c_char_p(os.fsencode(folder)))
    if not library.ggml_backend_dev_count():
        raise Unavailable(
            f"llama.cpp found no backend in {folder} that this processor can run.", remedy="Install the program again."
        )


@functools.cache  # llama.cpp calls it for as long as the process lives, also after a model was closed
def _route_logs(api: Any) -> Any:
    """Send llama.cpp's messages to our log; returns the callback."""

    def receive(level: int, text: bytes, _data: object) -> None:
        # Not a fault here: many sequences share the cells, each within what the model was trained for.
        if level in _GGML_LEVELS and b"training context overflow" not in text:
            _log.log(_GGML_LEVELS[level], "llama.cpp: %s", text.decode("utf-8", "replace").rstrip())

    callback = api.llama_log_callback(receive)
    api.llama_log_set(callback, ctypes.c_void_p(0))
    return callback
