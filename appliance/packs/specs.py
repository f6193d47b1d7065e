"""Owns what the rest is told about models: one frozen description per role, with the sum of every file.

Must not know where model files come from or how they are run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

Role = Literal["generator", "embedder", "reranker"]
Pooling = Literal["graph", "mean", "cls"]
FileState = Literal["ok", "missing", "wrong_size", "corrupt", "unverified"]


class GeneratorSpec(msgspec.Struct, frozen=True):
    """A GGUF model for llama.cpp."""

    path: Path
    name: str
    sha256: str
    languages: tuple[str, ...]  # ISO 639-1; what it can write acceptably
    context_tokens: int
    chat_template: str | None  # None: the one inside the GGUF
    quotes: bool = False  # too weak to be believed alone: a quotation follows each of its answers


class EmbedderSpec(msgspec.Struct, frozen=True):
    """An ONNX text encoder with its `tokenizer.json`.

    Graph inputs, int64 `(batch, tokens)`: `input_ids`, `attention_mask`, and for some models
    `token_type_ids` (zeros); feed those that the session lists. Output 0:

    - `pooled` True: `embedding`, float32 `(batch, dim)`, mean-pooled over the mask and of L2 norm 1;
    - `pooled` False: `(batch, tokens, dim)`; pool by `pooling` ("mean" over the mask, or "cls": token 0),
      then normalise.

    The tokenizer file has no truncation or padding set: the caller enables both (`max_tokens`, `pad_id`).
    """

    path: Path
    tokenizer_path: Path
    name: str
    sha256: str
    tokenizer_sha256: str
    languages: tuple[str, ...]
    dim: int
    max_tokens: int  # special tokens included
    query_prefix: str  # put before a question's text, e.g. "query: "
    passage_prefix: str
    pad_id: int
    pooled: bool
    pooling: Pooling


class RerankerSpec(msgspec.Struct, frozen=True):
    """An ONNX cross-encoder over (question, passage) pairs with its `tokenizer.json`.

    Tokenize with `encode(question, passage)` and no prefix: the tokenizer's pair template adds what the
    model wants; truncate with `only_second`, the question cut before to `max_query_tokens`. Graph inputs,
    int64 `(batch, tokens)`: `input_ids`, `attention_mask`, and `token_type_ids` (the encoding's `type_ids`)
    if the session lists it. Output `logits`, float32 `(batch, 1)`.
    """

    path: Path
    tokenizer_path: Path
    name: str
    sha256: str
    tokenizer_sha256: str
    languages: tuple[str, ...]
    max_tokens: int  # of a pair, special tokens and prefixes included
    max_query_tokens: int  # of the question's part, special tokens and prefix included
    pad_id: int
    calibration: tuple[float, float]  # (a, b): probability = sigmoid(a * logit + b)
    mix: dict[str, object]  # how to mix with the first stage's scores; from the model's own config.json


class ResolvedPack(msgspec.Struct, frozen=True):
    """A pack whose files are all there, in their sizes, with the sums that the manifest (or the lock) names.

    Hashing is for whoever loads a model (`files.require_intact`): a program that needs one does not wait for all.
    """

    name: str
    generator: GeneratorSpec
    embedder: EmbedderSpec
    reranker: RerankerSpec | None
    fingerprint: str  # SHA-256 over the files' SHA-256s; changes when any model changes


class FileStatus(msgspec.Struct, frozen=True):
    """One file of a pack, as found on the disk."""

    role: Role
    file: str
    path: str
    state: FileState  # "unverified": right size, or no size known, and not hashed in this look
    size_bytes: int  # on the disk; 0 if missing
    expected_bytes: int  # 0: unknown
    expected_sha256: str  # "": unknown until the first pull records it
    licence: str
