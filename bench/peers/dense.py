#!/usr/bin/env python3
"""Exact attention of iceformer beside dense CPU kernels of others: one process, one pinned thread, turn by turn.

    python bench/peers/dense.py [--ggml DIR] [--json FILE] [--markdown FILE]

README.md in this folder says how to install the others and how the figures are made."""

import os

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"

import argparse
import sys

sys.dont_write_bytecode = True

try:
    import numpy as np
except ImportError:
    sys.exit("numpy is not importable: see bench/peers/README.md")

import data
import ggml
import ours
import peers
import report
import targets
import timing

ROWS = 256


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--n", type=int, nargs="+", help="prompt lengths (default 1024 2048 4096 8192)")
    p.add_argument("--decode", type=int, nargs="*", help="cached keys of a decoded row (default 4096 16384 65536)")
    p.add_argument("--d", type=int, nargs="+", default=[64, 128], help="head dimensions (default 64 128)")
    p.add_argument("--long", action="store_true", help="adds n 16384 and 32768, decode 262144")
    p.add_argument("--quick", action="store_true", help="tiny sizes, two rounds: says that everything runs, not how fast")
    p.add_argument("--check", action="store_true", help="fails when an output error is above its bound")
    p.add_argument("--rounds", type=int, default=9, help="rounds of turns (default 9)")
    p.add_argument("--budget", type=float, default=25, help="seconds per case after which three rounds are enough")
    p.add_argument("--core", type=int, help="core to run on (default: the last one allowed)")
    p.add_argument("--only", help="kernels whose name holds one of these, comma separated; ours always run")
    p.add_argument("--data", help="captured heads, safetensors, used where they are long enough")
    p.add_argument("--ggml", help="folder with ggml's shared libraries (default: in an installed llama_cpp)")
    p.add_argument("--library", help="libiceformer.so (default: cargo's release folder)")
    p.add_argument("--json", help="writes every figure")
    p.add_argument("--markdown", help="writes the tables, between the marks <!-- dense --> where the file has them")
    o = p.parse_args()
    if o.quick:
        o.rounds = 2
    o.n = o.n or ([200, 515] if o.quick else [1024, 2048, 4096, 8192])
    o.decode = ([1000] if o.quick else [4096, 16384, 65536]) if o.decode is None else o.decode
    if o.long:
        o.n, o.decode = o.n + [16384, 32768], o.decode + [262144]
    return o


