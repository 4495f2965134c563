"""Models of one node, and what ONNX Runtime answers to them."""

import os
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

LIBRARY = os.environ.get("ICE_ONNX", str(Path(__file__).resolve().parent.parent / "build" / "libice_onnx.so"))
IR_VERSION = 10
TYPES = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(np.bool_): TensorProto.BOOL,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.int64): TensorProto.INT64,
}


def node_model(op, domain, inputs, outputs, attributes, float_type=TensorProto.FLOAT):
    """A model of one node; `inputs` is a list of (name, array or None), `outputs` of names ("" is left out)."""
    names = [n if a is not None else "" for n, a in inputs]
    while names and not names[-1]:
        names.pop()
    node = helper.make_node(op, names, outputs, domain=domain, name="node", **attributes)
    ins = [helper.make_tensor_value_info(n, TYPES[a.dtype], [None] * a.ndim) for n, a in inputs if a is not None]
    outs = [helper.make_tensor_value_info(n, float_type, None) for n in outputs if n]
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("iceformer", 1)]
    graph = helper.make_graph([node], "g", ins, outs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def options(threads=1, library=True, level=None):
    o = ort.SessionOptions()
    o.intra_op_num_threads = threads
    o.log_severity_level = 4
    if level is not None:
        o.graph_optimization_level = level
    if library:
        o.register_custom_ops_library(LIBRARY)
    return o


def session(model, threads=1, library=True, level=None):
    data = model if isinstance(model, (bytes, str)) else model.SerializeToString()
    return ort.InferenceSession(data, options(threads, library, level), providers=["CPUExecutionProvider"])


def run_node(op, domain, inputs, outputs, attributes, threads=1):
    float_type = TYPES[inputs[0][1].dtype]
    s = session(node_model(op, domain, inputs, outputs, attributes, float_type), threads)
    return s.run(None, {n: a for n, a in inputs if a is not None})


def attention(domain, q, k, v, mask=None, past_k=None, past_v=None, present=False, threads=1, **attributes):
    inputs = [("q", q), ("k", k), ("v", v), ("mask", mask), ("past_k", past_k), ("past_v", past_v)]
    outputs = ["y", "present_k", "present_v"] if present else ["y"]
    return run_node("Attention", domain, inputs, outputs, attributes, threads)


def dense(q, k, v, mask=None, past=0, causal=False, scale=None, softcap=0.0):
    """The definition, in double precision: [batch, heads, rows, elements], keys and values with the past in front.

    softcap comes before the mask, rows that see nothing are 0. Returns the output."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    s = np.einsum("bhid,bhjd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        s = softcap * np.tanh(s / softcap)
    if mask is not None:
        mask = np.broadcast_to(mask, s.shape)
        s = np.where(mask, s, -np.inf) if mask.dtype == np.bool_ else s + mask
    if causal:
        i, j = np.arange(s.shape[2])[:, None], np.arange(s.shape[3])
        s = np.where(j <= i + past, s, -np.inf)
    top = s.max(-1, keepdims=True) if s.shape[-1] else np.zeros(s.shape[:-1] + (1,))
    w = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = w.sum(-1, keepdims=True)
    return np.einsum("bhij,bhjd->bhid", w / np.where(total == 0, 1, total), v)
