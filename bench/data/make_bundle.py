#!/usr/bin/env python3
"""Cuts the small data files that examples-c ships out of full captures.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install numpy safetensors
    /tmp/venv/bin/python bench/data/make_bundle.py CAPTURES FOLDER

CAPTURES is a folder holding ice-tiny-8k-f16.safetensors, minilm-encoder-8k-f16.safetensors and
smollm2-8k-prose-f16.safetensors; FOLDER gets heads.safetensors and smollm2.safetensors. Building and running the
library needs neither this script nor Python.

Numbers are stored as bytes: a row is divided by its largest magnitude over 127, and that factor, in f16, stands in a
tensor of its own, NAME.scale.
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors import safe_open

# Of each file: bytes at most, tokens, rows that have queries, the kind of its README line, and its layers. A layer: file,
# layer there, query heads, KV heads, what the heads are like. Heads of one KV head stay together, so that grouped
# queries are part of the data.
FILES = {
    "heads.safetensors": (
        1_600_000,
        2048,
        2048,
        "ice-tiny (layers 0 and 1) and all-MiniLM-L6-v2 (layer 2)",
        {
            0: ("ice-tiny-8k-f16", 0, [2, 3], [1], "two almost uniform heads"),
            1: ("ice-tiny-8k-f16", 2, [2, 3], [1], "one diffuse and one sharp head"),
            2: ("minilm-encoder-8k-f16", 1, [2, 3], [2, 3], "encoder, one sharp and one diffuse head"),
        },
    ),
    "smollm2.safetensors": (
        6_000_000,
        8192,
        8192,
        "SmolLM2-135M-Instruct, prose",
        {
            5: ("smollm2-8k-prose-f16", 5, [0, 1, 2], [0], "heavy keys scattered over the whole prompt"),
            20: ("smollm2-8k-prose-f16", 20, [0, 1, 2], [0], "a sink on the first key"),
        },
    ),
}


def as_bytes(t):
    """Bytes and the factor of each row. The factor is rounded up: no number leaves the range of a byte."""
    t = t.astype(np.float32)
    scale = np.abs(t).max(-1) / 127
    half = scale.astype(np.float16)
    half = np.where(half.astype(np.float32) < scale, np.nextafter(half, np.float16(np.inf)), half)
    divisor = np.where(half > 0, half, np.float16(1)).astype(np.float32)[..., None]
    return np.rint(t / divisor).astype(np.int8), half


def bundle(captures, out, limit, rows, queries, source, parts):
    tensors = {}
    meta = {"n": str(rows), "causal": "True", "source": f"{source}; see README.md beside this file"}
    for to, (name, layer, q_heads, kv_heads, note) in parts.items():
        with safe_open(captures / f"{name}.safetensors", "numpy") as f:
            for part, heads in (("q", q_heads), ("k", kv_heads), ("v", kv_heads)):
                first = rows - queries if part == "q" else 0
                t = f.get_tensor(f"layer{layer}.{part}")[heads, first:rows]
                assert t.dtype == "float16" and t.ndim == 3 and t.shape[1] == rows - first
                name_of = f"layer{to}.{part}"
                tensors[name_of], tensors[f"{name_of}.scale"] = as_bytes(t)
            about = f.metadata()
        # The value for the whole file is "True"; a layer that differs says so.
        if about["causal"].lower() != "true":
            meta[f"layer{to}.causal"] = "False"
        if queries < rows:
            meta[f"layer{to}.first"] = str(rows - queries)
        meta[f"layer{to}.note"] = note
        meta[f"layer{to}.source"] = (
            f"{name} layer {layer}, query heads {q_heads}, KV heads {kv_heads}, first {rows} tokens; {about['source']}"
        )
    # Written by hand because the package orders the metadata differently each time: same input, same bytes.
    header, begin = {"__metadata__": dict(sorted(meta.items()))}, 0
    for name, t in tensors.items():
        dtype = {"int8": "I8", "float16": "F16"}[t.dtype.name]
        header[name] = {"dtype": dtype, "shape": list(t.shape), "data_offsets": [begin, begin + t.nbytes]}
        begin += t.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(out, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for t in tensors.values():
            f.write(t.astype(t.dtype.newbyteorder("<"), copy=False).tobytes())
    size = out.stat().st_size
    if size >= limit:
        out.unlink()
        sys.exit(f"{size} bytes, limit {limit}")
    print(f"{out}: {size} bytes, {len(tensors)} tensors")


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    captures, folder = Path(sys.argv[1]), Path(sys.argv[2])
    for name, (limit, rows, queries, source, parts) in FILES.items():
        if all((captures / f"{part[0]}.safetensors").exists() for part in parts.values()):
            bundle(captures, folder / name, limit, rows, queries, source, parts)
        else:
            print(f"{name}: captures are missing, left as it is")


if __name__ == "__main__":
    main()
