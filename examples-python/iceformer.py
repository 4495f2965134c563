"""iceformer from Python: ctypes and NumPy, no build step.

    import iceformer
    out, stats = iceformer.attention(q, k, v, causal=True)        # [heads, rows, dim] arrays, float32 or float16
    index = iceformer.Index(dim=64); index.insert(keys); ids, scores = index.query(queries, k=10)
    session = iceformer.Session(heads_q=8, heads_kv=2, dim=64, capacity=4096)
    session.append(k, v); out = session.attend(q)

Arrays whose last dimension is contiguous are passed by their strides, without a copy; others are copied first. The library is
the file ICEFORMER_LIBRARY names, else what `cargo build --release` left in this checkout, else what the loader finds. Calls release the interpreter lock. Errors
raise iceformer.Error with the library's message.
"""

import ctypes as c

import numpy as np

import iceformer_structs as structs

MODES = {"auto": 0, "exact": 1, "accelerated": 2, "top_k": 3}
F32, F16 = 0, 1
MASK_NONE, MASK_CAUSAL = 0, 1
NEIGHBOR = np.dtype([("id", np.uint64), ("score", np.float32)], align=True)

_P, _SIZE, _U32, _I32 = c.c_void_p, c.c_size_t, c.c_uint32, c.c_int32
_CALLS = {
    "ice_index_new": [_P, _P, _P],
    "ice_index_insert": [_P, _P, _SIZE, _P, _P],
    "ice_index_remove": [_P, _P, _SIZE, _P],
    "ice_index_query": [_P, _P, _P, _SIZE, _P, _P, _P, _P],
    "ice_attention": [_P, _P, _SIZE, _P, _P],
    "ice_session_new": [_P, _P, _P],
    "ice_session_append": [_P, _P, _P, _SIZE, _U32, _U32, _P],
    "ice_session_commit_err": [_P, _P],
    "ice_session_attend": [_P, _P, _SIZE, _P, _P, _P, _P, _SIZE, _U32, _U32, _P, _P],
    "ice_session_truncate_err": [_P, _SIZE, _P],
}


def _load():
    lib = structs.load(structs.find())
    for name, args in _CALLS.items():
        getattr(lib, name).argtypes, getattr(lib, name).restype = args, _I32
    for name in ("ice_index_free", "ice_session_free"):
        getattr(lib, name).argtypes, getattr(lib, name).restype = [_P], None
    for name in ("ice_index_len", "ice_session_len"):
        getattr(lib, name).argtypes, getattr(lib, name).restype = [_P], _SIZE
    for name in ("ice_status_message", "ice_status_name", "ice_version_string"):
        getattr(lib, name).restype = c.c_char_p
    lib.ice_status_message.argtypes = lib.ice_status_name.argtypes = [_I32]
    return lib


_lib = _load()
version = _lib.ice_version_string().decode()


