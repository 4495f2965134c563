//! Attention of many rows over an index: exact where it has to be, near it elsewhere, over the keys that are there.

mod common;

use common::{Naive, memory, noise, sees, worst};
use iceformer_core::attention::{
    AttentionOptions, AttentionRoom, AttentionStats, IndexProblem, Mask, Mode, Reason, index_attention,
};
use iceformer_core::dci::{Engine, Index, IndexOptions, Metric, Scratch};
use iceformer_core::error::Status;
use iceformer_core::math::hash;
use iceformer_core::mem::{Memory, Plan, Rows, RowsMut, Tensor};

/// Keys that gather around centres, values that go with them, queries; by id.
struct Data {
    dims: [usize; 2],
    ids: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Data {
    fn new(rows: usize, ids: usize, dims: [usize; 2], spread: f32) -> Data {
        let near = |d: usize, seed: u64| {
            let centres = noise(32 * d, seed + 50, 2.0);
            let mut x = noise(ids * d, seed, spread);
            for (i, row) in x.chunks_mut(d).enumerate() {
                let c = hash(9, i as u64) as usize % 32;
                row.iter_mut().zip(&centres[c * d..]).for_each(|(x, c)| *x += c);
            }
            x
        };
        Data { dims, ids, q: noise(rows * dims[0], 3, 1.5), k: near(dims[0], 1), v: near(dims[1], 2) }
    }

    fn rows(&self) -> usize {
        self.q.len() / self.dims[0]
    }

    /// Keys of the ids for which `has` holds, in an order that is not theirs, some of them after cells were formed, some
    /// that were there and have gone.
    fn index(&self, engine: Engine, has: impl Fn(u64) -> bool) -> Index {
        let d = self.dims[0];
        let o = IndexOptions { capacity: self.ids, engine, ..IndexOptions::new(d) };
        let mut index = Index::new_in(&o, &memory(0)).unwrap();
        let mut order: Vec<u64> = (0..self.ids as u64).filter(|&id| has(id) || hash(6, id).is_multiple_of(4)).collect();
        order.sort_by_key(|&id| hash(5, id));
        let late = order.len() / 10;
        let mut insert = |ids: &[u64]| {
            let keys: Vec<f32> = ids.iter().flat_map(|&id| &self.k[id as usize * d..][..d]).copied().collect();
            index.insert(Rows::new(&keys, d).unwrap(), Some(ids)).unwrap();
        };
        insert(&order[late..]);
        order[..late].iter().for_each(|&id| insert(&[id]));
        let gone: Vec<u64> = order.into_iter().filter(|&id| !has(id)).collect();
        index.remove(&gone).unwrap();
        index
    }

    /// Ids from 0 on in their order, nothing ever removed.
    fn straight(&self) -> Index {
        let o = IndexOptions { capacity: self.ids, engine: Engine::Cells, ..IndexOptions::new(self.dims[0]) };
        let mut index = Index::new_in(&o, &memory(0)).unwrap();
        index.insert(Rows::new(&self.k, self.dims[0]).unwrap(), None).unwrap();
        index
    }

    fn run(&self, index: &Index, mask: Mask<'_>, o: AttentionOptions) -> (Vec<f32>, Vec<f32>, AttentionStats) {
        let mut scratch = Scratch::new_in(index, &memory(0)).unwrap();
        let mut room = AttentionRoom::new_in(index, self.dims[1], &memory(0)).unwrap();
        self.run_in(index, &mut scratch, &mut room, mask, o)
    }

    fn run_in(
        &self,
        index: &Index,
        scratch: &mut Scratch,
        room: &mut AttentionRoom,
        mask: Mask<'_>,
        o: AttentionOptions,
    ) -> (Vec<f32>, Vec<f32>, AttentionStats) {
        let [dim_k, dim_v] = self.dims;
        let (mut out, mut lse) = (vec![7.0; self.rows() * dim_v], vec![7.0; self.rows()]);
        let (q, v) = (Rows::new(&self.q, dim_k).unwrap(), Rows::new(&self.v, dim_v).unwrap());
        let to = &mut RowsMut::new(&mut out, dim_v).unwrap();
        let stats = index_attention(
            &IndexProblem::new(index, q, v).mask(mask).options(o),
            scratch,
            Some(room),
            to,
            Some(&mut lse),
        )
        .unwrap();
        (out, lse, stats)
    }

    /// The twin, over the ids for which `has` holds.
    fn naive(&self, mask: &Mask<'_>, o: AttentionOptions, has: impl Fn(u64) -> bool) -> (Vec<f64>, Vec<f64>) {
        let sees = |i: usize, j: usize| has(j as u64).then(|| sees(mask, o.window, o.sinks, i, j)).flatten();
        let [dim_k, dim_v] = self.dims;
        let (q, k, v) = (&self.q, &self.k, &self.v);
        Naive { q, k, v, dim_k, dim_v, options: o, sees: &sees, top: usize::MAX }.run()
    }
}

fn mode(mode: Mode, tolerance: f32) -> AttentionOptions {
    AttentionOptions { mode, tolerance, ..AttentionOptions::default() }
}

/// Output rows relative to their length, log-sum-exps absolutely.
fn close(got: &(Vec<f32>, Vec<f32>, AttentionStats), want: &(Vec<f64>, Vec<f64>), dim: usize, most: f64, text: &str) {
    let error = worst(&got.0, &want.0, dim);
    assert!(error <= most, "{text}: off by {error}");
    for (i, (&g, &w)) in got.1.iter().zip(&want.1).enumerate() {
        assert!((f64::from(g) - w).abs() <= most || f64::from(g) == w, "{text}: row {i} has lse {g}, not {w}");
    }
}

/// Relative, of all outputs.
fn error(have: &[f32], want: &[f64]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut have.iter().zip(want).map(|(a, b)| f64::from(*a) - b)) / norm(&mut want.iter().copied())
}

