"""The aims of the exact kernel, each with the worst case measured. Below zero means missed by that share."""


def prefill(result, name, figure, d=None, causal=None, low=2048, high=1 << 30):
    return [
        (x[figure], f"n {c['n']}, d {c['d']}")
        for c, x in result.figures("prefill")
        if x["kernel"] == name and low <= c["n"] <= high and d in (None, c["d"]) and causal in (None, c["causal"])
    ]


def decode(result, name, figure, low=0):
    return [(x[figure], f"n {c['n']}") for c, x in result.figures("decode") if x["kernel"] == name and c["n"] >= low]


def listed(result):
    """Description, values with their place, least value."""
    for mine in ("iceformer f32", "iceformer f16"):
        for causal, least in ((False, 0.85), (True, 0.8)):
            what = f"{mine}, {'causal' if causal else 'all keys'}, share of FMA"
            yield what, prefill(result, mine, "share_of_fma", causal=causal), least
    time = "time_over_ours"
    for d, causal, least in ((64, True, 1.25), (128, True, 1.15), (64, False, 1.2), (128, False, 1.05)):
        what = f"PyTorch f32 over ours, d {d}, {'causal' if causal else 'all keys'}"
        yield what, prefill(result, "PyTorch f32", time, d, causal), least
    yield "PyTorch f32 over ours, n 1024", prefill(result, "PyTorch f32", time, low=1024, high=1024), 0.95
    for name, with_causal, without in (("ggml f32", 2.7, 2.2), ("ggml f16", 2.7, 2.2), ("ONNX Runtime f32", 4, 1.05)):
        yield f"{name} over ours, causal", prefill(result, name, time, causal=True), with_causal
        yield f"{name} over ours, all keys", prefill(result, name, time, causal=False), without
    for causal, least in ((True, 2.7), (False, 2.2)):
        over = prefill(result, "iceformer f16 fixed", time, causal=causal)
        gg = prefill(result, "ggml f16", time, causal=causal)
        both = [(g / f, where) for (g, where), (f, _) in zip(gg, over)]
        yield f"ggml f16 over ours in fixed point, {'causal' if causal else 'all keys'}", both, least
    yield "decode f16, share of reading, n from 64k", decode(result, "iceformer f16", "share_of_read", 65536), 0.9
    for s in ("f16", "f32"):
        yield f"decode, ggml {s} over ours", decode(result, f"ggml {s}", time), 1.0
    less = [(1.3 / x, f"{where}: {x:.2f} x one row") for x, where in decode(result, "iceformer f16 x 4", "over_one_row")]
    yield "decode f16, 1.3 rows over four", less, 1.0


def lines(result):
    for what, values, least in listed(result):
        if values:
            worst, where = min(values)
            yield f"{'met   ' if worst >= least else 'missed'} {what}: at least {least}, worst {worst:.2f} ({where})"
