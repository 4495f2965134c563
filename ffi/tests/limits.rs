//! Sizes at and beyond every limit: refused with a status, or right; never a wrong size, never a crash.
// Every unsafe block here calls the border with live fixtures.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use iceformer::*;
use std::ptr::{null, null_mut};

fn required(o: &ice_index_options) -> Result<usize, &'static str> {
    let (mut bytes, mut align) = (0, 0);
    match unsafe { ice_index_required(o, &mut bytes, &mut align, null_mut()) } {
        ICE_OK => Ok(bytes),
        s => Err(name(s)),
    }
}

#[test]
fn very_many_keys() {
    let mut o = index_options();
    // What the plan says is at least the keys themselves, or there is no plan.
    for n in [1usize << 31, (1 << 31) + 1, 1 << 32, 1 << 40, usize::MAX / 64, usize::MAX] {
        o.capacity = n;
        if let Ok(bytes) = required(&o) {
            assert!(bytes as u128 > n as u128 * DIM as u128 * 4, "{n} keys in {bytes} bytes");
        }
        // A budget that is far below is met before any memory is taken.
        let limited = ice_index_options { memory_limit: 1 << 20, ..o };
        let mut ix = null_mut();
        let s = unsafe { ice_index_new(&limited, &mut ix, null_mut()) };
        assert!(
            ix.is_null() && ["ICE_ERR_BUDGET", "ICE_ERR_ARGUMENT", "ICE_ERR_NO_MEMORY"].contains(&name(s)),
            "{}",
            name(s)
        );
    }
    // An index of few keys refuses the rest and keeps working.
    let ix = full_index(&ice_index_options { memory_limit: 1 << 20, ..index_options() });
    let before = answers(ix);
    for n in [1usize << 31, 1 << 32, usize::MAX] {
        let s = unsafe { ice_index_reserve(ix, n) };
        assert!(
            ["ICE_ERR_BUDGET", "ICE_ERR_CAPACITY", "ICE_ERR_ARGUMENT", "ICE_ERR_NO_MEMORY"].contains(&name(s)),
            "{}",
            name(s)
        );
        assert_eq!(answers(ix), before);
    }
    refused(ICE_ERR_SHAPE, &["keys"], |e| unsafe {
        ice_index_insert(ix, numbers(DIM, 1).as_ptr(), usize::MAX / 4, null(), e)
    });
    assert_eq!(answers(ix), before);
    unsafe { ice_index_free(ix) };
}

#[test]
fn dimensions() {
    for (dim, fine) in [(0, false), (1, true), (65535, true), (65536, false), (u32::MAX, false)] {
        let o: ice_index_options = made(|p| unsafe { ice_index_options_init(p, dim) });
        let have = required(&o);
        assert_eq!(have.is_ok(), fine, "dim {dim}: {have:?}");
        if !fine {
            assert_eq!(have, Err("ICE_ERR_ARGUMENT"));
        }
    }
    // The largest dimension works.
    let mut o: ice_index_options = made(|p| unsafe { ice_index_options_init(p, 65535) });
    (o.num_simple, o.num_composite) = (1, 1);
    let (ix, keys) = (new_index(&o), numbers(3 * 65535, 5));
    ok(|e| unsafe { ice_index_insert(ix, keys.as_ptr(), 3, null(), e) });
    let (qo, mut out, mut n) = (query_options(), [no_answer(); K], 0);
    ok(|e| unsafe { ice_index_query(ix, null_mut(), keys.as_ptr(), 1, &qo, out.as_mut_ptr(), &mut n, e) });
    // A key is its own best neighbour here: of all inner products its square is the largest.
    assert!(n == 3 && out[0].id == 0, "{n} {}", out[0].id);
    unsafe { ice_index_free(ix) };
}

