//! Each allocation failing in turn, for every call that may allocate: ICE_ERR_NO_MEMORY, nothing changed, nothing
//! leaked, and the object works afterwards.
// Every unsafe block here calls the border with live fixtures.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use iceformer::*;
use std::ptr::{null, null_mut};

/// Repeats `call` with memory exhausted after 0, 1, 2, ... blocks until it has enough. After each failure `check` must
/// hold, and unless `grows` the live blocks must be those from before (a refused reservation may keep what it got).
fn each(
    what: &str,
    counter: &Counter,
    grows: bool,
    check: impl Fn(),
    mut call: impl FnMut(*mut ice_error) -> ice_status,
) {
    let before = (counter.live(), counter.live_bytes());
    for i in 0..10_000 {
        counter.exhausted_after(i);
        let mut e = error();
        let s = call(&mut e);
        let met = counter.failed();
        counter.give();
        if s == ICE_OK {
            // A call may have asked for more than it needs first.
            assert!(!met || grows, "{what}: succeeded without its memory");
            return;
        }
        assert_eq!(name(s), "ICE_ERR_NO_MEMORY", "{what}, allocation {i}: {}", message(&e));
        let now = (counter.live(), counter.live_bytes());
        assert!(grows || now == before, "{what}: {now:?} instead of {before:?} after allocation {i}");
        check();
    }
    panic!("{what} never ends");
}

/// The report agrees with what the allocator handed out.
fn consistent(ix: *const ice_index, counter: &Counter) {
    let mut r = memory();
    status(ICE_OK, unsafe { ice_index_memory(ix, &mut r) });
    assert_eq!((r.used, r.reserved), (counter.live_bytes(), counter.live_bytes()));
    assert!(r.peak >= r.used && r.limit == 0);
}

#[test]
fn index() {
    for levels in [1, 3] {
        let counter = Counter::default();
        let hooks = counter.hooks();
        let mut o = index_options();
        (o.allocator, o.levels) = (&hooks, levels);
        let mut ix = null_mut();
        each("new", &counter, false, || (), |e| unsafe { ice_index_new(&o, &mut ix, e) });
        consistent(ix, &counter);
        let keys = numbers(8 * KEYS * DIM, 1);
        let insert = |n: usize, e| unsafe { ice_index_insert(ix, keys.as_ptr(), n, null(), e) };
        let empty = || {
            assert_eq!((unsafe { ice_index_len(ix) }, answers(ix)), (0, vec![]));
            consistent(ix, &counter);
        };
        each("first insert", &counter, true, empty, |e| insert(KEYS, e));
        let answer = answers(ix);
        let same = || {
            assert_eq!((unsafe { ice_index_len(ix) }, answers(ix)), (KEYS, answer.clone()));
            consistent(ix, &counter);
        };
        each("reserve", &counter, true, same, |_| unsafe { ice_index_reserve(ix, 3 * KEYS) });
        // Beyond what is reserved.
        each("insert", &counter, true, same, |e| insert(4 * KEYS, e));
        assert_eq!(unsafe { ice_index_len(ix) }, 5 * KEYS);
        consistent(ix, &counter);
        readers(ix, &counter);
        saved(ix, &counter, &hooks);
        unsafe { ice_index_free(ix) };
        assert_eq!(counter.live(), 0);
    }
}

fn readers(ix: *const ice_index, counter: &Counter) {
    let answer = answers(ix);
    let same = || assert_eq!(answers(ix), answer);
    let mut sc = null_mut();
    each("scratch", counter, false, same, |e| unsafe { ice_scratch_new(ix, &mut sc, e) });
    let (q, qo) = (numbers(DIM, 5), query_options());
    let mut out = [no_answer(); K];
    for f in [ice_index_query, ice_index_query_exact] {
        let before = out;
        each("query", counter, false, same, |e| {
            let s = unsafe { f(ix, null_mut(), q.as_ptr(), 1, &qo, out.as_mut_ptr(), null_mut(), e) };
            assert!(s == ICE_OK || out == before);
            s
        });
    }
    let values = numbers(5 * KEYS * DIM_V, 6);
    let mut o = attention_options();
    o.mode = ICE_MODE_TOP_K;
    let t = tensor(&values);
    let mut row = [7.0; DIM_V];
    let mut attend = |sc, e| unsafe {
        ice_index_attention(ix, sc, q.as_ptr(), 1, &t, DIM_V as u32, null(), &o, row.as_mut_ptr(), null_mut(), e)
    };
    each("attention", counter, false, same, |e| attend(null_mut(), e));
    let (mut roomy, v) = (null_mut(), DIM_V as u32);
    each("scratch for attention", counter, false, same, |e| unsafe { ice_scratch_new_attention(ix, v, &mut roomy, e) });
    let mut accelerated = attention_options();
    accelerated.mode = ICE_MODE_ACCELERATED;
    let mut row_by_cells = [7.0; DIM_V];
    let mut by_cells = |sc, e| unsafe {
        let (o, out) = (&accelerated, row_by_cells.as_mut_ptr());
        ice_index_attention(ix, sc, q.as_ptr(), 1, &t, v, null(), o, out, null_mut(), e)
    };
    each("accelerated attention", counter, false, same, |e| by_cells(null_mut(), e));
    // With a scratch nothing is allocated at all.
    counter.exhausted_after(0);
    ok(|e| attend(sc, e));
    ok(|e| by_cells(roomy, e));
    ok(|e| unsafe { ice_index_query(ix, sc, q.as_ptr(), 1, &qo, out.as_mut_ptr(), null_mut(), e) });
    ok(|e| unsafe { ice_index_query_exact(ix, sc, q.as_ptr(), 1, &qo, out.as_mut_ptr(), null_mut(), e) });
    assert!(!counter.failed());
    counter.give();
    unsafe {
        ice_scratch_free(roomy);
        ice_scratch_free(sc);
    }
}

