//! Containers against models from the standard library: lists, cursors, queues, counters, id lookup; and that each fits
//! exactly the bytes planned for it.

use iceformer_core::Status;
use iceformer_core::idmap::IdMap;
use iceformer_core::list::{Cursor, NODE, Pool, SkipList, cell_of, proj_of, sort_key};
use iceformer_core::math::{float_of, image_of};
use iceformer_core::mem::{Memory, Plan};
use iceformer_core::queue::{Front, Frontier, Item, TopK};
use iceformer_core::seen::Seen;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::ptr::NonNull;

/// Memory of fixed size, for both builds; declared before what lives in it.
struct Region {
    memory: Memory,
    _lines: Vec<Line>,
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code)] [u8; 64]);

impl Region {
    /// Of exactly the planned bytes, less `less`.
    fn new(plan: Plan, less: usize) -> Region {
        let mut all = Plan::new();
        Memory::plan(&mut all);
        all.add_plan(&plan, 1);
        let bytes = all.finish().unwrap().bytes - less;
        let mut lines = vec![Line([0xa5; 64]); bytes / 64];
        let base = NonNull::new(lines.as_mut_ptr().cast()).unwrap();
        // SAFETY: the lines are this struct's own and are dropped after its memory; tests drop containers first.
        Region { memory: unsafe { Memory::region(base, bytes) }.unwrap(), _lines: lines }
    }

    fn full(&self) -> bool {
        self.memory.report().used == self.memory.report().reserved
    }
}

fn plan(f: impl Fn(&mut Plan)) -> Plan {
    let mut plan = Plan::new();
    f(&mut plan);
    plan
}

fn room() -> Region {
    Region::new(plan(|p| p.add_bytes(many(16 << 20, 1 << 18))), 0)
}

/// Fits exactly, and not one line less.
fn assert_exact<T>(plan: Plan, make: impl Fn(&Memory) -> iceformer_core::Result<T>) {
    let region = Region::new(plan, 0);
    let made = make(&region.memory).unwrap();
    assert!(region.full());
    drop(made);
    if plan.finish().unwrap().bytes > 0 {
        let region = Region::new(plan, 64);
        assert!(make(&region.memory).is_err());
    }
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 16) as usize % n
    }
}

/// Unique ids in an order that has nothing to do with the slots.
fn ids(n: usize, seed: u64) -> Vec<u64> {
    (0..n as u64).map(|i| (i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)).collect()
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
    assert_eq!(list.iter(pool).collect::<Vec<_>>(), all);
    for &key in probes {
        let at = all.partition_point(|e| e.0 < key);
        let mut up = list.seek(pool, key);
        let mut down = up;
        for want in &all[at..] {
            assert_eq!(up.peek_up(pool), Some(*want));
            up.advance_up(pool);
        }
        assert_eq!((up.peek_up(pool), up.run_up(pool).0.len()), (None, 0));
        for want in all[..at].iter().rev() {
            assert_eq!(down.peek_down(pool), Some(*want));
            down.advance_down(pool);
        }
        assert_eq!((down.peek_down(pool), down.run_down(pool).0.len()), (None, 0));
        // The ends turn round.
        assert_eq!(up.next_down(pool), all.last().copied());
        assert_eq!(down.next_up(pool), all.first().copied());

        let cell = cell_of(key);
        let want: Vec<_> = all.iter().copied().filter(|e| cell_of(e.0) == cell).collect();
        assert_eq!(list.iter_cell(pool, cell).collect::<Vec<_>>(), want);
        let mut runs = Vec::new();
        for (keys, slots) in list.runs_cell(pool, cell) {
            assert!(!keys.is_empty() && keys.len() == slots.len());
            runs.extend(keys.iter().copied().zip(slots.iter().copied()));
        }
        assert_eq!(runs, want);
    }
    let (mut up, mut down) = (list.begin(), list.end(pool));
    let (mut upwards, mut downwards) = (Vec::<u32>::new(), Vec::<u32>::new());
    while !up.run_up(pool).0.is_empty() {
        upwards.extend(up.run_up(pool).1);
        up.skip_up(pool);
    }
    while !down.run_down(pool).0.is_empty() {
        downwards.extend(down.run_down(pool).1.iter().rev());
        down.skip_down(pool);
    }
    downwards.reverse();
    assert_eq!(upwards, all.iter().map(|e| e.1).collect::<Vec<_>>());
    assert_eq!(downwards, upwards);
}

