//! Misuse of index, options and structs: the documented status, a message that names function, field and row or value,
//! outputs untouched, and an object that works afterwards. Attention and sessions are in `misuse_attention`.
// Every unsafe block here calls the border with live fixtures or with the misuse under test.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use iceformer::*;
use std::ptr::{null, null_mut};

/// Asks for a new index with changed options; it must be refused and leave `out` alone.
#[track_caller]
fn options_refused(want: ice_status, words: &[&str], change: impl FnOnce(&mut ice_index_options)) {
    let mut o = index_options();
    change(&mut o);
    let mut ix = null_mut();
    let mut all = vec!["ice_index_new: "];
    all.extend(words);
    refused(want, &all, |e| unsafe { ice_index_new(&o, &mut ix, e) });
    assert!(ix.is_null());
    let (mut b, mut a) = (3, 5);
    refused(want, words, |e| unsafe { ice_index_required(&o, &mut b, &mut a, e) });
    assert_eq!((b, a), (3, 5));
}

#[test]
fn index_options_out_of_range() {
    use ICE_ERR_ARGUMENT as BAD;
    options_refused(BAD, &["dim: ", "(got 0)"], |o| o.dim = 0);
    options_refused(BAD, &["dim: ", "(got 65536)"], |o| o.dim = 65536);
    options_refused(BAD, &["num_simple: ", "(got 256)"], |o| o.num_simple = 256);
    options_refused(BAD, &["num_composite: ", "(got 1000)"], |o| o.num_composite = 1000);
    options_refused(BAD, &["levels: ", "(got 9)"], |o| o.levels = 9);
    for x in [-0.5, 1.0, f32::NAN, f32::INFINITY] {
        options_refused(BAD, &["promotion: ", &format!("(got {x})")], |o| o.promotion = x);
    }
    for (x, text) in [(-1.0, "-1"), (f32::NAN, "NaN"), (f32::INFINITY, "inf"), (1e30, "1e30")] {
        options_refused(BAD, &["max_norm: ", &format!("(got {text})")], |o| o.max_norm = x);
    }
    options_refused(BAD, &["capacity: "], |o| o.capacity = usize::MAX);
    options_refused(BAD, &["flags: unknown flag bits (got 4)"], |o| o.flags = 7);
    for (metric, directions, engine) in
        [(3, 2, 4), (-1, -1, -1), (i32::MAX, i32::MAX, i32::MAX), (i32::MIN, i32::MIN, i32::MIN)]
    {
        options_refused(BAD, &["metric: unknown enumerator"], |o| o.metric = metric);
        options_refused(BAD, &["directions: unknown enumerator"], |o| o.directions = directions);
        options_refused(BAD, &["engine: unknown enumerator"], |o| o.engine = engine);
    }
    options_refused(ICE_ERR_ABI, &["reserved: must be zero (got 1)"], |o| o.reserved = 1);
    options_refused(BAD, &["(got -1)"], |o| o.metric = -1);
    for engine in [ICE_ENGINE_WALK, ICE_ENGINE_SCAN] {
        options_refused(ICE_ERR_UNSUPPORTED, &["directions"], |o| {
            (o.directions, o.engine) = (ICE_DIRECTIONS_FITTED, engine);
        });
    }
}

#[test]
fn struct_sizes() {
    let known = size_of::<ice_index_options>() as u32;
    options_refused(ICE_ERR_ABI, &["options: struct_size is 0"], |o| o.struct_size = 0);
    for size in [1, 4, known - 1, 1 << 20, u32::MAX] {
        options_refused(ICE_ERR_ABI, &["options: struct_size", &format!("(got {size})")], |o| o.struct_size = size);
    }
    let ix = full_index(&index_options());
    let q = numbers(DIM, 4);
    let mut out = [no_answer(); K];
    for size in [0, 8, size_of::<ice_query_options>() as u32 - 1, 1 << 30] {
        let qo = ice_query_options { struct_size: size, ..query_options() };
        refused(ICE_ERR_ABI, &["ice_index_query: options: struct_size"], |e| unsafe {
            ice_index_query(ix, null_mut(), q.as_ptr(), 1, &qo, out.as_mut_ptr(), null_mut(), e)
        });
    }
    for size in [0, 8, size_of::<ice_memory>() as u32 - 1, 1 << 30] {
        let mut r = ice_memory { struct_size: size, ..memory() };
        status(ICE_ERR_ABI, unsafe { ice_index_memory(ix, &mut r) });
        assert_eq!(r.used, 0);
    }
    assert_eq!(out, [no_answer(); K]);
    let mut a = Counter::default().hooks();
    a.struct_size -= 1;
    let o = ice_index_options { allocator: &a, ..index_options() };
    let mut other = null_mut();
    refused(ICE_ERR_ABI, &["allocator: struct_size"], |e| unsafe { ice_index_new(&o, &mut other, e) });
    unsafe { ice_index_free(ix) };
}

