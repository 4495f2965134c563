//! Objects in caller memory: exactly the required bytes work, one less fails, and nothing outside is touched.
// Every unsafe block here calls the border with live fixtures.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use iceformer::*;
use std::ptr::{null, null_mut};

/// Builds with `bytes - 1`, misaligned, then exactly; returns the object and its memory.
fn build<T>(
    function: &str,
    need: usize,
    make: impl Fn(*mut std::ffi::c_void, usize, *mut *mut T, *mut ice_error) -> ice_status,
) -> (*mut T, Guarded) {
    assert!(need > 0 && need.is_multiple_of(64));
    let mut p = null_mut();
    let mut small = Guarded::new(need - 1);
    let sizes = format!("{function}: mem: is too small (need {need}, have {})", need - 1);
    refused(ICE_ERR_BUFFER, &[&sizes], |e| make(small.ptr(), need - 1, &mut p, e));
    refused(ICE_ERR_BUFFER, &["have 0"], |e| make(small.ptr(), 0, &mut p, e));
    assert!(small.intact());
    let mut odd = Guarded::new(need + 64);
    for by in [1, 8, 32] {
        let at = odd.ptr().wrapping_byte_add(by);
        refused(ICE_ERR_ALIGNMENT, &[function, "mem", "64"], |e| make(at, need, &mut p, e));
    }
    assert!(p.is_null());
    let mut exact = Guarded::new(need);
    ok(|e| make(exact.ptr(), need, &mut p, e));
    let inside = exact.ptr().addr()..exact.ptr().addr() + need;
    assert!(exact.intact() && inside.contains(&p.addr()));
    (p, exact)
}

fn sizes(call: impl FnOnce(*mut usize, *mut usize, *mut ice_error) -> ice_status) -> usize {
    let (mut bytes, mut align) = (0, 0);
    ok(|e| call(&mut bytes, &mut align, e));
    assert_eq!(align, 64);
    bytes
}

#[test]
fn index_and_scratch() {
    for (levels, metric) in [(0, ICE_METRIC_INNER_PRODUCT), (1, ICE_METRIC_L2), (3, ICE_METRIC_INNER_PRODUCT)] {
        let mut o = index_options();
        (o.capacity, o.levels, o.metric) = (KEYS, levels, metric);
        let need = sizes(|b, a, e| unsafe { ice_index_required(&o, b, a, e) });
        let (ix, region) =
            build("ice_index_new_in", need, |mem, n, out, e| unsafe { ice_index_new_in(mem, n, &o, out, e) });
        let keys = numbers((KEYS + 1) * DIM, 1);
        unsafe {
            // Full, one too many, emptied, filled again: all inside.
            ok(|e| ice_index_insert(ix, keys.as_ptr(), KEYS, null(), e));
            refused(ICE_ERR_CAPACITY, &["ice_index_insert"], |e| ice_index_insert(ix, keys.as_ptr(), 1, null(), e));
            status(ICE_ERR_CAPACITY, ice_index_reserve(ix, KEYS + 1));
            status(ICE_OK, ice_index_reserve(ix, KEYS));
            let twin = full_index(&ice_index_options { capacity: 0, ..o });
            assert_eq!(answers(ix), answers(twin));
            let half: Vec<u64> = (0..KEYS as u64 / 2).collect();
            status(ICE_OK, ice_index_remove(ix, half.as_ptr(), half.len(), null_mut()));
            ok(|e| ice_index_insert(ix, keys.as_ptr(), half.len(), half.as_ptr(), e));
            assert_eq!(answers(ix), answers(twin));
            let mut r = memory();
            status(ICE_OK, ice_index_memory(ix, &mut r));
            assert!(r.reserved == need && r.used <= need && r.peak <= need, "{} of {need}", r.peak);
            scratch(ix, twin, metric == ICE_METRIC_INNER_PRODUCT);
            ice_index_free(twin);
            ice_index_free(ix);
        }
        assert!(region.intact());
    }
}

