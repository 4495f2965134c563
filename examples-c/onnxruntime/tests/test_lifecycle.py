"""Loading, sharing, unloading; threads; what ONNX Runtime does to graphs around the operator."""

import gc
import os
import subprocess
import sys
import threading
import unittest
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from nodes import IR_VERSION, LIBRARY, dense, node_model, options, session
from onnx import TensorProto, helper

LINUX = sys.platform.startswith("linux")
LEVELS = [getattr(ort.GraphOptimizationLevel, f"ORT_{n}_ALL" if n != "ENABLE_BASIC" and n != "ENABLE_EXTENDED" else f"ORT_{n}")
          for n in ("DISABLE", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE")]


def random(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tensors(n=64, m=64):
    return {"q": random(1, 1, 4, n, 16), "k": random(2, 1, 2, m, 16), "v": random(3, 1, 2, m, 16)}


def model(**attributes):
    return node_model("Attention", "iceformer", list(tensors().items()), ["y"], attributes)


def loaded():
    name = Path(LIBRARY).name
    return any(name in line for line in Path("/proc/self/maps").read_text().splitlines())


def own_threads():
    return len(os.listdir("/proc/self/task"))


class Sessions(unittest.TestCase):
    def test_two_at_once(self):
        a, b = session(model(is_causal=1)), session(model())
        given = tensors()
        for _ in range(2):
            self.assertLess(np.abs(a.run(None, given)[0] - dense(*given.values(), causal=True)).max(), 1e-5)
            self.assertLess(np.abs(b.run(None, given)[0] - dense(*given.values())).max(), 1e-5)
        del a
        gc.collect()
        self.assertLess(np.abs(b.run(None, given)[0] - dense(*given.values())).max(), 1e-5)

    def test_options_shared_and_registered_twice(self):
        o = options()
        sessions = [ort.InferenceSession(model().SerializeToString(), o) for _ in range(3)]
        del o
        gc.collect()
        given = tensors()
        answers = [s.run(None, given)[0] for s in sessions]
        self.assertTrue(all((a == answers[0]).all() for a in answers))

    def test_one_session_from_many_threads(self):
        s = session(model(is_causal=1), threads=2)
        given = tensors(500, 500)
        want = s.run(None, given)[0]
        wrong = []

        def work():
            for _ in range(10):
                if not (s.run(None, given)[0] == want).all():
                    wrong.append(1)

        callers = [threading.Thread(target=work) for _ in range(4)]
        for c in callers:
            c.start()
        for c in callers:
            c.join()
        self.assertEqual(wrong, [])

    @unittest.skipUnless(LINUX, "looks into /proc")
    def test_no_threads_of_its_own(self):
        given = tensors(700, 700)
        before = own_threads()
        s = session(model(is_causal=1), threads=1)
        s.run(None, given)
        self.assertEqual(own_threads(), before)
        three = session(model(is_causal=1), threads=3)
        started = own_threads()
        three.run(None, given)
        self.assertEqual(own_threads(), started)
        self.assertEqual(started, before + 2)

    @unittest.skipUnless(LINUX, "looks into /proc")
    def test_unloading(self):
        code = (
            "import gc, test_lifecycle as t\n"
            "assert not t.loaded()\n"
            "for i in range(5):\n"
            "    o = t.options(threads=2)\n"
            "    assert t.loaded()\n"
            "    s = t.ort.InferenceSession(t.model(is_causal=1).SerializeToString(), o)\n"
            "    y = s.run(None, t.tensors(500, 500))[0]\n"
            "    del s, o\n"
            "    gc.collect()\n"
            "    print('still there' if t.loaded() else 'gone')\n"
            "t.session(t.model()).run(None, t.tensors())\n"
            "keep = t.session(t.model())\n"  # alive when the process ends
        )
        here = str(Path(__file__).resolve().parent)
        ran = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True, timeout=120)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(ran.stdout.split("\n")[:5], ["gone"] * 5)


class Graphs(unittest.TestCase):
    def around(self, dtype=TensorProto.FLOAT, dims=("batch", 4, "rows", 16)):
        """Transpose, Attention, Add, Relu: something for optimisers to fuse and fold."""
        nodes = [
            helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1, 3]),
            helper.make_node("Attention", ["t", "t", "t"], ["a"], domain="iceformer", is_causal=1),
            helper.make_node("Add", ["a", "one"], ["b"]),
            helper.make_node("Relu", ["b"], ["c"]),
            helper.make_node("Transpose", ["c"], ["y"], perm=[0, 2, 1, 3]),
        ]
        one = onnx.numpy_helper.from_array(np.ones(1, helper.tensor_dtype_to_np_dtype(dtype)), "one")
        shape = [dims[0], dims[2], dims[1], dims[3]]
        graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", dtype, shape)],
                                  [helper.make_tensor_value_info("y", dtype, shape)], [one])
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("iceformer", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)

    def want(self, x):
        t = x.transpose(0, 2, 1, 3)
        return np.maximum(dense(t, t, t, causal=True) + 1, 0).transpose(0, 2, 1, 3)

    def test_every_optimisation_level(self):
        x = random(5, 2, 33, 4, 16)
        for level in LEVELS:
            s = session(self.around(), level=level)
            self.assertLess(np.abs(s.run(None, {"x": x})[0] - self.want(x)).max(), 1e-5, level)

    def test_dynamic_shapes_in_one_session(self):
        s = session(self.around(), threads=2)
        for batch, rows in ((1, 1), (2, 300), (1, 7), (3, 64), (0, 5), (2, 0), (1, 300)):
            x = random(5, batch, rows, 4, 16)
            y = s.run(None, {"x": x})[0]
            self.assertEqual(y.shape, x.shape)
            if y.size:
                self.assertLess(np.abs(y - self.want(x)).max(), 1e-5)

    def test_half_precision_model(self):
        x = random(5, 2, 50, 4, 16).astype(np.float16)
        for level in LEVELS:
            y = session(self.around(TensorProto.FLOAT16), level=level).run(None, {"x": x})[0]
            self.assertEqual(y.dtype, np.float16)
            self.assertLess(np.abs(y - self.want(x)).max(), 1e-2)

    def test_optimised_model_saved_and_loaded(self):
        path = Path(os.environ.get("TMPDIR", "/tmp")) / f"iceformer-{os.getpid()}.onnx"
        o = options()
        o.optimized_model_filepath = str(path)
        x = random(5, 1, 20, 4, 16)
        try:
            y = ort.InferenceSession(self.around().SerializeToString(), o).run(None, {"x": x})[0]
            self.assertTrue((session(str(path)).run(None, {"x": x})[0] == y).all())
        finally:
            path.unlink(missing_ok=True)

    def test_nodes_side_by_side(self):
        # Two nodes at a time, each dividing its work over the same threads.
        names = [f"y{i}" for i in range(4)]
        nodes = [helper.make_node("Attention", ["q", "k", "v"], [y], domain="iceformer", is_causal=1) for y in names]
        values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ["q", "k", "v"] + names]
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("iceformer", 1)]
        graph = helper.make_graph(nodes, "g", values[:3], values[3:])
        m = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        o = options(threads=2)
        o.execution_mode, o.inter_op_num_threads = ort.ExecutionMode.ORT_PARALLEL, 2
        given = tensors(700, 700)
        want = session(model(is_causal=1)).run(None, given)[0]
        s = ort.InferenceSession(m.SerializeToString(), o, providers=["CPUExecutionProvider"])
        for _ in range(5):
            for y in s.run(None, given):
                self.assertTrue((y == want).all())

    def test_spinning_off_and_memory_reuse_off(self):
        o = options(threads=2)
        o.add_session_config_entry("session.intra_op.allow_spinning", "0")
        o.enable_mem_pattern = o.enable_cpu_mem_arena = o.enable_mem_reuse = False
        given = tensors(300, 300)
        s = ort.InferenceSession(model(is_causal=1).SerializeToString(), o, providers=["CPUExecutionProvider"])
        self.assertLess(np.abs(s.run(None, given)[0] - dense(*given.values(), causal=True)).max(), 1e-5)

    def test_another_opset(self):
        # The operator does not ask for opset 23.
        for version in (13, 17, 23):
            m = self.around()
            m.opset_import[0].version = version
            x = random(5, 1, 20, 4, 16)
            self.assertLess(np.abs(session(m).run(None, {"x": x})[0] - self.want(x)).max(), 1e-5)


if __name__ == "__main__":
    unittest.main()
