"""What is wrong is refused, with words that say what."""

import unittest

import numpy as np
import onnxruntime as ort
from nodes import attention, node_model, options, run_node, session


def random(*shape):
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def inputs(rows=5):
    return [(n, random(1, 2, rows, 8)) for n in "qkv"]


def gqa(last=(4, 4), total=5, past=0, rows=5, kv=2, extra=(), **attributes):
    given = [("q", random(2, rows, 32)), ("k", random(2, rows, 16)), ("v", random(2, rows, 16)),
              ("pk", random(2, kv, past, 8)), ("pv", random(2, kv, past, 8)),
              ("last", np.array(last, np.int32)), ("total", np.array(total, np.int32)), *extra]
    return run_node("GroupQueryAttention", "iceformer", given, ["y"], {"num_heads": 4, "kv_num_heads": 2, **attributes})


class Refusals(unittest.TestCase):
    def refused(self, words, call, *args, **given):
        with self.assertRaises(Exception) as caught:
            call(*args, **given)
        text = str(caught.exception)
        self.assertIn("iceformer.", text)
        for word in words.split("|"):
            self.assertIn(word, text)

    def ours(self, words, q=(2, 4, 5, 8), k=(2, 2, 7, 8), v=None, **given):
        tensors = [random(*s) if isinstance(s, tuple) else s for s in (q, k, v or k)]
        self.refused(words, attention, "iceformer", *tensors, **given)

    def test_attributes(self):
        self.ours('mode: "fast"|"exact"', mode="fast")
        self.ours("mode: 7", mode=7)
        self.ours("tolerance: 1.5", tolerance=1.5)
        self.ours("tolerance: -0.1", tolerance=-0.1)
        self.ours("tolerance: 3", tolerance=3)
        self.ours("tolerance: nan", tolerance=float("nan"))
        self.ours("scale: 0", scale=0.0)
        self.ours("scale: nan", scale=float("nan"))
        self.ours("scale: inf", scale=float("inf"))
        self.ours("softcap: -1", softcap=-1.0)
        self.ours("q_num_heads", q_num_heads=-1)
        self.ours("softmax_precision: 11", softmax_precision=11)

    def test_shapes(self):
        self.ours("Q, K, V: batches 2, 1, 1", k=(1, 2, 7, 8))
        self.ours("rows of K and V 7, 6", v=(2, 2, 6, 8))
        self.ours("K: heads of 16 elements|Q have 8", k=(2, 2, 7, 16))
        self.ours("K: 3 heads, no divisor of the 4", k=(2, 3, 7, 8))
        self.ours("Q: 4 heads|q_num_heads says 2", q_num_heads=2)
        self.ours("Q: of shape [2, 5, 32] needs the attribute q_num_heads", q=(2, 5, 32), k=(2, 7, 16))
        self.ours("no multiple of q_num_heads = 5", q=(2, 5, 32), k=(2, 7, 16), q_num_heads=5, kv_num_heads=2)
        self.ours("Q: shape [2, 5]", q=(2, 5))
        self.ours("Q: heads of no elements", q=(2, 4, 5, 0), k=(2, 2, 7, 0))

    def test_past(self):
        past = random(2, 2, 3, 8)
        self.ours("past_key, past_value: shapes", past_k=past, past_v=random(2, 2, 4, 8))
        self.ours("past_key, past_value: shapes", past_k=past, past_v=random(2, 2, 3, 9))
        self.ours("past_key: shape [2, 3, 16]", past_k=random(2, 3, 16), past_v=random(2, 3, 16))
        self.ours("only one of them", past_k=past)

    def test_masks(self):
        self.ours("attn_mask: shape [5, 6] does not broadcast to [batch 2, heads 4, rows 5, keys 7]", mask=random(5, 6))
        self.ours("attn_mask: shape [1, 1, 1, 5, 7]", mask=random(1, 1, 1, 5, 7))
        self.ours("attn_mask: element type 7", mask=np.ones((5, 7), np.int64))
        for wrong in (np.nan, np.inf):
            mask = np.zeros((5, 7), np.float32)
            mask[3, 4] = wrong
            self.ours("bias|NOT_FINITE", mask=mask)

    def test_numbers(self):
        for i in range(3):
            for wrong in (np.nan, np.inf):
                tensors = [random(1, 1, 400, 8) for _ in range(3)]
                tensors[i][0, 0, 333, 2] = wrong
                for mode in ("exact", "accelerated"):
                    self.refused("qkv"[i] + "|NOT_FINITE", attention, "iceformer", *tensors, mode=mode)

    def test_scores_as_an_output(self):
        self.refused("qk_matmul_output", run_node, "Attention", "iceformer", inputs(), ["y", "", "", "qk"], {})

    def test_group_query(self):
        self.refused("num_heads and kv_num_heads: 4 and 3", gqa, kv_num_heads=3)
        self.refused("do_rotary", gqa, do_rotary=1)
        self.refused("smooth_softmax", gqa, smooth_softmax=1)
        self.refused("seqlens_k[1]: 5", gqa, last=(4, 5))
        self.refused("seqlens_k[0]: -1", gqa, last=(-1, 4))
        self.refused("seqlens_k: shape [3]; 2 numbers", gqa, last=(4, 4, 4))
        self.refused("total_sequence_length: 4 with 5 new rows", gqa, total=4)
        self.refused("past_key: 3 rows, seqlens_k[0] asks for 4", gqa, last=(4, 4), rows=1, past=3)
        self.refused("past_key: 3 heads|kv_num_heads says 2", gqa, past=3, rows=1, last=(3, 3), total=4, kv=3)
        self.refused("key: shape [2, 1, 16] does not fit query [2, 1, 32]", gqa, rows=1, num_heads=2)
        self.refused("cos_cache", gqa, extra=[("cos", random(9, 4)), ("sin", random(9, 4))])

    def test_other_types_have_no_operator(self):
        q = random(1, 2, 5, 8).astype(np.float64)
        model = node_model("Attention", "iceformer", inputs(), ["y"], {})
        for i in model.graph.input:
            i.type.tensor_type.elem_type = 11
        with self.assertRaises(Exception) as caught:
            session(model).run(None, {n: q for n in "qkv"})
        self.assertIn("double", str(caught.exception))

    def test_a_refusal_leaves_the_session_usable(self):
        s = session(node_model("Attention", "iceformer", inputs(300), ["y"], {}), threads=2)
        good = dict(inputs(300))
        want = s.run(None, good)[0]
        bad = {**good, "k": np.full_like(good["k"], np.nan)}
        for _ in range(3):
            with self.assertRaises(Exception):
                s.run(None, bad)
            self.assertTrue((s.run(None, good)[0] == want).all())

    def test_without_the_library(self):
        data = node_model("Attention", "iceformer", inputs(), ["y"], {}).SerializeToString()
        with self.assertRaises(Exception) as caught:
            ort.InferenceSession(data, options(library=False), providers=["CPUExecutionProvider"])
        self.assertIn("iceformer", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