unsafe fn scratch(ix: *const ice_index, twin: *const ice_index, attends: bool) {
    let need = sizes(|b, a, e| unsafe { ice_scratch_required(ix, b, a, e) });
    let (sc, region) =
        build("ice_scratch_new_in", need, |mem, n, out, e| unsafe { ice_scratch_new_in(mem, n, ix, out, e) });
    let (q, mut qo) = (numbers(3 * DIM, 40), query_options());
    (qo.retrieve_fraction, qo.visit_fraction, qo.field_of_view) = (1.0, 1.0, u32::MAX);
    let (mut a, mut b) = ([no_answer(); 3 * K], [no_answer(); 3 * K]);
    for engine in [ICE_ENGINE_AUTO, ICE_ENGINE_WALK, ICE_ENGINE_SCAN, ICE_ENGINE_CELLS] {
        qo.engine = engine;
        ok(|e| unsafe { ice_index_query(ix, sc, q.as_ptr(), 3, &qo, a.as_mut_ptr(), null_mut(), e) });
        ok(|e| unsafe { ice_index_query_exact(twin, null_mut(), q.as_ptr(), 3, &qo, b.as_mut_ptr(), null_mut(), e) });
        assert_eq!(a.map(|x| x.id), b.map(|x| x.id));
    }
    unsafe { ice_scratch_free(sc) };
    assert!(region.intact());
    let v = DIM_V as u32;
    let need = sizes(|b, a, e| unsafe { ice_scratch_required_attention(ix, v, b, a, e) });
    let (sc, region) = build("ice_scratch_new_attention_in", need, |mem, n, out, e| unsafe {
        ice_scratch_new_attention_in(mem, n, ix, v, out, e)
    });
    let (values, mut o) = (numbers(KEYS * DIM_V, 41), attention_options());
    o.mode = ICE_MODE_ACCELERATED;
    let t = tensor(&values);
    let (mut a, mut b) = ([7.0; 3 * DIM_V], [8.0; 3 * DIM_V]);
    for (ix, sc, out) in [(ix, sc, &mut a), (twin, null_mut(), &mut b)] {
        refused(if attends { ICE_OK } else { ICE_ERR_UNSUPPORTED }, &[], |e| unsafe {
            ice_index_attention(ix, sc, q.as_ptr(), 3, &t, v, null(), &o, out.as_mut_ptr(), null_mut(), e)
        });
    }
    if attends {
        a.iter().zip(b).for_each(|(a, b)| assert!((a - b).abs() < 1e-5, "{a} {b}"));
    }
    unsafe { ice_scratch_free(sc) };
    assert!(region.intact());
}

#[test]
fn freed_handles_in_caller_memory_are_recognised() {
    let o = index_options();
    let need = sizes(|b, a, e| unsafe { ice_index_required(&o, b, a, e) });
    let mut region = Guarded::new(need);
    let mut ix = null_mut();
    unsafe {
        ok(|e| ice_index_new_in(region.ptr(), need, &o, &mut ix, e));
        // Another kind of handle is no index.
        refused(ICE_ERR_ARGUMENT, &["session", "not a handle"], |e| {
            ice_session_append(ix.cast(), null(), null(), 0, 0, 1, e)
        });
        ice_session_free(ix.cast());
        ice_index_free(ix);
        status(ICE_ERR_STATE, ice_index_clear(ix));
        assert_eq!(ice_index_len(ix), 0);
        ice_index_free(ix);
    }
    assert!(region.intact());
}