class Error(Exception):
    """A call that the library refused: `status` is its name, the text its message."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = _lib.ice_status_name(status).decode()


def _made(struct, name, *args):
    x = struct()
    getattr(_lib, name)(c.byref(x), *args)
    return x


def _call(name, *args):
    e = _made(structs.Error, "ice_error_init")
    status = getattr(_lib, name)(*args, c.byref(e))
    if status:
        raise Error(status, e.message.decode())


def _plain(name, *args):
    status = getattr(_lib, name)(*args)
    if status:
        raise Error(status, f"{name}: {_lib.ice_status_message(status).decode()}")


def _array(x, ndim, what):
    """An array the library can read where it lies, or a copy of it; keep it as long as the call runs."""
    x = np.asarray(x)
    if x.ndim != ndim:
        raise ValueError(f"{what}: {ndim} dimensions are needed, not {x.ndim}")
    if x.dtype not in (np.float32, np.float16):
        x = x.astype(np.float32)
    size = x.itemsize
    fine = x.dtype.isnative and x.size > 0 and (x.shape[-1] == 1 or x.strides[-1] == size)
    # Strides of the library are unsigned, multiples of the element size and not smaller than what they stride over.
    if not fine or any(s <= 0 or s % size for s in x.strides):
        x = np.ascontiguousarray(x, dtype=x.dtype.newbyteorder("="))
    return x


def _tensor(x):
    batch, head, row = (0,) * (4 - x.ndim) + x.strides[:-1]
    return structs.Tensor(x.ctypes.data, F16 if x.dtype == np.float16 else F32, row, head, batch)


def _packed(shape):
    out = np.empty(shape, np.float32)
    return out, _tensor(out)


def _options(o, mode, tolerance, top_k, scale, threads):
    o.mode, o.tolerance, o.top_k, o.scale, o.num_threads = MODES[mode], tolerance, top_k, scale, threads


def attention(q, k, v, causal=False, mode="auto", tolerance=0.0, top_k=0, scale=0.0, threads=1):
    """Attention of all heads: q [heads_q, rows, dim_k], k [heads_kv, keys, dim_k], v [heads_kv, keys, dim_v], or each with a
    batch dimension in front. Causal: the last row sees all keys. Returns out [heads_q, rows, dim_v] (float32) and structs.Stats."""
    ndim = np.asarray(q).ndim
    if ndim not in (3, 4):
        raise ValueError("q: [heads, rows, dim] or [batch, heads, rows, dim] is needed")
    q, k, v = (_array(x, ndim, name) for x, name in ((q, "q"), (k, "k"), (v, "v")))
    if k.shape[:-1] != v.shape[:-1] or k.shape[-1] != q.shape[-1] or k.shape[:-3] != q.shape[:-3]:
        raise ValueError(f"shapes {q.shape}, {k.shape}, {v.shape} do not fit together")
    d = _made(structs.AttentionDesc, "ice_attention_desc_init")
    d.batch = q.shape[0] if ndim == 4 else 1
    d.heads_q, d.heads_kv, d.dim_k, d.dim_v = q.shape[-3], k.shape[-3], q.shape[-1], v.shape[-1]
    d.rows_q, d.rows_kv = q.shape[-2], k.shape[-2]
    d.q, d.k, d.v = _tensor(q), _tensor(k), _tensor(v)
    out, d.out = _packed(q.shape[:-1] + v.shape[-1:])
    if causal:
        if d.rows_q > d.rows_kv:
            raise ValueError("causal: more rows than keys")
        d.mask.kind, d.mask.q_pos0 = MASK_CAUSAL, d.rows_kv - d.rows_q
    _options(d.options, mode, tolerance, top_k, scale, threads)
    stats = _made(structs.Stats, "ice_attention_stats_init_sized", c.sizeof(structs.Stats))
    _call("ice_attention", c.byref(d), None, 0, c.byref(stats))
    return out, stats


class _Handle:
    _free = None
    _p = None

    def close(self):
        """Frees the object now instead of with the last reference."""
        if self._p:
            getattr(_lib, self._free)(self._p)
            self._p = None

    __del__ = close

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Index(_Handle):
    """Nearest neighbours by inner product (metric="l2": by distance); keys come and go."""

    _free = "ice_index_free"

    def __init__(self, dim, metric="inner_product", num_simple=0, num_composite=0, levels=0, seed=0, capacity=0):
        o = _made(structs.IndexOptions, "ice_index_options_init", dim)
        o.metric = {"inner_product": 0, "l2": 1}[metric]
        o.num_simple, o.num_composite, o.levels = num_simple, num_composite, levels
        o.seed, o.capacity = seed, capacity
        self.dim, self._p = dim, c.c_void_p()
        _call("ice_index_new", c.byref(o), c.byref(self._p))

    def __len__(self):
        return _lib.ice_index_len(self._p)

    def _rows(self, x):
        x = np.ascontiguousarray(x, np.float32)
        if x.ndim != 2 or x.shape[1] != self.dim:
            raise ValueError(f"rows of {self.dim} elements are needed, not {x.shape}")
        return x

    def insert(self, keys, ids=None):
        """keys [n, dim]; ids [n], by default the next ones."""
        keys = self._rows(keys)
        if ids is not None:
            ids = np.ascontiguousarray(ids, np.uint64)
            if ids.shape != keys.shape[:1]:
                raise ValueError("one id per key is needed")
        _call("ice_index_insert", self._p, keys.ctypes.data, len(keys), None if ids is None else ids.ctypes.data)

    def remove(self, ids):
        """Removes these ids, all of which must be there."""
        ids = np.ascontiguousarray(ids, np.uint64)
        _plain("ice_index_remove", self._p, ids.ctypes.data, len(ids), None)

    def query(self, queries, k, **options):
        """ids [n, k] and scores [n, k], best first; where there are fewer, ids are 2**64 - 1. Options: fields of
        ice_query_options, such as target_recall=0.99."""
        queries = self._rows(queries)
        o = _made(structs.QueryOptions, "ice_query_options_init", k)
        for name, value in options.items():
            if name not in (f[0] for f in structs.QueryOptions._fields_[2:]):
                raise TypeError(f"ice_query_options has no field {name}")
            setattr(o, name, value)
        out = np.zeros((len(queries), k), NEIGHBOR)
        args = (queries.ctypes.data, len(queries), c.byref(o), out.ctypes.data, None)
        _call("ice_index_query", self._p, None, *args)
        return out["id"], out["score"]


class Session(_Handle):
    """A KV cache with its index or cells: append tokens, attend rows."""

    _free = "ice_session_free"

    def __init__(self, heads_q, heads_kv, dim, capacity, dim_v=0, kv_dtype=np.float32, mode="auto", tolerance=0.0, top_k=0):
        o = _made(structs.SessionOptions, "ice_session_options_init")
        o.heads_q, o.heads_kv, o.dim_k, o.dim_v, o.capacity = heads_q, heads_kv, dim, dim_v, capacity
        o.kv_dtype = F16 if np.dtype(kv_dtype) == np.float16 else F32
        _options(o.attention, mode, tolerance, top_k, 0.0, 0)
        self._q, self._kv = (heads_q, dim), (heads_kv, dim, dim_v or dim)
        self._p = c.c_void_p()
        _call("ice_session_new", c.byref(o), c.byref(self._p))

    def __len__(self):
        return _lib.ice_session_len(self._p)

    def append(self, k, v):
        """k [heads_kv, n, dim], v [heads_kv, n, dim_v]."""
        k, v = _array(k, 3, "k"), _array(v, 3, "v")
        heads, dim, dim_v = self._kv
        if k.shape != (heads, k.shape[1], dim) or v.shape != (heads, k.shape[1], dim_v):
            raise ValueError(f"shapes {k.shape}, {v.shape} do not fit the session")
        try:
            _call("ice_session_append", self._p, c.byref(_tensor(k)), c.byref(_tensor(v)), k.shape[1], 0, 1)
        except Error:
            # Takes back what was not published.
            _lib.ice_session_commit_err(self._p, None)
            raise
        _call("ice_session_commit_err", self._p)

    def attend(self, q, stats=None):
        """q [heads_q, rows, dim]: the last row stands at the last token. Returns [heads_q, rows, dim_v]."""
        q = _array(q, 3, "q")
        if q.shape != (self._q[0], q.shape[1], self._q[1]):
            raise ValueError(f"shape {q.shape} does not fit the session")
        out, t = _packed((self._q[0], q.shape[1], self._kv[2]))
        s = None if stats is None else c.byref(stats)
        rows = q.shape[1]
        _call("ice_session_attend", self._p, c.byref(_tensor(q)), rows, None, c.byref(t), None, None, 0, 0, 1, s)
        return out

    def truncate(self, tokens):
        """Keeps the first tokens."""
        _call("ice_session_truncate_err", self._p, tokens)
