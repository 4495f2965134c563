//! Misuse of attention and sessions; see `misuse` for what is held.
// Every unsafe block here calls the border with live fixtures or with the misuse under test.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use iceformer::*;
use std::ptr::{null, null_mut};

/// A changed description must be refused, outputs untouched; the unchanged one must work afterwards.
#[track_caller]
fn desc_refused(want: ice_status, words: &[&str], change: impl FnOnce(&mut ice_attention_desc)) {
    let mut heads = Heads::new();
    let mut d = heads.desc();
    let good = d;
    change(&mut d);
    let mut all = vec!["ice_attention: "];
    all.extend(words);
    let mut st = stats();
    refused(want, &all, |e| unsafe { ice_attention(&d, null_mut(), 0, &mut st, e) });
    assert!(heads.untouched() && st.pairs_dense == 0);
    ok(|e| unsafe { ice_attention(&good, null_mut(), 0, &mut st, e) });
    assert!(!heads.untouched());
}

#[test]
fn shapes() {
    use ICE_ERR_SHAPE as S;
    desc_refused(S, &["dim_k: "], |d| d.dim_k = 0);
    desc_refused(S, &["heads_kv: ", "(got 3)"], |d| d.heads_kv = 3);
    desc_refused(S, &["heads_kv: ", "(got 8)"], |d| d.heads_kv = 8);
    desc_refused(S, &["rows_kv: "], |d| d.options.flags = ICE_ATTENTION_SHARED_QK);
    desc_refused(S, &["rows_q: "], |d| d.rows_q = usize::MAX);
    for prefix in [[9u64; 4].as_slice(), &[], &[9; 6]] {
        desc_refused(S, &["mask.prefix: "], |d| {
            (d.mask.kind, d.mask.prefix, d.mask.prefix_len) = (ICE_MASK_PREFIX, prefix.as_ptr(), prefix.len());
        });
    }
    let keep = [1u8; ROWS_KV + 1];
    for n in [0, 1, ROWS_KV - 1, ROWS_KV + 1] {
        desc_refused(S, &["mask.keys: "], |d| {
            (d.mask.kind, d.mask.keys, d.mask.keys_len) = (ICE_MASK_KEYS, keep.as_ptr(), n);
        });
    }
    let bias = vec![0.0f32; 64 * ROWS_Q * ROWS_KV];
    for (heads, batch) in [(3, 1), (1, 2)] {
        desc_refused(S, &["mask.bias: "], |d| {
            (d.mask.kind, d.mask.bias) = (ICE_MASK_ADDITIVE, tensor(&bias));
            (d.mask.bias_heads, d.mask.bias_batch) = (heads, batch);
        });
    }
}

#[test]
fn strides_and_alignment() {
    use ICE_ERR_ALIGNMENT as A;
    use ICE_ERR_STRIDE as S;
    let names = ["q", "k", "v"];
    fn pick(d: &mut ice_attention_desc, i: usize) -> &mut ice_tensor {
        [&mut d.q, &mut d.k, &mut d.v].into_iter().nth(i).expect("three")
    }
    for (i, field) in names.into_iter().enumerate() {
        desc_refused(S, &[field, "(got 33)"], |d| pick(d, i).row_stride = 33);
        desc_refused(S, &[field, "smaller than a row"], |d| pick(d, i).row_stride = 20);
        desc_refused(S, &[field, "(got 1022)"], |d| pick(d, i).head_stride = 1022);
        desc_refused(S, &[field, "(got 7)"], |d| pick(d, i).batch_stride = 7);
        desc_refused(S, &[field], |d| pick(d, i).row_stride = usize::MAX - 3);
        desc_refused(A, &[field], |d| pick(d, i).data = pick(d, i).data.wrapping_byte_add(2));
        for x in [3, -1, i32::MAX] {
            desc_refused(ICE_ERR_ARGUMENT, &[field, ".dtype: unknown enumerator"], |d| pick(d, i).dtype = x);
        }
    }
    desc_refused(S, &["out", "(got 26)"], |d| d.out.row_stride = 26);
    desc_refused(S, &["out", "smaller than a row"], |d| d.out.row_stride = 20);
    desc_refused(S, &["out: rows overlap"], |d| d.out.head_stride = 4 * DIM_V);
    desc_refused(A, &["out"], |d| d.out.data = d.out.data.wrapping_byte_add(1));
    desc_refused(A, &["lse"], |d| d.lse = d.lse.wrapping_byte_add(2));
    desc_refused(ICE_ERR_ARGUMENT, &["out.dtype"], |d| d.out.dtype = 9);
}

