#!/usr/bin/env python3
"""Puts iceformer's attention into an ONNX model.

    python rewrite.py model.onnx faster.onnx [--mode auto|exact|accelerated] [--tolerance 0.05] [--only REGEX]

Replaced: Attention of opset 23 and later, MultiHeadAttention and GroupQueryAttention of com.microsoft. What cannot be
replaced stays as it is, with a line that says why. Weights are not touched. Load the result with libice_onnx.so registered.
"""

import argparse
import re
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
from onnx import TensorProto, helper, numpy_helper

DOMAIN = "iceformer"
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
# Operators of com.microsoft that attend and are left alone.
OTHERS = {
    "Attention": "projects queries, keys and values itself",
    "PackedAttention": "removes padding in a layout of its own",
    "PackedMultiHeadAttention": "removes padding in a layout of its own",
    "DecoderMaskedMultiHeadAttention": "keeps beams in its cache",
    "DecoderMaskedSelfAttention": "keeps beams in its cache",
    "PagedAttention": "keeps its cache in pages",
    "SparseAttention": "attends to chosen blocks",
    "QAttention": "is quantised",
    "LongformerAttention": "has global and local keys",
}


class Keep(Exception):
    """Why a node stays as it is."""


class Scope:
    """What is known of the tensors of one graph and of the graphs around it."""

    def __init__(self, nodes, values, initializers, outer=None):
        self.outer = outer
        self.types, self.shapes = {}, {}
        self.constants = {t.name: t for t in initializers}
        self.producers = {o: n for n in nodes for o in n.output if o}
        self.names = {x for n in nodes for x in list(n.input) + list(n.output)}
        for t in initializers:
            self.types[t.name], self.shapes[t.name] = t.data_type, list(t.dims)
        for v in values:
            kind = v.type.tensor_type
            if kind.elem_type:
                self.types[v.name] = kind.elem_type
            if kind.HasField("shape"):
                self.shapes[v.name] = [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]

    def look(self, table, name):
        scope = self
        while scope:
            if name in getattr(scope, table):
                return getattr(scope, table)[name]
            scope = scope.outer
        return None

    def type(self, name):
        return self.look("types", name)

    def rank(self, name):
        shape = self.look("shapes", name)
        return None if shape is None else len(shape)

    def last(self, name, steps=4):
        """Size of the last dimension if it can be known: written down, or that of the weights before."""
        shape = self.look("shapes", name)
        if shape and shape[-1]:
            return shape[-1]
        node = self.look("producers", name)
        if node is None or not steps:
            return None
        if node.op_type == "MatMul":
            return self.last(node.input[1], steps - 1)
        if node.op_type == "Gemm" and not any(a.name == "transB" and a.i for a in node.attribute):
            return self.last(node.input[1], steps - 1)
        if node.op_type == "Add":
            return self.last(node.input[0], steps - 1) or self.last(node.input[1], steps - 1)
        if node.op_type in ("Cast", "Identity"):
            return self.last(node.input[0], steps - 1)
        return None


