//! Queues against models from the standard library.

use super::frontier::{Front, Frontier};
use super::topk::{Item, TopK};
use crate::error::Status;
use crate::math::image_of;
use crate::mem::Maker;
use crate::mem::tests::{Rng, ids, many, room};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec::Vec;

proptest! {
    #![proptest_config(ProptestConfig { cases: many(192, 2) as u32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn topk_is_the_head_of_a_sort(seed in any::<u64>(), n in 0usize..many(300, 30), k in 0usize..40, scores in 1usize..50) {
        let region = room();
        let mut rng = Rng(seed | 1);
        let mut top = Maker::make(&region.memory, |m| TopK::made(m, 40)).unwrap();
        let ids = ids(n, seed);
        // Twice: a queue is as good as new after a reset.
        for _ in 0..2 {
            top.reset(k).unwrap();
            let mut all = Vec::new();
            for slot in 0..n {
                let item = Item { score: rng.below(scores) as f32 - 7.5, slot: slot as u32, id: ids[slot] };
                let kept = top.push(item.score, item.id, item.slot);
                all.push(item);
                all.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.id.cmp(&b.id)));
                prop_assert_eq!(kept, all.iter().take(k).any(|i| i.slot == item.slot));
            }
            prop_assert_eq!(top.into_sorted(), &all[..k.min(n)]);
            // Reading disturbs nothing.
            prop_assert_eq!(top.into_sorted(), &all[..k.min(n)]);
        }
        prop_assert_eq!(top.reset(41).unwrap_err().status, Status::Capacity);
    }

    #[test]
    fn frontier_pops_in_order(seed in any::<u64>(), cap in 1usize..80, deltas in 1usize..40) {
        let region = room();
        let mut rng = Rng(seed | 1);
        let mut frontier = Maker::make(&region.memory, |m| Frontier::made(m, cap)).unwrap();
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
            prop_assert_eq!(frontier.heap.len(), model.len());
        }
        while let Some((_, f)) = model.pop_first() {
            prop_assert_eq!(frontier.pop_min(), Some(f));
        }
        prop_assert!(frontier.heap.is_empty() && frontier.pop_min().is_none());
    }
}