#[test]
fn non_finite_inputs() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for (i, field) in ["q", "k", "v"].into_iter().enumerate() {
            let mut heads = Heads::new();
            // The last row of the last head.
            let rows = [ROWS_Q, ROWS_KV, ROWS_KV][i];
            *[&mut heads.q, &mut heads.k, &mut heads.v][i].last_mut().expect("not empty") = bad;
            let d = heads.desc();
            let (field, row) = (format!("ice_attention: {field}: "), format!("(row {})", rows - 1));
            refused(ICE_ERR_NOT_FINITE, &[&field, &row], |e| unsafe {
                ice_attention(&d, null_mut(), 0, null_mut(), e)
            });
            assert!(heads.untouched());
        }
        if bad != f32::NEG_INFINITY {
            let mut bias = vec![0.0f32; ROWS_Q * ROWS_KV];
            bias[2 * ROWS_KV + 1] = bad;
            desc_refused(ICE_ERR_NOT_FINITE, &["mask.bias: ", "(row 2)"], |d| {
                (d.mask.kind, d.mask.bias) = (ICE_MASK_ADDITIVE, tensor(&bias));
            });
        }
    }
}

#[test]
fn options_masks_and_sizes_of_structs() {
    use ICE_ERR_ABI as V;
    use ICE_ERR_ARGUMENT as B;
    for x in [4, -1] {
        desc_refused(B, &["mode: unknown enumerator"], |d| d.options.mode = x);
    }
    for x in [6, -1] {
        desc_refused(B, &["mask.kind: unknown enumerator"], |d| d.mask.kind = x);
    }
    desc_refused(B, &["flags: unknown flag bits (got 32)"], |d| d.options.flags = 32);
    for x in [-1.0, f32::NAN, f32::INFINITY] {
        let got = format!("(got {x})");
        desc_refused(B, &["scale: ", &got], |d| d.options.scale = x);
        desc_refused(B, &["softcap: ", &got], |d| d.options.softcap = x);
        desc_refused(B, &["tolerance: ", &got], |d| d.options.tolerance = x);
        desc_refused(B, &["retrieve_fraction: ", &got], |d| d.options.retrieve_fraction = x);
    }
    desc_refused(B, &["mask.q_pos0: "], |d| (d.mask.kind, d.mask.q_pos0) = (ICE_MASK_CAUSAL, u64::MAX - 1));
    for flag in [ICE_ATTENTION_CERTIFICATE, ICE_ATTENTION_VERIFIED] {
        desc_refused(ICE_ERR_UNSUPPORTED, &["flags: top-k"], |d| {
            (d.options.mode, d.options.flags) = (ICE_MODE_TOP_K, flag);
        });
    }
    desc_refused(ICE_ERR_ALIGNMENT, &["bounds"], |d| d.bounds = std::ptr::without_provenance_mut(2));
    let bias = [0u16; ROWS_Q * ROWS_KV];
    desc_refused(ICE_ERR_UNSUPPORTED, &["mask.bias"], |d| {
        let t = ice_tensor { dtype: ICE_BF16, data: bias.as_ptr().cast(), ..d.q };
        (d.mask.kind, d.mask.bias) = (ICE_MASK_ADDITIVE, t);
    });
    for by in [1, size_of::<ice_attention_desc>() as u32] {
        desc_refused(V, &["desc: struct_size"], |d| d.struct_size -= by);
        desc_refused(V, &["desc: struct_size"], |d| d.struct_size = 1 << 24);
    }
    for size in [0, 4, 4096] {
        desc_refused(V, &["desc.mask: struct_size"], |d| d.mask.struct_size = size);
        desc_refused(V, &["desc.options: struct_size"], |d| d.options.struct_size = size);
    }
    desc_refused(V, &["reserved: must be zero"], |d| d.options.reserved[8] = 1);
    desc_refused(V, &["mask.reserved: must be zero"], |d| d.mask.reserved[0] = 1);
    let mut heads = Heads::new();
    let d = heads.desc();
    let mut st = ice_attention_stats { struct_size: 12, ..stats() };
    refused(V, &["ice_attention: stats: struct_size"], |e| unsafe { ice_attention(&d, null_mut(), 0, &mut st, e) });
    assert!(heads.untouched());
}