/// Several lists in one pool of exactly the planned bytes, filled and emptied in waves.
fn run_lists(seed: u64, capacity: usize, lists: usize, cells: usize, projs: usize, steps: usize) {
    let mut rng = Rng(seed | 1);
    let region = Region::new(plan(|p| Pool::plan(p, capacity, lists)), 0);
    let mut pool = Pool::with_capacity(&region.memory, capacity, lists).unwrap();
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
        assert_eq!(pool.len(), used.len());
        assert!(pool.nodes().0 <= node_bound(pool.len(), lists));
        if step % 64 == 0 {
            for l in 0..lists {
                assert!(list[l].check(&pool, &ids) && list[l].len() == models[l].len());
            }
        }
    }
    for l in 0..lists {
        assert!(list[l].check(&pool, &ids));
        let mut probes = vec![0, u64::MAX, sort_key(cells as u32, 0.0)];
        probes.extend((0..4).map(|_| sort_key(rng.below(cells) as u32, rng.below(projs) as f32 * 0.3 - 2.0)));
        probes.extend(models[l].keys().step_by(41).flat_map(|k| [k.0, k.0 + 1]));
        assert_reads(&list[l], &pool, &models[l], &probes);
    }
    for l in &mut list {
        l.clear(&mut pool);
    }
    assert_eq!((pool.len(), pool.nodes().0, pool.elements().0), (0, 0, 0));
}

