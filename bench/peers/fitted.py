"""What directions fitted to queries would be worth to the cells of the index: recall against modelled cost, head by head.

    python bench/peers/fitted.py captures.safetensors [more...]

Captures hold `layerN.q` and `layerN.k`, [heads, tokens, dim], grouped heads allowed. The model follows the index:
directions, cells by k-means, keys coded in bytes relative to the mean of their cell, queries in bytes, the best codes scored
exactly, and the index's own estimate of cost (multiply-adds of f32, a byte's at 0.3), as a share of what scoring every key
costs. Inner product, top 30. Three ways to choose directions: `keys`, the leading eigenvectors of the keys' covariance that
cover 97.5 % (what the index does); `all`, every eigenvector; `fitted`, those that balance keys and 2,048 sample queries and so
minimise the error of products (keys and queries then have a matrix each), as many as cover 97.5 % in the same way.
"""

import argparse

import numpy as np
from safetensors.numpy import load_file

K, NEAR, STEP = 30, 32, 32
WAYS = ("keys", "all", "fitted")


def directions(way, keys, queries):
    """Rows that keys are multiplied by, and rows that queries are."""
    _, s, v = np.linalg.svd(keys, full_matrices=False)
    spread = s**2
    if way == "fitted":
        # keys v^T diag(s): halves of the two moments; their product's singular vectors balance them.
        _, sq, vq = np.linalg.svd(queries, full_matrices=False)
        sq, s = np.maximum(sq, sq[0] * 1e-5), np.maximum(s, s[0] * 1e-5)
        a, both, b = np.linalg.svd((sq[:, None] * vq) @ (v.T * s))
        root = 1 / np.sqrt(both)[:, None]
        for_keys = root * (a.T @ (sq[:, None] * vq))
        for_queries = root * (b @ (s[:, None] * v))
        spread = both**2
    else:
        for_keys = for_queries = v
    rank = len(spread)
    if way != "all":
        cover = np.cumsum(spread) / spread.sum()
        rank = min(rank, (int(np.searchsorted(cover, 0.975)) // STEP + 1) * STEP)
    return for_keys[:rank], for_queries[:rank]


def rounded(x, most):
    unit = np.maximum(np.abs(x).max(1, keepdims=True), 1e-30) / most
    return np.rint(x / unit) * unit


def cells_of(x, rng):
    n = len(x)
    count = int(n / max(0.8 * n**0.5, 128)) + 1
    near = x[:, :NEAR]
    centers = near[rng.choice(n, count, replace=False)]
    for _ in range(4):
        which = (near @ centers.T - 0.5 * (centers**2).sum(1)).argmax(1)
        for c in range(count):
            if (which == c).any():
                centers[c] = near[which == c].mean(0)
    return (near @ centers.T - 0.5 * (centers**2).sum(1)).argmax(1), count


def costs(way, keys, sample, asked, truth, rng):
    n, dim = keys.shape
    mean = keys.mean(0)
    for_keys, for_queries = directions(way, keys[rng.choice(n, min(n, 2048), replace=False)] - mean, sample)
    rank = len(for_keys)
    turn = np.linalg.qr(rng.standard_normal((rank, rank)))[0]
    x = (keys - mean) @ for_keys.T
    which, count = cells_of(x, rng)
    x = x @ turn.T
    q = asked @ for_queries.T @ turn.T
    means = np.stack([x[which == c].mean(0) if (which == c).any() else np.zeros(rank) for c in range(count)])
    x -= means[which]
    sizes = np.maximum(np.bincount(which, minlength=count), 1)
    reach = np.sqrt(np.bincount(which, (x**2).sum(1), count) / sizes / rank)
    scores = rounded(q, 127) @ rounded(x, 127).T + (q @ means.T)[:, which]
    promise = q @ means.T + 2 * np.linalg.norm(q, axis=1, keepdims=True) * reach
    # Of every true neighbour: cells before its own. Then, by number of cells looked into, keys with better codes.
    place = (-promise).argsort(1).argsort(1)[:, which]
    best = {}
    for probe in sorted({min(count, int(np.ceil(1.25**i))) for i in range(40)}):
        seen = place < probe
        limited = np.where(seen, scores, -np.inf)
        order = np.sort(limited, axis=1)[:, ::-1]
        own = np.take_along_axis(limited, truth, 1)
        ranks = np.array([np.searchsorted(-o, -t) for o, t in zip(order, own)], float)
        ranks[np.isneginf(own)] = np.inf
        ranks = np.sort(ranks.ravel())
        find = rank * dim + count * (rank + 12) + seen.sum(1).mean() * (rank * 0.3 + 5) + probe * 40
        for target in (0.9, 0.95, 0.99):
            kept = ranks[int(np.ceil(target * len(ranks))) - 1] + 1
            cost = find + kept * (2 * dim + 300)
            best[target] = min(best.get(target, n * (dim + 4.0)), cost)
    return rank, [float(best[t] / (n * (dim + 4.0))) for t in (0.9, 0.95, 0.99)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captures", nargs="+")
    args = parser.parse_args()
    rows = []
    for path in args.captures:
        all_heads = load_file(path)
        for name in sorted(n for n in all_heads if n.endswith(".k")):
            ks, qs = all_heads[name].astype(np.float32), all_heads[name[:-1] + "q"].astype(np.float32)
            for head in range(len(qs)):
                rng = np.random.default_rng(head)
                keys, queries = ks[head * len(ks) // len(qs)], qs[head]
                pick = rng.permutation(len(queries))
                asked, sample = queries[pick[:192]], queries[pick[192 : 192 + 2048]]
                truth = np.argpartition(asked @ keys.T, -K, axis=1)[:, -K:]
                row = {"dim": keys.shape[1], "head": f"{name[:-2]}.{head}"}
                for way in WAYS:
                    row[way] = costs(way, keys, sample, asked, truth, np.random.default_rng(7))
                rows.append(row)
                shown = (f"{way} {row[way][0]} " + " ".join(f"{x:.3f}" for x in row[way][1]) for way in WAYS)
                print(row["head"], *shown, sep="  ", flush=True)
    for dim in sorted({r["dim"] for r in rows}):
        some = [r for r in rows if r["dim"] == dim]
        for way in WAYS:
            mean = np.exp(np.mean(np.log([r[way][1] for r in some]), 0))
            used = np.mean([r[way][0] for r in some])
            print(f"| {dim} | {len(some)} | {way} | {used:.0f} | " + " | ".join(f"{m:.3f}" for m in mean) + " |")


if __name__ == "__main__":
    main()
