"""iceformer.GroupQueryAttention beside com.microsoft.GroupQueryAttention, as a decoding loop uses it."""

import itertools
import unittest

import numpy as np
import onnxruntime as ort
from nodes import node_model, run_node, session

B, HQ, HKV, D = 2, 4, 2, 16


def random(seed, *shape, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def inputs(rows, past, last, total, batch=B, dtype=np.float32, seed=1):
    cache = None if past is None else random(seed + 3, 2, batch, HKV, past, D, dtype=dtype)
    return [
        ("q", random(seed, batch, rows, HQ * D, dtype=dtype)),
        ("k", random(seed + 1, batch, rows, HKV * D, dtype=dtype)),
        ("v", random(seed + 2, batch, rows, HKV * D, dtype=dtype)),
        ("pk", None if past is None else cache[0]),
        ("pv", None if past is None else cache[1]),
        ("last", np.array(last, np.int32)),
        ("total", np.array(total, np.int32)),
    ]


class BesideOnnxRuntime(unittest.TestCase):
    def same(self, given, limit=1e-5, **attributes):
        counts = {"num_heads": HQ, "kv_num_heads": HKV, **attributes}
        theirs = run_node("GroupQueryAttention", "com.microsoft", given, ["y", "k2", "v2"], counts)
        for threads in (1, 2):
            mode = {"mode": "exact"}
            ours = run_node("GroupQueryAttention", "iceformer", given, ["y", "k2", "v2"], {**counts, **mode}, threads)
            for a, b, most in zip(ours, theirs, (limit, 0, 0)):
                self.assertEqual((a.shape, a.dtype), (b.shape, b.dtype))
                self.assertLessEqual(np.abs(a.astype(np.float64) - b.astype(np.float64)).max(), most)
        alone = run_node("GroupQueryAttention", "iceformer", given, ["y"], {**counts, "mode": "exact"})
        self.assertTrue((alone[0] == ours[0]).all())

    def test_prompts(self):
        for n, past in itertools.product((1, 5, 300), (None, 0)):
            with self.subTest(rows=n, past=past):
                self.same(inputs(n, past, [n - 1] * B, n))

    def test_prompts_padded_at_the_end(self):
        self.same(inputs(9, 0, [8, 3], 9))
        self.same(inputs(300, 0, [120, 299], 300))

    def test_decoding(self):
        for past in (1, 6, 500):
            self.same(inputs(1, past, [past] * B, past + 1))

    def test_decoding_of_unequal_lengths(self):
        self.same(inputs(1, 60, [60, 13], 61))
        self.same(inputs(1, 60, [0, 60], 61))

    def test_cache_with_room(self):
        self.same(inputs(7, 32, [6, 6], 7))
        self.same(inputs(1, 32, [20, 11], 21))

    def test_prompt_after_a_prompt(self):
        self.same(inputs(30, 70, [99], 100, batch=1))

    def test_scale_softcap_window(self):
        for window, rows in itertools.product((-1, 1, 3, 40), (1, 90)):
            given = inputs(rows, 50 if rows == 1 else 0, [50 if rows == 1 else 89] * B, 51 if rows == 1 else 90)
            self.same(given, local_window_size=window)
            self.same(given, local_window_size=window, softcap=0.7, scale=0.4)

    def test_half_precision(self):
        self.same(inputs(40, 0, [39, 17], 40, dtype=np.float16), 4e-3)
        self.same(inputs(1, 40, [40, 17], 41, dtype=np.float16), 4e-3)

    def test_every_step_of_a_loop(self):
        # A prompt, then tokens one by one into what the step before gave back.
        counts = {"num_heads": HQ, "kv_num_heads": HKV}
        outs = ["y", "k2", "v2"]
        caches = {"com.microsoft": None, "iceformer": None}
        for step in range(12):
            rows, past = (20, 0) if step == 0 else (1, 19 + step)
            answers = []
            for domain, cache in caches.items():
                given = inputs(rows, past, [past + rows - 1] * B, past + rows, seed=10 * step)
                if cache:
                    given[3:5] = [("pk", cache[0]), ("pv", cache[1])]
                y = run_node("GroupQueryAttention", domain, given, outs, counts)
                caches[domain] = y[1:]
                answers.append(y[0])
            self.assertLessEqual(np.abs(answers[0] - answers[1]).max(), 1e-5)

    def test_cache_bound_to_its_own_memory(self):
        # Past and present are the same tensor: extended in place.
        room, counts = 32, {"num_heads": HQ, "kv_num_heads": HKV}
        given = inputs(1, room, [12] * B, 13)
        want = run_node("GroupQueryAttention", "com.microsoft", given, ["y", "k2", "v2"], counts)
        s = session(node_model("GroupQueryAttention", "iceformer", given, ["y", "k2", "v2"], counts))
        values = {n: ort.OrtValue.ortvalue_from_numpy(a) for n, a in given}
        binding = s.io_binding()
        for n, value in values.items():
            binding.bind_ortvalue_input(n, value)
        binding.bind_output("y")
        binding.bind_ortvalue_output("k2", values["pk"])
        binding.bind_ortvalue_output("v2", values["pv"])
        s.run_with_iobinding(binding)
        self.assertLessEqual(np.abs(binding.copy_outputs_to_cpu()[0] - want[0]).max(), 1e-5)
        for n, b in (("pk", want[1]), ("pv", want[2])):
            self.assertTrue((values[n].numpy()[:, :, :13] == b[:, :, :13]).all())


if __name__ == "__main__":
    unittest.main()