#[test]
fn memory_limit_holds_for_caller_memory_too() {
    let mut o = index_options();
    o.capacity = KEYS;
    let need = sizes(|b, a, e| unsafe { ice_index_required(&o, b, a, e) });
    let mut region = Guarded::new(need);
    let mut ix = null_mut();
    o.memory_limit = need - 1;
    refused(ICE_ERR_BUDGET, &["memory_limit", "need"], |e| unsafe {
        ice_index_new_in(region.ptr(), need, &o, &mut ix, e)
    });
    o.memory_limit = need;
    ok(|e| unsafe { ice_index_new_in(region.ptr(), need, &o, &mut ix, e) });
    unsafe { ice_index_free(ix) };
    // The same figures on the system allocator: the plan is what is used.
    ok(|e| unsafe { ice_index_new(&o, &mut ix, e) });
    let mut r = memory();
    status(ICE_OK, unsafe { ice_index_memory(ix, &mut r) });
    assert_eq!((r.used, r.limit), (need, need));
    unsafe { ice_index_free(ix) };
    o.memory_limit = need - 1;
    refused(ICE_ERR_BUDGET, &["ice_index_new", "memory_limit"], |e| unsafe { ice_index_new(&o, &mut ix, e) });
}

#[test]
fn saved_index() {
    let mut o = index_options();
    o.capacity = KEYS;
    let ix = full_index(&o);
    let mut len = 0;
    status(ICE_OK, unsafe { ice_index_save(ix, null_mut(), 0, &mut len) });
    let mut saved = vec![0u8; len];
    let buf = saved.as_mut_ptr().cast();
    status(ICE_ERR_BUFFER, unsafe { ice_index_save(ix, buf, len - 1, null_mut()) });
    assert!(saved.iter().all(|&b| b == 0));
    status(ICE_OK, unsafe { ice_index_save(ix, buf, len, null_mut()) });
    let need = sizes(|b, a, e| unsafe { ice_index_load_required(buf, len, b, a, e) });
    let (copy, region) =
        build("ice_index_load_in", need, |mem, n, out, e| unsafe { ice_index_load_in(mem, n, buf, len, out, e) });
    assert_eq!(answers(copy), answers(ix));
    unsafe { ice_index_free(copy) };
    assert!(region.intact());
    view(ix, &saved, need);
    unsafe { ice_index_free(ix) };
}

/// Keys that stay where they were saved: exact bytes, refused insertions, and nothing written.
fn view(ix: *const ice_index, saved: &[u8], load_need: usize) {
    let len = saved.len();
    let mut aligned = vec![0u64; len / 8 + 2];
    let buf = aligned.as_mut_ptr().cast::<u8>();
    unsafe { buf.copy_from(saved.as_ptr(), len) };
    let need = sizes(|b, a, e| unsafe { ice_index_view_required(buf.cast(), len, b, a, e) });
    assert_eq!(load_need - need, (KEYS * DIM * 4).next_multiple_of(64), "all but the keys");
    let (seen, region) = build("ice_index_view_in", need, |mem, n, out, e| unsafe {
        ice_index_view_in(mem, n, buf.cast(), len, out, e)
    });
    let keys = numbers(DIM, 3);
    unsafe {
        assert_eq!(answers(seen), answers(ix));
        status(ICE_OK, ice_index_remove(seen, [3, 4].as_ptr(), 2, null_mut()));
        refused(ICE_ERR_CAPACITY, &["ice_index_insert: keys"], |e| ice_index_insert(seen, keys.as_ptr(), 1, null(), e));
        assert_eq!(ice_index_len(seen), KEYS - 2);
        ice_index_free(seen);
        // On the heap the keys are copied when one is added.
        let mut seen = null_mut();
        ok(|e| ice_index_view(buf.cast(), len, null(), &mut seen, e));
        let used = |ix| {
            let mut r = memory();
            status(ICE_OK, ice_index_memory(ix, &mut r));
            r.used
        };
        let before = used(seen);
        ok(|e| ice_index_insert(seen, keys.as_ptr(), 1, null(), e));
        assert!(used(seen) >= before + KEYS * DIM * 4);
        assert_eq!(ice_index_len(seen), KEYS + 1);
        ice_index_free(seen);
        let mut odd = null_mut();
        refused(ICE_ERR_ALIGNMENT, &["ice_index_view: buf"], |e| {
            buf.add(1).copy_from(saved.as_ptr(), len);
            ice_index_view(buf.add(1).cast(), len, null(), &mut odd, e)
        });
        buf.copy_from(saved.as_ptr(), len);
        *buf.add(len / 2) ^= 1;
        for s in [
            ice_index_view(buf.cast(), len, null(), &mut odd, null_mut()),
            ice_index_view_required(buf.cast(), len, &mut 0, &mut 0, null_mut()),
        ] {
            status(ICE_ERR_BUFFER, s);
        }
        assert!(odd.is_null());
    }
    assert!(region.intact());
}