#[test]
fn zero_rows() {
    let mut heads = Heads::new();
    let mut d = heads.desc();
    // No queries: nothing to do, NULL everywhere. No keys: zeros and -inf.
    (d.rows_q, d.q.data, d.out.data) = (0, null(), null_mut());
    ok(|e| unsafe { ice_attention(&d, null_mut(), 0, null_mut(), e) });
    assert!(heads.untouched());
    for mode in [ICE_MODE_EXACT, ICE_MODE_TOP_K] {
        let mut heads = Heads::new();
        let mut d = heads.desc();
        (d.rows_kv, d.k.data, d.v.data, d.options.mode) = (0, null(), null(), mode);
        ok(|e| unsafe { ice_attention(&d, null_mut(), 0, null_mut(), e) });
        assert!(heads.out.iter().all(|&x| x == 0.0) && heads.lse.iter().all(|&x| x == f32::NEG_INFINITY));
    }
    // A bias over no keys has rows without elements, and may be NULL too.
    for dtype in [ICE_F32, ICE_F16] {
        let mut heads = Heads::new();
        let mut d = heads.desc();
        (d.rows_kv, d.k.data, d.v.data, d.mask.kind, d.mask.bias.dtype) = (0, null(), null(), ICE_MASK_ADDITIVE, dtype);
        ok(|e| unsafe { ice_attention(&d, null_mut(), 0, null_mut(), e) });
        assert!(heads.out.iter().all(|&x| x == 0.0));
    }
    unsafe {
        status(ICE_OK, ice_attention_merge(null_mut(), null_mut(), null(), null(), 0, 4));
        status(ICE_ERR_SHAPE, ice_attention_merge(null_mut(), null_mut(), null(), null(), 0, 0));
        let x = [0.0f32; 4].as_mut_ptr();
        status(ICE_ERR_SHAPE, ice_attention_merge(x, x, x, x, usize::MAX, 4));
        status(ICE_ERR_ALIGNMENT, ice_attention_merge(x.wrapping_byte_add(1), x, x, x, 1, 1));
    }
    let d = heads.desc();
    let mut mass = [7.0; HEADS_Q];
    refused(ICE_ERR_ARGUMENT, &["ice_attention_sparsity: k: "], |e| unsafe {
        ice_attention_sparsity(&d, 0, 3, mass.as_mut_ptr(), e)
    });
    assert_eq!(mass, [7.0; HEADS_Q]);
    assert_eq!(
        (ice_top_k_for(0, 0.1), ice_top_k_for(800, 0.05), ice_top_k_for(usize::MAX, 1.0), ice_top_k_for(9, f32::NAN)),
        (30, 40, 50, 30)
    );
}