/// Two ids in three.
fn some(id: u64) -> bool {
    !hash(4, id).is_multiple_of(3)
}

#[test]
fn every_mask_keeps_the_tolerance() {
    let rows = 230;
    let mut data = Data::new(rows, 1800, [24, 20], 0.4);
    // Values of ids without a key may be anything.
    (0..1800).filter(|&id| !some(id)).for_each(|id| data.v[id as usize * 20] = f32::NAN);
    let padding: Vec<u8> = (0..1800).map(|id| u8::from(!hash(8, id).is_multiple_of(5))).collect();
    let alike = vec![1100u64; rows];
    let prefix: Vec<u64> = (0..rows as u64).map(|i| if i == 3 { 0 } else { 700 + 4 * i }).collect();
    let mut bias = vec![0.0; rows * 1800];
    for (i, row) in bias.chunks_mut(1800).enumerate() {
        row[900 + i..].fill(f32::NEG_INFINITY);
        row[10] = 1.5;
    }
    let masks = [
        ("none", Mask::None),
        ("padding", Mask::Keys(&padding)),
        ("prefix for all", Mask::Prefix(&alike)),
        ("prefix by row", Mask::Prefix(&prefix)),
        ("causal", Mask::Causal { q_pos0: 1400 }),
        ("causal with padding", Mask::CausalKeys { q_pos0: 1400, keep: &padding }),
        ("bias", Mask::Additive(Tensor::new(&bias, [1, 1, rows, 1800]).unwrap())),
    ];
    for engine in [Engine::Cells, Engine::Auto, Engine::Walk] {
        let index = data.index(engine, some);
        for (name, mask) in masks {
            for (window, sinks, softcap) in [(0, 0, 0.0), (600, 40, 0.0), (0, 0, 6.0)] {
                for way in [Mode::Accelerated, Mode::Exact, Mode::Auto] {
                    let o = AttentionOptions { window, sinks, softcap, ..mode(way, 0.05) };
                    let got = data.run(&index, mask, o);
                    let text = format!("{engine:?}, {name}, window {window}, softcap {softcap}, {way:?}");
                    let want = data.naive(&mask, o, some);
                    if got.2.mode == Mode::Exact {
                        close(&got, &want, 20, 2e-5, &text);
                    } else {
                        let off = error(&got.0, &want.0);
                        assert!(off <= 0.1, "{text}: {off}");
                    }
                    assert!(got.2.pairs <= got.2.pairs_dense, "{text}");
                }
            }
        }
    }
}

