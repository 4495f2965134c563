//! Every function of the header with every pointer NULL: required ones give ICE_ERR_NULL and name the argument, and
//! nothing is written; nullable ones work.
// Every unsafe block here calls the border with live fixtures or with the NULL under test.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use iceformer::*;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// One function: its required pointers, then how many nullable ones follow; `call(n, err)` makes pointer `n` NULL.
struct Case<'a> {
    name: &'static str,
    required: &'static [&'static str],
    nullable: usize,
    reports: bool,
    call: Box<dyn Fn(usize, *mut ice_error) -> ice_status + 'a>,
}

const NONE: usize = usize::MAX;

fn c<T>(n: usize, i: usize, p: *const T) -> *const T {
    if n == i { null() } else { p }
}

fn m<T>(n: usize, i: usize, p: *mut T) -> *mut T {
    if n == i { null_mut() } else { p }
}

fn case<'a>(
    name: &'static str,
    required: &'static [&'static str],
    nullable: usize,
    call: impl Fn(usize, *mut ice_error) -> ice_status + 'a,
) -> Case<'a> {
    Case { name, required, nullable, reports: true, call: Box::new(call) }
}

/// A function without a report.
fn plain<'a>(
    name: &'static str,
    required: &'static [&'static str],
    nullable: usize,
    call: impl Fn(usize) -> ice_status + 'a,
) -> Case<'a> {
    Case { name, required, nullable, reports: false, call: Box::new(move |n, _| call(n)) }
}

const UNTOUCHED: usize = 0x5a5a;

