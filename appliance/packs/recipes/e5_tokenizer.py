"""Owns the `tokenizer.json` of the rebuilt e5, and which of its 250,002 pieces English and Chinese need.

Must not know tensors or graphs.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from appliance.packs.recipes.e5_weights import E5Weights

# SentencePiece's word-start mark, and the scripts of a Chinese text (kana and bopomofo included).
WORD_START = "\u2581"
CJK = (
    "\u2e80-\u2fdf\u3000-\u303f\u3040-\u30ff\u3100-\u312f\u31a0-\u33ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef"
)
# Words in ASCII, CJK, Latin-1 signs, punctuation and symbols; and every single Latin, Greek and Cyrillic
# letter, so that a name in another alphabet is spelt out instead of lost.
WHOLE = re.compile(f"[\\x00-\\x7e{WORD_START}{CJK}\u00a0-\u00bf\u00d7\u00f7\u2000-\u2bff]+")
SINGLE = re.compile(f"{WORD_START}?[\\x00-\u058f\u1e00-\u1fff]")
SPECIAL_PIECES = 4  # <s> <pad> </s> <unk> come first and keep their ids
MASK = "<mask>"
QUERY_PREFIX = ("\u2581que", "ry", ":")
PASSAGE_PREFIX = ("\u2581passage", ":")


def needed_pieces(pieces: Sequence[str]) -> npt.NDArray[np.int64]:
    """Ids of the pieces to keep, rising; the new id of a piece is its place in this array `(kept,)`.

    Segmentation of a text is unchanged as long as its best path uses no dropped piece.
    """
    keep = [
        place
        for place, piece in enumerate(pieces)
        if place < SPECIAL_PIECES or piece == MASK or WHOLE.fullmatch(piece) or SINGLE.fullmatch(piece)
    ]
    return np.array(keep, dtype=np.int64)


def tokenizer_json(weights: E5Weights, keep: npt.NDArray[np.int64], *, pairs: bool) -> bytes:
    """A file for `tokenizers.Tokenizer`.

    Args:
        weights: for the pieces and their scores.
        keep: ids to keep, from `needed_pieces`.
        pairs: True: the template of the cross-encoder, which puts e5's own `query: ` and `passage: ` in by
            itself; False: a single text, whose prefix the caller writes.
    """
    pieces = [weights.pieces[place] for place in keep]
    specials = [pieces[weights.bos], pieces[weights.pad], pieces[weights.eos], pieces[weights.unk], MASK]
    vocabulary = [[piece, float(weights.scores[place])] for piece, place in zip(pieces, keep, strict=True)]
    ids = {piece: place for place, piece in enumerate(pieces)}
    mark = {"type": "Metaspace", "replacement": WORD_START, "prepend_scheme": "always", "split": True}
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": ids[piece],
                "content": piece,
                "single_word": False,
                "lstrip": piece == MASK,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for piece in specials
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {
                    "type": "Precompiled",
                    "precompiled_charsmap": base64.b64encode(_nmt_nfkc()).decode("ascii"),
                },
                {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
            ],
        },
        "pre_tokenizer": mark,
        "post_processor": _template(ids, weights, pieces, pairs=pairs),
        "decoder": mark,
        "model": {"type": "Unigram", "unk_id": weights.unk, "vocab": vocabulary, "byte_fallback": False},
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def _template(ids: dict[str, int], weights: E5Weights, pieces: list[str], *, pairs: bool) -> dict[str, object]:
    bos, eos = pieces[weights.bos], pieces[weights.eos]

    def special(name: str, side: int) -> dict[str, object]:
        return {"SpecialToken": {"id": name, "type_id": side}}

    def text(name: str, side: int) -> dict[str, object]:
        return {"Sequence": {"id": name, "type_id": side}}

    first = [special(bos, 0), text("A", 0), special(eos, 0)]
    tokens: dict[str, Sequence[str]] = {bos: (bos,), eos: (eos,)}
    if pairs:
        pair = [special(bos, 0), special("[Q]", 0), text("A", 0), special(eos, 0)]
        pair += [special(bos, 1), special("[P]", 1), text("B", 1), special(eos, 1)]
        tokens |= {"[Q]": QUERY_PREFIX, "[P]": PASSAGE_PREFIX}
    else:
        pair = [*first, special(eos, 0), text("B", 0), special(eos, 0)]
    return {
        "type": "TemplateProcessing",
        "single": first,
        "pair": pair,
        "special_tokens": {
            name: {"id": name, "ids": [ids[token] for token in list_], "tokens": list(list_)}
            for name, list_ in tokens.items()
        },
    }


def _nmt_nfkc() -> bytes:
    """SentencePiece's own compiled `nmt_nfkc` rules, the ones that the model was trained with."""
    from sentencepiece import SentencePieceNormalizer
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]  # made at run time

    model = ModelProto()
    model.ParseFromString(SentencePieceNormalizer(rule_name="nmt_nfkc").serialized_model_proto())
    return bytes(model.normalizer_spec.precompiled_charsmap)
