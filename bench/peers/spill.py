"""Boundary keys in their second cell as well: what recall costs then, in codes compared.

    spill.py FILE.safetensors..

Files are captured heads (layerN.q, layerN.k: inner product, top 30) or sets of knn_data.py (base, query, metric: top 10). Cells
as the index forms them: keys along their 32 leading directions, about 0.8 sqrt(n) keys to a cell, means of what is nearest. A
share of the keys, those that are nearly as near to another cell, is put into a second one: the second nearest, or the one
whose residual is least parallel to the first (SOAR, NeurIPS 2023, lambda 1). A query looks into cells in the index's order.
The table has the codes that it must compare for a recall, as a factor of what it takes without: below 1 is a gain."""
import sys

import numpy as np
from safetensors.numpy import load_file

NEAR, ROUNDS, TARGETS = 32, 4, (0.9, 0.95, 0.99)
WAYS = [("second nearest", s, None) for s in (0.1, 0.25, 0.5)] + [("SOAR", s, 1.0) for s in (0.1, 0.25, 0.5, 1.0)]


def distances(x, centers):
    return (x * x).sum(1)[:, None] - 2 * x @ centers.T + (centers * centers).sum(1)


def gather(keys, rng):
    """Centers and nearest cell of every key, in their leading coordinates."""
    mean = keys.mean(0)
    sample = keys[rng.choice(len(keys), min(len(keys), 8192), replace=False)] - mean
    _, _, basis = np.linalg.svd(sample.T @ sample)
    x = (keys - mean) @ basis[:NEAR].T
    count = int(len(keys) / max(0.8 * np.sqrt(len(keys)), 128)) + 1
    sample = x[rng.choice(len(keys), min(len(keys), max(2048, 8 * count)), replace=False)]
    centers = sample[:: max(len(sample) // count, 1)][:count].copy()
    for _ in range(ROUNDS):
        which = distances(sample, centers).argmin(1)
        for c in range(len(centers)):
            if (which == c).any():
                centers[c] = sample[which == c].mean(0)
    d = distances(x, centers)
    first = d.argmin(1)
    kept = np.unique(first)
    return x, centers[kept], d[:, kept], np.searchsorted(kept, first)


def second(x, centers, d, first, share, soar):
    """Another cell for the share of the keys that are nearly as near to it; -1 for the others."""
    rows = np.arange(len(x))
    if soar is None:
        loss = d.copy()
    else:
        residual = x - centers[first]
        residual /= np.maximum(np.linalg.norm(residual, axis=1, keepdims=True), 1e-20)
        # The component of the other residual along the first one.
        along = (x * residual).sum(1)[:, None] - residual @ centers.T
        loss = d + soar * along * along
    loss[rows, first] = np.inf
    other = loss.argmin(1)
    margin = d[rows, other] - d[rows, first]
    out = np.full(len(x), -1)
    spilled = margin.argsort()[: int(share * len(x))]
    out[spilled] = other[spilled]
    return out


def cost(sizes, order, rank, cells, truth):
    """Mean codes compared at each recall aimed at."""
    ranks = np.min([np.where(c[truth] >= 0, np.take_along_axis(rank, np.maximum(c[truth], 0), 1), len(sizes)) for c in cells], 0)
    found = np.bincount(ranks.ravel(), minlength=len(sizes) + 1)[: len(sizes)].cumsum() / truth.size
    compared = sizes[order].cumsum(1).mean(0)
    return [np.interp(t, np.concatenate([[0], found]), np.concatenate([[0], compared])) for t in TARGETS]


def study(keys, queries, product, near):
    rng = np.random.default_rng(1)
    x, centers, d, first = gather(keys, rng)
    scores = queries @ keys.T
    if not product:
        scores = scores - 0.5 * (keys * keys).sum(1)
    truth = np.argpartition(-scores, near, 1)[:, :near]
    count = len(centers)
    sizes = np.bincount(first, minlength=count)
    means = np.stack([keys[first == c].mean(0) for c in range(count)])
    promise = queries @ means.T
    if product:
        spread = ((keys - means[first]) ** 2).sum(1)
        reach = np.sqrt(np.bincount(first, spread, count) / sizes / keys.shape[1])
        promise = promise + 2 * np.linalg.norm(queries, axis=1)[:, None] * reach
    else:
        promise = promise - 0.5 * (means * means).sum(1)
    order = (-promise).argsort(1)
    rank = order.argsort(1)
    plain = cost(sizes, order, rank, [first], truth)
    out = []
    for _, share, soar in WAYS:
        other = second(x, centers, d, first, share, soar)
        more = sizes + np.bincount(other[other >= 0], minlength=count)
        out.append([b / a for a, b in zip(plain, cost(more, order, rank, [first, other], truth))])
    return [p / len(keys) for p in plain], out


def main():
    print("| data | way | keys in two cells | " + " | ".join(f"recall {t}" for t in TARGETS) + " |")
    print("|---|---|---|" + "---|" * len(TARGETS))
    for path in sys.argv[1:]:
        file = load_file(path)
        results = []
        if "base" in file:
            results.append(study(file["base"], file["query"][:1000], False, 10))
        for name in sorted(n for n in file if n.endswith(".q")):
            q, k = file[name].astype(np.float32), file[name[:-1] + "k"].astype(np.float32)
            for h in range(len(q)):
                results.append(study(k[h * len(k) // len(q)], q[h][::8], True, 30))
        data = path.split("/")[-1].removesuffix(".safetensors")
        plain = np.mean([r[0] for r in results], 0)
        print(f"| {data} | without: share of the codes | 0 % | " + " | ".join(f"{100 * p:.1f} %" for p in plain) + " |")
        for i, (way, share, _) in enumerate(WAYS):
            factors = np.exp(np.mean(np.log([r[1][i] for r in results]), 0))
            print(f"| {data} | {way} | {100 * share:.0f} % | " + " | ".join(f"{f:.2f}" for f in factors) + " |", flush=True)


main()
