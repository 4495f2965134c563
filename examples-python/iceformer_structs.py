"""The structs of include/iceformer.h for ctypes, alone: no NumPy.

    python3 iceformer_structs.py target/release/libiceformer.so      # fails if the library's structs are not these
"""

import ctypes as c
import os
import pathlib
import sys


class Error(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("status", c.c_int32), ("message", c.c_char * 240)]


class Tensor(c.Structure):
    _fields_ = [
        ("data", c.c_void_p),
        ("dtype", c.c_int32),
        ("row_stride", c.c_size_t),
        ("head_stride", c.c_size_t),
        ("batch_stride", c.c_size_t),
    ]


class IndexOptions(c.Structure):
    _fields_ = [
        ("struct_size", c.c_uint32),
        ("dim", c.c_uint32),
        ("metric", c.c_int32),
        ("num_simple", c.c_uint32),
        ("num_composite", c.c_uint32),
        ("levels", c.c_uint32),
        ("promotion", c.c_float),
        ("directions", c.c_int32),
        ("seed", c.c_uint64),
        ("capacity", c.c_size_t),
        ("memory_limit", c.c_size_t),
        ("max_norm", c.c_float),
        ("flags", c.c_uint32),
        ("allocator", c.c_void_p),
        ("engine", c.c_int32),
        ("reserved", c.c_uint32),
    ]


class QueryOptions(c.Structure):
    _fields_ = [
        ("struct_size", c.c_uint32),
        ("k", c.c_uint32),
        ("visit", c.c_uint32),
        ("retrieve", c.c_uint32),
        ("visit_fraction", c.c_float),
        ("retrieve_fraction", c.c_float),
        ("field_of_view", c.c_uint32),
        ("target_recall", c.c_float),
        ("id_begin", c.c_uint64),
        ("id_end", c.c_uint64),
        ("engine", c.c_int32),
        ("flags", c.c_uint32),
        ("filter", c.c_void_p),
        ("filter_len", c.c_size_t),
    ]


class Mask(c.Structure):
    _fields_ = [
        ("struct_size", c.c_uint32),
        ("kind", c.c_int32),
        ("q_pos0", c.c_uint64),
        ("prefix", c.c_void_p),
        ("prefix_len", c.c_size_t),
        ("keys", c.c_void_p),
        ("keys_len", c.c_size_t),
        ("bias", Tensor),
        ("bias_heads", c.c_uint32),
        ("bias_batch", c.c_uint32),
        ("reserved", c.c_uint32 * 8),
    ]


class AttentionOptions(c.Structure):
    _fields_ = [
        ("struct_size", c.c_uint32),
        ("mode", c.c_int32),
        ("tolerance", c.c_float),
        ("top_k", c.c_uint32),
        ("scale", c.c_float),
        ("softcap", c.c_float),
        ("window", c.c_uint64),
        ("sinks", c.c_uint64),
        ("seed", c.c_uint64),
        ("num_threads", c.c_uint32),
        ("levels", c.c_uint32),
        ("num_simple", c.c_uint32),
        ("num_composite", c.c_uint32),
        ("field_of_view", c.c_uint32),
        ("retrieve_fraction", c.c_float),
        ("flags", c.c_uint32),
        ("reserved", c.c_uint32 * 9),
    ]