class Rewriter:
    def __init__(self, mode="auto", tolerance=0.0, only=None):
        self.settings = {"mode": mode, **({"tolerance": float(tolerance)} if tolerance else {})}
        self.only = re.compile(only) if only else None
        self.lines, self.replaced, self.kept, self.count = [], 0, 0, 0

    # Small parts of graphs.

    def fresh(self, what):
        self.count += 1
        return f"iceformer/{what}_{self.count}"

    def add(self, new, op, inputs, domain="", **attributes):
        """Appends a node of one output, returns its name."""
        out = self.fresh(op)
        new.append(helper.make_node(op, inputs, [out], name=out, domain=domain, **attributes))
        return out

    def constant(self, new, values, dtype):
        out = self.fresh("Constant")
        value = numpy_helper.from_array(np.array(values, dtype), out)
        new.append(helper.make_node("Constant", [], [out], name=out, value=value))
        return out

    # Operators.

    def attention(self, node, scope, opset, used):
        given = attributes_of(node)
        ins, outs = padded(node.input, 7), padded(node.output, 4)
        if opset < 23:
            raise Keep(f"opset {opset} has no Attention that this library knows")
        if ins[6]:
            raise Keep("nonpad_kv_seqlen is not available")
        if outs[3] and outs[3] in used:
            raise Keep("its scores (qk_matmul_output) are used")
        if given.get("softmax_precision") == TensorProto.DOUBLE:
            raise Keep("softmax in double precision")
        check_attributes(given, "scale softcap is_causal q_num_heads kv_num_heads softmax_precision qk_matmul_output_mode")
        given.pop("qk_matmul_output_mode", None)
        return [], ins[:6], outs[:3], given, "Attention"

    def multi_head(self, node, scope, opset, used):
        given = attributes_of(node)
        query, key, value, bias, padding, added, past_k, past_v, length, beams = padded(node.input, 10)
        outs = padded(node.output, 4)
        heads = given["num_heads"]
        if not key or not value:
            raise Keep("queries, keys and values are packed into one tensor")
        if length or beams:
            raise Keep("it shares a buffer for past and present, or keeps beams in it")
        if outs[3] and outs[3] in used:
            raise Keep("its scores (output_qk) are used")
        check_attributes(given, "num_heads scale unidirectional mask_filter_value")
        new = []
        if bias:
            query, key, value = self.with_bias(new, scope, (query, key, value), bias)
        mask = added
        if padding:
            rank = scope.rank(padding)
            if rank not in (2, 3):
                raise Keep(f"key_padding_mask of {'unknown' if rank is None else rank} dimensions; 2 and 3 are known")
            keep = self.add(new, "Cast", [padding], to=TensorProto.BOOL)
            axes = self.constant(new, [1, 2] if rank == 2 else [1], np.int64)
            mask = self.add(new, "Unsqueeze", [keep, axes])
        if padding and added:
            kind = scope.type(added)
            if kind not in FLOATS:
                raise Keep("attention_bias of unknown type beside key_padding_mask")
            dtype = np.float32 if kind == TensorProto.FLOAT else np.float16
            mask = self.add(new, "Where", [mask, added, self.constant(new, -np.inf, dtype)])
        settings = {"q_num_heads": heads, "kv_num_heads": heads, "is_causal": given.get("unidirectional", 0)}
        if given.get("scale"):
            settings["scale"] = given["scale"]
        return new, [query, key, value, mask, past_k, past_v], outs[:3], settings, "Attention"

    def with_bias(self, new, scope, tensors, bias):
        """Adds the parts of a bias [2 * size of query + size of value] to query, key and value."""
        if any(scope.rank(t) not in (None, 3) for t in tensors):
            raise Keep("bias beside keys that are not [batch, rows, size]")
        size, total = scope.last(tensors[0]), scope.last(bias)
        if not size or not total or total <= 2 * size:
            raise Keep("bias: the size of its parts is not known")
        parts = [self.fresh("Split") for _ in tensors]
        sizes = self.constant(new, [size, size, total - 2 * size], np.int64)
        new.append(helper.make_node("Split", [bias, sizes], parts, name=parts[0], axis=0))
        return [self.add(new, "Add", pair) for pair in zip(tensors, parts)]

    def group_query(self, node, scope, opset, used):
        given = attributes_of(node)
        ins, outs = padded(node.input, 16), padded(node.output, 4)
        query, key, value, past_k, past_v, seqlens, total, cos, sin, positions = ins[:10]
        heads, kv_heads = given["num_heads"], given["kv_num_heads"]
        for name, present in (("attention_bias", ins[10]), ("head_sink", ins[11]), ("scales of a cache", any(ins[12:]))):
            if present:
                raise Keep(f"{name} is not available")
        if outs[3] and outs[3] in used:
            raise Keep("its scores (output_qk) are used")
        for name in ("smooth_softmax", "qk_output", "kv_cache_bit_width"):
            if given.get(name, 0) > 0:
                raise Keep(f"{name} is not available")
        if any(given.get(n, "NONE") not in ("NONE", b"NONE") for n in ("k_quant_type", "v_quant_type")):
            raise Keep("its cache is quantised")
        check_attributes(
            given,
            "num_heads kv_num_heads scale softcap local_window_size do_rotary rotary_interleaved smooth_softmax qk_output "
            "kv_cache_bit_width k_quant_type v_quant_type",
        )
        new = []
        if not key or not value:
            packed = scope.last(query)
            if not packed or packed % (heads + 2 * kv_heads):
                raise Keep("queries, keys and values are packed into one tensor of unknown size")
            size = packed // (heads + 2 * kv_heads)
            parts = [self.fresh("Split") for _ in range(3)]
            sizes = self.constant(new, [heads * size, kv_heads * size, kv_heads * size], np.int64)
            new.append(helper.make_node("Split", [query, sizes], parts, name=parts[0], axis=-1))
            query, key, value = parts
        if given.get("do_rotary"):
            if not cos or not sin:
                raise Keep("do_rotary without cos_cache and sin_cache")
            if positions:
                raise Keep("position_ids: the CPU kernel of ONNX Runtime counts by itself and does not read them")
            positions = self.positions(new, query, seqlens)
            turn = {"interleaved": given.get("rotary_interleaved", 0)}
            half = scope.last(cos)
            if not half:
                raise Keep("the size of cos_cache is not known")
            turn["rotary_embedding_dim"] = 2 * half
            query = self.add(new, "RotaryEmbedding", [query, positions, cos, sin], "com.microsoft", num_heads=heads, **turn)
            key = self.add(new, "RotaryEmbedding", [key, positions, cos, sin], "com.microsoft", num_heads=kv_heads, **turn)
        settings = {n: given[n] for n in ("num_heads", "kv_num_heads", "scale", "softcap", "local_window_size") if n in given}
        return new, [query, key, value, past_k, past_v, seqlens, total], outs[:3], settings, "GroupQueryAttention"

    def positions(self, new, query, seqlens):
        """[batch, rows]: rows of a prompt count from 0, later ones from what was there before them."""
        shape = self.add(new, "Shape", [query], start=1, end=2)
        rows = self.add(new, "Squeeze", [shape])
        zero, one = self.constant(new, 0, np.int64), self.constant(new, 1, np.int64)
        last = self.add(new, "Cast", [seqlens], to=TensorProto.INT64)
        column = self.add(new, "Reshape", [last, self.constant(new, [-1, 1], np.int64)])
        past = self.add(new, "Sub", [self.add(new, "Add", [column, one]), rows])
        begin = self.add(new, "Max", [past, zero])
        return self.add(new, "Add", [begin, self.add(new, "Range", [zero, rows, one])])

    # Graphs.

    RULES = {("", "Attention"): attention, ("com.microsoft", "MultiHeadAttention"): multi_head,
             ("com.microsoft", "GroupQueryAttention"): group_query}

    def one(self, node, scope, opset, used):
        """The nodes that take the place of one."""
        domain = "" if node.domain == "ai.onnx" else node.domain
        label = f"{node.name or (node.output[0] if node.output else '?')} ({domain + '.' if domain else ''}{node.op_type})"
        rule = self.RULES.get((domain, node.op_type))
        if not rule:
            if domain == "com.microsoft" and node.op_type in OTHERS:
                self.kept += 1
                self.lines.append(f"left: {label}: {OTHERS[node.op_type]}")
            return [node]
        try:
            if self.only and not self.only.search(node.name):
                raise Keep("its name does not match --only")
            kinds = {scope.type(n) for n in list(node.input[:3]) if n} - {None}
            if kinds - set(FLOATS):
                raise Keep("element type " + ", ".join(sorted(TensorProto.DataType.Name(k) for k in kinds)))
            new, ins, outs, settings, op = rule(self, node, scope, opset, used)
        except Keep as why:
            self.kept += 1
            self.lines.append(f"left: {label}: {why}")
            return [node]
        ins, outs = stripped(ins), stripped(outs)
        new.append(helper.make_node(op, ins, outs, name=node.name, domain=DOMAIN, **settings, **self.settings))
        self.replaced += 1
        self.lines.append(f"replaced: {label}")
        return new

    def nodes(self, nodes, scope, opset, results):
        used = set(results) | {i for n in nodes for i in n.input}
        out = []
        for node in nodes:
            for a in node.attribute:
                if a.type == onnx.AttributeProto.GRAPH:
                    used |= inner_inputs(a.g)
        for node in nodes:
            for a in node.attribute:
                for g in [a.g] if a.type == onnx.AttributeProto.GRAPH else a.graphs:
                    self.graph(g, opset, scope)
            out += self.one(node, scope, opset, used)
        del nodes[:]
        nodes.extend(out)

    def graph(self, graph, opset, outer=None):
        values = list(graph.input) + list(graph.output) + list(graph.value_info)
        scope = Scope(list(graph.node), values, graph.initializer, outer)
        self.nodes(graph.node, scope, opset, [o.name for o in graph.output])

    def model(self, model):
        """Rewrites the model in place; returns a line for every node that attends."""
        if any((n.domain if n.domain != "ai.onnx" else "", n.op_type) in self.RULES for f in model.functions for n in f.node):
            # ONNX Runtime infers no types through custom operators inside functions.
            model.CopyFrom(onnx.inliner.inline_local_functions(model))
        try:
            known = onnx.shape_inference.infer_shapes(model) if model.ByteSize() < 1 << 30 else model
        except Exception as e:  # what is not known only leaves nodes alone
            known = model
            self.lines.append(f"note: shapes could not be inferred: {str(e).splitlines()[0] if str(e) else e!r}")
        have = {v.name for v in model.graph.value_info}
        spare = [v for v in known.graph.value_info if v.name not in have]
        model.graph.value_info.extend(spare)
        version = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
        self.graph(model.graph, version)
        # What inference found served its purpose.
        del model.graph.value_info[len(have):]
        if self.replaced:
            imports(model.opset_import)
        return self.lines


