//! The structure behind the answers: every list sorted and complete, every key in the cell of its nearest parent.

use super::level::{ROOT, room};
use super::lists::Entry;
use super::scratch::Budget;
use super::search::Place;
use super::slots::NO_ID;
use super::{Engine, Index, IndexOptions, Metric, QueryOptions, Scratch};
use crate::list;
use crate::math::hash;
use crate::mem::{Maker, Memory, Rows};
use crate::project::Lift;
use proptest::prelude::*;
use std::vec::Vec;

fn check(index: &Index) {
    let live: Vec<u32> = (0..index.ids.len() as u32).filter(|&s| index.id_at(s) != NO_ID).collect();
    assert_eq!(live.len(), index.len());
    let bound = index.lift.bound();
    assert!(!index.options.metric.lifted() || live.iter().all(|&s| Lift::norm2(index.key_at(s)) <= bound * bound));
    for level in 0..index.options.depth() {
        let l = &index.levels[level];
        let here: Vec<u32> = live.iter().copied().filter(|&s| usize::from(index.height[s as usize]) >= level).collect();
        if level > 0 {
            let mut members = l.members.to_vec();
            members.sort_unstable();
            assert_eq!(members, here);
        }
        for list in l.lists.iter() {
            assert!(list::tests::check(list, &index.pool, &index.ids));
            assert_eq!(list.len(), here.len());
        }
        let top = level + 1 == index.options.depth();
        let parents: &[u32] = if top { &[] } else { &index.levels[level + 1].members };
        let mut population = std::vec![0u32; index.ids.len()];
        for &slot in &here {
            let key = index.key_at(slot);
            let distance = |p: u32| index.isa.sq_dist(index.key_at(p), key);
            let nearest = parents
                .iter()
                .copied()
                .min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then(index.id_at(a).cmp(&index.id_at(b))));
            assert_eq!(l.cell_of(slot), nearest.unwrap_or(ROOT), "level {level}");
            if let Some(p) = nearest {
                population[p as usize] += 1;
                assert_eq!(l.dist2[slot as usize], distance(p));
            }
        }
        for &p in parents {
            assert_eq!(index.levels[level + 1].population[p as usize], population[p as usize]);
        }
    }
}

#[test]
fn keys_lie_in_the_cell_of_their_nearest_parent_through_churn() {
    for (levels, promotion) in [(1, 0.2), (2, 0.3), (3, 0.25), (5, 0.5)] {
        let memory = Memory::system(0).unwrap();
        let options = IndexOptions { levels, promotion, metric: Metric::InnerProduct, ..IndexOptions::new(3) };
        let mut index = Index::new_in(&options, &memory).unwrap();
        let number = |i: u64| (hash(9, i) >> 40) as f32 / (1 << 20) as f32 - 8.0;
        let mut next = 0u64;
        for round in 0..30u64 {
            let n = (hash(round, 1) % 40) as usize;
            // Norms grow now and then, by a little and by a lot, in small and large batches.
            let grow = if round % 4 == 3 { 1.0 + round as f32 / 4.0 } else { 1.0 };
            let keys: Vec<f32> = (0..n as u64 * 3).map(|i| (number(next * 3 + i) * grow).round()).collect();
            index.insert(Rows::new(&keys, 3).unwrap(), None).unwrap();
            next += n as u64;
            check(&index);
            let gone: Vec<u64> = index.ids().filter(|id| hash(round, *id).is_multiple_of(3)).collect();
            index.remove_present(&gone);
            check(&index);
        }
        assert!(index.levels[levels - 1].lists[0].len() > 0, "the test reaches the top level");
    }
}