class Kernels:
    """What is importable, under names; says once what is not."""

    def __init__(self, o):
        self.only = o.only.split(",") if o.only else [""]
        self.library = ours.Library(o.library)
        self.versions = {"iceformer": f"{self.library.version} ({self.library.isa})", "numpy": np.__version__}
        self.notes = []
        self.torch = self.peer("PyTorch", peers.load_torch)
        self.onnx = self.peer("ONNX Runtime", peers.load_onnx)
        self.ggml = self.peer("ggml", lambda: ggml.Library(o.ggml))
        if self.torch:
            self.versions["PyTorch"] = self.torch.__version__
        if self.onnx:
            self.versions["ONNX Runtime"] = self.onnx[1].__version__
        if self.ggml:
            self.versions["ggml"] = f"{self.ggml.version} ({self.ggml.name})"

    def note(self, text):
        if text not in self.notes:
            self.notes.append(text)
            print(text, flush=True)

    def skip(self, text):
        self.note(f"skipped: {text}")

    def peer(self, name, load):
        try:
            return load()
        except (ImportError, OSError) as e:
            self.skip(f"{name}: {e}")
            return None

    def choose(self, listed):
        return [x for x in listed if x[0].startswith("iceformer") or any(part in x[0] for part in self.only)]

    def prefill(self, q, k, v, causal):
        """Name, element type of keys and values, bytes beside the inputs, maker."""
        n = len(q)
        make = [(f"iceformer {s}", s, 0, self.attention(q, k, v, s, causal)) for s in ("f32", "f16")]
        # The option for scores in 16-bit fixed point; the same as f16 where the processor has no use for it.
        make.append(("iceformer f16 fixed", "f16", 0, self.attention(q, k, v, "f16", causal, fixed=True)))
        if self.torch:
            for s, kind in (("f32", "float32"), ("bf16", "bfloat16")):
                make.append((f"PyTorch {s}", s, 0, lambda kind=kind: peers.Torch(self.torch, q[None], k, v, kind, causal)))
        if self.ggml:
            for s, kind in (("f32", "float32"), ("f16", "float16")):
                flash = lambda kind=kind: ggml.FlashAttention(self.ggml, q[None], k, v, kind, causal)
                make.append((f"ggml {s}", s, 2 * n * n if causal else 0, flash))
        if self.onnx:
            onnx = lambda: peers.MultiHeadAttention(self.onnx, q, k, v, causal)
            make.append(("ONNX Runtime f32", "f32", (8 if causal else 4) * n * n, onnx))
        return self.choose(make)

    def attention(self, q, k, v, storage, causal, fixed=False):
        kind = np.float16 if storage == "f16" else np.float32
        return lambda: ours.Attention(self.library, q, *cast(kind, k, v), causal, fixed)

    def decode(self, q, k, v):
        """As `prefill`, for one row of each of four query heads; names without "x 4" use the first."""
        make, both = [], (("f16", "float16"), ("f32", "float32"))
        for s, kind in both:
            for name, rows in ((f"iceformer {s}", q[:1]), (f"iceformer {s} x 4", q)):
                make.append((name, s, 0, lambda kind=kind, rows=rows: ours.Session(self.library, rows, *cast(kind, k, v), kind)))
        if self.ggml:
            for s, kind in both:
                for name, rows in ((f"ggml {s}", q[:1]), (f"ggml {s} x 4", q)):
                    flash = lambda kind=kind, rows=rows: ggml.FlashAttention(self.ggml, rows[:, None], k, v, kind)
                    make.append((name, s, 0, flash))
        if self.torch:
            make.append(("PyTorch f32", "f32", 0, lambda: peers.Torch(self.torch, q[:1, None], k, v, "float32")))
        return self.choose(make)

    def build(self, listed, where):
        """Those that can be made, called and ready to be timed, with their output."""
        built = {}
        for name, storage, memory, make in listed:
            if memory > available() / 2:
                self.skip(f"{name}, {where}: needs {memory / 2**30:.1f} GiB")
                continue
            try:
                kernel = make()
                ready = timing.Timed(kernel)
                built[name] = (storage, ready, kernel.output().copy())
            except Exception as e:
                if name.startswith("iceformer"):
                    raise
                self.skip(f"{name}, {where}: {str(e).splitlines()[0]}")
        return built


def cast(kind, *arrays):
    return [data.aligned(a, kind) for a in arrays]


def available():
    try:
        with open("/proc/meminfo") as f:
            return next(int(line.split()[1]) * 1024 for line in f if line.startswith("MemAvailable"))
    except OSError:
        return 8 << 30


def rounded(a, storage):
    if storage == "f16":
        return a.astype(np.float16).astype(np.float32)
    if storage == "bf16":
        bits = a.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)
    return a


class Reference:
    """f64 attention of some rows over the data as given, and as each kernel stores it."""

    def __init__(self, q, k, v, rows, causal):
        self.rows, self.problem, self.causal = rows, (q, k, v), causal
        self.known = {}

    def want(self, storage):
        if storage not in self.known:
            q, k, v = self.problem
            q = rounded(q, storage) if storage == "bf16" else q
            self.known[storage] = data.exact(q, rounded(k, storage), rounded(v, storage), self.rows, self.causal)
        return self.known[storage]

    def judge(self, storage, out):
        out = out[self.rows[: len(out)]].astype(np.float64)
        n = len(out)
        mean, p99 = data.errors(out, self.want("f32")[:n])
        own, _ = data.errors(out, self.want(storage)[:n])
        return {"error_mean": mean, "error_p99": p99, "error_arithmetic": own}


