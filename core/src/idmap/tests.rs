//! Id lookup against a model from the standard library; that a map fits exactly the bytes planned for it.

use super::*;
use crate::error::Result;
use crate::mem::tests::{Region, Rng, assert_exact, ids, many};
use crate::mem::{Maker, Memory, Plan};
use proptest::prelude::*;
use std::collections::HashMap;

fn map_of(memory: &Memory, cap: usize) -> Result<IdMap> {
    Maker::make(memory, |m| IdMap::made(m, cap))
}

fn plan_of(cap: usize) -> Plan {
    let mut plan = Plan::new();
    plan.count(|m| IdMap::made(m, cap));
    plan
}

proptest! {
    #![proptest_config(ProptestConfig { cases: many(192, 2) as u32, failure_persistence: None, ..ProptestConfig::default() })]

    /// At full capacity, in a region that has not one byte more.
    #[test]
    fn idmap_churns_in_place(seed in any::<u64>(), cap in 1usize..many(700, 30)) {
        let region = Region::new(plan_of(cap), 0);
        let mut map = map_of(&region.memory, cap).unwrap();
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
        }
        for (&id, &slot) in &model {
            prop_assert_eq!(map.find(id, &ids), Some(slot));
        }
        let refused = map.reserve(4 * cap + 64, &ids).unwrap_err();
        prop_assert_eq!(refused.status, Status::NoMemory);
        prop_assert!(model.iter().all(|(&id, &slot)| map.find(id, &ids) == Some(slot)));
        map.clear();
        prop_assert!(map.find(ids[0], &ids).is_none());
        for slot in 0..cap as u32 {
            map.insert(slot, &ids).unwrap();
        }
        prop_assert!(region.full());
    }
}

#[test]
fn an_idmap_grows_or_stays() {
    let mut both = plan_of(20);
    both.add_plan(&plan_of(200), 1);
    let region = Region::new(both, 0);
    let mut map = map_of(&region.memory, 20).unwrap();
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
    assert!((0..20).all(|s| map.find(ids[s], &ids) == Some(s as u32)));
    map.reserve(200, &ids).unwrap();
    for slot in 20..200 {
        map.insert(slot, &ids).unwrap();
    }
    assert!((0..200).all(|s| map.find(ids[s], &ids) == Some(s as u32)));
    assert!(map.reserve(usize::MAX, &ids).is_err());
}

#[test]
fn plans_are_exact() {
    let sizes = (0..70).chain([100, 127, 128, 129, 255, 256, 1000, 1024, 4095, 4097, 10_000]);
    for n in sizes.filter(|n| n % many(1, 40) == 0) {
        assert_exact(plan_of(n), |m| map_of(m, n));
    }
    assert!(plan_of(usize::MAX / 2).finish().is_err());
}

#[cfg(feature = "alloc")]
#[test]
fn a_limit_is_told_from_no_memory() {
    let memory = Memory::system(4096).unwrap();
    assert_eq!(map_of(&memory, 10_000).err().map(|e| e.status), Some(Status::Budget));
    assert_eq!(memory.report().used, Memory::system(0).unwrap().report().used);
}