/// Sample queries in caller memory, with room made for them and without.
#[test]
fn fitted_index() {
    let n = 600;
    let (keys, sample) = (numbers(n * DIM, 1), numbers(200 * DIM, 2));
    let mut o = index_options();
    (o.capacity, o.directions) = (n, ICE_DIRECTIONS_FITTED);
    let need = sizes(|b, a, e| unsafe { ice_index_required(&o, b, a, e) });
    let (ix, region) =
        build("ice_index_new_in", need, |mem, n, out, e| unsafe { ice_index_new_in(mem, n, &o, out, e) });
    unsafe {
        status(ICE_OK, ice_index_fit(ix, sample.as_ptr(), 200));
        ok(|e| ice_index_insert(ix, keys.as_ptr(), n, null(), e));
        status(ICE_OK, ice_index_fit(ix, sample.as_ptr(), 150));
        let mut qo = query_options();
        qo.engine = ICE_ENGINE_CELLS;
        let mut out = [no_answer(); K];
        ok(|e| ice_index_query(ix, null_mut(), sample.as_ptr(), 1, &qo, out.as_mut_ptr(), null_mut(), e));
        assert!(out.iter().all(|a| a.id < n as u64));
        ice_index_free(ix);
    }
    assert!(region.intact());
    o.directions = ICE_DIRECTIONS_RANDOM;
    let need = sizes(|b, a, e| unsafe { ice_index_required(&o, b, a, e) });
    let (ix, region) =
        build("ice_index_new_in", need, |mem, n, out, e| unsafe { ice_index_new_in(mem, n, &o, out, e) });
    unsafe {
        ok(|e| ice_index_insert(ix, keys.as_ptr(), n, null(), e));
        let before = answers(ix);
        status(ICE_ERR_NO_MEMORY, ice_index_fit(ix, sample.as_ptr(), 200));
        assert_eq!(answers(ix), before);
        ice_index_free(ix);
    }
    assert!(region.intact());
}

#[test]
fn session_and_its_work() {
    for (dtype, mode, tokens) in [
        (ICE_F32, ICE_MODE_EXACT, TOKENS),
        (ICE_F16, ICE_MODE_EXACT, TOKENS),
        (ICE_BF16, ICE_MODE_TOP_K, TOKENS),
        (ICE_F32, ICE_MODE_ACCELERATED, 1200),
        (ICE_F16, ICE_MODE_ACCELERATED, 1300),
        (ICE_BF16, ICE_MODE_AUTO, 1200),
    ] {
        let mut o = session_options();
        (o.kv_dtype, o.attention.mode, o.attention.top_k) = (dtype, mode, 4);
        (o.capacity, o.dense_below) = (tokens, if mode == ICE_MODE_AUTO { 256 } else { 0 });
        let need = sizes(|b, a, e| unsafe { ice_session_required(&o, b, a, e) });
        let (s, region) =
            build("ice_session_new_in", need, |mem, n, out, e| unsafe { ice_session_new_in(mem, n, &o, out, e) });
        let twin = new_session(&o);
        for (n, seed) in [(10, 50), (tokens - 10, 60)] {
            append(s, n, seed);
            append(twin, n, seed);
        }
        assert_eq!(attended(s), attended(twin));
        unsafe {
            for t in [s, twin] {
                status(ICE_OK, ice_session_remove_range(t, 3, 6));
                status(ICE_OK, ice_session_truncate(t, tokens / 2 + 3));
            }
            assert_eq!(ice_session_len(s), tokens / 2 + 3);
            assert_eq!(attended(s), attended(twin));
            work(s);
            let mut r = memory();
            status(ICE_OK, ice_session_memory(s, &mut r));
            assert!(r.reserved == need && r.peak <= need);
            ice_session_free(twin);
            ice_session_free(s);
        }
        assert!(region.intact());
    }
}