/// So many, or few under Miri, which takes a thousand times as long.
const fn many(n: usize, few: usize) -> usize {
    if cfg!(miri) { few } else { n }
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
        let mut pool = Pool::with_capacity(&region.memory, 2 * n, 2).unwrap();
        let (mut one, mut all) = (SkipList::new(seed), SkipList::new(seed));
        let mut model = Model::new();
        for slot in 0..n {
            let key = sort_key(rng.below(3) as u32, rng.below(projs) as f32 - 40.0);
            one.insert(&mut pool, &ids, key, slot as u32).unwrap();
            model.insert((key, ids[slot]), slot as u32);
        }
        let before = pool.nodes().0;
        all.bulk_load(&mut pool, entries(&model).into_iter()).unwrap();
        prop_assert!(pool.nodes().0 - before == n.div_ceil(NODE / 8 * 7));
        prop_assert!(one.check(&pool, &ids) && all.check(&pool, &ids));
        prop_assert!(one.iter(&pool).eq(all.iter(&pool)));
        assert_reads(&all, &pool, &model, &[0, sort_key(1, 0.5), sort_key(2, -3.0)]);
        // And it lives on like any other.
        let doomed: Vec<_> = all.iter(&pool).step_by(3).collect();
        for &(key, slot) in &doomed {
            prop_assert!(all.remove(&mut pool, &ids, key, slot));
        }
        prop_assert!(all.check(&pool, &ids));
        for &(key, slot) in &doomed {
            all.insert(&mut pool, &ids, key, slot).unwrap();
        }
        prop_assert!(all.check(&pool, &ids) && one.iter(&pool).eq(all.iter(&pool)));
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

    #[test]
    fn topk_is_the_head_of_a_sort(seed in any::<u64>(), n in 0usize..many(300, 30), k in 0usize..40, scores in 1usize..50) {
        let region = room();
        let mut rng = Rng(seed | 1);
        let mut top = TopK::with_capacity(&region.memory, 40).unwrap();
        let ids = ids(n, seed);
        // Twice: a queue is as good as new after a reset.
        for _ in 0..2 {
            top.reset(k).unwrap();
            let mut all = Vec::new();
            for slot in 0..n {
                let item = Item { score: rng.below(scores) as f32 - 7.5, slot: slot as u32, id: ids[slot] };
                let bar = top.worst();
                let kept = top.push(item.score, item.id, item.slot);
                all.push(item);
                all.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.id.cmp(&b.id)));
                prop_assert_eq!(kept, all.iter().take(k).any(|i| i.slot == item.slot));
                prop_assert!(!kept || bar.is_none_or(|bar| item.score >= bar));
                prop_assert_eq!(top.worst(), if k > 0 { all.get(k - 1).map(|i| i.score) } else { None });
                // Reading in between disturbs nothing.
                if rng.below(16) == 0 {
                    prop_assert_eq!(top.into_sorted(), &all[..k.min(all.len())]);
                    prop_assert_eq!(top.worst(), if k > 0 { all.get(k - 1).map(|i| i.score) } else { None });
                }
            }
            prop_assert_eq!(top.len(), k.min(n));
            prop_assert_eq!(top.into_sorted(), &all[..k.min(n)]);
            prop_assert_eq!(top.items(), &all[..k.min(n)]);
        }
        prop_assert_eq!(top.reset(41).unwrap_err().status, Status::Capacity);
    }

    #[test]
    fn frontier_pops_in_order(seed in any::<u64>(), cap in 1usize..80, deltas in 1usize..40) {
        let region = room();
        let mut rng = Rng(seed | 1);
        let mut frontier = Frontier::with_capacity(&region.memory, cap).unwrap();
        let mut model: BTreeMap<(u32, u32), Front> = BTreeMap::new();
        for rank in 0..many(2000, 200) as u32 {
            let rank = rank.wrapping_mul(0x9e37_79b9);
            let front = Front { delta: rng.below(deltas) as f32 * 0.5, rank, payload: !rank };
            let min = model.first_key_value().map(|(_, &f)| f);
            prop_assert_eq!(frontier.peek(), min);
            match rng.below(5) {
                0 | 1 => {
                    let done = frontier.push(front.delta, front.rank, front.payload);
                    if model.len() == cap {
                        prop_assert_eq!(done.unwrap_err().status, Status::Capacity);
                    } else {
                        done.unwrap();
                        model.insert((image_of(front.delta), rank), front);
                    }
                }
                2 => {
                    prop_assert_eq!(frontier.pop_min(), model.pop_first().map(|(_, f)| f));
                }
                _ => {
                    prop_assert_eq!(frontier.replace_min(front.delta, front.rank, front.payload), min);
                    if model.pop_first().is_some() {
                        model.insert((image_of(front.delta), rank), front);
                    }
                }
            }
            prop_assert_eq!(frontier.len(), model.len());
        }
        while let Some((_, f)) = model.pop_first() {
            prop_assert_eq!(frontier.pop_min(), Some(f));
        }
        prop_assert!(frontier.is_empty() && frontier.pop_min().is_none());
    }

    #[test]
    fn seen_counts(seed in any::<u64>(), slots in 1usize..50) {
        let region = room();
        let mut rng = Rng(seed | 1);
        let mut seen = Seen::with_capacity(&region.memory, slots).unwrap();
        let mut model: HashMap<u32, u32> = HashMap::new();
        for _ in 0..many(3000, 600) {
            if rng.below(2000) == 0 {
                seen.begin();
                model.clear();
            }
            let slot = (rng.below(seen.slots()) / (1 + rng.below(9))) as u32;
            let n = model.entry(slot).or_default();
            *n += 1;
            prop_assert_eq!(seen.hit(slot) as u32, (*n).min(255));
            if rng.below(1000) == 0 {
                seen.reserve(seen.slots() + 3).unwrap();
            }
            let slot = rng.below(seen.slots()) as u32;
            prop_assert_eq!(seen.count(slot) as u32, model.get(&slot).copied().unwrap_or(0).min(255));
        }
    }

    /// At full capacity, in a region that has not one byte more.
    #[test]
    fn idmap_churns_in_place(seed in any::<u64>(), cap in 1usize..many(700, 30)) {
        let region = Region::new(plan(|p| IdMap::plan(p, cap)), 0);
        let mut map = IdMap::with_capacity(&region.memory, cap).unwrap();
        prop_assert!(region.full());
        let mut rng = Rng(seed | 1);
        let mut ids = ids(cap + 1, seed);
        let mut model: HashMap<u64, u32> = HashMap::new();
        for slot in 0..cap as u32 {
            map.insert(slot, &ids).unwrap();
            model.insert(ids[slot as usize], slot);
        }
        prop_assert_eq!(map.insert(cap as u32, &ids).unwrap_err().status, Status::Capacity);
        for _ in 0..6 * cap + many(500, 10) {
            let slot = rng.below(cap) as u32;
            let id = ids[slot as usize];
            prop_assert_eq!(map.insert(slot, &ids).unwrap_err().status, Status::Duplicate);
            prop_assert_eq!(map.remove(id, &ids), Some(slot));
            prop_assert_eq!((map.remove(id, &ids), map.find(id, &ids)), (None, None));
            model.remove(&id);
            ids[slot as usize] = rng.next();
            map.insert(slot, &ids).unwrap();
            model.insert(ids[slot as usize], slot);
            prop_assert_eq!(map.len(), cap);
        }
        for (&id, &slot) in &model {
            prop_assert_eq!(map.find(id, &ids), Some(slot));
        }
        let refused = map.reserve(4 * cap + 64, &ids).unwrap_err();
        prop_assert_eq!((refused.status, map.capacity(), map.len()), (Status::NoMemory, cap, cap));
        prop_assert!(model.iter().all(|(&id, &slot)| map.find(id, &ids) == Some(slot)));
        map.clear();
        prop_assert!(map.is_empty() && map.find(ids[0], &ids).is_none());
        for slot in 0..cap as u32 {
            map.insert(slot, &ids).unwrap();
        }
        prop_assert!(region.full());
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
        let mut pool = Pool::with_capacity(&region.memory, capacity, lists).unwrap();
        let ids = ids(20 * capacity + 100, 5);
        let mut all: Vec<_> = (0..lists as u64).map(SkipList::new).collect();
        let mut slot = 0;
        for list in all.iter_mut() {
            let mut pair = None;
            // One entry for every list still to come stays free.
            while pool.len() + 2 * NODE + lists <= capacity {
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
            assert!(list.check(&pool, &ids));
        }
        for list in all.iter_mut().filter(|l| l.is_empty()) {
            if pool.len() < capacity {
                list.insert(&mut pool, &ids, 0, slot).unwrap();
                slot += 1;
            }
        }
        if capacity == 5000 {
            assert!(pool.nodes().0 + 4 * lists + 2 >= node_bound(pool.len(), lists), "{:?}", pool.nodes());
        }
        let mut rng = Rng(9);
        while pool.len() < capacity {
            let list = &mut all[rng.below(lists)];
            list.insert(&mut pool, &ids, rng.below(slot as usize) as u64, slot).unwrap();
            slot += 1;
            assert!(pool.nodes().0 <= node_bound(pool.len(), lists));
        }
        let full = all[0].insert(&mut pool, &ids, 0, slot).unwrap_err();
        assert_eq!(full.status, Status::Capacity);
        assert!(all.iter().all(|l| l.check(&pool, &ids)));
    }
}

