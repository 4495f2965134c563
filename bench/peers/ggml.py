"""Flash attention of ggml through ctypes on its shared libraries."""

import ctypes as c
import importlib.util
from pathlib import Path

import numpy as np

from data import aligned

F32, F16 = 0, 1


class InitParams(c.Structure):
    _fields_ = [("mem_size", c.c_size_t), ("mem_buffer", c.c_void_p), ("no_alloc", c.c_bool)]


class Plan(c.Structure):
    """`ggml_cplan`: returned by value; room for fields that other versions add."""

    _fields_ = [("work_size", c.c_size_t), ("work_data", c.c_void_p), ("n_threads", c.c_int), ("rest", c.c_uint8 * 108)]


def folder(named):
    """Where to look: the folder named, or that of an installed llama_cpp package."""
    if named:
        return Path(named)
    spec = importlib.util.find_spec("llama_cpp")
    return Path(spec.origin).parent if spec and spec.origin else None


def load(path):
    try:
        return c.CDLL(str(path), mode=c.RTLD_GLOBAL)
    except OSError:
        return None


class Library:
    """Raises FileNotFoundError with one line when there is none."""

    def __init__(self, named=None):
        where = folder(named)
        if where is None:
            raise FileNotFoundError("no --ggml DIR given and no package llama_cpp installed")
        found = {p.name: p for p in sorted(where.rglob("*ggml*")) if ".so" in p.name or p.suffix == ".dylib"}
        base = [p for n, p in found.items() if n.startswith("libggml-base")]
        cpus = [p for n, p in found.items() if n.startswith("libggml-cpu")]
        self.base = next(filter(None, map(load, base)), None)
        if self.base is None:
            raise FileNotFoundError(f"no libggml-base in {where}")
        # Builds with one library per kind of CPU say how well each fits.
        best = (-1, None, None)
        for path in cpus:
            lib = load(path)
            if lib is not None and hasattr(lib, "ggml_graph_plan"):
                score = lib.ggml_backend_score() if hasattr(lib, "ggml_backend_score") else 0
                best = max(best, (score, path.name, lib), key=lambda x: x[0])
        _, self.name, self.cpu = best
        if self.cpu is None:
            raise FileNotFoundError(f"no libggml-cpu for this machine in {where}")
        base, pointers = self.base, "ggml_init ggml_new_tensor_4d ggml_flash_attn_ext ggml_new_graph ggml_get_data"
        for name in pointers.split():
            getattr(base, name).restype = c.c_void_p
        base.ggml_init.argtypes = [InitParams]
        base.ggml_free.argtypes = base.ggml_get_data.argtypes = base.ggml_new_graph.argtypes = [c.c_void_p]
        base.ggml_new_tensor_4d.argtypes = [c.c_void_p, c.c_int] + [c.c_int64] * 4
        base.ggml_flash_attn_ext.argtypes = [c.c_void_p] * 5 + [c.c_float] * 3
        base.ggml_build_forward_expand.argtypes = [c.c_void_p] * 2
        self.cpu.ggml_graph_plan.restype = Plan
        self.cpu.ggml_graph_plan.argtypes = [c.c_void_p, c.c_int, c.c_void_p]
        self.cpu.ggml_graph_compute.argtypes = [c.c_void_p, c.POINTER(Plan)]
        self.version = "?"
        if hasattr(base, "ggml_version"):
            base.ggml_version.restype = c.c_char_p
            self.version = base.ggml_version().decode()
        self.cpu.ggml_cpu_init()


class FlashAttention:
    """One graph with one node. `heads` query heads of `rows` rows share the keys and values."""

    def __init__(self, lib, q, k, v, dtype, causal=False):
        heads, rows, dim = q.shape
        n, self.lib = len(k), lib
        kind = F16 if dtype == "float16" else F32
        mask_bytes = 2 * n * rows if causal else 0
        room = 2 * n * dim * 4 + 2 * heads * rows * dim * 4 + mask_bytes + (16 << 20)
        self.ctx = lib.base.ggml_init(InitParams(room, None, False))
        if not self.ctx:
            raise MemoryError("ggml_init")
        tq = self.fill(F32, q.reshape(1, heads, rows, dim))
        tk, tv = (self.fill(kind, a.astype(dtype).reshape(1, 1, n, dim)) for a in (k, v))
        mask = None
        if causal:
            mask, data = self.tensor(F16, (1, 1, rows, n))
            for i in range(rows):
                end = i + 1 + n - rows
                data[0, 0, i, :end], data[0, 0, i, end:] = 0, -np.inf
        self.node = lib.base.ggml_flash_attn_ext(self.ctx, tq, tk, tv, mask, dim**-0.5, 0.0, 0.0)
        self.graph = lib.base.ggml_new_graph(self.ctx)
        lib.base.ggml_build_forward_expand(self.graph, self.node)
        self.plan = lib.cpu.ggml_graph_plan(self.graph, 1, None)
        self.work = aligned(np.zeros(self.plan.work_size), np.uint8)
        self.plan.work_data = self.work.ctypes.data
        # The result lies [rows, heads, dim].
        self.shape = (rows, heads, dim)

    def tensor(self, kind, shape):
        t = self.lib.base.ggml_new_tensor_4d(self.ctx, kind, *reversed(shape))
        return t, self.view(t, shape, c.c_uint16 if kind == F16 else c.c_float, np.float16 if kind == F16 else np.float32)

    def view(self, t, shape, element, dtype):
        data = (element * int(np.prod(shape))).from_address(self.lib.base.ggml_get_data(t))
        return np.frombuffer(data, dtype).reshape(shape)

    def fill(self, kind, a):
        t, data = self.tensor(kind, a.shape)
        data[:] = a
        return t

    def call(self):
        if self.lib.cpu.ggml_graph_compute(self.graph, c.byref(self.plan)):
            raise RuntimeError("ggml_graph_compute failed")

    def output(self):
        out = self.view(self.node, self.shape, c.c_float, np.float32)
        return np.ascontiguousarray(out.transpose(1, 0, 2)).reshape(-1, self.shape[2])

    def close(self):
        self.lib.base.ggml_free(self.ctx)
        self.ctx = None