#[test]
fn index_attention() {
    let ix = full_index(&index_options());
    let (q, values) = (numbers(2 * DIM, 3), numbers(KEYS * DIM_V, 4));
    let (mut out, mut lse) = ([7.0; 2 * DIM_V], [7.0; 2]);
    let mut run = |want, words: &[&str], q: &[f32], change: &dyn Fn(&mut ice_tensor, &mut ice_mask, &mut u32)| {
        let (mut t, mut mk, mut v) = (tensor(&values), mask(), DIM_V as u32);
        change(&mut t, &mut mk, &mut v);
        refused(want, words, |e| unsafe {
            let (o, l) = (out.as_mut_ptr(), lse.as_mut_ptr());
            ice_index_attention(ix, null_mut(), q.as_ptr(), 2, &t, v, &mk, null(), o, l, e)
        });
        let written = out != [7.0; 2 * DIM_V] || lse != [7.0; 2];
        assert_eq!(written, want == ICE_OK);
        (out, lse) = ([7.0; 2 * DIM_V], [7.0; 2]);
    };
    run(ICE_OK, &[], &q, &|_, _, _| ());
    run(ICE_ERR_STRIDE, &["ice_index_attention: values"], &q, &|t, _, _| t.row_stride = 6);
    run(ICE_ERR_ALIGNMENT, &["values"], &q, &|t, _, _| t.data = t.data.wrapping_byte_add(2));
    run(ICE_ERR_ARGUMENT, &["values.dtype"], &q, &|t, _, _| t.dtype = 7);
    run(ICE_ERR_SHAPE, &["dim_v"], &q, &|_, _, v| *v = 0);
    run(ICE_ERR_ABI, &["mask: struct_size"], &q, &|_, m, _| m.struct_size = 0);
    run(ICE_ERR_ARGUMENT, &["mask.kind"], &q, &|_, m, _| m.kind = 77);
    run(ICE_ERR_SHAPE, &["mask.keys"], &q, &|_, m, _| {
        (m.kind, m.keys, m.keys_len) = (ICE_MASK_KEYS, [1u8; KEYS].as_ptr(), KEYS - 1);
    });
    for bad in [f32::NAN, f32::INFINITY] {
        let mut x = q.clone();
        x[DIM] = bad;
        run(ICE_ERR_NOT_FINITE, &["ice_index_attention: queries", "(row 1)"], &x, &|_, _, _| ());
    }
    run(ICE_OK, &[], &q, &|_, _, _| ());
    unsafe { ice_index_free(ix) };
}

#[test]
fn scratches_for_attention() {
    let ix = full_index(&index_options());
    let (q, values) = (numbers(DIM, 3), numbers(KEYS * DIM_V, 4));
    let mut out = [7.0; DIM_V];
    let mut o = attention_options();
    o.mode = ICE_MODE_ACCELERATED;
    let (v, d) = (tensor(&values), DIM_V as u32);
    let mut attend = |sc, o: &ice_attention_options, e| unsafe {
        ice_index_attention(ix, sc, q.as_ptr(), 1, &v, d, null(), o, out.as_mut_ptr(), null_mut(), e)
    };
    let mut plain = null_mut();
    ok(|e| unsafe { ice_scratch_new(ix, &mut plain, e) });
    refused(ICE_ERR_CAPACITY, &["ice_index_attention: scratch: ", "no room for accelerated"], |e| attend(plain, &o, e));
    // Made for values of another size.
    let mut other = null_mut();
    ok(|e| unsafe { ice_scratch_new_attention(ix, d + 1, &mut other, e) });
    refused(ICE_ERR_SHAPE, &["ice_index_attention: dim_v: ", "scratch"], |e| attend(other, &o, e));
    let mut none = null_mut();
    refused(ICE_ERR_SHAPE, &["dim_v"], |e| unsafe { ice_scratch_new_attention(ix, 0, &mut none, e) });
    let (mut bytes, mut align) = (0, 0);
    refused(ICE_ERR_SHAPE, &["dim_v"], |e| unsafe { ice_scratch_required_attention(ix, 0, &mut bytes, &mut align, e) });
    assert!(none.is_null() && (bytes, align) == (0, 0));
    let mut st = stats();
    refused(ICE_ERR_STATE, &["ice_scratch_stats: scratch: has attended nothing"], |e| unsafe {
        ice_scratch_stats(plain, &mut st, e)
    });
    let mut sc = null_mut();
    ok(|e| unsafe { ice_scratch_new_attention(ix, d, &mut sc, e) });
    ok(|e| attend(sc, &o, e));
    ok(|e| unsafe { ice_scratch_stats(sc, &mut st, e) });
    assert_eq!((st.mode, st.pairs, st.pairs_dense, st.rows), (ICE_MODE_ACCELERATED, KEYS as u64, KEYS as u64, 1));
    st.struct_size = 0;
    refused(ICE_ERR_ABI, &["stats: struct_size"], |e| unsafe { ice_scratch_stats(sc, &mut st, e) });
    // It serves queries as well, and every mode.
    let (qo, mut found) = (query_options(), [no_answer(); K]);
    ok(|e| unsafe { ice_index_query(ix, sc, q.as_ptr(), 1, &qo, found.as_mut_ptr(), null_mut(), e) });
    assert_ne!(found[0], no_answer());
    for mode in [ICE_MODE_EXACT, ICE_MODE_AUTO, ICE_MODE_TOP_K] {
        o.mode = mode;
        ok(|e| attend(sc, &o, e));
        ok(|e| attend(null_mut(), &o, e));
    }
    // The index outgrows it.
    let more = numbers(4 * KEYS * DIM, 9);
    ok(|e| unsafe { ice_index_insert(ix, more.as_ptr(), 4 * KEYS, null(), e) });
    let values = numbers(5 * KEYS * DIM_V, 4);
    let v = tensor(&values);
    refused(ICE_ERR_CAPACITY, &["scratch", "before the index grew"], |e| unsafe {
        ice_index_attention(ix, sc, q.as_ptr(), 1, &v, d, null(), &o, out.as_mut_ptr(), null_mut(), e)
    });
    unsafe {
        for sc in [plain, other, sc] {
            ice_scratch_free(sc);
        }
        ice_index_free(ix);
    }
}

