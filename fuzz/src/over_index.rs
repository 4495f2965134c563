//! Attention over an index of ids that came in any order, some of which have gone: against f64 where nothing is estimated.

use crate::cells::{biases, clusters, padding};
use crate::tally::{self, Kind};
use crate::truth::{hold, shows, truth};
use crate::twin::{Naive, memory, noise};
use arbitrary::{Result, Unstructured};
use iceformer_core::attention::{AttentionOptions, AttentionRoom, IndexProblem, Mask, Mode, index_attention};
use iceformer_core::dci::{Engine, Index, IndexOptions, Scratch};
use iceformer_core::math::hash;
use iceformer_core::mem::{Rows, RowsMut};
use iceformer_core::simd::Isa;

pub(crate) fn program(u: &mut Unstructured<'_>) -> Result<()> {
    let (dim_k, dim_v) = (u.int_in_range(1..=24)?, u.int_in_range(1..=24)?);
    let n = u.int_in_range(0..=3000)?;
    let rows = u.int_in_range(1..=200)?;
    let (seed, spread) = (u64::from(u.arbitrary::<u8>()?), *u.choose(&[0.1, 0.4, 0.02, 0.0])?);
    let (k, mut v) = (clusters(n, dim_k, seed, spread), clusters(n, dim_v, seed + 1, spread));
    let q = noise(rows * dim_k, seed + 2, *u.choose(&[1.5, 4.0, 0.0])?);
    // Straight: ids in their order, all of them.
    let straight = u.ratio(1, 3)?;
    let has = |id: usize| straight || !hash(seed, id as u64).is_multiple_of(3);
    // Values of ids without a key may be anything.
    (0..n).filter(|&id| !has(id)).for_each(|id| v[id * dim_v..][..dim_v].fill(f32::NAN));
    let engine = *u.choose(&[Engine::Cells, Engine::Auto, Engine::Walk])?;
    let options = IndexOptions { capacity: n.max(1), engine, ..IndexOptions::new(dim_k) };
    let mut index = Index::new_in(&options, &memory(0)).expect("valid");
    if straight {
        index.insert(Rows::new(&k, dim_k).expect("rows"), None).expect("room");
    } else {
        // Some come after cells were formed, some were there and have gone.
        let mut order: Vec<usize> = (0..n).filter(|&id| has(id) || id % 4 == 0).collect();
        order.sort_by_key(|&id| hash(seed + 3, id as u64));
        let mut insert = |ids: &[usize]| {
            let keys: Vec<f32> = ids.iter().flat_map(|&id| &k[id * dim_k..][..dim_k]).copied().collect();
            let ids: Vec<u64> = ids.iter().map(|&id| id as u64).collect();
            index.insert(Rows::new(&keys, dim_k).expect("rows"), Some(&ids)).expect("room");
        };
        let late = order.len() / 10;
        insert(&order[late..]);
        order[..late].iter().for_each(|&id| insert(&[id]));
        let gone: Vec<u64> = order.into_iter().filter(|&id| !has(id)).map(|id| id as u64).collect();
        index.remove(&gone).expect("there");
    }

    let prefix: Vec<u64> = {
        let (least, step) = (u.int_in_range(0..=n as u64)?, u.int_in_range(0..=40)?);
        (0..rows as u64).map(|i| least + hash(seed, i) % (step + 1)).collect()
    };
    let (keep, biases) = (padding(u, n)?, biases(u, [1, 1, rows, n])?);
    let mask = match u.int_in_range(0..=7)? {
        0 | 1 => Mask::None,
        2 => Mask::Causal { q_pos0: u.int_in_range(0..=n as u64)? },
        3 => Mask::Prefix(&prefix),
        4 => Mask::Keys(&keep),
        _ => Mask::Additive(biases.tensor()),
    };
    let windowed = u.ratio(1, 4)?;
    let isas: Vec<Isa> = Isa::ALL.into_iter().filter(|i| i.available()).collect();
    let o = AttentionOptions {
        softcap: *u.choose(&[0.0, 0.0, 5.0])?,
        window: if windowed { u.int_in_range(1..=n + 9)? } else { 0 },
        sinks: if windowed { u.int_in_range(0..=300)? } else { 0 },
        tolerance: *u.choose(&[0.05, 0.02, 0.3])?,
        isa: Some(*u.choose(&isas)?),
        ..AttentionOptions::default()
    };
    let shown = |i: usize, j: usize| has(j).then(|| shows(&mask, n, [o.window, o.sinks], i, j)).flatten();
    let biased = matches!(mask, Mask::Additive(_));
    // The twin wants numbers, also where nobody looks.
    let numbers: Vec<f32> = v.iter().map(|x| if x.is_nan() { 0.0 } else { *x }).collect();
    let naive = Naive { q: &q, k: &k, v: &numbers, dim_k, dim_v, options: o, sees: &shown, top: usize::MAX };
    let truth = truth(&naive, biased);

    let mut scratch = Scratch::new_in(&index, &memory(0)).expect("memory");
    let mut room = AttentionRoom::new_in(&index, dim_v, &memory(0)).expect("memory");
    let rows_of = |x, d| Rows::new(x, d).expect("rows");
    let mut attend = |o: AttentionOptions| {
        let (mut out, mut lse) = (vec![f32::NAN; rows * dim_v], vec![f32::NAN; rows]);
        let to = &mut RowsMut::new(&mut out, dim_v).expect("rows");
        let (q, v) = (rows_of(&q, dim_k), rows_of(&v, dim_v));
        let stats = index_attention(
            &IndexProblem::new(&index, q, v).mask(mask).options(o),
            &mut scratch,
            Some(&mut room),
            to,
            Some(&mut lse),
        )
        .expect("valid");
        assert!(stats.pairs <= stats.pairs_dense, "{stats:?}");
        assert!(out.iter().all(|x| x.is_finite()) && lse.iter().all(|x| !x.is_nan()));
        (out, lse, stats)
    };
    for (mode, tolerance) in [(Mode::Exact, 0.0), (Mode::Accelerated, 1e-12)] {
        let (out, lse, stats) = attend(AttentionOptions { mode, tolerance, ..o });
        // Rows that are not sampled may err whatever the tolerance.
        if mode == Mode::Exact || stats.pairs == stats.pairs_dense {
            hold(&truth, &out, Some(&lse), "over an index");
        }
    }
    let (out, lse, stats) = attend(AttentionOptions { mode: Mode::Accelerated, ..o });
    if !biased {
        tally::note(Kind::OverIndex, &stats);
    }
    let again = attend(AttentionOptions { mode: Mode::Accelerated, ..o });
    assert!(out == again.0 && lse == again.1, "what a call leaves behind changes another");
    Ok(())
}
