//! Lists and cursors against models from the standard library; that a pool fits exactly the bytes planned for it.

use super::arena::{MERGE, NODE};
use super::skip::HEIGHT;
use super::{Cursor, NIL, Pool, SkipList, cell_of, proj_of, sort_key};
use crate::error::{Result, Status};
use crate::math::{float_of, image_of};
use crate::mem::tests::{Region, Rng, assert_exact, ids, many, plan, room};
use crate::mem::{Maker, Memory, Plan};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

/// All entries in order.
fn iter(list: &SkipList, pool: &Pool) -> impl Iterator<Item = (u64, u32)> {
    let mut at = list.begin();
    core::iter::from_fn(move || at.next(pool, true))
}

fn pool_of(memory: &Memory, entries: usize, lists: usize) -> Result<Pool> {
    Maker::make(memory, |m| Pool::made(m, entries, lists))
}

/// Nodes in use.
fn nodes_of(pool: &Pool) -> usize {
    let some = |i: u32| (i != NIL).then_some(i);
    pool.nodes.len() - core::iter::successors(some(pool.free_node), |&i| some(pool.node(i).next)).count()
}

/// Tower elements in use.
fn elems_of(pool: &Pool) -> usize {
    let some = |i: u32| (i != NIL).then_some(i);
    pool.elems.len() - core::iter::successors(some(pool.free_elem), |&i| some(pool.elem(i).right)).count()
}

/// Whether every promise of the structure holds: order, links, fill of neighbours, towers, counts.
pub(crate) fn check(list: &SkipList, pool: &Pool, ids: &[u64]) -> bool {
    check_nodes(list, pool, ids).is_some_and(|elems| check_towers(list, pool) == Some(elems))
}

/// Number of tower elements hanging on the nodes, if all is well.
fn check_nodes(list: &SkipList, pool: &Pool, ids: &[u64]) -> Option<usize> {
    let (mut prev, mut at) = (NIL, list.first);
    let (mut nodes, mut len, mut elems) = (0, 0, 0);
    let mut before = None;
    while at != NIL {
        let node = pool.node(at);
        let crowded = prev == NIL || (pool.node(prev).len + node.len) as usize > MERGE;
        if node.prev != prev || node.len == 0 || node.len as usize > NODE || !crowded {
            return None;
        }
        for (&key, &slot) in node.keys().iter().zip(node.slots()) {
            let this = Some((key, ids[slot as usize]));
            if before >= this {
                return None;
            }
            before = this;
        }
        let mut e = node.tower;
        while e != NIL {
            if pool.elem(e).node != at || pool.elem(e).key != node.keys[0] {
                return None;
            }
            elems += 1;
            e = pool.elem(e).down;
        }
        nodes += 1;
        len += node.len as usize;
        (prev, at) = (at, node.next);
    }
    (prev == list.last && nodes == list.nodes && len == list.len).then_some(elems)
}

/// Number of tower elements on all levels, if each level is a subsequence of the one below.
fn check_towers(list: &SkipList, pool: &Pool) -> Option<usize> {
    let mut elems = 0;
    for level in 0..HEIGHT {
        let mut e = list.heads[level];
        if (e != NIL) != (level < list.levels as usize) {
            return None;
        }
        let mut below = if level == 0 { list.first } else { list.heads[level - 1] };
        while e != NIL {
            let target = if level == 0 { pool.elem(e).node } else { pool.elem(e).down };
            while below != target {
                if below == NIL {
                    return None;
                }
                below = if level == 0 { pool.node(below).next } else { pool.elem(below).right };
            }
            if level > 0 && pool.elem(below).node != pool.elem(e).node || level == 0 && pool.elem(e).down != NIL {
                return None;
            }
            elems += 1;
            e = pool.elem(e).right;
        }
    }
    Some(elems)
}

type Model = BTreeMap<(u64, u64), u32>;