#[test]
fn more_neighbours_than_keys() {
    let ix = full_index(&index_options());
    let q = numbers(DIM, 99);
    let k = 10 * KEYS;
    let (mut qo, mut out, mut n) = (query_options(), vec![no_answer(); k], 0);
    (qo.k, qo.visit_fraction, qo.retrieve_fraction) = (k as u32, 1.0, 1.0);
    for f in [ice_index_query, ice_index_query_exact] {
        ok(|e| unsafe { f(ix, null_mut(), q.as_ptr(), 1, &qo, out.as_mut_ptr(), &mut n, e) });
        assert_eq!(n as usize, KEYS);
        assert!(out[..KEYS].is_sorted_by(|a, b| a.score >= b.score));
        assert!(out[KEYS..].iter().all(|a| a.id == u64::MAX));
    }
    // k and the number of queries together overflow.
    qo.k = u32::MAX;
    let s = unsafe {
        ice_index_query(ix, null_mut(), q.as_ptr(), usize::MAX / 8, &qo, out.as_mut_ptr(), null_mut(), null_mut())
    };
    status(ICE_ERR_SHAPE, s);
    unsafe { ice_index_free(ix) };
}

#[test]
fn no_capacity() {
    // An index without capacity in caller memory holds nothing and says so.
    let o = index_options();
    let bytes = required(&o).expect("a plan");
    let mut region = Guarded::new(bytes);
    let mut ix = null_mut();
    ok(|e| unsafe { ice_index_new_in(region.ptr(), bytes, &o, &mut ix, e) });
    let keys = numbers(DIM, 1);
    refused(ICE_ERR_CAPACITY, &[], |e| unsafe { ice_index_insert(ix, keys.as_ptr(), 1, null(), e) });
    assert_eq!((answers(ix), unsafe { ice_index_len(ix) }), (vec![], 0));
    unsafe { ice_index_free(ix) };
    assert!(region.intact());
    // A session of no tokens: made and full, or refused.
    let mut o = session_options();
    o.capacity = 0;
    let mut s = null_mut();
    if unsafe { ice_session_new(&o, &mut s, null_mut()) } == ICE_OK {
        let (k, v) = tokens(1, 2);
        refused(ICE_ERR_CAPACITY, &[], |e| unsafe { ice_session_append(s, &tensor(&k), &tensor(&v), 1, 0, 1, e) });
        unsafe { ice_session_free(s) };
    } else {
        assert!(s.is_null());
    }
}

#[test]
fn sessions_beyond_the_address_space() {
    for (field, value) in
        [(0, usize::MAX), (0, 1 << 40), (1, u32::MAX as usize), (2, u32::MAX as usize), (3, u32::MAX as usize)]
    {
        let mut o = session_options();
        match field {
            0 => o.capacity = value,
            1 => (o.heads_kv, o.heads_q) = (value as u32, value as u32),
            2 => o.dim_k = value as u32,
            _ => o.dim_v = value as u32,
        }
        o.memory_limit = 1 << 24;
        let (mut bytes, mut align, mut s) = (0usize, 0, null_mut());
        if unsafe { ice_session_required(&o, &mut bytes, &mut align, null_mut()) } == ICE_OK {
            assert!(bytes > value, "field {field}: {bytes}");
        }
        let got = unsafe { ice_session_new(&o, &mut s, null_mut()) };
        assert!(s.is_null() && got < ICE_OK && got > ICE_ERR_INTERNAL, "field {field}: {}", name(got));
    }
}

#[test]
fn strides_that_overflow() {
    for stride in [usize::MAX, usize::MAX - 3, isize::MAX as usize - 3, 3, 6] {
        for which in 0..3 {
            let mut heads = Heads::new();
            let mut d = heads.desc();
            match which {
                0 => d.q.row_stride = stride,
                1 => d.k.head_stride = stride,
                _ => d.out.head_stride = stride,
            }
            let mut st = stats();
            let s = unsafe { ice_attention(&d, null_mut(), 0, &mut st, null_mut()) };
            assert!([ICE_ERR_STRIDE, ICE_ERR_SHAPE, ICE_ERR_ALIGNMENT].contains(&s), "stride {stride}: {}", name(s));
            assert!(heads.untouched());
        }
    }
}