fn saved(ix: *const ice_index, counter: &Counter, hooks: &ice_allocator) {
    let mut len = 0;
    status(ICE_OK, unsafe { ice_index_save(ix, null_mut(), 0, &mut len) });
    let mut bytes = vec![0u8; len];
    counter.exhausted_after(0);
    status(ICE_OK, unsafe { ice_index_save(ix, bytes.as_mut_ptr().cast(), len, null_mut()) });
    counter.give();
    let mut copy = null_mut();
    each("load", counter, false, || (), |e| unsafe { ice_index_load(bytes.as_ptr().cast(), len, hooks, &mut copy, e) });
    assert_eq!(answers(copy), answers(ix));
    unsafe { ice_index_free(copy) };
    let buf = bytes.as_ptr();
    if buf.cast::<f32>().is_aligned() {
        each("view", counter, false, || (), |e| unsafe { ice_index_view(buf.cast(), len, hooks, &mut copy, e) });
        let same = || assert_eq!(answers(copy), answers(ix));
        let more = numbers(DIM, 8);
        each("insert into a view", counter, true, same, |e| unsafe {
            ice_index_insert(copy, more.as_ptr(), 1, null(), e)
        });
        unsafe { ice_index_free(copy) };
    }
}

#[test]
fn fitted_index() {
    let n = 600;
    let (keys, sample) = (numbers(n * DIM, 1), numbers(200 * DIM, 2));
    let counter = Counter::default();
    let hooks = counter.hooks();
    let mut o = index_options();
    (o.allocator, o.engine) = (&hooks, ICE_ENGINE_CELLS);
    let ix = new_index(&o);
    ok(|e| unsafe { ice_index_insert(ix, keys.as_ptr(), n, null(), e) });
    let found = || {
        let mut out = [no_answer(); K];
        ok(|e| unsafe {
            ice_index_query(ix, null_mut(), sample.as_ptr(), 1, &query_options(), out.as_mut_ptr(), null_mut(), e)
        });
        out.map(|a| (a.id, a.score.to_bits()))
    };
    let before = found();
    for i in 0.. {
        counter.exhausted_after(i);
        let s = unsafe { ice_index_fit(ix, sample.as_ptr(), 200) };
        counter.give();
        if s == ICE_OK {
            assert!(i > 1, "it takes memory");
            break;
        }
        status(ICE_ERR_NO_MEMORY, s);
        assert_eq!(found(), before);
        consistent(ix, &counter);
    }
    // Room is there now.
    counter.exhausted_after(0);
    status(ICE_OK, unsafe { ice_index_fit(ix, sample.as_ptr(), 180) });
    status(ICE_OK, unsafe { ice_index_fit(ix, null(), 0) });
    counter.give();
    assert_eq!(found(), before);
    unsafe { ice_index_free(ix) };
    assert_eq!(counter.live(), 0);
}