#[test]
fn statistics_say_what_ran() {
    // One call and a session, long enough to measure: rows and keys of few kinds.
    const N: usize = 4096;
    const TOLERANCE: f32 = 0.05;
    let near = |n: usize, dim: usize, seed: u64| {
        let (kinds, mut rows) = (numbers(16 * dim, seed), numbers(n * dim, seed + 1));
        for (i, row) in rows.chunks_mut(dim).enumerate() {
            row.iter_mut().zip(&kinds[i % 16 * dim..]).for_each(|(x, kind)| *x = *x * 0.05 + kind);
        }
        rows
    };
    let (q, k, v) = (near(HEADS_Q * N, DIM, 5), near(HEADS_KV * N, DIM, 7), near(HEADS_KV * N, DIM_V, 9));
    let mut o = session_options();
    (o.capacity, o.attention.mode, o.attention.tolerance) = (N, ICE_MODE_ACCELERATED, TOLERANCE);
    let s = new_session(&o);
    ok(|e| unsafe { ice_session_append(s, &tensor(&k), &tensor(&v), N, 0, 1, e) });
    status(ICE_OK, unsafe { ice_session_commit(s) });
    let mut out = vec![0.0f32; HEADS_Q * N * DIM_V];
    let mut st = [stats(), stats()];
    ok(|e| unsafe {
        let (q, out) = (tensor(&q), tensor_mut(&mut out));
        ice_session_attend(s, &q, N, null(), &out, null_mut(), null_mut(), 0, 0, 1, &mut st[0], e)
    });
    unsafe { ice_session_free(s) };
    let mut heads = Heads::new();
    let mut d = heads.desc();
    (d.rows_q, d.rows_kv, d.lse, d.mask.kind) = (N, N, null_mut(), ICE_MASK_CAUSAL);
    (d.options.mode, d.options.tolerance) = (ICE_MODE_ACCELERATED, TOLERANCE);
    (d.q, d.k, d.v, d.out) = (tensor(&q), tensor(&k), tensor(&v), tensor_mut(&mut out));
    ok(|e| unsafe { ice_attention(&d, null_mut(), 0, &mut st[1], e) });
    let pairs = (HEADS_Q * N * (N + 1) / 2) as u64;
    for st in &st {
        assert_eq!((st.mode, st.reason, st.rows), (ICE_MODE_ACCELERATED, ICE_REASON_REQUESTED, (HEADS_Q * N) as u64));
        assert!(st.pairs < st.pairs_dense && st.pairs_dense == pairs, "{} of {}", st.pairs, st.pairs_dense);
        assert_eq!(st.estimated_mass, 0.0);
        assert!(st.rows_measured > 0 && st.rows_exact <= st.rows && st.known_pairs > 0);
        assert_eq!(st.rows_exact, st.rows_short + st.rows_strict + st.rows_costly);
        assert!(st.rows_short > 0);
        let [mean, p95, worst] = [st.measured_error, st.measured_p95, st.measured_worst];
        assert!(0.0 < mean && mean < 2.0 * TOLERANCE && p95 <= worst && mean <= worst, "{mean} {p95} {worst}");
    }

    // A program with the struct of before gets nothing beyond its end.
    let begin = std::mem::offset_of!(ice_attention_stats, rows_measured);
    let mut old = stats();
    (old.struct_size, old.rows_measured, old.measured_worst) = (begin as u32, 77, 7.5);
    ok(|e| unsafe { ice_attention(&d, null_mut(), 0, &mut old, e) });
    assert_eq!((old.struct_size as usize, old.certified, old.pairs), (begin, 0, st[1].pairs));
    assert_eq!((old.rows_measured, old.rows_exact, old.known_pairs), (77, 0, 0));
    assert_eq!((old.measured_error, old.measured_p95, old.measured_worst), (0.0, 0.0, 7.5));

    // Exact attention measures nothing.
    (d.rows_q, d.options.mode) = (8, ICE_MODE_EXACT);
    let mut exact = stats();
    ok(|e| unsafe { ice_attention(&d, null_mut(), 0, &mut exact, e) });
    assert_eq!((exact.rows_measured, exact.rows_exact, exact.known_pairs), (0, 0, 0));
    assert!([exact.measured_error, exact.measured_p95, exact.measured_worst].iter().all(|x| x.is_nan()));
}

