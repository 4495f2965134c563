"""Nearest neighbours by other libraries: construction + all queries on one thread, in seconds of CPU time.

    knn.py DATA.safetensors OUT.json [--only NAME,..] [--k K]

DATA has `base` and `query` (f32) and metadata `metric` (l2 or ip), as `knn` reads it. Appends one line of JSON a figure to
OUT; libraries that are not installed are named and skipped."""
import argparse, importlib, json, os, sys, time

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"
import numpy as np
from safetensors import safe_open

clock = time.process_time


class Run:
    def __init__(self, args):
        with safe_open(args.data, "np") as f:
            self.base, self.query = f.get_tensor("base"), f.get_tensor("query")
            self.metric = f.metadata()["metric"]
        self.k, self.out, self.few = args.k, args.out, args.few
        self.data = os.path.splitext(os.path.basename(args.data))[0]
        self.n, self.dim = self.base.shape
        self.truth = None

    def emit(self, name, config, built, asked, found):
        found = np.asarray(found)[:, : self.k]
        hits = sum(len(np.intersect1d(a, b)) for a, b in zip(found, self.near()))
        self.note(name, config, built, asked, hits / found.size)

    def near(self):
        if self.truth is None:
            self.truth = self.exact()
        return self.truth

    def note(self, name, config, built, asked, recall):
        line = dict(data=self.data, k=self.k, name=name, config=config, build_s=round(built, 4), query_s=round(asked, 4),
                    recall=round(float(recall), 4))
        print(f"{name:16} {config:34} build {built:7.3f} s  queries {asked:7.3f} s  total {built + asked:7.3f} s  "
              f"recall {line['recall']:.4f}", flush=True)
        with open(self.out, "a") as f:
            f.write(json.dumps(line) + "\n")

    def exact(self):
        half = 0.5 * (self.base**2).sum(1) if self.metric == "l2" else 0.0
        found = []
        for part in np.array_split(self.query, max(1, len(self.query) // 500)):
            scores = part @ self.base.T - half
            found.append(np.argpartition(-scores, self.k, 1)[:, : self.k])
        return np.concatenate(found)

    def faiss_metric(self):
        import faiss

        faiss.omp_set_num_threads(1)
        return faiss.METRIC_L2 if self.metric == "l2" else faiss.METRIC_INNER_PRODUCT


def faiss_flat(r):
    import faiss

    metric = r.faiss_metric()
    t = clock()
    index = faiss.IndexFlat(r.dim, metric)
    index.add(r.base)
    built = clock() - t
    t = clock()
    found = index.search(r.query, r.k)[1]
    r.emit("faiss flat", "", built, clock() - t, found)


def faiss_factory(r, name, spec, factors, probes):
    import faiss

    metric = r.faiss_metric()
    t = clock()
    index = faiss.index_factory(r.dim, spec, metric)
    lists = faiss.try_extract_index_ivf(index) if spec.startswith("IVF") else None
    if lists is not None:
        lists.cp.niter, lists.cp.max_points_per_centroid = 5, 39
    index.train(r.base)
    index.add(r.base)
    built = clock() - t
    for factor in factors:
        if factor:
            index.k_factor = factor
        for probe in probes:
            if lists is not None:
                lists.nprobe = probe
            t = clock()
            found = index.search(r.query, r.k)[1]
            r.emit(name, f"{spec} probe {probe} factor {factor}", built, clock() - t, found)


def faiss_pq(r):
    if r.n >= 20000:
        for spec, factors in ((f"PQ{r.dim // 8}x4fs,RFlat", (10, 20, 40)), (f"PQ{r.dim // 4}x4fs,RFlat", (5, 10, 20))):
            faiss_factory(r, "faiss fast-scan", spec, factors, (0,))
        faiss_factory(r, "faiss fast-scan", f"IVF128,PQ{r.dim // 8}x4fs,RFlat", (10, 20, 40), (8, 16, 32))
        faiss_factory(r, "faiss fast-scan", f"IVF128,PQ{r.dim // 4}x4fs,RFlat", (10, 20), (8, 16, 32))
    else:
        faiss_factory(r, "faiss fast-scan", f"PQ{r.dim // 4}x4fs,RFlat", (3, 6, 12), (0,))
        faiss_factory(r, "faiss fast-scan", f"IVF32,PQ{r.dim // 2}x4fs,RFlat", (2, 4), (4, 8, 16))


def faiss_ivf(r):
    lists = 256 if r.n >= 20000 else 64
    faiss_factory(r, "faiss IVF", f"IVF{lists},Flat", (0,), (4, 8, 16, 32))
    faiss_factory(r, "faiss IVF int8", f"IVF{lists},SQ8", (0,), (4, 8, 16, 32))


def scann_tree(r):
    import scann

    distance = "squared_l2" if r.metric == "l2" else "dot_product"
    for leaves, rounds in ((64, 4), (128, 4), (256, 4)) if r.n >= 20000 else ((16, 6), (32, 6)):
        t = clock()
        index = scann.scann_ops_pybind.builder(r.base, r.k, distance).tree(
            num_leaves=leaves, num_leaves_to_search=8, training_sample_size=min(r.n, 6000), training_iterations=rounds
        ).score_brute_force(quantize=False).set_n_training_threads(1).build()
        built = clock() - t
        for probe in (2, 4, 8, 16, 32):
            if probe <= leaves:
                t = clock()
                found = index.search_batched(r.query, leaves_to_search=probe, final_num_neighbors=r.k)[0]
                r.emit("ScaNN tree", f"leaves {leaves} search {probe}", built, clock() - t, found)


def hnswlib(r):
    import hnswlib

    for links, effort in ((8, 32), (16, 40)):
        t = clock()
        index = hnswlib.Index("l2" if r.metric == "l2" else "ip", r.dim)
        index.init_index(r.n, ef_construction=effort, M=links)
        index.set_num_threads(1)
        index.add_items(r.base, num_threads=1)
        built = clock() - t
        for ef in (20, 40, 80, 160, 320):
            if ef >= r.k:
                index.set_ef(ef)
                t = clock()
                found = index.knn_query(r.query, r.k, num_threads=1)[0]
                r.emit("hnswlib", f"M {links} ef {ef}", built, clock() - t, found)


def usearch(r):
    from usearch.index import Index

    t = clock()
    index = Index(ndim=r.dim, metric="l2sq" if r.metric == "l2" else "ip", dtype="f32", connectivity=16, expansion_add=40)
    index.add(np.arange(r.n), r.base, threads=1)
    built = clock() - t
    for ef in (20, 40, 80, 160, 320):
        if ef >= r.k:
            index.expansion_search = ef
            t = clock()
            found = np.asarray(index.search(r.query, r.k, threads=1).keys).astype(np.int64)
            r.emit("usearch", f"M 16 ef {ef}", built, clock() - t, found)


def lifted(r):
    """Keys and queries whose distances are in the order of the metric (the paper's T_K and T_Q for products)."""
    if r.metric == "l2":
        return r.base, r.query
    base = r.base / np.linalg.norm(r.base, axis=1).max()
    height = np.sqrt(np.maximum(1 - (base**2).sum(1, keepdims=True), 0))
    query = r.query / np.linalg.norm(r.query, axis=1, keepdims=True)
    return np.hstack([base, height]), np.hstack([query, np.zeros((len(query), 1), np.float32)])


def dci(r):
    np.float = float  # Its Python layer is older than NumPy 1.20.
    from dciknn import DCI

    base, query = (np.ascontiguousarray(x, dtype=np.float64) for x in lifted(r))
    few = query[: r.few]
    for simple, levels in ((7, 2), (7, 3), (15, 2)):
        t = clock()
        index = DCI(base.shape[1], 2, simple)
        index.add(base, num_levels=levels, field_of_view=10, prop_to_retrieve=0.002)
        built = clock() - t
        for view, share in ((30, 0.005), (100, 0.01), (100, 0.05), (200, 0.2), (400, 0.8)):
            t = clock()
            found = index.query(few, num_neighbours=r.k, field_of_view=view, prop_to_retrieve=share)[0]
            asked = (clock() - t) * len(query) / len(few)
            found = [np.pad(f[: r.k], (0, r.k - min(len(f), r.k)), constant_values=-1) for f in found]
            r.emit("DCI", f"simple {simple} levels {levels} view {view} share {share}, {len(few)} queries", built, asked, found)


def mdci(r):
    """IceFormer's own. Its call builds, asks and weighs values in one, and returns no neighbours: with weights alike and
    random values, the sum over those found tells how many of the true ones are among them."""
    from mdci import DCI

    if r.metric == "l2":
        return print("mdci: inner product only")
    values = np.random.default_rng(1).standard_normal((r.n, r.dim)).astype(np.float32)
    want = np.stack([values[near].sum(0) for near in r.near()])
    tokens, every = r.n, np.ones(r.n, bool)
    if len(r.query) != r.n:
        return print("mdci: as many queries as keys only")
    base, query = (np.ascontiguousarray(x) for x in (r.base, r.query))
    for simple, levels in ((4, 2), (4, 3), (7, 2)):
        for view, share in ((30, 0.005), (100, 0.02), (200, 0.4), (400, 1.0)):
            t = clock()
            sums = DCI(r.dim, 2, simple, max_num_points=tokens).add_query(
                base, query, values, every, num_levels=levels, num_inst=1, num_points=tokens, num_neighbours=r.k,
                c_num_to_visit=tokens, c_num_to_retrieve=-1, c_prop_to_visit=1.0, c_prop_to_retrieve=0.002,
                c_field_of_view=10, q_num_to_visit=tokens, q_field_of_view=view, q_num_to_retrieve=-1,
                q_prop_to_visit=1.0, q_prop_to_retrieve=share, scale=1e-9, parallel_level=0)
            took = clock() - t
            sums = np.asarray(sums).reshape(tokens, r.dim) * r.k
            recall = (sums * want).sum(1).mean() / (r.dim * r.k)
            r.note("IceFormer's M-DCI", f"simple {simple} levels {levels} view {view} share {share}", 0.0, took, recall)


PEERS = {
    "flat": ("faiss", faiss_flat), "pq": ("faiss", faiss_pq), "ivf": ("faiss", faiss_ivf), "scann": ("scann", scann_tree),
    "hnswlib": ("hnswlib", hnswlib), "usearch": ("usearch", usearch), "dci": ("dciknn", dci), "mdci": ("mdci", mdci),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--few", type=int, default=500, help="queries that DCI is asked; its time is scaled")
    parser.add_argument("data")
    parser.add_argument("out")
    parser.add_argument("--only", default=",".join(PEERS))
    parser.add_argument("--k", type=int, default=10)
    args = parser.parse_args()
    run = Run(args)
    for name in args.only.split(","):
        module, peer = PEERS[name]
        try:
            importlib.import_module(module)
        except ImportError:
            print(f"skipped: {module} is not installed", file=sys.stderr)
            continue
        peer(run)


if __name__ == "__main__":
    main()