#[test]
fn every_key_is_listed_once_beside_its_like() {
    const DIM: usize = 8;
    let memory = Memory::system(0).unwrap();
    let number = |seed: u64, i: u64| (hash(seed, i) >> 40) as f32 / (1 << 23) as f32 - 1.0;
    // Twelve kinds of keys, in turns.
    let key = |i: u64| -> [f32; DIM] {
        core::array::from_fn(|k| 4.0 * number(1, i % 12 * DIM as u64 + k as u64) + number(2, i * DIM as u64 + k as u64))
    };
    let keys: Vec<f32> = (0..3000).flat_map(key).collect();
    for (engine, metric) in
        [(Engine::Cells, Metric::InnerProduct), (Engine::Cells, Metric::L2), (Engine::Walk, Metric::InnerProduct)]
    {
        let options = IndexOptions { engine, metric, capacity: 3000, ..IndexOptions::new(DIM) };
        let mut index = Index::new_in(&options, &memory).unwrap();
        let list = |index: &Index| {
            let mut m = Maker::new(&memory);
            let (mut room, mut out) = (index.arranging(&mut m), m.room(index.slots()));
            m.finish().unwrap();
            index.list_by_cells(&mut room, &mut out);
            let mut sorted = out.to_vec();
            sorted.sort_unstable();
            let live: Vec<u32> = (0..index.slots() as u32).filter(|&s| index.held_at(s).is_some()).collect();
            assert_eq!(sorted, live);
            out.to_vec()
        };
        // Mean squared distance from key to key along a list.
        let apart = |index: &Index, slots: &[u32]| {
            let of = |w: &[u32]| index.isa.sq_dist(index.key_at(w[0]), index.key_at(w[1]));
            slots.windows(2).map(of).sum::<f32>() / slots.len() as f32
        };
        index.insert(Rows::new(&keys[..2700 * DIM], DIM).unwrap(), None).unwrap();
        let slots = list(&index);
        let (alike, as_they_came) = (apart(&index, &slots), apart(&index, &(0..2700).collect::<Vec<_>>()));
        if engine == Engine::Cells {
            assert!(alike < 0.3 * as_they_came, "{alike} {as_they_came}");
        } else {
            assert_eq!(alike, as_they_came);
        }
        // Some go, others come.
        let gone: Vec<u64> = (0..2700).filter(|&id| hash(3, id).is_multiple_of(4)).collect();
        index.remove(&gone).unwrap();
        assert_eq!(list(&index).len(), 2700 - gone.len());
        for row in keys[2700 * DIM..].chunks(DIM) {
            index.insert(Rows::new(row, DIM).unwrap(), None).unwrap();
        }
        assert_eq!(list(&index).len(), 3000 - gone.len());
        index.clear();
        assert!(list(&index).is_empty());
    }
}

