#!/usr/bin/env python3
"""Cuts the small data file that examples-c ships out of the full captures.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install numpy safetensors
    /tmp/venv/bin/python bench/data/make_bundle.py CAPTURES OUT.safetensors

CAPTURES is a folder holding ice-tiny-8k-f16.safetensors and minilm-encoder-8k-f16.safetensors. Building and running
the library needs neither this script nor Python.
"""

import json
import sys
from pathlib import Path

from safetensors import safe_open

ROWS = 2048
LIMIT = 3_000_000

# One entry per layer of the output: file, layer there, query heads, KV heads, what the heads are like. Heads of one
# KV head stay together, so that grouped queries are part of the data.
PARTS = [
    ("ice-tiny-8k-f16", 0, [2, 3], [1], "two almost uniform heads"),
    ("ice-tiny-8k-f16", 2, [2, 3], [1], "one diffuse and one sharp head"),
    ("minilm-encoder-8k-f16", 1, [2, 3], [2, 3], "encoder, one sharp and one diffuse head"),
]


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    captures, out = Path(sys.argv[1]), Path(sys.argv[2])
    tensors = {}
    meta = {"n": str(ROWS), "causal": "True"}
    for to, (name, layer, q_heads, kv_heads, note) in enumerate(PARTS):
        with safe_open(captures / f"{name}.safetensors", "numpy") as f:
            for part, heads in (("q", q_heads), ("k", kv_heads), ("v", kv_heads)):
                tensors[f"layer{to}.{part}"] = f.get_tensor(f"layer{layer}.{part}")[heads, :ROWS].copy()
            source = f.metadata()
        # The value for the whole file is "True"; a layer that differs says so.
        if source["causal"].lower() != "true":
            meta[f"layer{to}.causal"] = "False"
        meta[f"layer{to}.note"] = note
        meta[f"layer{to}.source"] = (
            f"{name} layer {layer}, query heads {q_heads}, KV heads {kv_heads}, first {ROWS} tokens; {source['source']}"
        )
    meta["source"] = "ice-tiny (layers 0 and 1) and all-MiniLM-L6-v2 (layer 2); see README.md beside this file"
    # Written by hand because the package orders the metadata differently each time: same input, same bytes.
    header, begin = {"__metadata__": dict(sorted(meta.items()))}, 0
    for name, t in tensors.items():
        assert t.dtype == "float16" and t.ndim == 3
        header[name] = {"dtype": "F16", "shape": list(t.shape), "data_offsets": [begin, begin + t.nbytes]}
        begin += t.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(out, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for t in tensors.values():
            f.write(t.astype("<f2", copy=False).tobytes())
    size = out.stat().st_size
    if size >= LIMIT:
        out.unlink()
        sys.exit(f"{size} bytes, limit {LIMIT}")
    print(f"{out}: {size} bytes, {len(tensors)} tensors")


if __name__ == "__main__":
    main()