/// Work memory of attend for several parts: exact bytes, one less, and the same result as without.
unsafe fn work(s: *const ice_session) {
    const ROWS: usize = 3;
    let q = numbers(HEADS_Q * ROWS * DIM, 70);
    let attend = |nth: u32, mem: *mut std::ffi::c_void, bytes: usize, out: &mut [f32], ith: u32, e| unsafe {
        let (q, o) = (tensor(&q), tensor_mut(out));
        ice_session_attend(s, &q, ROWS, null(), &o, null_mut(), mem, bytes, ith, nth, null_mut(), e)
    };
    let mut want = vec![7.0; HEADS_Q * ROWS * DIM_V];
    ok(|e| attend(1, null_mut(), 0, &mut want, 0, e));
    for nth in [1, 2, 3, 7, 16] {
        let (mut bytes, mut align) = (0, 0);
        status(ICE_OK, unsafe { ice_session_work_required(s, ROWS, nth, &mut bytes, &mut align) });
        assert!(align == 64 && bytes.is_multiple_of(64 * nth as usize));
        let mut small = Guarded::new(bytes - 1);
        let mut out = vec![7.0; want.len()];
        for ith in [0, nth - 1] {
            refused(ICE_ERR_BUFFER, &["ice_session_attend", "work"], |e| {
                attend(nth, small.ptr(), bytes - 1, &mut out, ith, e)
            });
            let odd = small.ptr().wrapping_byte_add(8);
            refused(ICE_ERR_ALIGNMENT, &["work"], |e| attend(nth, odd, bytes, &mut out, ith, e));
        }
        assert!(small.intact() && out.iter().all(|&x| x == 7.0));
        let mut exact = Guarded::new(bytes);
        for ith in (0..nth).rev() {
            ok(|e| attend(nth, exact.ptr(), bytes, &mut out, ith, e));
        }
        assert!(exact.intact());
        assert_eq!(out, want, "{nth} parts give the same bits");
    }
}

#[test]
fn attention_work() {
    for mode in [ICE_MODE_AUTO, ICE_MODE_EXACT, ICE_MODE_ACCELERATED, ICE_MODE_TOP_K] {
        let mut want = Heads::new();
        let mut d = want.desc();
        (d.options.mode, d.options.top_k, d.mask.kind) = (mode, 3, ICE_MASK_CAUSAL);
        d.mask.q_pos0 = 2;
        ok(|e| unsafe { ice_attention(&d, null_mut(), 0, null_mut(), e) });
        let need = sizes(|b, a, e| unsafe { ice_attention_required(&d, b, a, e) });
        let mut have = Heads::new();
        (d.out, d.lse) = (tensor_mut(&mut have.out), have.lse.as_mut_ptr());
        let mut small = Guarded::new(need - 1);
        let text = format!("ice_attention: work: is too small (need {need}, have {})", need - 1);
        refused(ICE_ERR_BUFFER, &[&text], |e| unsafe { ice_attention(&d, small.ptr(), need - 1, null_mut(), e) });
        let odd = small.ptr().wrapping_byte_add(4);
        refused(ICE_ERR_ALIGNMENT, &["work"], |e| unsafe { ice_attention(&d, odd, need, null_mut(), e) });
        assert!(small.intact() && have.untouched());
        let mut exact = Guarded::new(need);
        ok(|e| unsafe { ice_attention(&d, exact.ptr(), need, null_mut(), e) });
        assert!(exact.intact());
        assert_eq!((have.out, have.lse), (want.out, want.lse));
    }
}
