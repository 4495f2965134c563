//! The structure behind the answers: every list sorted and complete, every key in the cell of its nearest parent.

use super::index::NO_ID;
use super::level::ROOT;
use super::{Index, IndexOptions, Metric};
use crate::math::hash;
use crate::mem::{Memory, Rows};
use std::vec::Vec;

fn check(index: &Index) {
    let live: Vec<u32> = (0..index.ids.len() as u32).filter(|&s| index.id_at(s) != NO_ID).collect();
    assert_eq!(live.len(), index.len());
    for level in 0..index.options.depth() {
        let l = &index.levels[level];
        let here: Vec<u32> = live.iter().copied().filter(|&s| usize::from(index.height[s as usize]) >= level).collect();
        if level > 0 {
            let mut members = l.members.to_vec();
            members.sort_unstable();
            assert_eq!(members, here);
        }
        for list in l.lists.iter() {
            assert!(list.check(&index.pool, &index.ids));
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
        assert!(!index.levels[levels - 1].lists[0].is_empty(), "the test reaches the top level");
    }
}