#[test]
fn session_options_out_of_range() {
    let check = |want, words: &[&str], change: &dyn Fn(&mut ice_session_options)| {
        let mut o = session_options();
        change(&mut o);
        let mut s = null_mut();
        refused(want, words, |e| unsafe { ice_session_new(&o, &mut s, e) });
        assert!(s.is_null());
        let (mut b, mut a) = (3, 5);
        refused(want, words, |e| unsafe { ice_session_required(&o, &mut b, &mut a, e) });
        assert_eq!((b, a), (3, 5));
    };
    check(ICE_ERR_SHAPE, &["heads_kv: "], &|o| o.heads_kv = 0);
    check(ICE_ERR_SHAPE, &["heads_kv: ", "(got 3)"], &|o| o.heads_kv = 3);
    check(ICE_ERR_SHAPE, &["dim_k: "], &|o| o.dim_k = 0);
    check(ICE_ERR_ARGUMENT, &["kv_dtype: unknown enumerator"], &|o| o.kv_dtype = 3);
    check(ICE_ERR_ARGUMENT, &["mode: unknown enumerator"], &|o| o.attention.mode = -2);
    check(ICE_ERR_ARGUMENT, &["scale: "], &|o| o.attention.scale = f32::NAN);
    check(ICE_ERR_ABI, &["options: struct_size"], &|o| o.struct_size = 16);
    check(ICE_ERR_ABI, &["options.attention: struct_size"], &|o| o.attention.struct_size = 0);
}