fn entries(model: &Model) -> Vec<(u64, u32)> {
    model.iter().map(|(&(key, _), &slot)| (key, slot)).collect()
}

fn node_bound(entries: usize, lists: usize) -> usize {
    2 * (entries / (NODE / 4 * 3 + 1)) + lists.min(entries) + 1
}

/// Every way to read a list says what the model says.
fn assert_reads(list: &SkipList, pool: &Pool, model: &Model, probes: &[u64]) {
    let all = entries(model);
    assert_eq!(iter(list, pool).collect::<Vec<_>>(), all);
    for &key in probes {
        let at = all.partition_point(|e| e.0 < key);
        let mut up = list.seek(pool, key);
        let mut down = up;
        for want in &all[at..] {
            assert_eq!(up.next(pool, true), Some(*want));
        }
        assert_eq!(up.next(pool, true), None);
        for want in all[..at].iter().rev() {
            assert_eq!(down.next(pool, false), Some(*want));
        }
        assert_eq!(down.next(pool, false), None);
        // The ends turn round.
        assert_eq!(up.next(pool, false), all.last().copied());
        assert_eq!(down.next(pool, true), all.first().copied());

        let cell = cell_of(key);
        let want: Vec<_> = all.iter().copied().filter(|e| cell_of(e.0) == cell).collect();
        assert_eq!(list.iter_cell(pool, cell).collect::<Vec<_>>(), want);
    }
}

