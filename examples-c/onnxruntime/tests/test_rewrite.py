"""The rewriter: the same model with and without it, and what it leaves alone."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np
import onnx
from nodes import IR_VERSION, TYPES, node_model, session
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import rewrite  # noqa: E402

B, H, D = 2, 4, 16


def random(seed, *shape, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def ops(model):
    return [(n.domain, n.op_type) for n in model.graph.node]


class Base(unittest.TestCase):
    def same(self, model, feeds, limit=1e-5, replaced=1, kept=0, threads=1):
        theirs = session(model, threads).run(None, feeds)
        ours = onnx.ModelProto.FromString(model.SerializeToString())
        work = rewrite.Rewriter("exact")
        lines = work.model(ours)
        self.assertEqual((work.replaced, work.kept), (replaced, kept), lines)
        for o, y in zip(ours.graph.output, theirs):
            if not o.type.tensor_type.HasField("shape"):  # the checker wants one
                o.CopyFrom(helper.make_tensor_value_info(o.name, o.type.tensor_type.elem_type, y.shape))
        onnx.checker.check_model(ours)
        answers = session(ours, threads).run(None, feeds)
        for a, b in zip(answers, theirs):
            self.assertEqual((a.shape, a.dtype), (b.shape, b.dtype))
            self.assertLessEqual(np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0), limit, lines)
        return ours, lines

    def node(self, op, domain, inputs, outputs=("y",), attributes=None, constants=(), limit=1e-5, **expect):
        model = node_model(op, domain, inputs, list(outputs), attributes or {}, TYPES[inputs[0][1].dtype])
        for name in constants:
            value = next(a for n, a in inputs if n == name)
            model.graph.initializer.append(numpy_helper.from_array(value, name))
            keep = [i for i in model.graph.input if i.name != name]
            del model.graph.input[:]
            model.graph.input.extend(keep)
        for i in model.graph.input:
            value = next(a for n, a in inputs if n == i.name)
            if value.ndim == 3:  # as exporters do
                i.type.tensor_type.shape.dim[2].dim_value = value.shape[2]
        feeds = {n: a for n, a in inputs if a is not None and n not in constants}
        return self.same(model, feeds, limit, **expect)

    def left(self, words, op, domain, inputs, outputs=("y",), attributes=None, opset=None):
        model = node_model(op, domain, inputs, list(outputs), attributes or {}, TYPES[inputs[0][1].dtype])
        if opset:
            model.opset_import[0].version = opset
        before = model.SerializeToString()
        lines = rewrite.rewrite(model)
        self.assertEqual(model.SerializeToString(), before, "what is left is left as it was")
        self.assertEqual(len(lines), 1, lines)
        self.assertTrue(lines[0].startswith("left: node"), lines)
        self.assertIn(words, lines[0])


class Attention(Base):
    def given(self, n=30, m=50):
        return [("q", random(1, B, H, n, D)), ("k", random(2, B, 2, m, D)), ("v", random(3, B, 2, m, D))]

    def test_replaced(self):
        self.node("Attention", "", self.given())
        self.node("Attention", "", [*self.given(), ("mask", random(4, 30, 50) < 0.5)], attributes={"is_causal": 1})
        past = [("pk", random(5, B, 2, 9, D)), ("pv", random(6, B, 2, 9, D))]
        settings = {"is_causal": 1, "scale": 0.3, "softcap": 2.0}
        self.node("Attention", "", [*self.given(9, 9), ("mask", None), *past], ("y", "pk2", "pv2"), settings)

    def test_settings(self):
        model = node_model("Attention", "", self.given(), ["y"], {})
        rewrite.rewrite(model, "accelerated", 0.02)
        given = rewrite.attributes_of(model.graph.node[0])
        self.assertEqual((given["mode"], round(given["tolerance"], 6)), (b"accelerated", 0.02))
        self.assertEqual(ops(model), [("iceformer", "Attention")])
        again = model.SerializeToString()
        self.assertEqual(rewrite.rewrite(model), [])
        self.assertEqual(model.SerializeToString(), again)

    def test_only(self):
        model = node_model("Attention", "", self.given(), ["y"], {})
        self.assertIn("--only", rewrite.rewrite(model, only="layer7")[0])
        self.assertIn("replaced", rewrite.rewrite(model, only="no.e")[0])

    def test_left(self):
        self.left("scores", "Attention", "", self.given(), ("y", "", "", "qk"))
        self.left("double", "Attention", "", self.given(), attributes={"softmax_precision": TensorProto.DOUBLE})
        self.left("opset 22", "Attention", "", self.given(), opset=22)
        doubles = [(n, a.astype(np.int32)) for n, a in self.given()]
        self.left("element type INT32", "Attention", "", doubles)
        self.left("nonpad_kv_seqlen", "Attention", "", [*self.given(), *[(x, None) for x in "abc"],
                                                        ("lens", np.array([50, 40]))], opset=24)
        self.left("unknown attributes: flavour", "Attention", "", self.given(), attributes={"flavour": 3})
        self.left("projects", "Attention", "com.microsoft", [("x", random(1, 2, 9, 8)), ("w", random(1, 8, 24))],
                  attributes={"num_heads": 2})
        self.left("cache in pages", "PagedAttention", "com.microsoft", self.given())


class MultiHead(Base):
    MS = ("MultiHeadAttention", "com.microsoft")

    def given(self, n=30, m=50, dtype=np.float32):
        return [("q", random(1, B, n, H * D, dtype=dtype)), ("k", random(2, B, m, H * D, dtype=dtype)),
                ("v", random(3, B, m, H * D, dtype=dtype))]

    def test_plain(self):
        self.node(*self.MS, self.given(), attributes={"num_heads": H})
        self.node(*self.MS, self.given(), attributes={"num_heads": H, "scale": 0.5})
        self.node(*self.MS, self.given(20, 20), attributes={"num_heads": H, "unidirectional": 1})

    def test_half_precision(self):
        # ONNX Runtime has no 16-bit kernel for it on CPUs and puts casts around it.
        self.node(*self.MS, self.given(dtype=np.float16), attributes={"num_heads": H}, limit=4e-3)

    def test_bias(self):
        given = [*self.given(), ("bias", random(4, 3 * H * D))]
        self.node(*self.MS, given, attributes={"num_heads": H}, constants=["bias"])
        wide = given[:2] + [("v", random(3, B, 50, H * 24)), ("bias", random(4, 2 * H * D + H * 24))]
        self.node(*self.MS, wide, attributes={"num_heads": H}, constants=["bias"])
        model = node_model(*self.MS, given, ["y"], {"num_heads": H})
        self.assertIn("size of its parts", rewrite.rewrite(model)[0])

    def test_padding(self):
        lengths = np.array([50, 31])
        keep = (np.arange(50) < lengths[:, None]).astype(np.int32)
        self.node(*self.MS, [*self.given(), ("bias", None), ("keep", keep)], attributes={"num_heads": H})
        left = keep[:, ::-1].copy()
        self.node(*self.MS, [*self.given(), ("bias", None), ("keep", left)], attributes={"num_heads": H})
        rows = (random(5, B, 30, 50) < 0.5).astype(np.int32)
        self.node(*self.MS, [*self.given(), ("bias", None), ("keep", rows)], attributes={"num_heads": H})
        self.left("key_padding_mask of 1", *self.MS, [*self.given(), ("bias", None), ("keep", lengths.astype(np.int32))],
                  attributes={"num_heads": H})

    def test_attention_bias(self):
        for shape in ((1, 1, 30, 50), (B, 1, 30, 50), (1, H, 30, 50), (B, H, 30, 50)):
            given = [*self.given(), ("bias", None), ("keep", None), ("added", random(5, *shape))]
            self.node(*self.MS, given, attributes={"num_heads": H})
        keep = (np.arange(50) < np.array([[50], [31]])).astype(np.int32)
        given = [*self.given(), ("bias", None), ("keep", keep), ("added", random(5, B, 1, 30, 50))]
        self.node(*self.MS, given, attributes={"num_heads": H})

    def test_past(self):
        past = [("pk", random(5, B, H, 9, D)), ("pv", random(6, B, H, 9, D))]
        given = [*self.given(4, 4), *[(x, None) for x in "abc"], *past]
        self.node(*self.MS, given, ("y", "pk2", "pv2"), {"num_heads": H})

    def test_keys_of_an_encoder(self):
        # Cross-attention: keys and values come as heads.
        given = [("q", random(1, B, 5, H * D)), ("k", random(2, B, H, 50, D)), ("v", random(3, B, H, 50, D))]
        self.node(*self.MS, given, attributes={"num_heads": H})

    def test_left(self):
        packed = [("qkv", random(1, B, 9, H, 3, D))]
        self.left("packed", *self.MS, packed, attributes={"num_heads": H})
        self.left("scores", *self.MS, self.given(), ("y", "", "", "qk"), {"num_heads": H})
        shared = [*self.given(), *[(x, None) for x in "abcde"], ("length", np.array([3], np.int32))]
        self.left("shares a buffer", *self.MS, shared, attributes={"num_heads": H})


class GroupQuery(Base):
    D = 32  # ONNX Runtime turns multiples of 16 elements
    MS = ("GroupQueryAttention", "com.microsoft")
    COUNTS = {"num_heads": 4, "kv_num_heads": 2}
    OUTS = ("y", "pk2", "pv2")

    def given(self, rows=20, past=0, last=None, packed=False, turned=None):
        q, k, v = random(1, B, rows, 4 * self.D), random(2, B, rows, 2 * self.D), random(3, B, rows, 2 * self.D)
        first = [("q", np.concatenate([q, k, v], -1)), ("k", None), ("v", None)] if packed else [("q", q), ("k", k), ("v", v)]
        total = past + rows
        last = [total - 1] * B if last is None else last
        out = [*first, ("pk", random(4, B, 2, past, self.D)), ("pv", random(5, B, 2, past, self.D)),
               ("last", np.array(last, np.int32)), ("total", np.array(total, np.int32))]
        if turned:
            angle = np.arange(200)[:, None] / 50 ** (np.arange(turned // 2) / turned * 2)
            out += [("cos", np.cos(angle).astype(np.float32)), ("sin", np.sin(angle).astype(np.float32))]
        return out

    def test_plain(self):
        self.node(*self.MS, self.given(), self.OUTS, self.COUNTS)
        self.node(*self.MS, self.given(last=[19, 7]), self.OUTS, self.COUNTS)
        self.node(*self.MS, self.given(1, 30), self.OUTS, {**self.COUNTS, "scale": 0.3, "softcap": 4.0})
        self.node(*self.MS, self.given(1, 30, [30, 11]), self.OUTS, {**self.COUNTS, "local_window_size": 8})

    def test_packed(self):
        self.node(*self.MS, self.given(packed=True), self.OUTS, self.COUNTS)
        self.node(*self.MS, self.given(1, 30, packed=True), self.OUTS, self.COUNTS)

    def test_rotation(self):
        for interleaved in (0, 1):
            turn = {**self.COUNTS, "do_rotary": 1, "rotary_interleaved": interleaved}
            for size in (self.D, self.D // 2):
                for packed in (False, True):
                    for rows, past, last in ((20, 0, None), (20, 0, [19, 7]), (1, 30, None), (1, 30, [30, 11])):
                        with self.subTest(interleaved=interleaved, size=size, packed=packed, rows=rows, last=last):
                            given = self.given(rows, past, last, packed, size)
                            constants = ["cos", "sin"]
                            ours, _ = self.same_but_padding(given, turn, constants, last if rows > 1 else None)
        self.assertIn(("com.microsoft", "RotaryEmbedding"), ops(ours))

    def same_but_padding(self, given, attributes, constants, last):
        """Rows behind the end of a shorter prompt mean nothing, and ONNX Runtime turns them by no angle of theirs."""
        if last is None:
            return self.node(*self.MS, given, self.OUTS, attributes, constants, limit=2e-5)
        rows = given[0][1].shape[1]
        given = [(n, a[1:] if n in ("q", "k", "v") and a is not None else a) for n, a in given]
        given = [(n, a[1:] if n in ("pk", "pv", "last") else a) for n, a in given]
        used = last[1] + 1
        model = node_model(*self.MS, given, ["y"], attributes)
        del model.graph.output[:]
        model.graph.output.append(helper.make_tensor_value_info("valid", TensorProto.FLOAT, None))
        for name, value in (("zero", [0]), ("end", [used]), ("axis", [1])):
            model.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
        model.graph.node.append(helper.make_node("Slice", ["y", "zero", "end", "axis"], ["valid"]))
        for name in constants:
            model.graph.initializer.append(numpy_helper.from_array(dict(given)[name], name))
        inputs = [i for i in model.graph.input if i.name not in constants]
        del model.graph.input[:]
        model.graph.input.extend(inputs)
        for i in model.graph.input:
            if dict(given)[i.name].ndim == 3:
                i.type.tensor_type.shape.dim[2].dim_value = dict(given)[i.name].shape[2]
        self.assertLess(used, rows)
        feeds = {n: a for n, a in given if a is not None and n not in constants}
        return self.same(model, feeds, 2e-5)

    def test_left(self):
        def left(words, given, **attributes):
            self.left(words, *self.MS, given, self.OUTS, {**self.COUNTS, **attributes})

        left("packed", self.given(packed=True))  # of a size that is not written down
        left("without cos_cache", self.given(), do_rotary=1)
        left("size of cos_cache", self.given(turned=self.D), do_rotary=1)
        model = node_model(*self.MS, [*self.given(turned=self.D), ("pos", np.zeros((B, 20), np.int64))], ["y"],
                           {**self.COUNTS, "do_rotary": 1})
        for name in ("cos", "sin"):
            model.graph.initializer.append(numpy_helper.from_array(dict(self.given(turned=self.D))[name], name))
        self.assertIn("position_ids", rewrite.rewrite(model)[0])
        left("smooth_softmax", self.given(), smooth_softmax=1)
        left("quantised", self.given(), k_quant_type="PER_TENSOR")
        extra = [(x, None) for x in "abc"]
        left("attention_bias", [*self.given(), *extra, ("bias", random(1, 1, 1, 20, 20))])
        left("head_sink", [*self.given(), *extra, ("bias", None), ("sink", random(1, 4))])


class Models(Base):
    def two_layers(self):
        q = random(1, 1, 2, 9, 8)
        info = lambda n: helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 2, "n", 8])  # noqa: E731
        first = helper.make_node("Attention", ["x", "x", "x"], ["a"], name="first", is_causal=1)
        return q, info, first

    def test_branches(self):
        q, info, first = self.two_layers()
        inner = [helper.make_node("Attention", ["a", "x", "a"], [o], name=o) for o in ("then_y", "else_y")]
        inner.append(helper.make_node("Attention", ["a", "a", "a"], ["spare"], name="unused scores"))
        branches = {
            "then_branch": helper.make_graph([inner[0]], "then", [], [info("then_y")]),
            "else_branch": helper.make_graph([inner[1]], "else", [], [info("else_y")]),
        }
        choose = helper.make_node("If", ["flag"], ["y"], **branches)
        flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
        graph = helper.make_graph([first, choose], "g", [info("x"), flag], [info("y")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=IR_VERSION)
        for value in (True, False):
            self.same(model, {"x": q, "flag": np.array(value)}, replaced=3)

    def test_functions(self):
        q, info, first = self.two_layers()
        opset = helper.make_opsetid("", 23)
        body = helper.make_function("local", "Layer", ["x"], ["a"], [first], [opset])
        nodes = [helper.make_node("Layer", ["x"], ["b"], domain="local"),
                 helper.make_node("Layer", ["b"], ["y"], domain="local")]
        graph = helper.make_graph(nodes, "g", [info("x")], [info("y")])
        imports = [opset, helper.make_opsetid("local", 1)]
        model = helper.make_model(graph, opset_imports=imports, functions=[body], ir_version=IR_VERSION)
        self.same(model, {"x": q}, replaced=2)

    def test_some_replaced_some_left(self):
        q, info, first = self.two_layers()
        second = helper.make_node("Attention", ["a", "a", "a"], ["y", "", "", "s"], name="second")
        third = helper.make_node("Attention", ["y", "a", "a"], ["z", "", "", "nobody"], name="third")
        scores = helper.make_tensor_value_info("s", TensorProto.FLOAT, None)
        graph = helper.make_graph([first, second, third], "g", [info("x")], [info("z"), scores])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=IR_VERSION)
        ours, lines = self.same(model, {"x": q}, replaced=2, kept=1)
        self.assertEqual(lines[1], "left: second (Attention): its scores (qk_matmul_output) are used")

    def test_program(self):
        q, info, first = self.two_layers()
        weight = numpy_helper.from_array(random(3, 8, 8), "w")
        nodes = [helper.make_node("MatMul", ["t", "w"], ["x"]), first]
        graph = helper.make_graph(nodes, "g", [info("t")], [info("a")], [weight])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=IR_VERSION)
        with tempfile.TemporaryDirectory() as folder:
            at = Path(folder)
            onnx.save(model, at / "in.onnx")
            onnx.save(model, at / "big.onnx", save_as_external_data=True, location="weights", size_threshold=0)
            want = session(str(at / "in.onnx")).run(None, {"t": q})[0]
            (at / "out").mkdir()
            for name in ("in.onnx", "big.onnx"):
                program = [sys.executable, str(ROOT / "rewrite.py"), str(at / name), str(at / "out" / name)]
                ran = subprocess.run(program, capture_output=True, text=True)
                self.assertEqual((ran.returncode, ran.stdout), (0, "replaced: first (Attention)\n1 replaced, 0 left\n"), ran.stderr)
                y = session(str(at / "out" / name)).run(None, {"t": q})[0]
                self.assertLess(np.abs(y - want).max(), 1e-5)
            nothing = subprocess.run([*program[:2], str(at / "out" / "in.onnx"), str(at / "again.onnx")], capture_output=True)
            self.assertEqual(nothing.returncode, 1)
            self.assertIn(b"no node attends", nothing.stdout)
            missing = subprocess.run([*program[:2], str(at / "no.onnx"), str(at / "n.onnx")], capture_output=True, text=True)
            self.assertEqual((missing.returncode, missing.stdout, missing.stderr.count("\n")), (2, "", 1))
            self.assertFalse((at / "n.onnx").exists())


if __name__ == "__main__":
    unittest.main()