#[test]
fn session_calls() {
    let s = new_session(&session_options());
    let (k, v) = tokens(TOKENS + 1, 40);
    let (kt, vt) = (tensor(&k), tensor(&v));
    let push = |n, ith, nth, e| unsafe { ice_session_append(s, &kt, &vt, n, ith, nth, e) };
    let commit = || unsafe { ice_session_commit(s) };
    append(s, 10, 50);
    let before = attended(s);
    let unchanged = || assert_eq!((unsafe { ice_session_len(s) }, attended(s)), (10, before.clone()));
    refused(ICE_ERR_ARGUMENT, &["ice_session_append: nth: "], |e| push(1, 0, 0, e));
    refused(ICE_ERR_ARGUMENT, &["ice_session_append: ith: ", "(got 2)"], |e| push(1, 2, 2, e));
    unchanged();
    // Unpublished tokens are not seen; a missing part takes all back.
    ok(|e| push(3, 0, 2, e));
    unchanged();
    status(ICE_ERR_STATE, commit());
    unchanged();
    // Too many tokens, a row that is no number, wrong strides: the part fails and commit takes all back.
    refused(ICE_ERR_CAPACITY, &["ice_session_append: "], |e| push(TOKENS - 9, 0, 1, e));
    commit();
    unchanged();
    let mut nan = k.clone();
    nan[2 * DIM + 1] = f32::NAN;
    refused(ICE_ERR_NOT_FINITE, &["ice_session_append: ", "(row 2)"], |e| unsafe {
        ice_session_append(s, &tensor(&nan), &vt, 4, 0, 1, e)
    });
    commit();
    unchanged();
    let odd = ice_tensor { row_stride: 3, ..kt };
    refused(ICE_ERR_STRIDE, &["ice_session_append: k"], |e| unsafe { ice_session_append(s, &odd, &vt, 4, 0, 1, e) });
    let odd = ice_tensor { dtype: 5, ..vt };
    refused(ICE_ERR_ARGUMENT, &["v.dtype"], |e| unsafe { ice_session_append(s, &kt, &odd, 4, 0, 1, e) });
    let none = ice_tensor { data: null(), ..kt };
    refused(ICE_ERR_NULL, &["k.data"], |e| unsafe { ice_session_append(s, &none, &vt, 4, 0, 1, e) });
    // What fails before any head is reached counts as well: the first failure is named, what came before it is taken back.
    status(ICE_ERR_STRIDE, commit());
    unchanged();
    ok(|e| push(2, 0, 1, e));
    refused(ICE_ERR_NULL, &["k.data"], |e| unsafe { ice_session_append(s, &none, &vt, 4, 0, 1, e) });
    status(ICE_ERR_NULL, commit());
    unchanged();
    ok(|e| unsafe { ice_session_append(s, &none, &none, 0, 0, 1, e) });
    status(ICE_OK, commit());
    unchanged();
    // Ranges that are not there.
    unsafe {
        status(ICE_ERR_ARGUMENT, ice_session_truncate(s, 11));
        status(ICE_ERR_ARGUMENT, ice_session_remove_range(s, 5, 11));
        status(ICE_ERR_ARGUMENT, ice_session_remove_range(s, 6, 5));
        unchanged();
        status(ICE_OK, ice_session_truncate(s, 10));
        status(ICE_OK, ice_session_remove_range(s, 10, 10));
        unchanged();
    }
    attend_misuse(s);
    unchanged();
    // More parts than heads, in any order, give the same tokens as one part.
    let twin = new_session(&session_options());
    append(twin, 10, 50);
    append(twin, TOKENS - 10, 60);
    let (k, v) = tokens(TOKENS - 10, 60);
    for ith in [4, 0, 3, 1, 2] {
        let (k, v) = (tensor(&k), tensor(&v));
        ok(|e| unsafe { ice_session_append(s, &k, &v, TOKENS - 10, ith, 5, e) });
    }
    status(ICE_OK, commit());
    assert_eq!(attended(s), attended(twin));
    unsafe {
        ice_session_free(twin);
        ice_session_free(s);
    }
}

fn attend_misuse(s: *const ice_session) {
    let q = numbers(2 * HEADS_Q * DIM, 70);
    let mut out = vec![7.0; 2 * HEADS_Q * DIM_V];
    let mut run = |want, words: &[&str], q: &[f32], change: &dyn Fn(&mut Attend)| {
        let mut a = Attend { q: tensor(q), out: tensor_mut(&mut out), mask: mask(), ith: 0, nth: 1 };
        change(&mut a);
        refused(want, words, |e| unsafe {
            ice_session_attend(s, &a.q, 2, &a.mask, &a.out, null_mut(), null_mut(), 0, a.ith, a.nth, null_mut(), e)
        });
        assert!(out.iter().all(|&x| x == 7.0));
    };
    run(ICE_ERR_ARGUMENT, &["ice_session_attend: nth: "], &q, &|a| a.nth = 0);
    run(ICE_ERR_ARGUMENT, &["ice_session_attend: ith: ", "(got 1)"], &q, &|a| a.ith = 1);
    run(ICE_ERR_STRIDE, &["q"], &q, &|a| a.q.head_stride = 2);
    run(ICE_ERR_NULL, &["q.data"], &q, &|a| a.q.data = null());
    run(ICE_ERR_NULL, &["out.data"], &q, &|a| a.out.data = null_mut());
    run(ICE_ERR_STRIDE, &["out: rows overlap"], &q, &|a| a.out.head_stride = 4);
    run(ICE_ERR_ARGUMENT, &["mask.kind"], &q, &|a| a.mask.kind = 9);
    run(ICE_ERR_ABI, &["mask: struct_size"], &q, &|a| a.mask.struct_size = 3);
    let mut bad = q.clone();
    bad[DIM] = f32::NAN;
    run(ICE_ERR_NOT_FINITE, &["ice_session_attend: q: ", "(row 1)"], &bad, &|_| ());
}

struct Attend {
    q: ice_tensor,
    out: ice_tensor_mut,
    mask: ice_mask,
    ith: u32,
    nth: u32,
}