fn run(cases: &[Case<'_>]) {
    for case in cases {
        for (i, field) in case.required.iter().enumerate() {
            let mut e = error();
            let s = (case.call)(i, &mut e);
            assert_eq!(name(s), "ICE_ERR_NULL", "{} without {field}: {}", case.name, message(&e));
            if case.reports {
                assert_eq!(message(&e), format!("{}: {field}: is NULL", case.name));
                // The report itself is nullable.
                assert_eq!((case.call)(i, null_mut()), ICE_ERR_NULL);
            }
        }
        for i in (0..case.nullable).map(|i| case.required.len() + i).chain([NONE]) {
            let mut e = error();
            let s = (case.call)(i, &mut e);
            assert_eq!(name(s), "ICE_OK", "{} with nullable {i}: {}", case.name, message(&e));
            assert_eq!((case.call)(i, null_mut()), ICE_OK);
        }
    }
}

/// A size pair that must be written exactly on success.
fn sizes(n: usize, first: usize, call: impl FnOnce(*mut usize, *mut usize) -> ice_status) -> ice_status {
    let (mut bytes, mut align) = (UNTOUCHED, UNTOUCHED);
    let s = call(m(n, first, &mut bytes), m(n, first + 1, &mut align));
    assert!(if s == ICE_OK {
        bytes.is_multiple_of(64) && align == 64
    } else {
        (bytes, align) == (UNTOUCHED, UNTOUCHED)
    });
    s
}

/// A handle that must be written exactly on success, and is freed at once.
fn handle<T>(out: impl FnOnce(*mut *mut T) -> ice_status, free: unsafe extern "C" fn(*mut T)) -> ice_status {
    let mut p = null_mut();
    let s = out(&mut p);
    assert_eq!(s == ICE_OK, !p.is_null());
    unsafe { free(p) };
    s
}

#[test]
fn init_free_and_counts() {
    unsafe {
        ice_error_init(null_mut());
        ice_allocator_init(null_mut());
        ice_memory_init(null_mut());
        ice_index_options_init(null_mut(), 3);
        ice_query_options_init(null_mut(), 3);
        ice_mask_init(null_mut());
        ice_attention_options_init(null_mut());
        ice_attention_desc_init(null_mut());
        ice_attention_stats_init(null_mut());
        ice_attention_stats_init_sized(null_mut(), 0);
        ice_attention_stats_init_sized(null_mut(), size_of::<ice_attention_stats>());
        ice_session_options_init(null_mut());
        ice_index_free(null_mut());
        ice_scratch_free(null_mut());
        ice_session_free(null_mut());
        assert_eq!((ice_index_len(null()), ice_index_capacity(null()), ice_index_dim(null())), (0, 0, 0));
        assert_eq!(ice_session_len(null()), 0);
        assert_eq!(ice_isa_limit(null()), ICE_OK);
    }
}

#[test]
fn index() {
    let o = index_options();
    let ix = full_index(&o);
    let before = answers(ix);
    let (mut need, mut align) = (0, 0);
    ok(|e| unsafe { ice_index_required(&o, &mut need, &mut align, e) });
    let region = std::cell::RefCell::new(Guarded::new(need));
    let keys = numbers(DIM, 5);
    let ids = [500u64];
    let mut saved = vec![0u8; save_index(ix)];
    status(ICE_OK, unsafe { ice_index_save(ix, saved.as_mut_ptr().cast(), saved.len(), null_mut()) });
    let (mut load_need, mut load_align) = (0, 0);
    let (buf, len) = (saved.as_ptr().cast::<c_void>(), saved.len());
    ok(|e| unsafe { ice_index_load_required(buf, len, &mut load_need, &mut load_align, e) });
    let load_region = std::cell::RefCell::new(Guarded::new(load_need));
    let hooks = Counter::default();
    let hooks = hooks.hooks();
    run(&[
        case("ice_index_required", &["options", "bytes", "align"], 0, |n, e| {
            sizes(n, 1, |b, a| unsafe { ice_index_required(c(n, 0, &o), b, a, e) })
        }),
        case("ice_index_new", &["options", "out"], 0, |n, e| {
            handle(|out| unsafe { ice_index_new(c(n, 0, &o), m(n, 1, out), e) }, ice_index_free)
        }),
        case("ice_index_new_in", &["mem", "options", "out"], 0, |n, e| {
            let mem = region.borrow_mut().ptr();
            handle(|out| unsafe { ice_index_new_in(m(n, 0, mem), need, c(n, 1, &o), m(n, 2, out), e) }, ice_index_free)
        }),
        plain("ice_index_reserve", &["index"], 0, |n| unsafe { ice_index_reserve(m(n, 0, ix), 10) }),
        // Insert and take out again, so that the next case finds the same index.
        case("ice_index_insert", &["index", "keys"], 0, |n, e| unsafe {
            let s = ice_index_insert(m(n, 0, ix), c(n, 1, keys.as_ptr()), 1, ids.as_ptr(), e);
            ice_index_remove(ix, ids.as_ptr(), usize::from(s == ICE_OK), null_mut());
            s
        }),
        plain("ice_index_remove", &["index", "ids"], 1, |n| unsafe {
            let mut removed = UNTOUCHED;
            ice_index_insert(ix, keys.as_ptr(), 1, ids.as_ptr(), null_mut());
            let s = ice_index_remove(m(n, 0, ix), c(n, 1, ids.as_ptr()), 1, m(n, 2, &mut removed));
            assert_eq!(removed, if s == ICE_OK && n != 2 { 1 } else { UNTOUCHED });
            ice_index_remove(ix, ids.as_ptr(), 1, &mut removed);
            s
        }),
        plain("ice_index_memory", &["index", "out"], 0, |n| unsafe {
            let mut r = memory();
            let s = ice_index_memory(c(n, 0, ix), m(n, 1, &mut r));
            assert_eq!(r.used > 0, s == ICE_OK);
            s
        }),
        plain("ice_index_save", &["index"], 1, |n| unsafe {
            let mut copy = vec![0u8; len];
            let mut needed = UNTOUCHED;
            let s = ice_index_save(c(n, 0, ix), copy.as_mut_ptr().cast(), len, m(n, 1, &mut needed));
            assert_eq!(needed, if s == ICE_OK && n != 1 { len } else { UNTOUCHED });
            s
        }),
        case("ice_index_reserve_err", &["index"], 0, |n, e| unsafe { ice_index_reserve_err(m(n, 0, ix), 10, e) }),
        case("ice_index_remove_err", &["index", "ids"], 1, |n, e| unsafe {
            let mut removed = UNTOUCHED;
            ice_index_insert(ix, keys.as_ptr(), 1, ids.as_ptr(), null_mut());
            let s = ice_index_remove_err(m(n, 0, ix), c(n, 1, ids.as_ptr()), 1, m(n, 2, &mut removed), e);
            assert_eq!(removed, if s == ICE_OK && n != 2 { 1 } else { UNTOUCHED });
            ice_index_remove(ix, ids.as_ptr(), 1, &mut removed);
            s
        }),
        case("ice_index_fit_err", &["index"], 0, |n, e| unsafe { ice_index_fit_err(m(n, 0, ix), null(), 0, e) }),
        case("ice_index_save_err", &["index"], 1, |n, e| unsafe {
            let (mut copy, mut needed) = (vec![0u8; len], UNTOUCHED);
            let s = ice_index_save_err(c(n, 0, ix), copy.as_mut_ptr().cast(), len, m(n, 1, &mut needed), e);
            assert_eq!(needed, if s == ICE_OK && n != 1 { len } else { UNTOUCHED });
            s
        }),
        case("ice_index_save_to", &["index", "write"], 1, |n, e| unsafe {
            let mut all = Pieces::default();
            let write = if n == 1 { None } else { Some(put as Put) };
            let s = ice_index_save_to(c(n, 0, ix), write, all.user(), e);
            assert_eq!(all.bytes.len(), if s == ICE_OK { len } else { 0 });
            s
        }),
        case("ice_index_load_with", &["options", "out"], 0, |n, e| {
            let mut o: ice_load_options = made(|p| unsafe { ice_load_options_init(p) });
            (o.data, o.len) = (buf, len);
            handle(|out| unsafe { ice_index_load_with(c(n, 0, &o), m(n, 1, out), e) }, ice_index_free)
        }),
        case("ice_index_load", &["buf", "out"], 1, |n, e| {
            handle(|out| unsafe { ice_index_load(c(n, 0, buf), len, c(n, 2, &hooks), m(n, 1, out), e) }, ice_index_free)
        }),
        case("ice_index_load_required", &["buf", "bytes", "align"], 0, |n, e| {
            sizes(n, 1, |b, a| unsafe { ice_index_load_required(c(n, 0, buf), len, b, a, e) })
        }),
        case("ice_index_load_in", &["mem", "buf", "out"], 0, |n, e| {
            let mem = load_region.borrow_mut().ptr();
            handle(
                |out| unsafe { ice_index_load_in(m(n, 0, mem), load_need, c(n, 1, buf), len, m(n, 2, out), e) },
                ice_index_free,
            )
        }),
        case("ice_index_view", &["buf", "out"], 1, |n, e| {
            handle(|out| unsafe { ice_index_view(c(n, 0, buf), len, c(n, 2, &hooks), m(n, 1, out), e) }, ice_index_free)
        }),
        case("ice_index_view_required", &["buf", "bytes", "align"], 0, |n, e| {
            sizes(n, 1, |b, a| unsafe { ice_index_view_required(c(n, 0, buf), len, b, a, e) })
        }),
        case("ice_index_view_in", &["mem", "buf", "out"], 0, |n, e| {
            // Needs less than one that holds its keys.
            let mem = load_region.borrow_mut().ptr();
            handle(
                |out| unsafe { ice_index_view_in(m(n, 0, mem), load_need, c(n, 1, buf), len, m(n, 2, out), e) },
                ice_index_free,
            )
        }),
    ]);
    unsafe {
        // Asking for the size takes no buffer, but somewhere to put the answer.
        status(ICE_ERR_NULL, ice_index_save(ix, null_mut(), 0, null_mut()));
        status(ICE_ERR_NULL, ice_index_save(ix, null_mut(), len, null_mut()));
        for s in [ice_index_clear(null_mut()), ice_index_fit(null_mut(), null(), 0)] {
            status(ICE_ERR_NULL, s);
        }
        status(ICE_ERR_NULL, ice_index_fit(ix, null(), 1));
        status(ICE_ERR_ARGUMENT, ice_index_fit(ix, keys.as_ptr(), 1));
        status(ICE_OK, ice_index_fit(ix, null(), 0));
        assert_eq!(answers(ix), before);
        status(ICE_OK, ice_index_clear(ix));
        ice_index_free(ix);
    }
    assert!(region.borrow().intact() && load_region.borrow().intact());
}

fn save_index(ix: *const ice_index) -> usize {
    let mut len = 0;
    status(ICE_OK, unsafe { ice_index_save(ix, null_mut(), 0, &mut len) });
    len
}

type QueryFn = unsafe extern "C" fn(
    *const ice_index,
    *mut ice_scratch,
    *const f32,
    usize,
    *const ice_query_options,
    *mut ice_neighbor,
    *mut u32,
    *mut ice_error,
) -> ice_status;

fn query(f: QueryFn, n: usize, ix: *const ice_index, sc: *mut ice_scratch, e: *mut ice_error) -> ice_status {
    let (q, qo) = (numbers(DIM, 6), query_options());
    let (mut out, mut count) = ([no_answer(); K], 777);
    let s = unsafe {
        let (q, qo) = (c(n, 1, q.as_ptr()), c(n, 2, &qo));
        f(c(n, 0, ix), m(n, 4, sc), q, 1, qo, m(n, 3, out.as_mut_ptr()), m(n, 5, &mut count), e)
    };
    assert_eq!(s == ICE_OK, out[0] != no_answer());
    assert_eq!(count, if s == ICE_OK && n != 5 { K as u32 } else { 777 });
    s
}

#[test]
fn query_scratch_and_index_attention() {
    let ix = full_index(&index_options());
    let mut sc = null_mut();
    ok(|e| unsafe { ice_scratch_new(ix, &mut sc, e) });
    let (mut need, mut align) = (0, 0);
    ok(|e| unsafe { ice_scratch_required(ix, &mut need, &mut align, e) });
    let region = std::cell::RefCell::new(Guarded::new(need));
    let values = numbers(KEYS * DIM_V, 7);
    let (t, mk, ao, q) = (tensor(&values), mask(), attention_options(), numbers(DIM, 8));
    let mut more = 0;
    ok(|e| unsafe { ice_scratch_required_attention(ix, DIM_V as u32, &mut more, &mut align, e) });
    assert!(more > need);
    let roomy = std::cell::RefCell::new(Guarded::new(more));
    let mut attended = null_mut();
    ok(|e| unsafe { ice_scratch_new_attention(ix, DIM_V as u32, &mut attended, e) });
    let mut row = [0.0; DIM_V];
    ok(|e| unsafe {
        let (out, v) = (row.as_mut_ptr(), DIM_V as u32);
        ice_index_attention(ix, attended, q.as_ptr(), 1, &t, v, null(), null(), out, null_mut(), e)
    });
    run(&[
        case("ice_index_query", &["index", "queries", "options", "out"], 2, |n, e| {
            query(ice_index_query, n, ix, sc, e)
        }),
        case("ice_index_query_exact", &["index", "queries", "options", "out"], 2, |n, e| {
            query(ice_index_query_exact, n, ix, sc, e)
        }),
        case("ice_scratch_required", &["index", "bytes", "align"], 0, |n, e| {
            sizes(n, 1, |b, a| unsafe { ice_scratch_required(c(n, 0, ix), b, a, e) })
        }),
        case("ice_scratch_new", &["index", "out"], 0, |n, e| {
            handle(|out| unsafe { ice_scratch_new(c(n, 0, ix), m(n, 1, out), e) }, ice_scratch_free)
        }),
        case("ice_scratch_new_in", &["mem", "index", "out"], 0, |n, e| {
            let mem = region.borrow_mut().ptr();
            handle(
                |out| unsafe { ice_scratch_new_in(m(n, 0, mem), need, c(n, 1, ix), m(n, 2, out), e) },
                ice_scratch_free,
            )
        }),
        case("ice_scratch_required_attention", &["index", "bytes", "align"], 0, |n, e| {
            sizes(n, 1, |b, a| unsafe { ice_scratch_required_attention(c(n, 0, ix), DIM_V as u32, b, a, e) })
        }),
        case("ice_scratch_new_attention", &["index", "out"], 0, |n, e| {
            handle(
                |out| unsafe { ice_scratch_new_attention(c(n, 0, ix), DIM_V as u32, m(n, 1, out), e) },
                ice_scratch_free,
            )
        }),
        case("ice_scratch_new_attention_in", &["mem", "index", "out"], 0, |n, e| {
            let mem = roomy.borrow_mut().ptr();
            let v = DIM_V as u32;
            handle(
                |out| unsafe { ice_scratch_new_attention_in(m(n, 0, mem), more, c(n, 1, ix), v, m(n, 2, out), e) },
                ice_scratch_free,
            )
        }),
        case("ice_scratch_stats", &["scratch", "stats"], 0, |n, e| {
            let mut st = stats();
            st.rows = 777;
            let s = unsafe { ice_scratch_stats(c(n, 0, attended), m(n, 1, &mut st), e) };
            assert_eq!(s == ICE_OK, st.rows != 777);
            s
        }),
        case("ice_index_attention", &["index", "queries", "values", "out"], 4, |n, e| {
            let (mut out, mut lse) = ([7.0; DIM_V], 7.0);
            let s = unsafe {
                let (ix, sc, q) = (c(n, 0, ix), m(n, 4, sc), c(n, 1, q.as_ptr()));
                let (mk, ao) = (c(n, 5, &mk), c(n, 6, &ao));
                let (out, lse) = (m(n, 3, out.as_mut_ptr()), m(n, 7, &mut lse));
                ice_index_attention(ix, sc, q, 1, c(n, 2, &t), DIM_V as u32, mk, ao, out, lse, e)
            };
            assert_eq!(s == ICE_OK, out != [7.0; DIM_V]);
            assert_eq!(s == ICE_OK && n != 7, lse != 7.0);
            s
        }),
    ]);
    let none = ice_tensor { data: null(), ..t };
    refused(ICE_ERR_NULL, &["ice_index_attention: values.data: is NULL"], |e| unsafe {
        let mut out = [0.0; DIM_V];
        let (out, v) = (out.as_mut_ptr(), DIM_V as u32);
        ice_index_attention(ix, sc, q.as_ptr(), 1, &none, v, null(), null(), out, null_mut(), e)
    });
    unsafe {
        ice_scratch_free(attended);
        ice_scratch_free(sc);
        ice_index_free(ix);
    }
    assert!(region.borrow().intact() && roomy.borrow().intact());
}

#[test]
fn attention() {
    let mut heads = Heads::new();
    let d = heads.desc();
    let (mut need, mut align) = (0, 0);
    ok(|e| unsafe { ice_attention_required(&d, &mut need, &mut align, e) });
    let work = std::cell::RefCell::new(Guarded::new(need));
    /// Makes one pointer inside a description NULL.
    type Change = fn(&mut ice_attention_desc);
    const INSIDE: [(&str, Change); 4] = [
        ("q.data", |d| d.q.data = null()),
        ("k.data", |d| d.k.data = null()),
        ("v.data", |d| d.v.data = null()),
        ("out.data", |d| d.out.data = null_mut()),
    ];
    for (field, change) in INSIDE {
        let mut bad = d;
        change(&mut bad);
        let text = format!("ice_attention: {field}: is NULL");
        refused(ICE_ERR_NULL, &[&text], |e| unsafe { ice_attention(&bad, null_mut(), 0, null_mut(), e) });
        let (mut b, mut a) = (0, 0);
        ok(|e| unsafe { ice_attention_required(&bad, &mut b, &mut a, e) });
        assert_eq!((b, a), (need, align), "data does not matter to the size");
    }
    let mut bad = d;
    for (kind, field) in
        [(ICE_MASK_PREFIX, "mask.prefix"), (ICE_MASK_KEYS, "mask.keys"), (ICE_MASK_ADDITIVE, "mask.bias")]
    {
        (bad.mask.kind, bad.mask.prefix_len, bad.mask.keys_len) = (kind, ROWS_Q, ROWS_KV);
        refused(ICE_ERR_NULL, &[field], |e| unsafe { ice_attention(&bad, null_mut(), 0, null_mut(), e) });
    }
    // Work that could not be allocated, passed on with its size, is no request to allocate it here.
    refused(ICE_ERR_NULL, &["ice_attention: work"], |e| unsafe { ice_attention(&d, null_mut(), need, null_mut(), e) });
    assert!(heads.untouched());
    run(&[
        case("ice_attention_required", &["desc", "bytes", "align"], 0, |n, e| {
            sizes(n, 1, |b, a| unsafe { ice_attention_required(c(n, 0, &d), b, a, e) })
        }),
        case("ice_attention", &["desc"], 2, |n, e| {
            let mut heads = Heads::new();
            let d = heads.desc();
            let (mut st, mem) = (stats(), work.borrow_mut().ptr());
            let bytes = if n == 1 { 0 } else { need };
            let s = unsafe { ice_attention(c(n, 0, &d), m(n, 1, mem), bytes, m(n, 2, &mut st), e) };
            assert_eq!(s == ICE_OK, !heads.untouched());
            assert_eq!(s == ICE_OK && n != 2, st.pairs_dense > 0);
            s
        }),
        case("ice_attention_sparsity", &["desc", "mass"], 0, |n, e| {
            let mut mass = [7.0; HEADS_Q];
            let s = unsafe { ice_attention_sparsity(c(n, 0, &d), 2, 3, m(n, 1, mass.as_mut_ptr()), e) };
            assert_eq!(s == ICE_OK, mass != [7.0; HEADS_Q]);
            s
        }),
        plain("ice_attention_merge", &["out_a", "lse_a", "out_b", "lse_b"], 0, |n| unsafe {
            let (mut a, mut la, b, lb) = ([1.0f32; 4], [0.0f32; 2], [3.0f32; 4], [0.0f32; 2]);
            let (a_ptr, la_ptr) = (m(n, 0, a.as_mut_ptr()), m(n, 1, la.as_mut_ptr()));
            let s = ice_attention_merge(a_ptr, la_ptr, c(n, 2, b.as_ptr()), c(n, 3, lb.as_ptr()), 2, 2);
            assert_eq!(a[0] == 1.0, s != ICE_OK);
            s
        }),
    ]);
    assert!(work.borrow().intact());
}

#[test]
fn session() {
    let o = session_options();
    let s = new_session(&o);
    append(s, 6, 10);
    let (mut need, mut align) = (0, 0);
    ok(|e| unsafe { ice_session_required(&o, &mut need, &mut align, e) });
    let region = std::cell::RefCell::new(Guarded::new(need));
    let (k, v) = tokens(1, 20);
    let (kt, vt) = (tensor(&k), tensor(&v));
    let mut work_need = 0;
    status(ICE_OK, unsafe { ice_session_work_required(s, 1, 1, &mut work_need, &mut align) });
    let work = std::cell::RefCell::new(Guarded::new(work_need));
    let mut len = 0;
    status(ICE_OK, unsafe { ice_session_save(s, null_mut(), 0, &mut len) });
    let mut saved = vec![0u8; len];
    status(ICE_OK, unsafe { ice_session_save(s, saved.as_mut_ptr().cast(), len, null_mut()) });
    let buf = saved.as_ptr().cast::<c_void>();
    let mut load_need = 0;
    ok(|e| unsafe { ice_session_load_required(buf, len, &mut load_need, &mut align, e) });
    let load_region = std::cell::RefCell::new(Guarded::new(load_need));
    let before = attended(s);
    let hooks = Counter::default();
    let hooks = hooks.hooks();
    run(&[
        case("ice_session_required", &["options", "bytes", "align"], 0, |n, e| {
            sizes(n, 1, |b, a| unsafe { ice_session_required(c(n, 0, &o), b, a, e) })
        }),
        case("ice_session_new", &["options", "out"], 0, |n, e| {
            handle(|out| unsafe { ice_session_new(c(n, 0, &o), m(n, 1, out), e) }, ice_session_free)
        }),
        case("ice_session_new_in", &["mem", "options", "out"], 0, |n, e| {
            let mem = region.borrow_mut().ptr();
            handle(
                |out| unsafe { ice_session_new_in(m(n, 0, mem), need, c(n, 1, &o), m(n, 2, out), e) },
                ice_session_free,
            )
        }),
        case("ice_session_append", &["session", "k", "v"], 0, |n, e| unsafe {
            let r = ice_session_append(m(n, 0, s), c(n, 1, &kt), c(n, 2, &vt), 1, 0, 1, e);
            ice_session_commit(s);
            ice_session_truncate(s, 6);
            r
        }),
        case("ice_session_attend", &["session", "q", "out"], 4, |n, e| {
            let (q, mut out, mut lse) = (numbers(HEADS_Q * DIM, 30), vec![7.0; HEADS_Q * DIM_V], [7.0; HEADS_Q]);
            let (qt, ot, mk, mut st) = (tensor(&q), tensor_mut(&mut out), mask(), stats());
            let mem = work.borrow_mut().ptr();
            let bytes = if n == 5 { 0 } else { work_need };
            let r = unsafe {
                let (s, q, mk, o) = (c(n, 0, s), c(n, 1, &qt), c(n, 3, &mk), c(n, 2, &ot));
                let (lse, mem, st) = (m(n, 4, lse.as_mut_ptr()), m(n, 5, mem), m(n, 6, &mut st));
                ice_session_attend(s, q, 1, mk, o, lse, mem, bytes, 0, 1, st, e)
            };
            assert_eq!(r == ICE_OK, out.iter().any(|&x| x != 7.0));
            assert_eq!(r == ICE_OK && n != 4, lse != [7.0; HEADS_Q]);
            r
        }),
        plain("ice_session_work_required", &["session", "bytes", "align"], 0, |n| {
            sizes(n, 1, |b, a| unsafe { ice_session_work_required(c(n, 0, s), 3, 2, b, a) })
        }),
        plain("ice_session_commit", &["session"], 0, |n| unsafe { ice_session_commit(m(n, 0, s)) }),
        plain("ice_session_truncate", &["session"], 0, |n| unsafe { ice_session_truncate(m(n, 0, s), 6) }),
        plain("ice_session_remove_range", &["session"], 0, |n| unsafe { ice_session_remove_range(m(n, 0, s), 2, 2) }),
        plain("ice_session_memory", &["session", "out"], 0, |n| unsafe {
            let mut r = memory();
            let s = ice_session_memory(c(n, 0, s), m(n, 1, &mut r));
            assert_eq!(r.used > 0, s == ICE_OK);
            s
        }),
        plain("ice_session_save", &["session"], 1, |n| unsafe {
            let (mut copy, mut needed) = (vec![0u8; len], UNTOUCHED);
            ice_session_save(c(n, 0, s), copy.as_mut_ptr().cast(), len, m(n, 1, &mut needed))
        }),
        case("ice_session_commit_err", &["session"], 0, |n, e| unsafe { ice_session_commit_err(m(n, 0, s), e) }),
        case("ice_session_truncate_err", &["session"], 0, |n, e| unsafe { ice_session_truncate_err(m(n, 0, s), 6, e) }),
        case("ice_session_remove_range_err", &["session"], 0, |n, e| unsafe {
            ice_session_remove_range_err(m(n, 0, s), 2, 2, e)
        }),
        case("ice_session_save_err", &["session"], 1, |n, e| unsafe {
            let (mut copy, mut needed) = (vec![0u8; len], UNTOUCHED);
            ice_session_save_err(c(n, 0, s), copy.as_mut_ptr().cast(), len, m(n, 1, &mut needed), e)
        }),
        case("ice_session_save_to", &["session", "write"], 1, |n, e| unsafe {
            let mut all = Pieces::default();
            let write = if n == 1 { None } else { Some(put as Put) };
            let r = ice_session_save_to(c(n, 0, s), write, all.user(), e);
            assert_eq!(all.bytes.len(), if r == ICE_OK { len } else { 0 });
            r
        }),
        case("ice_session_load_with", &["options", "out"], 0, |n, e| {
            let mut o: ice_load_options = made(|p| unsafe { ice_load_options_init(p) });
            (o.data, o.len) = (buf, len);
            handle(|out| unsafe { ice_session_load_with(c(n, 0, &o), m(n, 1, out), e) }, ice_session_free)
        }),
        case("ice_session_load", &["buf", "out"], 1, |n, e| {
            handle(
                |out| unsafe { ice_session_load(c(n, 0, buf), len, c(n, 2, &hooks), m(n, 1, out), e) },
                ice_session_free,
            )
        }),
        case("ice_session_load_required", &["buf", "bytes", "align"], 0, |n, e| {
            sizes(n, 1, |b, a| unsafe { ice_session_load_required(c(n, 0, buf), len, b, a, e) })
        }),
        case("ice_session_load_in", &["mem", "buf", "out"], 0, |n, e| {
            let mem = load_region.borrow_mut().ptr();
            handle(
                |out| unsafe { ice_session_load_in(m(n, 0, mem), load_need, c(n, 1, buf), len, m(n, 2, out), e) },
                ice_session_free,
            )
        }),
    ]);
    assert_eq!(attended(s), before);
    unsafe {
        status(ICE_ERR_NULL, ice_session_reset(null_mut()));
        refused(ICE_ERR_NULL, &["ice_session_reset_err: session: is NULL"], |e| ice_session_reset_err(null_mut(), e));
        status(ICE_OK, ice_session_reset(s));
        assert_eq!(ice_session_len(s), 0);
        ice_session_free(s);
    }
    assert!(region.borrow().intact() && load_region.borrow().intact() && work.borrow().intact());
}