def imports(opsets):
    for domain in (DOMAIN, "com.microsoft"):
        if all(o.domain != domain for o in opsets):
            opsets.append(helper.make_opsetid(domain, 1))


def padded(names, count):
    return list(names) + [""] * (count - len(names))


def stripped(names):
    while names and not names[-1]:
        names = names[:-1]
    return names


def attributes_of(node):
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def check_attributes(given, known):
    strange = sorted(set(given) - set(known.split()))
    if strange:
        raise Keep("unknown attributes: " + ", ".join(strange))


def inner_inputs(graph):
    names = {o.name for o in graph.output} | {i for n in graph.node for i in n.input}
    for node in graph.node:
        for a in node.attribute:
            if a.type == onnx.AttributeProto.GRAPH:
                names |= inner_inputs(a.g)
    return names


def rewrite(model, mode="auto", tolerance=0.0, only=None):
    """Rewrites a ModelProto in place; returns the lines that the program prints."""
    return Rewriter(mode, tolerance, only).model(model)


def has_external_data(path):
    model = onnx.load(path, load_external_data=False)
    return any(t.data_location == TensorProto.EXTERNAL for t in model.graph.initializer)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--mode", choices=("auto", "exact", "accelerated"), default="auto")
    parser.add_argument("--tolerance", type=float, default=0.0, help="0: the library's default, 0.05")
    parser.add_argument("--only", help="only nodes whose name this regular expression finds")
    args = parser.parse_args()
    if not 0 <= args.tolerance <= 1:
        parser.error("--tolerance is between 0 and 1")
    try:
        external = has_external_data(args.input)
        model = onnx.load(args.input)
    except Exception as e:  # a missing file, one that is no model, weights that are not beside it
        print(f"{args.input}: {str(e).splitlines()[0] if str(e) else e!r}", file=sys.stderr)
        return 2
    work = Rewriter(args.mode, args.tolerance, args.only)
    for line in work.model(model):
        print(line)
    if not work.replaced and not work.kept:
        print("no node attends as a whole: export with opset 23 or fuse attention first, see docs/onnx.md")
    if external:
        data = args.output.name + ".data"
        (args.output.parent / data).unlink(missing_ok=True)
        onnx.save(model, args.output, save_as_external_data=True, all_tensors_to_one_file=True, location=data)
    else:
        onnx.save(model, args.output)
    print(f"{work.replaced} replaced, {work.kept} left")
    return 0 if work.replaced else 1


if __name__ == "__main__":
    sys.exit(main())
