"""Queries, keys and values, and exact attention in f64."""

import json
from pathlib import Path

import numpy as np

BUNDLED = Path(__file__).resolve().parents[2] / "examples-c/data/heads.safetensors"


def aligned(a, dtype=np.float32):
    """Packed copy that starts at a multiple of 64 bytes, which suits everybody's vectors."""
    size = a.size * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    out = raw[-raw.ctypes.data % 64 :][:size].view(dtype).reshape(a.shape)
    out[:] = a
    return out


def structured(n, d, seed=0):
    """One seeded head with what trained heads have: a sink, locality, topics, and keys that some queries look for."""
    r = np.random.default_rng([seed, n, d])
    half, f = d // 2, d // 4
    # Locality: waves of the position, whose inner products fall with the distance.
    wave = np.arange(n)[:, None] / np.geomspace(3, n, f) * 2 * np.pi
    place = np.concatenate([np.cos(wave), np.sin(wave)], 1) / np.sqrt(f)
    # Content: a topic that lasts a while, and something of its own; queries look for one earlier token.
    topic = r.integers(0, max(8, n // 256), n // 64 + 1).repeat(64)[:n]
    topics = r.standard_normal((topic.max() + 1, half)) / np.sqrt(half)
    own = r.standard_normal((n, half)) / np.sqrt(half)
    wanted = (r.random(n) * np.arange(n)).astype(int)
    k = np.concatenate([place, 0.5 * topics[topic] + own], 1)
    q = np.concatenate([place, 0.5 * topics[topic] + own[wanted] * r.choice([0.3, 1.0], (n, 1))], 1)
    sink = r.standard_normal(d) / np.sqrt(d)
    q += 0.5 * sink
    k[0] = 2 * sink
    k *= np.exp(0.1 * r.standard_normal((n, 1)))
    v = r.standard_normal((n, d))
    v[:, :half] += topics[topic] * np.sqrt(half)
    # The logits of a query for the token it looks for are about 9 above the rest.
    q *= 9 * np.sqrt(d)
    return tuple(aligned(a) for a in (q, k, v))


def read(path):
    """Tensors and metadata of a safetensors file, as maps into it."""
    raw = np.memmap(path, np.uint8, "r")
    size = int(raw[:8].view("<u8")[0])
    header = json.loads(raw[8 : 8 + size].tobytes())
    meta = header.pop("__metadata__", {})
    kinds = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I8": "i1"}
    tensors = {}
    for name, t in header.items():
        if t["dtype"] in kinds:
            begin, end = (8 + size + x for x in t["data_offsets"])
            a = np.frombuffer(raw[begin:end].tobytes(), kinds[t["dtype"]]).reshape(t["shape"])
            if t["dtype"] == "BF16":
                a = (a.astype(np.uint32) << 16).view(np.float32)
            tensors[name] = a
    # Bytes that a factor of their row multiplies.
    for name in [name for name in tensors if name + ".scale" in tensors]:
        scale = tensors.pop(name + ".scale").astype(np.float32)
        tensors[name] = (tensors[name] * scale[..., None]).astype(np.float16)
    return tensors, meta


class Source:
    """Captured heads where a file has one of that dimension and length, else structured data; says which."""

    def __init__(self, path=None):
        files = ([Path(path)] if path else []) + ([BUNDLED] if BUNDLED.exists() else [])
        self.heads = []
        for file in files:
            tensors, meta = read(file)
            for name, q in tensors.items():
                if not name.endswith(".q"):
                    continue
                layer = name[:-2]
                k, v = tensors[f"{layer}.k"], tensors[f"{layer}.v"]
                causal = meta.get(f"{layer}.causal", meta.get("causal", "")).lower() in ("true", "1")
                # The last head of a layer: of the bundled ones that is the sharp one.
                name = f"{file.name} {layer} head {len(q) - 1}"
                self.heads.append((files.index(file), name, causal, q[-1], k[-1], v[-1]))

    def get(self, n, d, causal):
        """Name, q, k, v as f32."""
        fits = [h for h in reversed(self.heads) if h[3].shape[1] == d and len(h[3]) >= n]
        fits.sort(key=lambda h: (h[0], h[2] != causal))
        if fits:
            _, name, _, *qkv = fits[0]
            return (name, *(aligned(a[:n]) for a in qkv))
        return ("structured", *structured(n, d))


def exact(q, k, v, rows, causal):
    """Attention of some query rows in f64."""
    out = np.empty((len(rows), v.shape[1]))
    k, v = k.astype(np.float64), v.astype(np.float64)
    step = max(1, (64 << 20) // (8 * len(k)))
    for a in range(0, len(rows), step):
        part = rows[a : a + step]
        s = q[part].astype(np.float64) @ k.T / np.sqrt(k.shape[1])
        if causal:
            s[np.arange(len(k))[None] > part[:, None] + len(k) - len(q)] = -np.inf
        p = np.exp(s - s.max(1, keepdims=True))
        out[a : a + step] = p @ v / p.sum(1, keepdims=True)
    return out


def errors(got, want):
    """Mean and 99th percentile of the relative L2 error of rows."""
    e = np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)
    return float(e.mean()), float(np.quantile(e, 0.99))