class AttentionDesc(c.Structure):
    _fields_ = [
        ("struct_size", c.c_uint32),
        ("batch", c.c_uint32),
        ("heads_q", c.c_uint32),
        ("heads_kv", c.c_uint32),
        ("dim_k", c.c_uint32),
        ("dim_v", c.c_uint32),
        ("rows_q", c.c_size_t),
        ("rows_kv", c.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("out", Tensor),
        ("lse", c.c_void_p),
        ("mask", Mask),
        ("options", AttentionOptions),
        ("bounds", c.c_void_p),
    ]


class Stats(c.Structure):
    """What a call did: see ice_attention_stats in iceformer.h."""

    _fields_ = [
        ("struct_size", c.c_uint32),
        ("mode", c.c_int32),
        ("reason", c.c_int32),
        ("estimated_mass", c.c_float),
        ("certified_error", c.c_float),
        ("score_error", c.c_float),
        ("pairs", c.c_uint64),
        ("pairs_dense", c.c_uint64),
        ("cells_opened", c.c_uint64),
        ("build_seconds", c.c_double),
        ("attend_seconds", c.c_double),
        ("rows", c.c_uint64),
        ("certified_mean", c.c_double),
        ("certificates", c.c_uint64),
        ("certified", c.c_uint64),
        ("rows_measured", c.c_uint64),
        ("rows_exact", c.c_uint64),
        ("rows_short", c.c_uint64),
        ("rows_strict", c.c_uint64),
        ("rows_costly", c.c_uint64),
        ("known_pairs", c.c_uint64),
        ("measured_error", c.c_float),
        ("measured_p95", c.c_float),
        ("measured_worst", c.c_float),
    ]


class SessionOptions(c.Structure):
    _fields_ = [
        ("struct_size", c.c_uint32),
        ("heads_q", c.c_uint32),
        ("heads_kv", c.c_uint32),
        ("dim_k", c.c_uint32),
        ("dim_v", c.c_uint32),
        ("kv_dtype", c.c_int32),
        ("capacity", c.c_size_t),
        ("dense_below", c.c_size_t),
        ("memory_limit", c.c_size_t),
        ("allocator", c.c_void_p),
        ("attention", AttentionOptions),
    ]


INIT = {
    "ice_error_init": Error,
    "ice_query_options_init": QueryOptions,
    "ice_index_options_init": IndexOptions,
    "ice_attention_desc_init": AttentionDesc,
    "ice_attention_stats_init_sized": Stats,
    "ice_session_options_init": SessionOptions,
}
# Those whose init function takes a number beside the struct.
NUMBERED = {
    "ice_query_options_init": c.c_uint32,
    "ice_index_options_init": c.c_uint32,
    "ice_attention_stats_init_sized": c.c_size_t,
}


def find():
    """The file of the library: ICEFORMER_LIBRARY, else that of this checkout or installed tree, else a name for the loader."""
    if "ICEFORMER_LIBRARY" in os.environ:
        return os.environ["ICEFORMER_LIBRARY"]
    name = {"darwin": "libiceformer.dylib", "win32": "iceformer.dll"}.get(sys.platform, "libiceformer.so")
    # As for cargo, a relative CARGO_TARGET_DIR counts from the workspace.
    root = pathlib.Path(__file__).resolve().parent.parent
    built = root / os.environ.get("CARGO_TARGET_DIR", "target") / "release" / name
    # Of an installed tree this is share/iceformer/examples-python.
    prefix = root.parent.parent
    installed = [prefix / "lib" / name, prefix / "lib64" / name, *sorted(prefix.glob(f"lib/*/{name}")), prefix / "bin" / name]
    return next((str(file) for file in [built, *installed] if file.is_file()), name)


def load(path):
    """The library of a file, with its init functions declared, if its structs are these."""
    lib = c.CDLL(str(path))
    for name, struct in INIT.items():
        init = getattr(lib, name)
        init.argtypes, init.restype = [c.c_void_p] + [NUMBERED[k] for k in NUMBERED if k == name], None
        # Init functions write the size the library knows, here with room to spare: as much as the number given, where that is a size.
        room = c.create_string_buffer(c.sizeof(struct) + 4096)
        init(c.byref(room), *([4096] if name in NUMBERED else []))
        known = struct.from_buffer(room).struct_size
        if known != c.sizeof(struct):
            raise ImportError(f"{name}: the library has {known} bytes, this module {c.sizeof(struct)}")
    return lib


if __name__ == "__main__":
    load(sys.argv[1] if len(sys.argv) > 1 else find())
