"""Tiny real models: a word-level tokenizer and graphs whose output can be computed by hand."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import tokenizers
from onnx import TensorProto, helper, numpy_helper

from appliance.packs.specs import EmbedderSpec, RerankerSpec

WORDS = ["<s>", "<pad>", "</s>", "<unk>", "query:", "passage:", "pump", "seal", "oil", "valve", "bolt", "the"]
DIM = 4
TABLE: npt.NDArray[np.float32] = np.random.default_rng(0).standard_normal((len(WORDS), DIM)).astype(np.float32)


def write_tokenizer(path: Path, *, pair_template: bool = False) -> Path:
    """`<s> A </s>`, and for pairs `<s> query: A </s>` + `<s> passage: B </s>`."""
    model = tokenizers.models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>")  # noqa: S106
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    plain, pairs = "<s> $A </s> $B:1 </s>:1", "<s> query $A </s> <s>:1 passage:1 $B:1 </s>:1"
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>",
        pair=pairs if pair_template else plain,
        special_tokens=[(word.rstrip(":"), number) for number, word in enumerate(WORDS[:6])],
    )
    tokenizer.save(str(path))
    return path


def sum_of(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _save(path: Path, nodes: list[onnx.NodeProto], output: str, shape: list[str | int], inputs: list[str]) -> Path:
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"]) for name in inputs],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(TABLE, "table")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


def embedder_spec(folder: Path, *, pooled: bool = False, pooling: str = "mean", max_tokens: int = 8) -> EmbedderSpec:
    """An embedder whose token vectors are rows of `TABLE`."""
    hidden = [helper.make_node("Gather", ["table", "input_ids"], ["hidden"])]
    if pooled:  # the graph's own mean ignores the mask: to be told apart from pooling outside
        nodes = [*hidden, helper.make_node("ReduceMean", ["hidden"], ["embedding"], axes=[1], keepdims=0)]
        path = _save(folder / "e.onnx", nodes, "embedding", ["batch", DIM], ["input_ids"])
    else:
        path = _save(folder / "e.onnx", hidden, "hidden", ["batch", "tokens", DIM], ["input_ids"])
    tokenizer = write_tokenizer(folder / "tokenizer.json")
    return EmbedderSpec(
        path=path,
        tokenizer_path=tokenizer,
        name="tiny",
        sha256=sum_of(path),
        tokenizer_sha256=sum_of(tokenizer),
        languages=("en",),
        dim=DIM,
        max_tokens=max_tokens,
        query_prefix="query: ",
        passage_prefix="passage: ",
        pad_id=1,
        pooled=pooled,
        pooling=pooling,  # type: ignore[arg-type]
    )


def reranker_spec(folder: Path, *, max_tokens: int = 32, calibration: tuple[float, float] = (1.0, 0.0)) -> RerankerSpec:
    """A reranker whose logit is the number of real tokens of type 1 in the pair."""
    nodes = [
        helper.make_node("Mul", ["token_type_ids", "attention_mask"], ["seen"]),
        helper.make_node("Cast", ["seen"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["floats", "axes"], ["logits"], keepdims=1),
    ]
    inputs = ["input_ids", "attention_mask", "token_type_ids"]
    path = _save(folder / "r.onnx", nodes, "logits", ["batch", 1], inputs)
    model = onnx.load(str(path))
    model.graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), "axes"))
    path.write_bytes(model.SerializeToString())
    tokenizer = write_tokenizer(folder / "pair.json", pair_template=True)
    return RerankerSpec(
        path=path,
        tokenizer_path=tokenizer,
        name="tiny",
        sha256=sum_of(path),
        tokenizer_sha256=sum_of(tokenizer),
        languages=("en",),
        max_tokens=max_tokens,
        max_query_tokens=max_tokens // 4,
        pad_id=1,
        calibration=calibration,
        mix={},
    )