#[test]
fn ids_in_order_are_attended_where_they_lie() {
    let rows = 300;
    let data = Data::new(rows, 1700, [32, 16], 0.4);
    let index = data.straight();
    let mut bias = vec![0.0; rows * 1700];
    for (i, row) in bias.chunks_mut(1700).enumerate() {
        row[1300 + i..].fill(f32::NEG_INFINITY);
        row[5] = -0.7;
    }
    let padding: Vec<u8> = (0..1700).map(|id| u8::from(!hash(8, id).is_multiple_of(5))).collect();
    let bias = Mask::Additive(Tensor::new(&bias, [1, 1, rows, 1700]).unwrap());
    for mask in [Mask::None, Mask::Causal { q_pos0: 1200 }, Mask::Keys(&padding), bias] {
        for way in [Mode::Accelerated, Mode::Exact] {
            let o = mode(way, 0.05);
            let (got, want) = (data.run(&index, mask, o), data.naive(&mask, o, |_| true));
            if got.2.mode == Mode::Exact {
                close(&got, &want, 16, 2e-5, &format!("{mask:?} {way:?}"));
            } else {
                let off = error(&got.0, &want.0);
                assert!(off <= 0.1, "{mask:?}: {off}");
            }
        }
    }
    // What no row sees changes nothing.
    let (want, want_lse, stats) = data.run(&index, bias, mode(Mode::Accelerated, 0.05));
    assert_eq!((stats.mode, stats.exact_rows.all()), (Mode::Accelerated, 0));
    let mut wild = Data::new(rows, 1700, [32, 16], 0.4);
    wild.k[1600 * 32..].fill(1e15);
    wild.v[1600 * 16..].fill(1e30);
    let (have, lse, _) = wild.run(&wild.straight(), bias, mode(Mode::Accelerated, 0.05));
    assert!(have == want && lse == want_lse);
    // Cells are used where rows see all or most of them.
    let stats = data.run(&index, Mask::Causal { q_pos0: 1400 }, mode(Mode::Accelerated, 0.05)).2;
    assert!(stats.pairs < stats.pairs_dense, "{stats:?}");
}

#[test]
fn errors_stay_below_the_tolerance() {
    let data = Data::new(600, 6000, [32, 24], 0.25);
    let index = data.index(Engine::Cells, some);
    let padding: Vec<u8> = (0..6000).map(|id| u8::from(!hash(8, id).is_multiple_of(5))).collect();
    let prefix = vec![5000u64; 600];
    for mask in [Mask::None, Mask::Keys(&padding), Mask::Prefix(&prefix)] {
        let want = data.naive(&mask, AttentionOptions::default(), some);
        for tolerance in [0.02, 0.05, 0.1] {
            for way in [Mode::Accelerated, Mode::Auto] {
                let (out, _, stats) = data.run(&index, mask, mode(way, tolerance));
                let error = error(&out, &want.0);
                // Two rows of a block are measured: their error is not quite that of all.
                assert!(error <= 2.0 * f64::from(tolerance), "{way:?} {tolerance}: {error}");
                if way == Mode::Accelerated && tolerance >= 0.05 {
                    assert!(stats.pairs < stats.pairs_dense && stats.rows == 600, "nothing is gained: {stats:?}");
                }
            }
        }
    }
    // Keys that differ more within their cells have some opened.
    let data = Data::new(60, 2500, [16, 8], 0.5);
    let stats = data.run(&data.index(Engine::Cells, some), Mask::None, mode(Mode::Accelerated, 0.1)).2;
    assert!(stats.cells_opened > 0, "{stats:?}");
}

