"""The iceformer library through ctypes: the parts of include/iceformer.h that the benchmark needs."""

import ctypes as c
import os
import sys
from pathlib import Path

import numpy as np

from data import aligned

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "examples-python"))
import iceformer_structs as structs  # noqa: E402

EXACT = 1
FIXED_SCORES = 16
CAUSAL = 1
DTYPES = {"float32": 0, "float16": 1}


def tensor(a):
    """Packed tensor over an array, which the caller keeps alive."""
    assert a.flags.c_contiguous
    return structs.Tensor(a.ctypes.data, DTYPES[a.dtype.name], 0, 0, 0)


def target():
    """Where cargo puts release builds."""
    return Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "release"


class Library:
    def __init__(self, path=None):
        self.path = Path(path) if path else target() / "libiceformer.so"
        if not self.path.exists():
            raise FileNotFoundError(f"{self.path} is missing: cargo build --release -p iceformer-ffi")
        self.lib = structs.load(self.path)
        self.lib.ice_version_string.restype = c.c_char_p
        self.lib.ice_isa_name.restype = c.c_char_p
        self.version = self.lib.ice_version_string().decode()
        self.isa = self.lib.ice_isa_name().decode()
        self.lib.ice_session_free.restype = None
        self.error = structs.Error()
        self.lib.ice_error_init(c.byref(self.error))

    def init(self, struct, name, *args):
        """A struct filled by its `_init` function."""
        getattr(self.lib, name)(c.byref(struct), *args)
        return struct

    def check(self, status):
        if status:
            raise RuntimeError(self.error.message.decode() or f"status {status}")

    def fail(self):
        return c.byref(self.error)


class Attention:
    """One head by `ice_attention`, exact, one thread, with work memory of the caller."""

    def __init__(self, library, q, k, v, causal, fixed=False):
        lib = library.lib
        self.library, self.keep = library, (q, k, v)
        self.out = aligned(np.zeros((len(q), v.shape[1])))
        self.desc = d = library.init(structs.AttentionDesc(), "ice_attention_desc_init")
        d.heads_q = d.heads_kv = d.batch = 1
        d.dim_k, d.dim_v, d.rows_q, d.rows_kv = k.shape[1], v.shape[1], len(q), len(k)
        d.q, d.k, d.v, d.out = tensor(q), tensor(k), tensor(v), tensor(self.out)
        d.options.mode = EXACT
        d.options.flags = FIXED_SCORES if fixed else 0
        if causal:
            d.mask.kind, d.mask.q_pos0 = CAUSAL, len(k) - len(q)
        need, align = c.c_size_t(), c.c_size_t()
        library.check(lib.ice_attention_required(c.byref(d), c.byref(need), c.byref(align), library.fail()))
        self.work = aligned(np.zeros(need.value), np.uint8)
        self.args = (c.byref(d), c.c_void_p(self.work.ctypes.data), c.c_size_t(need.value), None, library.fail())

    def call(self):
        self.library.check(self.library.lib.ice_attention(*self.args))

    def output(self):
        return self.out


class Session:
    """Decoding by `ice_session`: keys and values appended once, then one row per query head attends."""

    def __init__(self, library, q, k, v, dtype):
        lib = library.lib
        heads, dim = q.shape
        self.library, self.q = library, q
        self.out = np.zeros((heads, v.shape[1]), np.float32)
        o = library.init(structs.SessionOptions(), "ice_session_options_init")
        o.heads_q, o.heads_kv, o.dim_k, o.dim_v, o.capacity = heads, 1, dim, v.shape[1], len(k)
        o.kv_dtype, o.attention.mode = DTYPES[dtype], EXACT
        self.session = c.c_void_p()
        library.check(lib.ice_session_new(c.byref(o), c.byref(self.session), library.fail()))
        tk, tv = tensor(k), tensor(v)
        one, no = c.c_uint32(1), c.c_uint32(0)
        library.check(
            lib.ice_session_append(self.session, c.byref(tk), c.byref(tv), c.c_size_t(len(k)), no, one, library.fail())
        )
        library.check(lib.ice_session_commit(self.session))
        need, align, rows = c.c_size_t(), c.c_size_t(), c.c_size_t(1)
        library.check(lib.ice_session_work_required(self.session, rows, one, c.byref(need), c.byref(align)))
        self.work = aligned(np.zeros(need.value), np.uint8)
        work = (c.c_void_p(self.work.ctypes.data), c.c_size_t(need.value))
        self.tensors = (tensor(q), tensor(self.out))
        tq, to = (c.byref(t) for t in self.tensors)
        self.args = (self.session, tq, rows, None, to, None, *work, no, one, None, library.fail())

    def call(self):
        self.library.check(self.library.lib.ice_session_attend(*self.args))

    def output(self):
        return self.out

    def close(self):
        self.library.lib.ice_session_free(self.session)
        self.session = None