/// Options as a newer caller would have them: the same fields, then more.
#[repr(C, align(8))]
struct Newer<T> {
    known: T,
    tail: [u64; 2],
}

#[test]
fn newer_callers() {
    let mut o = Newer { known: index_options(), tail: [0; 2] };
    o.known.struct_size += 16;
    let p = (&raw const o).cast::<ice_index_options>();
    let mut ix = null_mut();
    ok(|e| unsafe { ice_index_new(p, &mut ix, e) });
    unsafe { ice_index_free(ix) };
    o.tail[1] = 1 << 63;
    let p = (&raw const o).cast::<ice_index_options>();
    let mut ix = null_mut();
    refused(ICE_ERR_ABI, &["options: uses fields of a newer version"], |e| unsafe { ice_index_new(p, &mut ix, e) });
    assert!(ix.is_null());
}

#[test]
fn reports_that_cannot_be_written() {
    let o = index_options();
    let mut ix = null_mut();
    for size in [4, 8, size_of::<ice_error>() as u32 - 1] {
        let mut e = ice_error { struct_size: size, status: 55, message: [1; 240] };
        status(ICE_ERR_ABI, unsafe { ice_index_new(&o, &mut ix, &mut e) });
        assert!(e.status == 55 && e.message == [1; 240] && ix.is_null());
    }
    let mut two = [error(), error()];
    let odd = two.as_mut_ptr().wrapping_byte_add(2);
    status(ICE_ERR_ALIGNMENT, unsafe { ice_index_new(&o, &mut ix, odd) });
    assert!(ix.is_null());
}

#[test]
fn allocators_without_functions() {
    let counter = Counter::default();
    let mut ix = null_mut();
    for (field, a) in [
        ("allocator.alloc", ice_allocator { alloc: None, ..counter.hooks() }),
        ("allocator.free", ice_allocator { free: None, ..counter.hooks() }),
    ] {
        let o = ice_index_options { allocator: &a, ..index_options() };
        let text = format!("ice_index_new: {field}: is NULL");
        refused(ICE_ERR_NULL, &[&text], |e| unsafe { ice_index_new(&o, &mut ix, e) });
    }
}

#[test]
fn samples_that_nothing_is_fitted_to() {
    let o = index_options();
    let ix = full_index(&o);
    let before = answers(ix);
    let mut sample = numbers(200 * DIM, 3);
    unsafe {
        let p = sample.as_mut_ptr();
        status(ICE_ERR_ARGUMENT, ice_index_fit(ix, p, 127));
        status(ICE_ERR_SHAPE, ice_index_fit(ix, p, usize::MAX / 4));
        *p.add(150 * DIM) = f32::NAN;
        status(ICE_ERR_NOT_FINITE, ice_index_fit(ix, p, 200));
        status(ICE_OK, ice_index_fit(ix, p, 150));
        for j in 0..DIM {
            *p.add(70 * DIM + j) = 0.0;
        }
        status(ICE_ERR_ARGUMENT, ice_index_fit(ix, p, 150));
        assert_eq!(answers(ix), before, "too few keys for it to matter");
        ice_index_free(ix);
        let walk = full_index(&ice_index_options { engine: ICE_ENGINE_WALK, ..o });
        status(ICE_ERR_UNSUPPORTED, ice_index_fit(walk, p, 150));
        status(ICE_ERR_UNSUPPORTED, ice_index_fit(walk, null(), 0));
        ice_index_free(walk);
    }
}