#[test]
fn identical_keys_are_estimated_exactly() {
    let (n, [dim_k, dim_v]) = (2048, [16, 8]);
    let mut data = Data::new(100, n, [dim_k, dim_v], 1.0);
    let kinds = noise(8 * dim_k, 77, 1.0);
    // 256 ids of each kind, here and there.
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by_key(|&id| hash(5, id as u64));
    for (i, &id) in order.iter().enumerate() {
        data.k[id * dim_k..][..dim_k].copy_from_slice(&kinds[i % 8 * dim_k..][..dim_k]);
    }
    let index = data.straight();
    let (out, _, stats) = data.run(&index, Mask::None, mode(Mode::Accelerated, 0.05));
    assert_eq!(stats.cells_opened, 0, "every key weighs little");
    let (want, _) = data.naive(&Mask::None, AttentionOptions::default(), |_| true);
    let error = worst(&out, &want, dim_v);
    assert!(error < 1e-4, "off by {error}");
}

#[test]
fn what_is_masked_or_gone_never_counts() {
    let data = Data::new(120, 3000, [16, 12], 0.5);
    let padding: Vec<u8> = (0..3000).map(|id| u8::from(!hash(8, id).is_multiple_of(3))).collect();
    let shown = |id: u64| some(id) && padding[id as usize] != 0;
    // The same keys and values, but for those that nobody is to see: those weigh much and are far off.
    let mut other = Data::new(120, 3000, [16, 12], 0.5);
    for id in (0..3000).filter(|&id| !shown(id as u64)) {
        other.v[id * 12..][..12].fill(1e6);
        other.k[id * 16..][..16].iter_mut().zip(&data.q).for_each(|(k, q)| *k = 3.0 * q);
    }
    let o = mode(Mode::Accelerated, 0.05);
    let got = other.run(&other.index(Engine::Cells, some), Mask::Keys(&padding), o);
    let (want, _) = data.naive(&Mask::Keys(&padding), o, some);
    let error = worst(&got.0, &want, 12);
    assert!(error < 0.2, "a row is off by {error}");
    // Gone, not masked.
    let index = other.index(Engine::Cells, shown);
    let error = worst(&other.run(&index, Mask::None, o).0, &want, 12);
    assert!(error < 0.2, "a row is off by {error}");
    // Everything gone, everything hidden.
    let empty = Index::new_in(&IndexOptions { capacity: 3000, ..IndexOptions::new(16) }, &memory(0)).unwrap();
    let gone = other.index(Engine::Cells, |_| false);
    for (index, mask) in [(empty, Mask::None), (gone, Mask::None), (index, Mask::Keys(&[0; 3000]))] {
        let (out, lse, stats) = other.run(&index, mask, o);
        assert!(out.iter().all(|&x| x == 0.0) && lse.iter().all(|&x| x == f32::NEG_INFINITY));
        assert_eq!((stats.pairs, stats.pairs_dense), (0, 0));
    }
}

#[test]
fn auto_attends_noise_exactly() {
    let (rows, n, d) = (700, 3000, 32);
    let data =
        Data { dims: [d, d], ids: n, q: noise(rows * d, 1, 1.0), k: noise(n * d, 2, 1.0), v: noise(n * d, 3, 1.0) };
    let index = data.straight();
    let (out, _, stats) = data.run(&index, Mask::None, mode(Mode::Auto, 0.05));
    assert_eq!((stats.mode, stats.reason), (Mode::Exact, Reason::Diffuse));
    assert_eq!(stats.pairs, stats.pairs_dense);
    assert!(worst(&out, &data.naive(&Mask::None, AttentionOptions::default(), |_| true).0, d) < 1e-4);
    // Few rows do not pay for gathering.
    let few = Data { q: data.q[..20 * d].to_vec(), ..data };
    let stats = few.run(&index, Mask::None, mode(Mode::Auto, 0.05)).2;
    assert_eq!((stats.mode, stats.reason), (Mode::Exact, Reason::Short));
}