#[test]
fn ascending_and_descending_runs_fill_nodes() {
    let region = room();
    let n = 32 * many(40, 3);
    let ids = ids(n, 1);
    for descending in [false, true] {
        let mut pool = Pool::with_capacity(&region.memory, n, 1).unwrap();
        let mut list = SkipList::new(1);
        for i in 0..n as u32 {
            let key = if descending { n as u32 - i } else { i };
            list.insert(&mut pool, &ids, key as u64, i).unwrap();
        }
        assert!(list.check(&pool, &ids));
        assert_eq!(pool.nodes().0, n / NODE);
    }
}

#[test]
fn more_lists_than_planned() {
    let region = room();
    let mut pool = Pool::with_capacity(&region.memory, 10, 1).unwrap();
    let (mut a, mut b) = (SkipList::new(1), SkipList::new(2));
    a.insert(&mut pool, &[5, 6], 1, 0).unwrap();
    assert_eq!(b.insert(&mut pool, &[5, 6], 1, 1).unwrap_err().status, Status::Capacity);
    assert_eq!(b.bulk_load(&mut pool, [(1, 1)].into_iter()).unwrap_err().status, Status::Capacity);
    pool.reserve(10, 2).unwrap();
    b.insert(&mut pool, &[5, 6], 1, 1).unwrap();
    assert_eq!(b.bulk_load(&mut pool, core::iter::empty()).unwrap_err().status, Status::State);
    assert!(a.remove(&mut pool, &[5, 6], 1, 0) && a.is_empty() && a.check(&pool, &[5, 6]));
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
    let mut pool = Pool::with_capacity(&region.memory, some, 2).unwrap();
    let mut list = SkipList::new(0);
    for slot in 0..some as u32 {
        list.insert(&mut pool, &ids, (slot as u64).wrapping_mul(77777) % 501, slot).unwrap();
    }
    let before = region.memory.report().used;
    let error = pool.reserve(100_000, 2).unwrap_err();
    assert_eq!((error.status, pool.capacity()), (Status::NoMemory, some));
    assert_eq!(region.memory.report().used, before);
    pool.reserve(more, 4).unwrap();
    for slot in some as u32..more as u32 {
        list.insert(&mut pool, &ids, (slot as u64).wrapping_mul(77777) % 501, slot).unwrap();
    }
    assert!(list.check(&pool, &ids) && list.len() == more);
    assert_eq!(pool.reserve(usize::MAX, 1).unwrap_err().status, Status::NoMemory);
    let mut huge = Plan::new();
    Pool::plan(&mut huge, usize::MAX, 1);
    assert!(huge.finish().is_err());
}

