"""Holds iceformer.py against NumPy. Exits with 0 when everything is right:

    cargo build --release -p iceformer-ffi
    python3 examples-python/check.py
"""

import numpy as np

import iceformer


def softmax_attention(q, k, v, causal):
    group = q.shape[-3] // k.shape[-3]
    k, v = (np.repeat(x.astype(np.float64), group, axis=-3) for x in (k, v))
    s = q.astype(np.float64) @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        rows, keys = s.shape[-2:]
        s[..., np.arange(keys)[None, :] > np.arange(rows)[:, None] + keys - rows] = -np.inf
    w = np.exp(s - s.max(-1, keepdims=True))
    return (w / w.sum(-1, keepdims=True)) @ v


def near(a, b, tolerance=1e-5):
    error = np.linalg.norm(a - b) / np.linalg.norm(b)
    assert error < tolerance, f"error {error}"


def refused(status, call):
    try:
        call()
    except iceformer.Error as e:
        assert e.status == status and str(e), (e.status, str(e))
    else:
        raise AssertionError("not refused")


rng = np.random.default_rng(1)
q = rng.standard_normal((4, 30, 16), np.float32)
k = rng.standard_normal((2, 50, 16), np.float32)
v = rng.standard_normal((2, 50, 12), np.float32)

for causal in (False, True):
    out, stats = iceformer.attention(q, k, v, causal=causal, mode="exact")
    near(out, softmax_attention(q, k, v, causal))
    assert stats.pairs == stats.pairs_dense > 0
# Other element types, strides and a batch: token-major storage, seen as [batch, heads, rows, dim] without a copy.
half = v.astype(np.float16)
near(iceformer.attention(q, k, half)[0], softmax_attention(q, k, half, False))
tokens = rng.standard_normal((2, 50, 4, 16), np.float32)
heads = tokens.transpose(0, 2, 1, 3)
near(iceformer.attention(heads, heads[:, :2], heads[:, 2:])[0], softmax_attention(heads, heads[:, :2], heads[:, 2:], False))
# What the library cannot stride over is copied.
near(iceformer.attention(q[:, ::-1], k, v)[0], softmax_attention(q[:, ::-1], k, v, False))
near(iceformer.attention(q, k[..., ::2].repeat(2, -1), v)[0], softmax_attention(q, k[..., ::2].repeat(2, -1), v, False))
broken = k.copy()
broken[1, 7, 3] = np.nan
refused("ICE_ERR_NOT_FINITE", lambda: iceformer.attention(q, broken, v))

keys = rng.standard_normal((500, 16)).astype(np.float32)
with iceformer.Index(16) as index:
    index.insert(keys)
    index.insert(keys[:1], ids=[10**12])
    index.remove([3])
    refused("ICE_ERR_NOT_FOUND", lambda: index.remove([3]))
    assert len(index) == 500
    ids, scores = index.query(keys[:5], 10, retrieve_fraction=1.0, visit_fraction=1.0)
    true = keys[:5] @ np.delete(keys, 3, 0).T
    assert np.allclose(scores[0, 0], np.sort(true[0])[::-1][0], rtol=1e-5)
    assert 3 not in ids and 10**12 in ids[0]

with iceformer.Session(heads_q=4, heads_kv=2, dim=16, dim_v=12, capacity=50, mode="exact") as session:
    session.append(k[:, :29], v[:, :29])
    for t in range(29, 50):
        session.append(k[:, t : t + 1], v[:, t : t + 1])
    want = softmax_attention(q, k, v, True)
    near(session.attend(q), want)
    near(session.attend(q[:, -1:]), want[:, -1:])
    refused("ICE_ERR_CAPACITY", lambda: session.append(k[:, :1], v[:, :1]))
    near(session.attend(q), want)
    session.truncate(30)
    near(session.attend(q), softmax_attention(q, k[:, :30], v[:, :30], True))

# Accelerated on heads it is made for: keys around centres, values with them.
centres = rng.standard_normal((64, 32)).astype(np.float32) * 2
at = np.sort(rng.integers(64, size=4096))
k = (centres[at] + rng.standard_normal((4096, 32)) * 0.1).astype(np.float32)[None]
v = (centres[at][:, ::-1] + rng.standard_normal((4096, 32)) * 0.1).astype(np.float32)[None]
q = rng.standard_normal((1, 256, 32)).astype(np.float32)
out, stats = iceformer.attention(q, k, v, causal=True, mode="accelerated")
near(out, softmax_attention(q, k, v, True), 0.05)
assert stats.pairs < stats.pairs_dense / 2, stats.pairs / stats.pairs_dense
# What it measured on rows that it also attended exactly.
assert stats.rows_measured > 0 and 0 < stats.measured_error < 0.1, (stats.rows_measured, stats.measured_error)
assert stats.measured_p95 <= stats.measured_worst, (stats.measured_p95, stats.measured_worst)
_, stats = iceformer.attention(q, k, v, causal=True, mode="exact")
assert stats.rows_measured == 0 and np.isnan(stats.measured_error)
print(f"iceformer {iceformer.version} from Python: ok")