#[test]
fn sizes_are_known_before_and_nothing_is_left_behind() {
    let data = Data::new(90, 2000, [16, 8], 0.5);
    let index = data.index(Engine::Cells, some);
    let mut plan = Plan::new();
    Memory::plan(&mut plan);
    AttentionRoom::plan(&index, 8, &mut plan);
    let bytes = plan.finish().unwrap().bytes;
    let own = memory(bytes);
    let mut room = AttentionRoom::new_in(&index, 8, &own).unwrap();
    assert!(own.report().used <= bytes && own.report().used * 10 > bytes * 9, "{:?} of {bytes}", own.report());
    assert_eq!(room.dim_v(), 8);
    let mut scratch = Scratch::new_in(&index, &memory(0)).unwrap();
    let counts: Vec<u64> = (0..90).map(|i| 1000 + i).collect();
    let runs: Vec<_> = [Mask::None, Mask::Prefix(&counts), Mask::None, Mask::Prefix(&counts)]
        .map(|mask| {
            [Mode::Accelerated, Mode::Exact]
                .map(|way| data.run_in(&index, &mut scratch, &mut room, mask, mode(way, 0.05)))
        })
        .into_iter()
        .collect();
    // What a call leaves behind changes no other.
    for i in 0..2 {
        for way in 0..2 {
            assert_eq!((&runs[i][way].0, &runs[i][way].1), (&runs[i + 2][way].0, &runs[i + 2][way].1));
        }
    }
}

#[test]
fn mistakes_are_named_before_anything_is_written() {
    let data = Data::new(4, 700, [16, 8], 0.5);
    let index = data.straight();
    let small = Data::new(4, 300, [16, 8], 0.5).straight();
    let l2 = Index::new_in(&IndexOptions { metric: Metric::L2, capacity: 700, ..IndexOptions::new(16) }, &memory(0))
        .unwrap();
    let check =
        |index: &Index, made_for: &Index, dim_v: Option<usize>, o: AttentionOptions, status: Status, text: &str| {
            let mut scratch = Scratch::new_in(index, &memory(0)).unwrap();
            let mut room = dim_v.map(|dim_v| AttentionRoom::new_in(made_for, dim_v, &memory(0)).unwrap());
            let mut out = vec![7.0; 4 * 8];
            let (q, v) = (Rows::new(&data.q, 16).unwrap(), Rows::new(&data.v, 8).unwrap());
            let to = &mut RowsMut::new(&mut out, 8).unwrap();
            let e = index_attention(&IndexProblem::new(index, q, v).options(o), &mut scratch, room.as_mut(), to, None)
                .unwrap_err();
            assert_eq!(e.status, status, "{e}");
            assert!(e.to_string().contains(text), "{e} does not say {text}");
            assert!(out.iter().all(|&x| x == 7.0));
        };
    let o = mode(Mode::Accelerated, 0.05);
    check(&index, &index, None, o, Status::Capacity, "no room for accelerated attention");
    check(&index, &index, Some(9), o, Status::Shape, "dim_v");
    check(&index, &small, Some(8), o, Status::Capacity, "before the index grew");
    check(&l2, &l2, Some(8), o, Status::Unsupported, "inner-product");
    check(&index, &index, Some(8), AttentionOptions { certificate: true, ..o }, Status::Unsupported, "certificates");
    check(&index, &index, Some(8), AttentionOptions { num_threads: 2, ..o }, Status::Unsupported, "thread");
    check(&index, &index, Some(8), AttentionOptions { shared_qk: true, ..o }, Status::Unsupported, "shared query-key");
    check(&index, &index, Some(8), AttentionOptions { tolerance: -1.0, ..o }, Status::Argument, "tolerance");
    let e = AttentionRoom::new_in(&index, 0, &memory(0)).map(drop).unwrap_err();
    assert_eq!(e.status, Status::Shape);
    let e = AttentionRoom::new_in(&index, 8, &memory(10_000)).map(drop).unwrap_err();
    assert_eq!(e.status, Status::Budget);
}