#[test]
fn misaligned_pointers() {
    let o = index_options();
    let ix = full_index(&o);
    let before = answers(ix);
    let (keys, ids, qo) = (numbers(2 * DIM, 3), [100u64, 101, 102], query_options());
    let mut out = [no_answer(); 2 * K];
    let mut counts = [9u32; 3];
    let (mut slots, mut pair) = ([null_mut::<ice_index>(); 2], [0usize; 2]);
    macro_rules! odd {
        ($p:expr) => {
            $p.wrapping_byte_add(1)
        };
    }
    let al = ICE_ERR_ALIGNMENT;
    unsafe {
        let (k, i, q) = (keys.as_ptr(), ids.as_ptr(), keys.as_ptr());
        refused(al, &["ice_index_insert: keys"], |e| ice_index_insert(ix, odd!(k), 1, i, e));
        refused(al, &["ice_index_insert: ids"], |e| ice_index_insert(ix, k, 1, odd!(i), e));
        refused(al, &["ice_index_insert: index"], |e| ice_index_insert(odd!(ix), k, 1, i, e));
        refused(al, &["ice_index_new: options"], |e| ice_index_new(odd!(&raw const o), slots.as_mut_ptr(), e));
        refused(al, &["ice_index_new: out"], |e| ice_index_new(&o, odd!(slots.as_mut_ptr()), e));
        let (p, a) = (pair.as_mut_ptr(), pair.as_mut_ptr().add(1));
        refused(al, &["ice_index_required: bytes"], |e| ice_index_required(&o, odd!(p), a, e));
        status(al, ice_index_remove(ix, odd!(i), 1, null_mut()));
        status(al, ice_index_remove(ix, i, 1, odd!(p)));
        status(al, ice_index_fit(ix, odd!(k), 1));
        let (r, c) = (out.as_mut_ptr(), counts.as_mut_ptr());
        for f in [ice_index_query, ice_index_query_exact] {
            refused(al, &["queries"], |e| f(ix, null_mut(), odd!(q), 1, &qo, r, c, e));
            refused(al, &["options"], |e| f(ix, null_mut(), q, 1, odd!(&raw const qo), r, c, e));
            refused(al, &["out"], |e| f(ix, null_mut(), q, 1, &qo, odd!(r), c, e));
            refused(al, &["counts"], |e| f(ix, null_mut(), q, 1, &qo, r, odd!(c), e));
        }
        assert_eq!((out, counts), ([no_answer(); 2 * K], [9; 3]));
        assert_eq!(answers(ix), before);
        ice_index_free(ix);
    }
}

#[test]
fn sizes_that_overflow_and_zero_sizes() {
    let ix = full_index(&index_options());
    let before = answers(ix);
    let (keys, qo) = (numbers(DIM, 3), query_options());
    let mut out = [no_answer(); K];
    let k = keys.as_ptr();
    for n in [usize::MAX, usize::MAX / DIM, usize::MAX / (4 * DIM) + 1] {
        refused(ICE_ERR_SHAPE, &["ice_index_insert: keys"], |e| unsafe { ice_index_insert(ix, k, n, null(), e) });
        refused(ICE_ERR_SHAPE, &["ice_index_query: queries"], |e| unsafe {
            ice_index_query(ix, null_mut(), k, n, &qo, out.as_mut_ptr(), null_mut(), e)
        });
    }
    for n in [usize::MAX, usize::MAX / 8] {
        status(ICE_ERR_SHAPE, unsafe { ice_index_remove(ix, [1u64].as_ptr(), n, null_mut()) });
    }
    unsafe {
        ok(|e| ice_index_insert(ix, null(), 0, null(), e));
        ok(|e| ice_index_query(ix, null_mut(), null(), 0, &qo, null_mut(), null_mut(), e));
        ok(|e| ice_index_query_exact(ix, null_mut(), null(), 0, &qo, null_mut(), null_mut(), e));
        let mut removed = 9;
        status(ICE_OK, ice_index_remove(ix, null(), 0, null_mut()));
        status(ICE_OK, ice_index_remove(ix, null(), 0, &mut removed));
        assert_eq!((removed, ice_index_len(ix)), (0, KEYS));
        status(ICE_OK, ice_index_reserve(ix, 0));
    }
    assert_eq!((answers(ix), out), (before, [no_answer(); K]));
    unsafe { ice_index_free(ix) };
}