/// Several lists in one pool of exactly the planned bytes, filled and emptied in waves.
fn run_lists(seed: u64, capacity: usize, lists: usize, cells: usize, projs: usize, steps: usize) {
    let mut rng = Rng(seed | 1);
    let region = Region::new(plan(|p| Pool::plan(p, capacity, lists)), 0);
    let mut pool = pool_of(&region.memory, capacity, lists).unwrap();
    assert!(region.full());
    let ids = ids(capacity + 8, seed);
    let mut list: Vec<_> = (0..lists as u64).map(|l| SkipList::new(seed ^ l)).collect();
    let mut models = vec![Model::new(); lists];
    // Where each slot is, if anywhere; and the slots in use.
    let mut place: Vec<Option<(usize, u64)>> = vec![None; ids.len()];
    let (mut used, mut free): (Vec<usize>, Vec<usize>) = (Vec::new(), (0..ids.len()).collect());
    let mut growing = true;
    for step in 0..steps {
        match rng.below(100) {
            0 => growing = !growing,
            1 if rng.below(20) == 0 => {
                let l = rng.below(lists);
                list[l].clear(&mut pool);
                let (gone, kept): (Vec<usize>, Vec<usize>) =
                    used.iter().partition(|&&s| place[s].is_some_and(|p| p.0 == l));
                used = kept;
                for s in gone {
                    place[s] = None;
                    free.push(s);
                }
                models[l].clear();
            }
            n if (n < 75) == growing => {
                let at = rng.below(free.len());
                let slot = free[at];
                let l = rng.below(lists);
                let proj = (rng.below(projs) as f32 - projs as f32 / 2.0) * 0.37;
                let key = sort_key(rng.below(cells) as u32, proj);
                let done = list[l].insert(&mut pool, &ids, key, slot as u32);
                if used.len() == capacity {
                    assert_eq!(done.unwrap_err().status, Status::Capacity);
                } else {
                    done.unwrap();
                    // Twice is refused, unless the pool is full and says that first.
                    assert!(list[l].insert(&mut pool, &ids, key, slot as u32).is_err());
                    models[l].insert((key, ids[slot]), slot as u32);
                    place[slot] = Some((l, key));
                    free.swap_remove(at);
                    used.push(slot);
                }
            }
            _ if !used.is_empty() => {
                let slot = used.swap_remove(rng.below(used.len()));
                let (l, key) = place[slot].take().unwrap();
                assert!(!list[l].remove(&mut pool, &ids, key ^ 1, slot as u32));
                assert!(list[l].remove(&mut pool, &ids, key, slot as u32));
                assert!(!list[l].remove(&mut pool, &ids, key, slot as u32));
                models[l].remove(&(key, ids[slot])).unwrap();
                free.push(slot);
            }
            _ => {}
        }
        assert_eq!(pool.entries, used.len());
        assert!(nodes_of(&pool) <= node_bound(pool.entries, lists));
        if step % 64 == 0 {
            for l in 0..lists {
                assert!(check(&list[l], &pool, &ids) && list[l].len() == models[l].len());
            }
        }
    }
    for l in 0..lists {
        assert!(check(&list[l], &pool, &ids));
        let mut probes = vec![0, u64::MAX, sort_key(cells as u32, 0.0)];
        probes.extend((0..4).map(|_| sort_key(rng.below(cells) as u32, rng.below(projs) as f32 * 0.3 - 2.0)));
        probes.extend(models[l].keys().step_by(41).flat_map(|k| [k.0, k.0 + 1]));
        assert_reads(&list[l], &pool, &models[l], &probes);
    }
    for l in &mut list {
        l.clear(&mut pool);
    }
    assert_eq!((pool.entries, nodes_of(&pool), elems_of(&pool)), (0, 0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: many(192, 2) as u32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lists_follow_the_model(
        seed in any::<u64>(), capacity in 1usize..many(900, 100), lists in 1usize..5, cells in 1usize..40,
        projs in prop_oneof![1usize..4, 2usize..2000],
    ) {
        run_lists(seed, capacity, lists, cells, projs, many(4000, 100));
    }

    #[test]
    fn bulk_load_equals_insertions(seed in any::<u64>(), n in 0usize..many(1500, 80), projs in 1usize..300) {
        let region = room();
        let mut rng = Rng(seed | 1);
        let ids = ids(n, seed);
        let mut pool = pool_of(&region.memory, 2 * n, 2).unwrap();
        let (mut one, mut all) = (SkipList::new(seed), SkipList::new(seed));
        let mut model = Model::new();
        for slot in 0..n {
            let key = sort_key(rng.below(3) as u32, rng.below(projs) as f32 - 40.0);
            one.insert(&mut pool, &ids, key, slot as u32).unwrap();
            model.insert((key, ids[slot]), slot as u32);
        }
        let before = nodes_of(&pool);
        all.bulk_load(&mut pool, entries(&model).into_iter()).unwrap();
        prop_assert!(nodes_of(&pool) - before == n.div_ceil(NODE / 8 * 7));
        prop_assert!(check(&one, &pool, &ids) && check(&all, &pool, &ids));
        prop_assert!(iter(&one, &pool).eq(iter(&all, &pool)));
        assert_reads(&all, &pool, &model, &[0, sort_key(1, 0.5), sort_key(2, -3.0)]);
        // And it lives on like any other.
        let doomed: Vec<_> = iter(&all, &pool).step_by(3).collect();
        for &(key, slot) in &doomed {
            prop_assert!(all.remove(&mut pool, &ids, key, slot));
        }
        prop_assert!(check(&all, &pool, &ids));
        for &(key, slot) in &doomed {
            all.insert(&mut pool, &ids, key, slot).unwrap();
        }
        prop_assert!(check(&all, &pool, &ids) && iter(&one, &pool).eq(iter(&all, &pool)));
        if n > 0 {
            prop_assert_eq!(all.bulk_load(&mut pool, [(0, 0)].into_iter()).unwrap_err().status, Status::State);
        }
    }

    #[test]
    fn keys_keep_the_order_of_floats(a in any::<f32>(), b in any::<f32>(), cell in any::<u32>()) {
        if !a.is_nan() && !b.is_nan() {
            prop_assert_eq!(image_of(a).cmp(&image_of(b)), a.partial_cmp(&b).unwrap());
            prop_assert_eq!(float_of(image_of(a)).to_bits(), (a + 0.0).to_bits());
            let key = sort_key(cell, a);
            prop_assert!(cell_of(key) == cell && proj_of(key) == a);
        }
    }
}

#[test]
fn long_lists() {
    run_lists(7, many(30_000, 200), 2, 500, 100_000, many(80_000, 300));
    run_lists(8, many(6_000, 100), 1, 1, 1, many(20_000, 200));
}

#[test]
fn special_floats() {
    assert_eq!(sort_key(3, -0.0), sort_key(3, 0.0));
    assert_eq!(proj_of(sort_key(3, -0.0)).to_bits(), 0);
    let sorted = [f32::NEG_INFINITY, f32::MIN, -1.0, -f32::from_bits(1), 0.0, f32::from_bits(1), 1.0, f32::INFINITY];
    assert!(sorted.is_sorted_by(|&a, &b| image_of(a) < image_of(b)));
    assert!(sorted.iter().all(|&x| float_of(image_of(x)) == x));
    assert!(sort_key(u32::MAX, f32::INFINITY) > sort_key(u32::MAX, f32::MAX));
}

/// Nodes as thin as the invariant lets them be, up to the last entry the pool was planned for.
#[test]
fn the_thinnest_nodes_fit() {
    for (capacity, lists) in [(1, 1), (25, 1), (26, 1), (5000, 1), (5000, 7), (40, 100)] {
        let capacity = capacity.min(many(5000, 300));
        let region = Region::new(plan(|p| Pool::plan(p, capacity, lists)), 0);
        let mut pool = pool_of(&region.memory, capacity, lists).unwrap();
        let ids = ids(20 * capacity + 100, 5);
        let mut all: Vec<_> = (0..lists as u64).map(SkipList::new).collect();
        let mut slot = 0;
        for list in all.iter_mut() {
            let mut pair = None;
            // One entry for every list still to come stays free.
            while pool.entries + 2 * NODE + lists <= capacity {
                let begin = slot;
                while slot < begin + 2 * NODE as u32 {
                    list.insert(&mut pool, &ids, slot as u64, slot).unwrap();
                    slot += 1;
                }
                // The pairs of 32 + 32 become 1 + 24, but the last one, which would take the next entries.
                if let Some(thin) = pair.replace(begin) {
                    for s in (thin + 1..thin + 32).chain(thin + 56..thin + 64) {
                        assert!(list.remove(&mut pool, &ids, s as u64, s));
                    }
                }
                if list.len() > capacity / lists {
                    break;
                }
            }
            assert!(check(list, &pool, &ids));
        }
        for list in all.iter_mut().filter(|l| l.len() == 0) {
            if pool.entries < capacity {
                list.insert(&mut pool, &ids, 0, slot).unwrap();
                slot += 1;
            }
        }
        if capacity == 5000 {
            assert!(nodes_of(&pool) + 4 * lists + 2 >= node_bound(pool.entries, lists));
        }
        let mut rng = Rng(9);
        while pool.entries < capacity {
            let list = &mut all[rng.below(lists)];
            list.insert(&mut pool, &ids, rng.below(slot as usize) as u64, slot).unwrap();
            slot += 1;
            assert!(nodes_of(&pool) <= node_bound(pool.entries, lists));
        }
        let full = all[0].insert(&mut pool, &ids, 0, slot).unwrap_err();
        assert_eq!(full.status, Status::Capacity);
        assert!(all.iter().all(|l| check(l, &pool, &ids)));
    }
}

#[test]
fn ascending_and_descending_runs_fill_nodes() {
    let region = room();
    let n = 32 * many(40, 3);
    let ids = ids(n, 1);
    for descending in [false, true] {
        let mut pool = pool_of(&region.memory, n, 1).unwrap();
        let mut list = SkipList::new(1);
        for i in 0..n as u32 {
            let key = if descending { n as u32 - i } else { i };
            list.insert(&mut pool, &ids, key as u64, i).unwrap();
        }
        assert!(check(&list, &pool, &ids));
        assert_eq!(nodes_of(&pool), n / NODE);
    }
}

#[test]
fn more_lists_than_planned() {
    let region = room();
    let mut pool = pool_of(&region.memory, 10, 1).unwrap();
    let (mut a, mut b) = (SkipList::new(1), SkipList::new(2));
    a.insert(&mut pool, &[5, 6], 1, 0).unwrap();
    assert_eq!(b.insert(&mut pool, &[5, 6], 1, 1).unwrap_err().status, Status::Capacity);
    assert_eq!(b.bulk_load(&mut pool, [(1, 1)].into_iter()).unwrap_err().status, Status::Capacity);
    pool.reserve(10, 2).unwrap();
    b.insert(&mut pool, &[5, 6], 1, 1).unwrap();
    assert_eq!(b.bulk_load(&mut pool, core::iter::empty()).unwrap_err().status, Status::State);
    assert!(a.remove(&mut pool, &[5, 6], 1, 0) && a.len() == 0 && check(&a, &pool, &[5, 6]));
}

#[test]
fn a_pool_grows_or_stays() {
    let (some, more) = (many(1000, 100), many(3000, 200));
    let ids = ids(more, 3);
    let both = plan(|p| {
        Pool::plan(p, some, 2);
        Pool::plan(p, more, 4);
    });
    let region = Region::new(both, 0);
    let mut pool = pool_of(&region.memory, some, 2).unwrap();
    let mut list = SkipList::new(0);
    for slot in 0..some as u32 {
        list.insert(&mut pool, &ids, (slot as u64).wrapping_mul(77777) % 501, slot).unwrap();
    }
    let before = region.memory.report().used;
    let error = pool.reserve(100_000, 2).unwrap_err();
    assert_eq!((error.status, pool.max_entries), (Status::NoMemory, some));
    assert_eq!(region.memory.report().used, before);
    pool.reserve(more, 4).unwrap();
    for slot in some as u32..more as u32 {
        list.insert(&mut pool, &ids, (slot as u64).wrapping_mul(77777) % 501, slot).unwrap();
    }
    assert!(check(&list, &pool, &ids) && list.len() == more);
    assert_eq!(pool.reserve(usize::MAX, 1).unwrap_err().status, Status::NoMemory);
    let mut huge = Plan::new();
    Pool::plan(&mut huge, usize::MAX, 1);
    assert!(huge.finish().is_err());
}

#[test]
fn empty_lists_and_pools() {
    let region = room();
    let mut pool = pool_of(&region.memory, 0, 0).unwrap();
    let mut list = SkipList::new(0);
    assert!(check(&list, &pool, &[]) && list.len() == 0 && pool.entries == 0);
    assert_reads(&list, &pool, &Model::new(), &[0, 5, u64::MAX]);
    assert!(!list.remove(&mut pool, &[1], 0, 0));
    assert_eq!(list.insert(&mut pool, &[1], 0, 0).unwrap_err().status, Status::Capacity);
    list.bulk_load(&mut pool, core::iter::empty()).unwrap();
    list.clear(&mut pool);
    let copy: Cursor = list.seek(&pool, 3);
    assert_eq!(copy, list.begin());
}

#[test]
fn plans_are_exact() {
    let sizes = (0..70).chain([100, 127, 128, 129, 255, 256, 1000, 1024, 4095, 4097, 10_000]);
    for n in sizes.filter(|n| n % many(1, 40) == 0) {
        for lists in [1, 3] {
            assert_exact(plan(|p| Pool::plan(p, n, lists)), |m| pool_of(m, n, lists));
        }
    }
}

#[cfg(feature = "alloc")]
#[test]
fn a_limit_is_told_from_no_memory() {
    let memory = Memory::system(4096).unwrap();
    assert_eq!(pool_of(&memory, 10_000, 1).err().map(|e| e.status), Some(Status::Budget));
    assert_eq!(memory.report().used, Memory::system(0).unwrap().report().used);
}
