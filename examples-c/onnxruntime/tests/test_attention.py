"""iceformer.Attention beside ONNX Runtime's own operator of opset 23, and beside the definition."""

import itertools
import unittest

import numpy as np
from nodes import attention, dense
from weights import captured

EXACT = 1e-5


def random(seed, *shape, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def heads(batch, q_heads, kv_heads, rows, keys, dim, value_dim=None, dtype=np.float32, seed=1):
    return (
        random(seed, batch, q_heads, rows, dim, dtype=dtype),
        random(seed + 1, batch, kv_heads, keys, dim, dtype=dtype),
        random(seed + 2, batch, kv_heads, keys, value_dim or dim, dtype=dtype),
    )


def flat(x):
    b, h, n, d = x.shape
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(b, n, h * d)


class Base(unittest.TestCase):
    def same(self, what, ours, theirs, limit=EXACT):
        self.assertEqual(len(ours), len(theirs))
        for a, b in zip(ours, theirs):
            self.assertEqual((a.shape, a.dtype), (b.shape, b.dtype), what)
            if a.size:
                self.assertLessEqual(np.abs(a.astype(np.float64) - b.astype(np.float64)).max(), limit, what)

    def both(self, what, q, k, v, limit=EXACT, threads=1, settings=None, **given):
        ours = attention("iceformer", q, k, v, threads=threads, **{"mode": "exact", **(settings or {})}, **given)
        theirs = attention("", q, k, v, **given)
        self.same(what, ours, theirs, limit)
        return ours


class BesideOnnxRuntime(Base):
    def test_shapes(self):
        shapes = [(1, 1, 1), (2, 4, 2), (3, 6, 1), (1, 8, 8)]
        sizes = [(1, 1), (1, 300), (5, 7), (200, 200), (450, 130), (193, 385)]
        for (b, hq, hkv), (n, m), dim, causal in itertools.product(shapes, sizes, (8, 40, 64), (0, 1)):
            q, k, v = heads(b, hq, hkv, n, m, dim)
            what = f"{b} x {hq}/{hkv} heads, {n} x {m}, {dim} elements, causal {causal}"
            with self.subTest(what):
                ours = self.both(what, q, k, v, is_causal=causal)
                self.same(what, ours, [dense(q, k, v, causal=causal).astype(np.float32)])

    def test_three_dimensions(self):
        for hq, hkv, n, m, causal in itertools.product((2, 6), (1, 2), (1, 70), (1, 333), (0, 1)):
            q, k, v = heads(2, hq, hkv, n, m, 16, 24)
            counts = {"q_num_heads": hq, "kv_num_heads": hkv}
            y = self.both("3-D", flat(q), flat(k), flat(v), is_causal=causal, present=True, **counts)
            self.same("3-D", y[:1], [flat(dense(q, k, v, causal=causal)).astype(np.float32)])
            self.same("present", y[1:], [k, v], 0)

    def test_value_dimension(self):
        q, k, v = heads(2, 4, 2, 50, 60, 24, 72)
        self.both("72 elements of a value", q, k, v)

    def test_past(self):
        for n, past, hkv, causal in itertools.product((1, 3, 210), (1, 250), (1, 4), (0, 1)):
            q, k, v = heads(2, 4, hkv, n, n, 32)
            past_k, past_v = random(7, 2, hkv, past, 32), random(8, 2, hkv, past, 32)
            given = {"past_k": past_k, "past_v": past_v, "is_causal": causal}
            what = f"{n} rows after {past}, causal {causal}"
            with self.subTest(what):
                y = self.both(what, q, k, v, present=True, **given)
                whole_k, whole_v = np.concatenate([past_k, k], 2), np.concatenate([past_v, v], 2)
                self.same(what, y[1:], [whole_k, whole_v], 0)
                alone = attention("iceformer", q, k, v, mode="exact", **given)
                self.same(what + ", present not asked for", alone, y[:1], 0)

    def test_past_of_another_layout(self):
        q, k, v = heads(2, 4, 2, 9, 9, 16)
        past_k, past_v = random(7, 2, 2, 30, 16), random(8, 2, 2, 30, 16)
        counts = {"q_num_heads": 4, "kv_num_heads": 2, "is_causal": 1}
        y = self.both("3-D with past", flat(q), flat(k), flat(v), past_k=past_k, past_v=past_v, present=True, **counts)
        self.same("present", y[1:], [np.concatenate([past_k, k], 2), np.concatenate([past_v, v], 2)], 0)

    def test_scale_and_softcap(self):
        q, k, v = heads(2, 4, 2, 70, 90, 32)
        mask = random(5, 70, 90)
        for scale, softcap, use in itertools.product((None, 0.03, 1.5), (0.0, 0.7, 20.0), (False, True)):
            given = {} if scale is None else {"scale": scale}
            y = self.both("scale, softcap", q, k, v, softcap=softcap, mask=mask if use else None, **given)
            ref = dense(q, k, v, mask if use else None, scale=scale, softcap=softcap)
            self.same("scale, softcap", y, [ref.astype(np.float32)])

    def test_half_precision(self):
        half = np.float16
        for n, m, causal, use in itertools.product((1, 200), (64, 300), (0, 1), (None, np.bool_, np.float16)):
            q, k, v = heads(2, 4, 2, n, m, 64, dtype=half)
            mask = None
            if use is np.bool_:
                mask = random(3, 2, 1, n, m) < 1
            elif use:
                mask = random(3, 2, 1, n, m, dtype=half)
            y = self.both("half", q, k, v, limit=4e-3, is_causal=causal, mask=mask, present=True)
            # Closer to the definition than one rounding to 16 bits.
            ref = dense(q, k, v, mask, causal=causal)
            self.same("half", y[:1], [ref.astype(half)], 2e-3)

    def test_threads_change_no_bit(self):
        q, k, v = heads(2, 4, 2, 700, 700, 64)
        mask = random(3, 2, 1, 700, 700) < 0.8
        for given in ({}, {"is_causal": 1}, {"mask": mask}, {"mask": mask, "is_causal": 1}):
            one = attention("iceformer", q, k, v, threads=1, mode="exact", **given)
            for threads in (2, 3):
                self.same("threads", attention("iceformer", q, k, v, threads=threads, mode="exact", **given), one, 0)


class Masks(Base):
    """Every way a mask can be understood, against the definition and, where it takes the shape, ONNX Runtime."""

    def check(self, what, mask, n, m, theirs=True, b=2, hq=4, hkv=2, mode="exact", **given):
        q, k, v = heads(b, hq, hkv, n, m, 32)
        ours = attention("iceformer", q, k, v, mask=mask, mode=mode, **given)
        ref = dense(q, k, v, mask, causal=given.get("is_causal", 0)).astype(np.float32)
        with self.subTest(what):
            self.same(what, ours, [ref])
            if theirs:
                self.same(what, ours, attention("", q, k, v, mask=mask, **given))

    def every_form(self, what, keep, **given):
        n, m = keep.shape[-2:]
        low = np.finfo(np.float32).min
        for causal in (0, 1):
            self.check(f"{what}, bool, causal {causal}", keep, n, m, is_causal=causal, **given)
            bias = np.where(keep, 0, -np.inf).astype(np.float32)
            self.check(f"{what}, -inf, causal {causal}", bias, n, m, is_causal=causal, **given)
            if keep.any(-1).all() and not causal:
                self.check(f"{what}, lowest", np.where(keep, 0, low).astype(np.float32), n, m, **given)
                self.check(f"{what}, -60000", np.where(keep, 0, -60000).astype(np.float32), n, m, **given)
            half = np.where(keep, 0, -65504).astype(np.float16)
            if keep[..., 0].all():
                self.check(f"{what}, f16, causal {causal}", half, n, m, is_causal=causal, theirs=False, **given)

    def test_structures(self):
        n, m = 230, 260
        i, j = np.arange(n)[:, None], np.arange(m)
        random_keep = random(3, n, m) < 0.5
        forms = {
            "everything": np.ones((n, m), bool),
            "nothing": np.zeros((n, m), bool),
            "lower triangle": j <= i,
            "lower triangle from the end": j <= i + m - n,
            "right padding": np.broadcast_to(j < 200, (n, m)),
            "left padding": np.broadcast_to(j >= 70, (n, m)),
            "both paddings": np.broadcast_to((j >= 70) & (j < 75), (n, m)),
            "left padding, causal": (j >= 70) & (j <= i),
            "window": (j <= i) & (j > i - 40),
            "two sequences": (i < 100) == (j < 100),
            "one row sees nothing": np.broadcast_to(i != 17, (n, m)),
            "first row sees nothing": np.broadcast_to(i != 0, (n, m)),
            "one hole": np.broadcast_to((j != 133), (n, m)),
            "noise": random_keep,
            "a key per row": j == i,
        }
        for what, keep in forms.items():
            self.every_form(what, keep)

    def test_broadcasts(self):
        n, m = 40, 130
        for shape in [(n, m), (1, n, m), (4, n, m), (1, 1, n, m), (2, 1, n, m), (1, 4, n, m), (2, 4, n, m)]:
            self.check(f"noise {shape}", random(3, *shape) < 0.5, n, m)
            self.check(f"bias {shape}", random(3, *shape), n, m)
            self.check(f"bias {shape}, causal", random(3, *shape), n, m, is_causal=1)
            self.check(f"f16 bias {shape}", random(3, *shape, dtype=np.float16), n, m, theirs=False)

    def test_rows_shared(self):
        # ONNX Runtime wants as many rows as there are queries; the standard allows one for all.
        n, m = 40, 130
        for shape in [(m,), (1, m), (2, 1, 1, m), (1, 4, 1, m), (2, 4, 1, m)]:
            keep = random(3, *shape) < 0.5
            for causal in (0, 1):
                self.check(f"rows shared {shape}", keep, n, m, theirs=False, is_causal=causal)
                bias = np.where(keep, 0, -np.inf).astype(np.float32)
                self.check(f"rows shared {shape}, -inf", bias, n, m, theirs=False, is_causal=causal)
                self.check(f"rows shared {shape}, bias", random(4, *shape), n, m, theirs=False, is_causal=causal)
        self.check("keys shared", random(3, 2, 1, n, 1), n, m, theirs=False)
        self.check("keys shared, bool", random(3, 2, 1, n, 1) < 0, n, m, theirs=False, is_causal=1)

    def test_finite_numbers_that_hide_everything(self):
        n, m = 30, 50
        row = np.arange(n)[:, None] == 7
        # The lowest number is minus infinity, to ONNX Runtime as well: the row is 0.
        for dtype in (np.float32, np.float16):
            q, k, v = heads(2, 4, 2, n, m, 32, dtype=dtype)
            low = np.where(row, np.finfo(dtype).min, dtype(0)) + np.zeros((n, m), dtype)
            low[20, 10:] = low[7, 10:]
            y = self.both("lowest", q, k, v, mask=low, limit=EXACT if dtype == np.float32 else 4e-3)
            self.assertTrue((y[0][:, :, 7] == 0).all())
            self.assertTrue((y[0][:, :, 20] != 0).any())
        # Any other number is a number: softmax is over what is left, here after a sum that is rounded to 1/256.
        q, k, v = heads(2, 4, 2, n, m, 32)
        low = (row * -60000 + np.zeros((n, m))).astype(np.float32)
        y = attention("iceformer", q, k, v, mask=low, mode="exact")
        self.same("a row of low numbers", y, [dense(q, k, v, low).astype(np.float32)], 1 / 256)
        self.same("the other rows", [y[0][:, :, 8:]], [attention("", q, k, v)[0][:, :, 8:]])

    def test_long_rows(self):
        # More rows and keys than a bias is made for at a time.
        n, m = 400, 24000
        keep = random(3, 1, 1, n, m) < 0.5
        q, k, v = heads(1, 2, 1, n, m, 16)
        y = attention("iceformer", q, k, v, mask=keep, mode="exact")
        self.same("long", y, attention("", q, k, v, mask=keep))

    def test_past_and_mask(self):
        q, k, v = heads(2, 4, 2, 20, 20, 16)
        past_k, past_v = random(7, 2, 2, 33, 16), random(8, 2, 2, 33, 16)
        for mask in (random(3, 2, 1, 20, 53) < 0.7, random(3, 20, 53), np.arange(53) >= 9 + np.zeros((2, 1, 20, 1))):
            for causal in (0, 1):
                given = {"mask": mask.astype(np.float32) if mask.dtype == np.float64 else mask, "is_causal": causal}
                self.both("past and mask", q, k, v, past_k=past_k, past_v=past_v, present=True, **given)


class Empty(Base):
    """ONNX Runtime refuses these; the answer of ours is the natural one."""

    def test_no_batch_and_no_rows(self):
        for b, n, m in ((0, 5, 7), (2, 0, 7), (0, 0, 0)):
            q, k, v = heads(b, 4, 2, n, m, 8)
            y = attention("iceformer", q, k, v, present=True, is_causal=1)
            self.assertEqual([a.shape for a in y], [(b, 4, n, 8), (b, 2, m, 8), (b, 2, m, 8)])
            self.assertEqual(attention("iceformer", q, k, v, mask=np.ones((n, m), bool))[0].shape, (b, 4, n, 8))

    def test_no_keys(self):
        q, k, v = heads(2, 4, 2, 5, 0, 8)
        for given in ({}, {"is_causal": 1}, {"mode": "exact"}, {"mode": "accelerated"}):
            self.assertTrue((attention("iceformer", q, k, v, **given)[0] == 0).all())
        past_k, past_v = random(7, 2, 2, 0, 8), random(8, 2, 2, 0, 8)
        q, k, v = heads(2, 4, 2, 5, 6, 8)
        y = attention("iceformer", q, k, v, past_k=past_k, past_v=past_v, present=True, is_causal=1)
        self.same("empty past", y, attention("", q, k, v, present=True, is_causal=1))


class Accelerated(Base):
    """Modes that estimate, on heads of a trained model of 2048 rows."""

    def error(self, a, b):
        a, b = flat(a.astype(np.float64)), flat(b.astype(np.float64))
        return float((np.linalg.norm(a - b, axis=-1) / np.linalg.norm(b, axis=-1)).mean())

    def test_close_and_not_equal(self):
        n = 2048
        for layer, half in itertools.product((0, 1), (False, True)):
            q, k, v = (x if half else x.astype(np.float32) for x in captured(layer))
            below = np.tri(n, dtype=bool)
            bias = np.where(below, 0, np.finfo(np.float32).min).astype(np.float32)
            for given in ({"is_causal": 1}, {"mask": below}, {"mask": bias}):
                exact = attention("iceformer", q, k, v, mode="exact", **given)[0]
                fast = attention("iceformer", q, k, v, mode="accelerated", tolerance=0.05, threads=2, **given)[0]
                self.same("2 is accelerated", [attention("iceformer", q, k, v, mode=2, **given)[0]], [fast], 0)
                self.assertLess(self.error(fast, exact), 0.05, given.keys())
                self.assertTrue((fast != exact).any(), "nothing was estimated")
                tight = attention("iceformer", q, k, v, mode="accelerated", tolerance=0.005, **given)[0]
                self.assertLess(self.error(tight, exact), self.error(fast, exact), given.keys())

    def test_automatic(self):
        q, k, v = (x.astype(np.float32) for x in captured(0))
        exact = attention("iceformer", q, k, v, mode="exact", is_causal=1)[0]
        fast = attention("iceformer", q, k, v, is_causal=1)[0]
        self.assertLess(self.error(fast, exact), 0.05)
        self.same("by number", attention("iceformer", q, k, v, is_causal=1, mode=0), [fast], 0)
        short = [x[:, :, :1500] for x in (q, k, v)]
        for given in ({}, {"is_causal": 1}):
            self.same("short", attention("iceformer", *short, **given), attention("iceformer", *short, mode=1, **given), 0)

    def test_few_rows_are_exact(self):
        # As in decoding, where cells of one call would cost more than they save.
        q, k, v = (x.astype(np.float32) for x in captured(1))
        for n in (1, 4, 255):
            given = {"past_k": k[:, :, :-n], "past_v": v[:, :, :-n], "is_causal": 1}
            last = [x[:, :, -n:] for x in (q, k, v)]
            exact = attention("iceformer", *last, mode="exact", **given)
            for mode in ("accelerated", "auto"):
                self.same("few rows", attention("iceformer", *last, mode=mode, **given), exact, 0)
        last = [x[:, :, -256:] for x in (q, k, v)]
        given = {"past_k": k[:, :, :-256], "past_v": v[:, :, :-256], "is_causal": 1}
        exact, fast = (attention("iceformer", *last, mode=m, **given)[0] for m in ("exact", "accelerated"))
        self.assertTrue((fast != exact).any(), "nothing was estimated")
        self.assertLess(self.error(fast, exact), 0.05)

    def test_biases_keep_the_tolerance(self):
        # Relative positions as encoders have them, by head or for all, alone or with padding that a number or -inf says.
        n = 2048
        apart = np.abs(np.arange(n)[:, None] - np.arange(n)).astype(np.float32)
        slopes = np.array([0.01, 0.001], np.float32)
        near = -np.log1p(apart) * 0.5
        padded = near.copy()
        padded[:, 1900:] = np.finfo(np.float32).min
        forms = {"all heads": near, "by head": -slopes[:, None, None] * apart, "padded": padded,
                 "-inf": np.where(padded < -1e30, -np.inf, padded).astype(np.float32)}
        for layer, half in ((0, False), (1, True)):
            q, k, v = (x if half else x.astype(np.float32) for x in captured(layer))
            self.assertEqual(q.shape[1], len(slopes))
            for what, bias in forms.items():
                mask = np.maximum(bias, -65504).astype(np.float16) if half else bias
                exact = attention("iceformer", q, k, v, mask=mask, mode="exact")[0]
                for mode in ("accelerated", "auto"):
                    with self.subTest(what, mode=mode):
                        fast = attention("iceformer", q, k, v, mask=mask, mode=mode, tolerance=0.05, threads=2)
                        self.assertLess(self.error(fast[0], exact), 0.05)

    def test_irregular_masks_are_exact(self):
        n = 2048
        q, k, v = captured(0)
        i, j = np.arange(n)[:, None], np.arange(n)
        bias = random(3, n, n)
        window = np.where(abs(i - j) < 300, bias, -np.inf).astype(np.float32)
        packed = np.where((i < 900) == (j < 900), bias, np.finfo(np.float32).min).astype(np.float32)
        for mask in (random(3, n, n) < 0.5, window, packed):
            fast = attention("iceformer", q, k, v, mask=mask, mode="accelerated")
            self.same("bias", fast, attention("iceformer", q, k, v, mask=mask, mode="exact"), 0)
        below = {"mask": bias, "is_causal": 1}
        fast = attention("iceformer", q, k, v, mode="accelerated", **below)
        self.same("causal", fast, attention("iceformer", q, k, v, mode="exact", **below), 0)

    def test_threads_change_no_bit(self):
        q, k, v = captured(1)
        one = attention("iceformer", q, k, v, mode="accelerated", is_causal=1)
        self.same("threads", attention("iceformer", q, k, v, mode="accelerated", is_causal=1, threads=3), one, 0)


if __name__ == "__main__":
    unittest.main()