#[test]
fn non_finite_keys_and_queries() {
    for levels in [1, 3] {
        let mut o = index_options();
        o.levels = levels;
        let ix = full_index(&o);
        let before = answers(ix);
        let (mut out, mut counts) = ([no_answer(); 5 * K], [9u32; 5]);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for row in [0, 3, 4] {
                let mut x = numbers(5 * DIM, 8);
                x[row * DIM + row] = bad;
                let text = format!("(row {row})");
                refused(ICE_ERR_NOT_FINITE, &["ice_index_insert: keys: ", &text], |e| unsafe {
                    ice_index_insert(ix, x.as_ptr(), 5, null(), e)
                });
                for (f, function) in [
                    (ice_index_query as unsafe extern "C" fn(_, _, _, _, _, _, _, _) -> _, "ice_index_query: queries"),
                    (ice_index_query_exact, "ice_index_query_exact: queries"),
                ] {
                    let (r, c, qo) = (out.as_mut_ptr(), counts.as_mut_ptr(), query_options());
                    refused(ICE_ERR_NOT_FINITE, &[function, &text], |e: *mut ice_error| unsafe {
                        f(ix.cast_const(), null_mut::<ice_scratch>(), x.as_ptr(), 5usize, &raw const qo, r, c, e)
                    });
                }
            }
        }
        // A finite key whose norm overflows is no key either.
        let huge = [3e38f32; DIM];
        refused(ICE_ERR_NOT_FINITE, &["ice_index_insert: keys", "(row 0)"], |e| unsafe {
            ice_index_insert(ix, huge.as_ptr(), 1, null(), e)
        });
        assert_eq!((out, counts), ([no_answer(); 5 * K], [9; 5]));
        assert_eq!((unsafe { ice_index_len(ix) }, answers(ix)), (KEYS, before));
        unsafe { ice_index_free(ix) };
    }
}

#[test]
fn unknown_and_duplicate_ids() {
    let ix = full_index(&index_options());
    let before = answers(ix);
    let keys = numbers(3 * DIM, 3);
    let insert = |ids: [u64; 3], e| unsafe { ice_index_insert(ix, keys.as_ptr(), 3, ids.as_ptr(), e) };
    refused(ICE_ERR_DUPLICATE, &["ice_index_insert: ids", "(id 7)"], |e| insert([100, 7, 101], e));
    refused(ICE_ERR_DUPLICATE, &["ice_index_insert: ids", "(id 100)"], |e| insert([100, 101, 100], e));
    let remove = |ids: &[u64]| unsafe { ice_index_remove(ix, ids.as_ptr(), ids.len(), null_mut()) };
    status(ICE_ERR_NOT_FOUND, remove(&[1, 2, 40]));
    status(ICE_ERR_NOT_FOUND, remove(&[u64::MAX]));
    assert_eq!((unsafe { ice_index_len(ix) }, answers(ix)), (KEYS, before.clone()));
    let mut removed = 9;
    let skip = |ids: &[u64], removed: &mut usize| unsafe { ice_index_remove(ix, ids.as_ptr(), ids.len(), removed) };
    status(ICE_OK, skip(&[1, 99, 2, u64::MAX], &mut removed));
    assert_eq!((removed, unsafe { ice_index_len(ix) }), (2, KEYS - 2));
    status(ICE_OK, skip(&[1, 2], &mut removed));
    assert_eq!(removed, 0);
    // Put back, everything is as it was.
    let all = numbers(KEYS * DIM, 1);
    ok(|e| unsafe { ice_index_insert(ix, all[DIM..].as_ptr(), 2, [1u64, 2].as_ptr(), e) });
    assert_eq!(answers(ix), before);
    // The next ids come after the largest.
    ok(|e| unsafe { ice_index_insert(ix, keys.as_ptr(), 3, null(), e) });
    status(ICE_OK, remove(&[40, 41, 42]));
    ok(|e| insert([u64::MAX - 1, 3 << 40, 77], e));
    unsafe { ice_index_free(ix) };
}

#[test]
fn fixed_capacity() {
    let mut o = index_options();
    (o.capacity, o.flags) = (KEYS, ICE_INDEX_FIXED_CAPACITY);
    let ix = full_index(&o);
    let before = answers(ix);
    let keys = numbers(2 * DIM, 3);
    refused(ICE_ERR_CAPACITY, &["ice_index_insert: "], |e| unsafe {
        ice_index_insert(ix, keys.as_ptr(), 1, null(), e)
    });
    status(ICE_ERR_CAPACITY, unsafe { ice_index_reserve(ix, KEYS + 1) });
    assert_eq!((unsafe { ice_index_len(ix) }, answers(ix)), (KEYS, before));
    unsafe { ice_index_free(ix) };
}

