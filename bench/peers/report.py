"""What was measured: lines while it runs, tables, JSON."""

import json
import platform
from pathlib import Path

BEGIN, END = "<!-- dense -->", "<!-- /dense -->"

# Bounds of the mean relative output error for --check.
BOUNDS = {
    "iceformer f32": 1e-5,
    "iceformer f16": 5e-3,
    "iceformer f16 fixed": 5e-3,
    "PyTorch f32": 1e-4,
    "PyTorch bf16": 2e-2,
    "ggml f32": 2e-2,
    "ggml f16": 2e-2,
    "ONNX Runtime f32": 1e-4,
}
# Of ours alone: against f64 over the keys and values as stored.
ARITHMETIC = 1e-5
# The same with scores in fixed point.
FIXED = 2e-3


def processor():
    try:
        with open("/proc/cpuinfo") as f:
            return next(line.split(":")[1].strip() for line in f if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(r) + " |" for r in rows])


def keys(causal):
    return "causal" if causal else "all keys"


def milliseconds(s):
    return f"{s * 1e3:.3g}" if s < 0.1 else f"{s * 1e3:.0f}"


class Report:
    def __init__(self, core, versions, args):
        self.core, self.versions, self.args = core, versions, args
        self.cases, self.probes, self.notes = [], [], []

    def heading(self):
        named = ", ".join(f"{k} {v}" for k, v in self.versions.items())
        return f"{processor()}, core {self.core}, one thread. {named}."

    def probe(self, when, probe):
        p = {"when": when, **probe.report()}
        self.probes.append(p)
        rates = ", ".join(f"{k} {v:.0f}" for k, v in p["fma_gflops"].items())
        print(f"\n{when}: FMA GFLOP/s {rates}; reads {p['read_gb_s']:.1f} GB/s", flush=True)

    def add(self, case):
        self.cases.append(case)
        n, d = case["n"], case["d"]
        if case["kind"] == "prefill":
            print(f"n {n}, d {d}, {keys(case['causal'])}, {case['data']}, FMA {case['fma_gflops']:.0f} GFLOP/s", flush=True)
        else:
            read = ", ".join(f"{s} {x:.1f}" for s, x in case["read_gb_s"].items())
            print(f"decode, {n} keys, d {d}, {case['data']}, reading the same bytes, GB/s: {read}", flush=True)
        for x in case["figures"]:
            speed = (
                f"{x['gflops']:7.1f} GFLOP/s {x['share_of_fma']:5.0%} of FMA"
                if case["kind"] == "prefill"
                else f"{x['gb_s']:7.1f} GB/s {x['share_of_read']:5.0%} of reading"
            )
            print(
                f"  {x['kernel']:17} {milliseconds(x['seconds']):>6} ms {speed}  {x['time_over_ours']:5.2f} x {x['against']:17}"
                f" error {x['error_mean']:.1e}, p99 {x['error_p99']:.1e}, arithmetic {x['error_arithmetic']:.1e}"
                f"  CPU/wall {x['seconds'] / x['wall_seconds']:.2f}, {x['rounds']} rounds",
                flush=True,
            )

    def figures(self, kind):
        return [(c, x) for c in self.cases if c["kind"] == kind for x in c["figures"]]

    def names(self, kind):
        return list(dict.fromkeys(x["kernel"] for _, x in self.figures(kind)))

    def prefill_table(self):
        others = [n for n in self.names("prefill") if not n.startswith("iceformer")]
        head = ["d", "keys", "n", "FMA peak", "ours f32", "of peak", "ours f16", "of peak", "fixed", "of peak"]
        rows = []
        for c in (c for c in self.cases if c["kind"] == "prefill"):
            x = {f["kernel"]: f for f in c["figures"]}
            row = [str(c["d"]), keys(c["causal"]), str(c["n"]), f"{c['fma_gflops']:.0f}"]
            for mine in ("iceformer f32", "iceformer f16", "iceformer f16 fixed"):
                row += [f"{x[mine]['gflops']:.0f}", f"{x[mine]['share_of_fma']:.0%}"]
            rows.append(row + [f"{x[o]['time_over_ours']:.2f}" if o in x else "" for o in others])
        return table(head + others, rows)

    def error_table(self):
        rows = []
        for name in self.names("prefill"):
            all_of = [x for _, x in self.figures("prefill") if x["kernel"] == name]
            parts = ("error_mean", "error_p99", "error_arithmetic")
            rows.append([name] + [f"{max(x[p] for x in all_of):.1e}" for p in parts])
        return table(["kernel", "mean error", "99th percentile", "without storage"], rows)

    def decode_table(self):
        head = ["cached keys", "kernel", "µs", "GB/s", "of reading", "time over ours", "error", "without storage"]
        rows = []
        for c, x in self.figures("decode"):
            row = [str(c["n"]), x["kernel"], f"{x['seconds'] * 1e6:.0f}", f"{x['gb_s']:.1f}", f"{x['share_of_read']:.0%}"]
            rows.append(row + [f"{x['time_over_ours']:.2f}", f"{x['error_mean']:.1e}", f"{x['error_arithmetic']:.1e}"])
        return table(head, rows)

    def command(self):
        """The command again, without names of files and folders."""
        words, skip = [], False
        for word in self.args:
            if skip:
                word = {"--ggml": "DIR"}.get(words[-1], "FILE")
            skip = word in ("--ggml", "--json", "--markdown", "--data", "--library")
            words.append(word)
        return " ".join(["python bench/peers/dense.py", *words])

    def markdown(self):
        busy = min((x["seconds"] / x["wall_seconds"] for c in self.cases for x in c["figures"]), default=1)
        peak = [p["fma_gflops"] for p in self.probes]
        span = ", ".join(f"{i} {min(p[i] for p in peak):.0f} to {max(p[i] for p in peak):.0f}" for i in peak[0])
        reads = [p["read_gb_s"] for p in self.probes]
        parts = [
            f"Made by `{self.command()}`.",
            self.heading(),
            f"FMA probe between the tables, GFLOP/s: {span}. Memory read in order, GB/s: {min(reads):.1f} to {max(reads):.1f}."
            f" Times are CPU times of the thread, {'equal to wall times here' if busy > 0.98 else f'down to {busy:.0%} of wall times: the machine was shared'}.",
        ]
        if self.names("prefill"):
            data = dict.fromkeys(c["data"] for c in self.cases if c["kind"] == "prefill")
            parts += [
                "GFLOP/s of ours with keys and values in f32 and in f16, and with the option for scores in 16-bit fixed point"
                " (f16 too). Then the share of the f32 FMA rate reached in the same round. For each other kernel its time over ours: above 1 ours is faster. f32 is compared with f32, f16 and bf16"
                f" with our f16. Data: {', '.join(data)}.",
                self.prefill_table(),
                "Output error, relative L2 by row against f64, worst case of the table; without storage: the mean against f64"
                " over inputs rounded as the kernel stores them.",
                self.error_table(),
            ]
        if self.names("decode"):
            group = {c["n"]: x["over_one_row"] for c, x in self.figures("decode") if x["kernel"] == "iceformer f16 x 4"}
            parts += [
                "One row against a cache, d 128; x 4: four query heads of one KV head. GB/s count keys and values once; reading"
                " is a plain pass over as many bytes, in its own turn of the same rounds. Repeated calls on one cache: what"
                " fits the processor's caches stays there, for everybody.",
                self.decode_table(),
                "Four rows over one, ours, f16: " + ", ".join(f"{r:.2f} at {n}" for n, r in group.items()) + ".",
            ]
        parts += [f"{note[0].upper()}{note[1:]}." for note in self.notes]
        return "\n\n".join(parts)

    def write_json(self, path):
        fields = ("core", "versions", "args", "probes", "notes", "cases")
        Path(path).write_text(json.dumps({"processor": processor(), **{f: getattr(self, f) for f in fields}}, indent=1))

    def write_markdown(self, path):
        """Between the marks of a file that has them, else as the whole file."""
        path = Path(path)
        text = path.read_text() if path.exists() else ""
        if BEGIN in text and END in text:
            before, rest = text.split(BEGIN, 1)
            text = f"{before}{BEGIN}\n{self.markdown()}\n{END}{rest.split(END, 1)[1]}"
        else:
            text = self.markdown() + "\n"
        path.write_text(text)

    def check(self):
        """Prints errors above their bounds; returns the exit status."""
        bad = 0
        for c in self.cases:
            for x in c["figures"]:
                bound = BOUNDS[x["kernel"].removesuffix(" x 4")]
                ours = x["kernel"].startswith("iceformer")
                own = FIXED if x["kernel"].endswith("fixed") else ARITHMETIC if ours else float("inf")
                # Written so that NaN is too large.
                if not (x["error_mean"] <= bound and x["error_arithmetic"] <= own):
                    print(f"error above its bound: {x['kernel']}, {c['kind']} n {c['n']} d {c['d']}: {x['error_mean']:.1e}")
                    bad = 1
        print("output errors are within bounds" if not bad else "output errors are NOT within bounds")
        return bad