/// Candidates of one composite index in the order in which the engine finds them.
fn candidates(index: &Index, q: &[f32], composite: usize, o: &QueryOptions<'_>) -> Vec<u64> {
    let o = o.resolve().unwrap();
    let mut scratch = Scratch::new_in(index, &Memory::system(0).unwrap()).unwrap();
    index.projector.query(q, &index.lift, &mut scratch.proj);
    index.look_down(&mut scratch, 0);
    let budget = Budget::new(&o, index.points_in_view(&scratch, 0), index.options.num_simple, 0);
    scratch.picked.begin();
    index.collect(&mut scratch, Place { level: 0, composite, ids: &o.allowed() }, &budget);
    scratch.found.iter().map(|&slot| index.id_at(slot)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Walk and scan find the same candidates in the same order under every budget; with no visit budget they are the
    /// points within tau in the L-infinity norm of the projections, in ascending order of it.
    #[test]
    fn walk_equals_scan(
        keys in prop::collection::vec(prop::array::uniform3(-4i8..5), 1..200), gone in 0u64..5,
        q in prop::array::uniform3(-4i8..5).prop_filter("a query needs a direction", |q| q.iter().any(|&x| x != 0)),
        visit in 0usize..400, retrieve in 0usize..80, l2: bool, narrow: bool,
    ) {
        let metric = if l2 { Metric::L2 } else { Metric::InnerProduct };
        let options = IndexOptions { metric, num_simple: 3, num_composite: 2, seed: 7, ..IndexOptions::new(3) };
        let mut index = Index::new_in(&options, &Memory::system(0).unwrap()).unwrap();
        let rows: Vec<f32> = keys.iter().flatten().map(|&x| f32::from(x)).collect();
        // Many at once, and one by one.
        let (many, few) = rows.split_at(keys.len() / 2 * 3);
        index.insert(Rows::new(many, 3).unwrap(), None).unwrap();
        few.chunks(3).for_each(|key| index.insert(Rows::new(key, 3).unwrap(), None).unwrap());
        let removed: Vec<u64> = index.ids().filter(|id| gone > 0 && hash(gone, *id).is_multiple_of(3)).collect();
        index.remove(&removed).unwrap();
        check(&index);
        let q = q.map(f32::from);
        let (id_begin, id_end) = if narrow { (20, 150) } else { (0, 0) };
        for composite in 0..2 {
            let o = QueryOptions { visit, retrieve, id_begin, id_end, ..QueryOptions::new(1) };
            let walk = candidates(&index, &q, composite, &QueryOptions { engine: Engine::Walk, ..o });
            let scan = candidates(&index, &q, composite, &QueryOptions { engine: Engine::Scan, ..o });
            prop_assert_eq!(&walk, &scan);
            if visit > 0 {
                continue;
            }
            let mut pq = [0.0; 6];
            index.projector.query(&q, &index.lift, &mut pq);
            let reach = |id: u64| {
                let pk = index.proj_at(index.slot(id).unwrap());
                (composite * 3..composite * 3 + 3).map(|j| (pk[j] - pq[j]).abs()).fold(0.0, f32::max)
            };
            let reaches: Vec<f32> = walk.iter().map(|&id| reach(id)).collect();
            prop_assert!(reaches.is_sorted());
            if let Some(&tau) = reaches.last() {
                let mut eligible = index.ids().filter(|id| !narrow || (20..150).contains(id));
                prop_assert!(eligible.all(|id| reach(id) >= tau || walk.contains(&id)));
            }
        }
    }
}

/// The mean of the keys that are promoted so high, and eight deviations: more has no room, and is not promoted.
#[test]
fn levels_have_room_for_eight_deviations() {
    assert_eq!([room(10_000, 0.1, 0), room(10_000, 0.1, 1), room(10_000, 0.1, 2)], [10_000, 1268, 196]);
    assert_eq!([room(100, 0.5, 1), room(100, 0.25, 1), room(0, 0.5, 1)], [100, 81, 0]);
}

/// Once most keys are gone, those that are left are put into fewer cells.
#[test]
fn cells_are_made_anew_when_most_keys_are_gone() {
    let (n, dim) = (4000, 16);
    let memory = Memory::system(0).unwrap();
    let options = IndexOptions { engine: Engine::Cells, capacity: n, ..IndexOptions::new(dim) };
    let mut index = Index::new_in(&options, &memory).unwrap();
    let keys: Vec<f32> =
        (0..n as u64 * dim as u64).map(|i| (hash(5, i) >> 40) as f32 / (1 << 23) as f32 - 1.0).collect();
    index.insert(Rows::new(&keys, dim).unwrap(), None).unwrap();
    let cells = index.codes.count();
    let gone: Vec<u64> = index.ids().filter(|id| id % 4 > 0).collect();
    index.remove(&gone).unwrap();
    assert!(index.codes.active() && index.codes.count() < cells / 2, "{cells} cells, then {}", index.codes.count());
}

/// A search by code ends once so many candidates in a row were no better.
#[test]
fn a_search_ends_when_patience_does() {
    let memory = Memory::system(0).unwrap();
    let mut index = Index::new_in(&IndexOptions::new(1), &memory).unwrap();
    let keys: Vec<f32> =
        (0..64).map(|i| [(0, 4.0), (13, 5.0), (40, 6.0)].iter().find(|b| b.0 == i).map_or(1.0, |b| b.1)).collect();
    index.insert(Rows::new(&keys, 1).unwrap(), None).unwrap();
    let mut scratch = Scratch::new_in(&index, &memory).unwrap();
    for (patience, best) in [(4, 0), (12, 13), (30, 40), (100, 40)] {
        // The worst code first: the search brings them in order.
        let mut list: Vec<Entry> = (0..64).rev().map(|at| Entry { score: -(at as f32), at }).collect();
        index.score_in_turn(&[1.0], &mut list, 1, patience, &mut scratch.top);
        let mut out = [Default::default()];
        assert_eq!((index.take_top(&mut scratch.top, &mut out), out[0].id), (1, best), "{patience}");
    }
}