#[test]
fn query_options_out_of_range() {
    let ix = full_index(&index_options());
    let q = numbers(DIM, 4);
    let check = |words: &[&str], change: &dyn Fn(&mut ice_query_options)| {
        let mut qo = query_options();
        change(&mut qo);
        let mut out = [no_answer(); K];
        let want = if qo.filter_len > 0 { ICE_ERR_NULL } else { ICE_ERR_ARGUMENT };
        for f in [ice_index_query, ice_index_query_exact] {
            refused(want, words, |e| unsafe { f(ix, null_mut(), q.as_ptr(), 1, &qo, out.as_mut_ptr(), null_mut(), e) });
        }
        assert_eq!(out, [no_answer(); K]);
    };
    check(&["k: ", "(got 0)"], &|o| o.k = 0);
    for x in [-0.1, 1.5, f32::NAN] {
        let got = format!("(got {x})");
        check(&["visit_fraction: ", &got], &|o| o.visit_fraction = x);
        check(&["retrieve_fraction: ", &got], &|o| o.retrieve_fraction = x);
        check(&["target_recall: ", &got], &|o| o.target_recall = x);
    }
    check(&["id_begin: ", "(got 9)"], &|o| (o.id_begin, o.id_end) = (9, 8));
    check(&["flags: unknown flag bits (got 1)"], &|o| o.flags = 1);
    check(&["engine: unknown enumerator (got 4)"], &|o| o.engine = 4);
    check(&["engine: unknown enumerator (got -7)"], &|o| o.engine = -7);
    check(&["filter: "], &|o| (o.filter, o.filter_len) = (null(), 3));
    unsafe { ice_index_free(ix) };
}

#[test]
fn damaged_and_foreign_bytes() {
    let ix = full_index(&index_options());
    let mut len = 0;
    status(ICE_OK, unsafe { ice_index_save(ix, null_mut(), 0, &mut len) });
    let mut saved = vec![0u8; len];
    status(ICE_OK, unsafe { ice_index_save(ix, saved.as_mut_ptr().cast(), len, null_mut()) });
    let load = |b: &[u8], want: &[ice_status]| {
        let mut copy = null_mut();
        let mut e = error();
        let s = unsafe { ice_index_load(b.as_ptr().cast(), b.len(), null(), &mut copy, &mut e) };
        assert!(want.contains(&s), "{}: {}", name(s), message(&e));
        assert!(message(&e).starts_with("ice_index_load: ") && copy.is_null());
        let (mut n, mut a) = (3, 5);
        unsafe { ice_index_load_required(b.as_ptr().cast(), b.len(), &mut n, &mut a, null_mut()) };
    };
    for cut in [0, 1, 8, len / 2, len - 1] {
        load(&saved[..cut], &[ICE_ERR_BUFFER]);
    }
    load(&vec![0u8; len], &[ICE_ERR_BUFFER, ICE_ERR_ABI]);
    load(b"%PDF-1.7 this is something else entirely, and long enough for a header", &[ICE_ERR_BUFFER, ICE_ERR_ABI]);
    for at in (0..len).step_by(len / 61 + 1) {
        let mut b = saved.clone();
        b[at] ^= 0x10;
        load(&b, &[ICE_ERR_BUFFER, ICE_ERR_ABI]);
    }
    // Any alignment will do, and the copy is the same index.
    let shifted: Vec<u8> = [0].into_iter().chain(saved.iter().copied()).collect();
    let mut copy = null_mut();
    ok(|e| unsafe { ice_index_load(shifted[1..].as_ptr().cast(), len, null(), &mut copy, e) });
    assert_eq!(answers(copy), answers(ix));
    unsafe {
        ice_index_free(copy);
        ice_index_free(ix);
    }
}

#[test]
fn scratch_of_another_index() {
    let ix = full_index(&index_options());
    let small = new_index(&index_options());
    let mut sc = null_mut();
    ok(|e| unsafe { ice_scratch_new(small, &mut sc, e) });
    let (q, qo) = (numbers(DIM, 4), query_options());
    let mut out = [no_answer(); K];
    let mut query = |e| unsafe { ice_index_query(ix, sc, q.as_ptr(), 1, &qo, out.as_mut_ptr(), null_mut(), e) };
    // Made for less room: refused, or large enough; never a write out of bounds.
    let mut e = error();
    let s = query(&mut e);
    assert!(s == ICE_OK || s == ICE_ERR_CAPACITY, "{}: {}", name(s), message(&e));
    unsafe {
        ice_scratch_free(sc);
        ice_index_free(small);
        ice_index_free(ix);
    }
}
