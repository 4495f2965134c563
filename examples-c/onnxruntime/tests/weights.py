"""Tensors out of safetensors files."""

import json
from pathlib import Path

import numpy as np

TYPES = {"F32": np.float32, "F16": np.float16, "I8": np.int8}


def read(path):
    """All tensors by name; those of types that numpy does not have are left out. Bytes with a scale come as f16."""
    data = Path(path).read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    out = {}
    for name, about in json.loads(data[8:begin]).items():
        if name != "__metadata__" and about["dtype"] in TYPES:
            first, last = about["data_offsets"]
            values = np.frombuffer(data[begin + first : begin + last], TYPES[about["dtype"]])
            out[name] = values.reshape(about["shape"])
    for name in [name for name in out if name + ".scale" in out]:
        scale = out[name + ".scale"].astype(np.float32)
        out[name] = (out[name] * scale[..., None]).astype(np.float16)
    return out


def captured(layer):
    """Queries, keys and values [1, heads, rows, elements] of a trained model, that come with the repository."""
    tensors = read(Path(__file__).resolve().parents[2] / "data" / "heads.safetensors")
    return [tensors[f"layer{layer}.{name}"][None] for name in "qkv"]