def case(kernels, built, reference, extra, o):
    """Times everything turn by turn; returns figures by name and the turns."""
    timed = dict(extra)
    timed.update((name, ready) for name, (_, ready, _) in built.items())
    turns = timing.interleave(timed, o.rounds, o.budget)
    figures = []
    for name, (storage, ready, out) in built.items():
        t = turns[name]
        x = {"kernel": name, "storage": storage, "seconds": timing.median(t), "wall_seconds": timing.median(t, "wall")}
        if timing.median(t, "other") > 0.05 * x["seconds"]:
            kernels.note(f"{name} used other threads too: its CPU time is too small")
        x["rounds"], x["turns"] = len(t), t
        x.update(reference.judge(storage, out))
        mine = f"iceformer {'f32' if storage == 'f32' else 'f16'}{' x 4' if name.endswith('x 4') else ''}"
        x["against"], x["time_over_ours"] = mine, timing.ratio(t, turns[mine])
        x["wall_over_ours"] = timing.ratio(t, turns[mine], "wall")
        figures.append(x)
        if hasattr(ready.kernel, "close"):
            ready.kernel.close()
    return figures, turns


def prefill(kernels, probe, source, n, d, causal, o):
    where, q, k, v = source.get(n, d, causal)
    built = kernels.build(kernels.prefill(q, k, v, causal), f"n {n}")
    rows = np.unique(np.linspace(0, n - 1, ROWS).astype(int))
    reference = Reference(q, k, v, rows, causal)
    extra = {"fma": timing.Fma(probe, kernels.library.isa)}
    figures, turns = case(kernels, built, reference, extra, o)
    pairs = n * (n + 1) / 2 if causal else n * n
    for x in figures:
        x["gflops"] = 4 * d * pairs / x["seconds"] / 1e9
        share = [4 * d * pairs / t["cpu"] / 1e9 / p["figure"] for t, p in zip(x["turns"], turns["fma"])]
        x["share_of_fma"] = float(np.median(share))
    peak = timing.median(turns["fma"], "figure")
    return {"kind": "prefill", "n": n, "d": d, "causal": causal, "data": where, "fma_gflops": peak, "figures": figures}


def decode(kernels, probe, n, d, o):
    where, q, k, v = ("structured", *data.structured(n, d))
    q = data.aligned(q[-4:])
    built = kernels.build(kernels.decode(q, k, v), f"decode {n}")
    reference = Reference(q, k, v, np.arange(4), False)
    sizes = {"f16": 4 * n * d, "f32": 8 * n * d}
    extra = {f"read {s}": timing.Read(probe, size) for s, size in sizes.items()}
    figures, turns = case(kernels, built, reference, extra, o)
    for x in figures:
        read = turns[f"read {x['storage']}"]
        x["gb_s"] = sizes[x["storage"]] / x["seconds"] / 1e9
        x["share_of_read"] = timing.ratio(read, x["turns"])
        if x["kernel"].startswith("iceformer") and x["kernel"].endswith("x 4"):
            x["over_one_row"] = timing.ratio(x["turns"], turns[x["kernel"][:-4]])
    read = {s: sizes[s] / timing.median(turns[f"read {s}"]) / 1e9 for s in sizes}
    return {"kind": "decode", "n": n, "d": d, "data": where, "read_gb_s": read, "figures": figures}


def main():
    o = options()
    core = timing.pin(o.core)
    try:
        kernels = Kernels(o)
        probe = timing.Probe(ours.target() / "core_peak")
    except FileNotFoundError as e:
        sys.exit(f"{e}\nbuild first: cargo build --release -p iceformer-ffi -p iceformer-bench")
    source = data.Source(o.data)
    result = report.Report(core, kernels.versions, sys.argv[1:])
    print(result.heading(), flush=True)
    for d in o.d:
        for causal in (False, True):
            result.probe(f"before d {d}, {'causal' if causal else 'all keys'}", probe)
            for n in o.n:
                result.add(prefill(kernels, probe, source, n, d, causal, o))
    if o.decode:
        result.probe("before decode", probe)
        for n in o.decode:
            result.add(decode(kernels, probe, n, 128, o))
    result.probe("at the end", probe)
    probe.close()
    result.notes = kernels.notes
    print("\n" + result.markdown())
    if o.json:
        result.write_json(o.json)
    if o.markdown:
        result.write_markdown(o.markdown)
    for line in targets.lines(result):
        print(line)
    if o.check:
        sys.exit(result.check())


if __name__ == "__main__":
    main()
