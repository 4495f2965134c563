//! Indices over saved bytes that stay where they are: same answers, no copy of the keys until one is added, nothing ever
//! written to the bytes, damage refused as on loading.
#![allow(unsafe_code)]
#![cfg(target_endian = "little")]

mod common;

use common::{kept, memory, noise};
use iceformer_core::Status;
use iceformer_core::dci::{Directions, Engine, Index, IndexOptions, Metric, Neighbor, QueryOptions, Scratch};
use iceformer_core::mem::{Memory, Plan, Rows};

const DIM: usize = 10;
const METRICS: [Metric; 3] = [Metric::InnerProduct, Metric::L2, Metric::Cosine];

fn saved(index: &Index) -> Vec<u8> {
    let mut bytes = vec![0; index.save_len()];
    index.save(&mut bytes).unwrap();
    bytes
}

fn index(o: &IndexOptions, n: usize) -> Index {
    let mut index = Index::new_in(o, &memory(0)).unwrap();
    index.insert(Rows::new(&noise(n * o.dim, 1, 1.0), o.dim).unwrap(), None).unwrap();
    index.remove_present(&(0..n as u64).step_by(9).collect::<Vec<_>>());
    index
}

fn answers(index: &Index) -> Vec<(u64, u32)> {
    let queries = noise(30 * index.dim(), 2, 1.0);
    let mut scratch = Scratch::new_in(index, &memory(0)).unwrap();
    let mut all = Vec::new();
    for engine in [Engine::Auto, Engine::Walk, Engine::Cells] {
        let mut out = [Neighbor::default(); 30 * 4];
        let o = QueryOptions { engine, ..QueryOptions::new(4) };
        let rows = Rows::new(&queries, index.dim()).unwrap();
        if index.query(&mut scratch, rows, &o, &mut out, None).is_ok() {
            all.extend(out.iter().map(|n| (n.id, n.score.to_bits())));
        }
        index.query_exact(&mut scratch, rows, &o, &mut out, None).unwrap();
        all.extend(out.iter().map(|n| (n.id, n.score.to_bits())));
    }
    all
}

fn kinds() -> Vec<IndexOptions> {
    let mut all = Vec::new();
    for metric in METRICS {
        for engine in [Engine::Auto, Engine::Walk, Engine::Cells] {
            for levels in [1, 3] {
                all.push(IndexOptions { metric, engine, levels, seed: 4, ..IndexOptions::new(DIM) });
            }
        }
    }
    all
}

#[test]
fn views_answer_as_loaded_indices_and_hold_no_keys() {
    for o in kinds() {
        for n in [0, 5, 900] {
            let made = index(&o, n);
            let bytes = saved(&made);
            let (source, other) = (memory(0), memory(0));
            let view = Index::view(kept(&bytes, 4), &source).unwrap();
            let loaded = Index::load(&bytes, &other).unwrap();
            assert_eq!(answers(&view), answers(&loaded));
            assert_eq!(saved(&view), bytes);
            let spared = other.report().used - source.report().used;
            let room = (loaded.capacity() * DIM * 4).next_multiple_of(64);
            assert_eq!(spared, room, "{n}: all but the keys");
        }
    }
}

#[test]
fn views_change_as_loaded_indices_do() {
    for o in kinds() {
        for fixed in [false, true] {
            let made = index(&IndexOptions { fixed, capacity: 1400, ..o }, 900);
            let bytes = saved(&made);
            let place = kept(&bytes, 0);
            let (mut view, mut loaded) =
                (Index::view(place, &memory(0)).unwrap(), Index::load(&bytes, &memory(0)).unwrap());
            let more = noise(300 * DIM, 7, 1.0);
            for index in [&mut view, &mut loaded] {
                index.remove(&[1, 2, 500]).unwrap();
            }
            assert_eq!(answers(&view), answers(&loaded));
            for index in [&mut view, &mut loaded] {
                index.insert(Rows::new(&[0f32; 0], DIM).unwrap(), None).unwrap();
                index.insert(Rows::new(&more[..DIM], DIM).unwrap(), Some(&[2])).unwrap();
                index.insert(Rows::new(&more, DIM).unwrap(), None).unwrap();
            }
            assert_eq!(answers(&view), answers(&loaded));
            assert_eq!((saved(&view), view.len()), (saved(&loaded), loaded.len()));
            let mut view = Index::view(place, &memory(0)).unwrap();
            view.reserve(if fixed { 1400 } else { 4000 }).unwrap();
            assert_eq!(view.key(4), loaded.key(4));
            view.clear();
            assert!(view.is_empty() && view.insert(Rows::new(&more, DIM).unwrap(), None).is_ok());
            if o.metric != Metric::Cosine {
                assert_eq!(view.key(299), Some(&more[299 * DIM..]));
            }
            assert!(place == bytes, "nothing was written");
        }
    }
}