#[test]
fn empty_lists_and_pools() {
    let region = room();
    let mut pool = Pool::with_capacity(&region.memory, 0, 0).unwrap();
    let mut list = SkipList::new(0);
    assert!(list.check(&pool, &[]) && list.is_empty() && pool.is_empty());
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
            assert_exact(plan(|p| Pool::plan(p, n, lists)), |m| Pool::with_capacity(m, n, lists));
        }
        assert_exact(plan(|p| TopK::plan(p, n)), |m| TopK::with_capacity(m, n));
        assert_exact(plan(|p| Frontier::plan(p, n)), |m| Frontier::with_capacity(m, n));
        assert_exact(plan(|p| Seen::plan(p, n)), |m| Seen::with_capacity(m, n));
        assert_exact(plan(|p| IdMap::plan(p, n)), |m| IdMap::with_capacity(m, n));
    }
    let mut huge = Plan::new();
    IdMap::plan(&mut huge, usize::MAX / 2);
    assert!(huge.finish().is_err());
}

#[test]
fn an_idmap_grows_or_stays() {
    let region = Region::new(
        plan(|p| {
            IdMap::plan(p, 20);
            IdMap::plan(p, 200);
        }),
        0,
    );
    let mut map = IdMap::with_capacity(&region.memory, 20).unwrap();
    let mut ids = ids(200, 11);
    for slot in 0..20 {
        map.insert(slot, &ids).unwrap();
    }
    // Leave the marks of removals behind before growing.
    for i in 0..1000u64 {
        let slot = i as usize % 20;
        assert_eq!(map.remove(ids[slot], &ids), Some(slot as u32));
        ids[slot] = i << 32 | 1;
        map.insert(slot as u32, &ids).unwrap();
    }
    assert_eq!(map.reserve(5000, &ids).unwrap_err().status, Status::NoMemory);
    assert_eq!((map.capacity(), map.len()), (20, 20));
    map.reserve(200, &ids).unwrap();
    for slot in 20..200 {
        map.insert(slot, &ids).unwrap();
    }
    assert!((0..200).all(|s| map.find(ids[s], &ids) == Some(s as u32)));
    assert!(map.reserve(usize::MAX, &ids).is_err());
}

#[cfg(feature = "alloc")]
#[test]
fn a_limit_is_told_from_no_memory() {
    let memory = Memory::system(4096).unwrap();
    assert_eq!(IdMap::with_capacity(&memory, 10_000).unwrap_err().status, Status::Budget);
    assert_eq!(Pool::with_capacity(&memory, 10_000, 1).unwrap_err().status, Status::Budget);
    assert_eq!(memory.report().used, Memory::system(0).unwrap().report().used);
}
