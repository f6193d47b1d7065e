"""Owns token ids of prompts: the same that our engine makes, for the one that is given ids.

Must not know workloads.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from appliance.engine.protocol import Segment
from appliance.errors import ModelCorrupt


class Tokenizer:
    """The vocabulary of a GGUF file, without its weights.

    Raises:
        ModelCorrupt: llama.cpp can't read the file.
    """

    def __init__(self, model: Path) -> None:
        import llama_cpp

        self._api: Any = llama_cpp
        self._quiet = llama_cpp.llama_log_callback(lambda _level, _text, _data: None)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        self._model: Any = llama_cpp.llama_model_load_from_file(os.fsencode(model), params)
        if not self._model:
            raise ModelCorrupt(f"llama.cpp can't load the vocabulary of {model}.")
        self._vocab: Any = llama_cpp.llama_model_get_vocab(self._model)

    def prompt(self, segments: Iterable[Segment]) -> list[int]:
        """Token ids of a whole prompt, segment by segment, with the token that begins a text where there is one."""
        ids: list[int] = []
        for segment in segments:
            ids += self._tokenize(segment.text, special=segment.template)
        first = self._api.llama_vocab_bos(self._vocab)
        if self._api.llama_vocab_get_add_bos(self._vocab) and first >= 0 and ids[:1] != [first]:
            ids.insert(0, first)
        return ids

    def ends(self) -> list[int]:
        """The tokens that end a text."""
        count = self._api.llama_vocab_n_tokens(self._vocab)
        return [token for token in range(count) if self._api.llama_vocab_is_eog(self._vocab, token)]

    def _tokenize(self, text: str, *, special: bool) -> list[int]:
        data = text.encode()
        room = len(data) + 2
        ids = (ctypes.c_int32 * room)()
        count = self._api.llama_tokenize(self._vocab, data, len(data), ids, room, False, special)
        return ids[:count]