#[test]
fn refused_copies_change_nothing() {
    let o = IndexOptions { metric: Metric::L2, engine: Engine::Cells, ..IndexOptions::new(DIM) };
    let made = index(&IndexOptions { capacity: 1000, ..o }, 900);
    let bytes = saved(&made);
    let place = kept(&bytes, 0);
    let source = memory(0);
    let used = {
        let _view = Index::view(place, &source).unwrap();
        source.report().used
    };
    let more = noise(3 * DIM, 7, 1.0);
    let mut view = Index::view(place, &memory(used + 1000 * DIM * 4 - 64)).unwrap();
    let want = answers(&view);
    let e = view.insert(Rows::new(&more, DIM).unwrap(), None).unwrap_err();
    assert_eq!((e.status, view.len(), answers(&view)), (Status::Budget, made.len(), want));
    let mut view = Index::view(place, &memory(used + 1000 * DIM * 4)).unwrap();
    view.insert(Rows::new(&more, DIM).unwrap(), None).unwrap();
    // A bad insertion into a view.
    let mut view = Index::view(place, &memory(0)).unwrap();
    let want = answers(&view);
    assert_eq!(
        view.insert(Rows::new(&more, DIM).unwrap(), Some(&[2000, 2001, 2000])).unwrap_err().status,
        Status::Duplicate
    );
    assert_eq!(answers(&view), want);
}

#[test]
fn views_in_a_region_take_the_planned_bytes_and_no_more_keys() {
    for directions in [Directions::Random, Directions::Fitted] {
        let o = IndexOptions { metric: Metric::L2, directions, ..IndexOptions::new(DIM) };
        let mut made = index(&o, 900);
        if directions == Directions::Fitted {
            made.fit(Some(Rows::new(&noise(200 * DIM, 8, 1.0), DIM).unwrap())).unwrap();
        }
        let bytes = saved(&made);
        let place = kept(&bytes, 0);
        let mut plan = Plan::new();
        Memory::plan(&mut plan);
        Index::plan_view(&Index::peek_view(place).unwrap(), &mut plan).unwrap();
        let layout = plan.finish().unwrap();
        let mut store = vec![0u8; layout.bytes + 64];
        let start = store.as_ptr().align_offset(64);
        let base = std::ptr::NonNull::new(store[start..].as_mut_ptr()).unwrap();
        // SAFETY: `store` outlives the index and is not touched meanwhile.
        let small = unsafe { Memory::region(base, layout.bytes - 1) };
        assert!(small.is_err() || Index::view(place, &small.unwrap()).is_err());
        // SAFETY: as above; the first memory is gone.
        let region = unsafe { Memory::region(base, layout.bytes) }.unwrap();
        let mut view = Index::view(place, &region).unwrap();
        assert_eq!(region.report().used, layout.bytes, "the plan is exact");
        assert_eq!(answers(&view), answers(&Index::load(&bytes, &memory(0)).unwrap()));
        view.remove(&[1, 2]).unwrap();
        let want = answers(&view);
        let e = view.insert(Rows::new(&noise(DIM, 3, 1.0), DIM).unwrap(), None).unwrap_err();
        assert_eq!((e.status, e.field), (Status::Capacity, "keys"));
        assert_eq!(answers(&view), want);
        view.clear();
        assert!(view.is_empty() && place == bytes);
    }
}

#[test]
fn damaged_and_misplaced_bytes_are_refused() {
    let bytes = saved(&index(&IndexOptions::new(DIM), 40));
    for off in [1, 2, 3] {
        assert_eq!(Index::view(kept(&bytes, off), &memory(0)).err().unwrap().status, Status::Alignment);
        assert_eq!(Index::peek_view(kept(&bytes, off)).err().unwrap().status, Status::Alignment);
    }
    for at in (0..bytes.len()).step_by(3) {
        let mut bad = bytes.clone();
        bad[at] ^= 4;
        assert_eq!(Index::view(kept(&bad, 0), &memory(0)).err().unwrap().status, Status::Buffer, "byte {at}");
    }
    let whole = kept(&bytes, 0);
    for cut in 0..bytes.len() {
        assert_eq!(Index::view(&whole[..cut], &memory(0)).err().unwrap().status, Status::Buffer);
    }
    // A key that is none, under a right checksum.
    let mut bad = bytes.clone();
    let end = bad.len() - 4;
    bad[end - 4..end].copy_from_slice(&f32::NAN.to_le_bytes());
    let sum = crc32fast::hash(&bad[..end]);
    bad[end..].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(Index::view(kept(&bad, 0), &memory(0)).err().unwrap().status, Status::Buffer);
}
