#!/usr/bin/env python3
"""Times iceformer's operator beside ONNX Runtime's own Attention, with the error of each beside it.

    python speed.py [--threads 1] [--data heads.safetensors --layer 2] [--markdown file.md]

Turns are interleaved (theirs, exact, accelerated, theirs, ...), after one that is not timed; ratios are medians over rounds.
Errors are relative L2 norms of output rows, all heads side by side, against double precision: mean over sampled rows. Data
are seeded heads with sinks, locality and topics, or captured ones."""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "tests"), str(HERE.parents[1] / "bench" / "peers")]

import data  # noqa: E402
from nodes import node_model, session  # noqa: E402


def load(args, n):
    if not args.data:
        made = [[data.structured(n, args.dim, seed=7 * h + g) for g in range(args.heads // args.kv_heads)]
                for h in range(args.kv_heads)]
        q = np.stack([head[0] for group in made for head in group])
        k, v = (np.stack([group[0][i] for group in made]) for i in (1, 2))
    else:
        tensors, _ = data.read(args.data)
        q, k, v = (np.asarray(tensors[f"layer{args.layer}.{x}"][:, :n], np.float32) for x in "qkv")
        if q.shape[1] < n:
            return None
    return [np.ascontiguousarray(x[None]) for x in (q, k, v)]


def relative(heads, n):
    """A bias of relative positions, another one for every head: [1, heads, n, n]."""
    apart = np.log1p(np.arange(n, dtype=np.float32))
    line = np.concatenate([apart[:0:-1], apart])
    rows = np.lib.stride_tricks.sliding_window_view(line, n)[::-1]
    return np.stack([-0.25 * (h + 1) / heads * rows for h in range(heads)]).astype(np.float32)[None]


def truth(q, k, v, causal, rows, bias):
    """Those rows in double precision: [heads, rows, elements]."""
    group, out = q.shape[1] // k.shape[1], []
    for h in range(q.shape[1]):
        kh, vh = (x[0, h // group].astype(np.float64) for x in (k, v))
        s = q[0, h, rows].astype(np.float64) @ kh.T / np.sqrt(q.shape[-1])
        if bias is not None:
            s += bias[0, h, rows]
        if causal:
            s[np.arange(k.shape[2])[None] > rows[:, None]] = -np.inf
        w = np.exp(s - s.max(-1, keepdims=True))
        out.append(w @ vh / w.sum(-1, keepdims=True))
    return np.stack(out)


def error(y, want, rows):
    got = y[0][:, rows].astype(np.float64)
    norm = lambda x: np.sqrt((x**2).sum((0, 2)))  # noqa: E731
    return float((norm(got - want) / norm(want)).mean())


def case(args, n, causal):
    tensors = load(args, n)
    if tensors is None:
        return None
    bias = relative(tensors[0].shape[1], n) if args.bias else None
    inputs = list(zip("qkv", tensors)) + [("mask", bias)] * args.bias
    forms = {
        "ort": ("", {}),
        "exact": ("iceformer", {"mode": "exact"}),
        "accelerated": ("iceformer", {"mode": "accelerated", "tolerance": args.tolerance}),
    }
    sessions = {}
    for name, (domain, more) in forms.items():
        sessions[name] = session(node_model("Attention", domain, inputs, ["y"], {"is_causal": causal, **more}), args.threads)
    feeds, seconds, errors = dict(inputs), {name: [] for name in forms}, {}
    rows = np.unique(np.linspace(n // 2, n - 1, args.samples).astype(int))
    want = truth(*tensors, causal, rows, bias)
    for name, s in sessions.items():
        errors[name] = error(s.run(None, feeds)[0], want, rows)
    for _ in range(args.rounds):
        for name, s in sessions.items():
            begin = time.perf_counter()
            s.run(None, feeds)
            seconds[name].append(time.perf_counter() - begin)
    ratio = {f: statistics.median(a / b for a, b in zip(seconds["ort"], seconds[f])) for f in ("exact", "accelerated")}
    ms = {name: 1e3 * statistics.median(t) for name, t in seconds.items()}
    return {"tokens": n, "causal": bool(causal), "threads": args.threads, "ms": ms, "ratio": ratio, "error": errors}


def row(r):
    ms, ratio, e = r["ms"], r["ratio"], r["error"]
    return (f"| {r['tokens']} | {'yes' if r['causal'] else 'no'} | {ms['ort']:.0f} | {ms['exact']:.0f} | {ratio['exact']:.2f} | "
            f"{ms['accelerated']:.0f} | {ratio['accelerated']:.2f} | {e['ort']:.1e} | {e['exact']:.1e} | "
            f"{100 * e['accelerated']:.1f} % |")


HEAD = ("| tokens | causal | ONNX Runtime ms | exact ms | ratio | accelerated ms | ratio | error ONNX Runtime | error exact | "
        "error accelerated |\n|---|---|---|---|---|---|---|---|---|---|")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=lambda s: [int(x) for x in s.split(",")], default=[2048, 4096, 8192, 16384])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--tolerance", type=float, default=0.05)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=64, help="rows that errors are taken of, from the second half")
    parser.add_argument("--data", help="a safetensors file of captured heads instead of seeded ones")
    parser.add_argument("--layer", type=int, default=0)
    parser.add_argument("--bias", action="store_true", help="relative positions by head, not causal")
    parser.add_argument("--json")
    parser.add_argument("--markdown", help="puts the table between <!-- speed-T --> (speed-T-bias) and its end in this file, T the threads")
    parser.add_argument("--check", action="store_true", help="fails where exact errors are above 1e-5 or others above 0.5")
    args = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[: args.threads]))
    print(HEAD)
    results = []
    for n in args.lengths:
        for causal in (0,) if args.bias else (1, 0):
            r = case(args, n, causal)
            if r:
                results.append(r)
                print(row(r), flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1) + "\n")
    if args.markdown:
        at = Path(args.markdown)
        text = at.read_text()
        mark = f"speed-{args.threads}" + "-bias" * args.bias
        first, last = f"<!-- {mark} -->", f"<!-- /{mark} -->"
        before, rest = text.split(first)
        table = "\n".join([HEAD] + [row(r) for r in results])
        at.write_text(f"{before}{first}\n{table}\n{last}{rest.split(last)[1]}")
    wrong = [r for r in results if r["error"]["exact"] > 1e-5 or r["error"]["accelerated"] > 0.5]
    if args.check and (wrong or not results):
        print("errors above what they may be:", wrong)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