#[test]
fn one_refused_block() {
    let (all, more) = (numbers(KEYS * DIM, 1), numbers(2 * KEYS * DIM, 9));
    let o = index_options();
    let want = full_index(&o);
    for i in 0..60 {
        let counter = Counter::default();
        let hooks = counter.hooks();
        let o = ice_index_options { allocator: &hooks, levels: 2, ..o };
        let ix = new_index(&o);
        counter.refuse_one(i);
        let mut e = error();
        // Asking for less the second time may succeed; a failure changes nothing and the next try succeeds.
        let s = unsafe { ice_index_insert(ix, all.as_ptr(), KEYS, null(), &mut e) };
        counter.give();
        if s != ICE_OK {
            status(ICE_ERR_NO_MEMORY, s);
            assert_eq!(answers(ix), vec![]);
            ok(|e| unsafe { ice_index_insert(ix, all.as_ptr(), KEYS, null(), e) });
        }
        assert_eq!(answers(ix), answers(want));
        consistent(ix, &counter);
        ok(|e| unsafe { ice_index_insert(ix, more.as_ptr(), 2 * KEYS, null(), e) });
        unsafe { ice_index_free(ix) };
        assert_eq!(counter.live(), 0);
    }
    unsafe { ice_index_free(want) };
}

#[test]
fn calls_that_never_allocate() {
    let counter = Counter::default();
    let hooks = counter.hooks();
    let mut o = index_options();
    (o.allocator, o.capacity) = (&hooks, 2 * KEYS);
    let ix = full_index(&o);
    counter.exhausted_after(0);
    let keys = numbers(KEYS * DIM, 2);
    unsafe {
        // Within the reserve, where it then stays.
        ok(|e| ice_index_insert(ix, keys.as_ptr(), KEYS, null(), e));
        let ids: Vec<u64> = (0..KEYS as u64).collect();
        status(ICE_OK, ice_index_remove(ix, ids.as_ptr(), KEYS, null_mut()));
        ok(|e| ice_index_insert(ix, keys.as_ptr(), KEYS, ids.as_ptr(), e));
        status(ICE_OK, ice_index_clear(ix));
        ok(|e| ice_index_insert(ix, keys.as_ptr(), KEYS, ids.as_ptr(), e));
        assert!(!counter.failed());
        counter.give();
        ice_index_free(ix);
    }
    assert_eq!(counter.live(), 0);
}

#[test]
fn limits_leave_the_index_usable() {
    let mut o = index_options();
    o.memory_limit = 1 << 20;
    let ix = full_index(&o);
    let answer = answers(ix);
    let keys = numbers(20_000 * DIM, 3);
    refused(ICE_ERR_BUDGET, &["ice_index_insert: memory_limit", "need"], |e| unsafe {
        ice_index_insert(ix, keys.as_ptr(), 20_000, null(), e)
    });
    status(ICE_ERR_BUDGET, unsafe { ice_index_reserve(ix, 1 << 20) });
    let mut r = memory();
    status(ICE_OK, unsafe { ice_index_memory(ix, &mut r) });
    assert!(r.used <= r.limit && r.peak <= r.limit && r.limit == 1 << 20);
    assert_eq!(answers(ix), answer);
    ok(|e| unsafe { ice_index_insert(ix, keys.as_ptr(), 1, null(), e) });
    unsafe { ice_index_free(ix) };
}

#[test]
fn session() {
    for (mode, tokens) in [(ICE_MODE_EXACT, TOKENS), (ICE_MODE_TOP_K, TOKENS), (ICE_MODE_ACCELERATED, 1200)] {
        let counter = Counter::default();
        let hooks = counter.hooks();
        let mut o = session_options();
        (o.allocator, o.attention.mode, o.attention.top_k, o.capacity) = (&hooks, mode, 4, tokens);
        let mut s = null_mut();
        each("new", &counter, false, || (), |e| unsafe { ice_session_new(&o, &mut s, e) });
        // All memory is taken at creation.
        counter.exhausted_after(0);
        append(s, tokens, 30);
        status(ICE_OK, unsafe { ice_session_remove_range(s, 2, 4) });
        status(ICE_OK, unsafe { ice_session_truncate(s, tokens / 2) });
        append(s, 3, 31);
        assert!(!counter.failed());
        let want = attended(s);
        let mut r = memory();
        status(ICE_OK, unsafe { ice_session_memory(s, &mut r) });
        assert_eq!(r.used, counter.live_bytes());
        let mut len = 0;
        status(ICE_OK, unsafe { ice_session_save(s, null_mut(), 0, &mut len) });
        let mut bytes = vec![0u8; len];
        status(ICE_OK, unsafe { ice_session_save(s, bytes.as_mut_ptr().cast(), len, null_mut()) });
        counter.give();
        let mut copy = null_mut();
        let from = bytes.as_ptr().cast();
        each("load", &counter, false, || (), |e| unsafe { ice_session_load(from, len, &hooks, &mut copy, e) });
        assert_eq!((attended(copy), attended(s)), (want.clone(), want));
        unsafe {
            ice_session_free(copy);
            ice_session_reset(s);
            ice_session_free(s);
        }
        assert_eq!(counter.live(), 0);
    }
}
