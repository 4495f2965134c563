//! Calls that look right and used to do something else.
// Every unsafe block here calls the border with live fixtures.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use iceformer::*;
use std::ptr::{null, null_mut};

fn attend(d: &ice_attention_desc) {
    ok(|e| unsafe { ice_attention(d, null_mut(), 0, null_mut(), e) });
}

/// Fewer rows than keys and no position given: the rows are the last ones, as in a session.
#[test]
fn causal_rows_are_the_last_ones_unless_they_are_placed() {
    for mode in [ICE_MODE_EXACT, ICE_MODE_AUTO, ICE_MODE_TOP_K] {
        let out = |change: &dyn Fn(&mut ice_mask)| {
            let mut heads = Heads::new();
            let mut d = heads.desc();
            (d.options.mode, d.options.top_k) = (mode, 3);
            change(&mut d.mask);
            attend(&d);
            heads.out
        };
        let given = |q_pos0| out(&|m| (m.kind, m.q_pos0) = (ICE_MASK_CAUSAL, q_pos0));
        let last = (ROWS_KV - ROWS_Q) as u64;
        let not_given = out(&|m| m.kind = ICE_MASK_CAUSAL);
        assert_eq!(not_given, given(last));
        assert_eq!(not_given, given(ICE_POSITION_LAST));
        // A position of 0 is one.
        assert_ne!(not_given, given(0));
    }
    // More rows than keys: row 0 stands at key 0, as before.
    let out = |q_pos0: Option<u64>| {
        let mut heads = Heads::new();
        let mut d = heads.desc();
        (d.rows_kv, d.mask.kind) = (3, ICE_MASK_CAUSAL);
        d.mask.q_pos0 = q_pos0.unwrap_or(d.mask.q_pos0);
        attend(&d);
        heads.out
    };
    assert_eq!(out(None), out(Some(0)));
    // With padding the rows stand there, too.
    let keep = [1u8; ROWS_KV];
    let padded = |change: &dyn Fn(&mut ice_mask)| {
        let mut heads = Heads::new();
        let mut d = heads.desc();
        (d.mask.kind, d.mask.keys, d.mask.keys_len) = (ICE_MASK_CAUSAL_KEYS, keep.as_ptr(), ROWS_KV);
        change(&mut d.mask);
        attend(&d);
        heads.out
    };
    assert_eq!(padded(&|_| ()), padded(&|m| m.q_pos0 = (ROWS_KV - ROWS_Q) as u64));
    assert_ne!(padded(&|_| ()), padded(&|m| m.q_pos0 = 0));
    // A session's mask and its default are the same.
    let s = new_session(&session_options());
    append(s, 9, 4);
    let q = numbers(HEADS_Q * 2 * DIM, 8);
    let attended = |m: *const ice_mask| {
        let mut out = vec![7.0; HEADS_Q * 2 * DIM_V];
        let to = tensor_mut(&mut out);
        ok(|e| unsafe {
            ice_session_attend(s, &tensor(&q), 2, m, &to, null_mut(), null_mut(), 0, 0, 1, null_mut(), e)
        });
        out
    };
    let causal = ice_mask { kind: ICE_MASK_CAUSAL, ..mask() };
    assert_eq!(attended(&causal), attended(null()));
    unsafe { ice_session_free(s) };
}

/// A batch of prompts padded on the left: each prompt as if it were alone.
#[test]
fn causal_rows_over_padded_keys() {
    let (n, lengths) = (ROWS_KV, [7usize, 4, 1]);
    let (batch, dim) = (lengths.len(), DIM);
    let (q, k) = (numbers(batch * n * dim, 1), numbers(batch * n * dim, 2));
    let v = numbers(batch * n * dim, 3);
    let keep: Vec<u8> = lengths.iter().flat_map(|&l| (0..n).map(move |j| u8::from(j >= n - l))).collect();
    for mode in [ICE_MODE_EXACT, ICE_MODE_AUTO, ICE_MODE_ACCELERATED] {
        let mut d: ice_attention_desc = made(|p| unsafe { ice_attention_desc_init(p) });
        (d.dim_k, d.rows_q, d.rows_kv, d.options.mode) = (dim as u32, n, n, mode);
        let one = d;
        let (mut out, mut lse) = (vec![7.0; batch * n * dim], vec![7.0; batch * n]);
        d.batch = batch as u32;
        (d.q, d.k, d.v, d.out, d.lse) = (tensor(&q), tensor(&k), tensor(&v), tensor_mut(&mut out), lse.as_mut_ptr());
        (d.mask.kind, d.mask.keys, d.mask.keys_len) = (ICE_MASK_CAUSAL_KEYS, keep.as_ptr(), keep.len());
        attend(&d);
        for (b, &l) in lengths.iter().enumerate() {
            let first = (b * n + n - l) * dim;
            let (mut alone, mut d) = (vec![7.0; l * dim], one);
            (d.rows_q, d.rows_kv, d.mask.kind) = (l, l, ICE_MASK_CAUSAL);
            (d.q, d.k, d.v) = (tensor(&q[first..]), tensor(&k[first..]), tensor(&v[first..]));
            d.out = tensor_mut(&mut alone);
            attend(&d);
            for (a, b) in alone.iter().zip(&out[first..]) {
                assert!((a - b).abs() < 1e-5, "mode {mode}: {a} {b}");
            }
            // Rows of padding see nothing.
            let padding = b * n..b * n + n - l;
            assert!(lse[padding.clone()].iter().all(|&x| x == f32::NEG_INFINITY));
            assert!(out[padding.start * dim..padding.end * dim].iter().all(|&x| x == 0.0));
        }
    }
    let mut heads = Heads::new();
    let mut d = heads.desc();
    (d.mask.kind, d.mask.keys, d.mask.keys_len) = (ICE_MASK_CAUSAL_KEYS, keep.as_ptr(), ROWS_KV - 1);
    refused(ICE_ERR_SHAPE, &["mask.keys: "], |e| unsafe { ice_attention(&d, null_mut(), 0, null_mut(), e) });
}

#[test]
fn outputs_over_inputs_are_refused() {
    let mut heads = Heads::new();
    let mut room = numbers(4096, 5);
    let room = room.as_mut_ptr();
    let base = heads.desc();
    let refuse = |field: &str, d: &ice_attention_desc| {
        let word = format!("ice_attention: {field}: overlaps");
        refused(ICE_ERR_ARGUMENT, &[&word], |e| unsafe { ice_attention(d, null_mut(), 0, null_mut(), e) });
    };
    let within = |at: usize| room.wrapping_add(at);
    let same = |d: &mut ice_attention_desc, at: usize| d.out.data = within(at).cast();
    for input in 0..3 {
        for (at, overlaps) in [(0, true), (50, true), (3000, false)] {
            let mut d = base;
            let t = [&mut d.q, &mut d.k, &mut d.v];
            t.into_iter().nth(input).unwrap().data = within(0).cast();
            same(&mut d, at);
            if overlaps { refuse("out", &d) } else { attend(&d) }
        }
    }
    // Log-sum-exps over queries, and over outputs; a bias; bytes of a mask.
    let mut d = base;
    (d.q.data, d.lse) = (within(0).cast(), within(3));
    refuse("lse", &d);
    (d.out.data, d.lse, d.q) = (within(1000).cast(), within(1001), base.q);
    refuse("lse", &d);
    let mut d = base;
    (d.mask.kind, d.mask.bias) = (ICE_MASK_ADDITIVE, ice_tensor { data: room.cast(), ..tensor(&[]) });
    same(&mut d, 20);
    refuse("out", &d);
    // Biases of more heads than there are: refused at once, whatever their number.
    (d.mask.bias_batch, d.mask.bias_heads) = (u32::MAX, u32::MAX);
    (d.mask.bias.row_stride, d.mask.bias.head_stride, d.mask.bias.batch_stride) = (4 * ROWS_KV, 4, 4);
    same(&mut d, 2000);
    refused(ICE_ERR_SHAPE, &["mask.bias"], |e| unsafe { ice_attention(&d, null_mut(), 0, null_mut(), e) });
    let mut d = base;
    (d.mask.kind, d.mask.keys, d.mask.keys_len) = (ICE_MASK_KEYS, within(0).cast(), ROWS_KV);
    same(&mut d, 1);
    refuse("out", &d);
    // Side by side in one buffer they do not overlap.
    let mut d = base;
    (d.heads_q, d.heads_kv, d.dim_v, d.lse) = (1, 1, DIM as u32, null_mut());
    let stride = 4 * DIM * size_of::<f32>();
    for (i, t) in [&mut d.q, &mut d.k, &mut d.v].into_iter().enumerate() {
        (t.data, t.row_stride) = (within(i * DIM).cast(), stride);
    }
    (d.out.data, d.out.row_stride) = (within(3 * DIM).cast(), stride);
    attend(&d);
    d.out.data = within(3 * DIM - 1).cast();
    refuse("out", &d);

    // Sessions, indices, merging.
    let s = new_session(&session_options());
    append(s, 9, 4);
    let q = ice_tensor { data: room.cast(), ..tensor(&[]) };
    let attend_over = |at: usize, lse: usize| {
        let out = ice_tensor_mut { data: within(at).cast(), ..tensor_mut(&mut []) };
        let mut e = error();
        let lse = within(lse);
        let got = unsafe { ice_session_attend(s, &q, 1, null(), &out, lse, null_mut(), 0, 0, 1, null_mut(), &mut e) };
        (got, message(&e))
    };
    assert_eq!(attend_over(1000, 2000).0, ICE_OK);
    assert!(attend_over(1, 2000).1.contains("out: overlaps") && attend_over(1000, 1003).1.contains("lse: overlaps"));
    unsafe { ice_session_free(s) };
    let ix = full_index(&index_options());
    let values = numbers(KEYS * DIM_V, 4);
    let over = |out: usize, lse: usize| unsafe {
        let (v, none) = (tensor(&values), null_mut());
        let to = (within(out), within(lse));
        ice_index_attention(ix, none, within(0), 2, &v, DIM_V as u32, null(), null(), to.0, to.1, null_mut())
    };
    assert_eq!([over(1000, 2000), over(3, 2000), over(1000, 5)], [ICE_OK, ICE_ERR_ARGUMENT, ICE_ERR_ARGUMENT]);
    unsafe { ice_index_free(ix) };
    let merge =
        |a: usize, b: usize| unsafe { ice_attention_merge(within(a), within(b), within(100), within(200), 3, 4) };
    assert_eq!(
        [merge(0, 50), merge(90, 50), merge(0, 201), merge(0, 3)],
        [ICE_OK, ICE_ERR_ARGUMENT, ICE_ERR_ARGUMENT, ICE_ERR_ARGUMENT]
    );
}

#[test]
fn a_part_is_appended_once_before_a_commit() {
    let (s, twin) = (new_session(&session_options()), new_session(&session_options()));
    let (k, v) = tokens(2, 5);
    let push = |ith, e| unsafe { ice_session_append(s, &tensor(&k), &tensor(&v), 2, ith, 2, e) };
    ok(|e| push(0, e));
    refused(ICE_ERR_STATE, &["ice_session_append: session: this part was appended already"], |e| push(0, e));
    ok(|e| push(1, e));
    refused(ICE_ERR_STATE, &["already"], |e| push(1, e));
    // A part that there is not touches none.
    refused(ICE_ERR_ARGUMENT, &["ith"], |e| push(2, e));
    // What was appended once is kept.
    ok(|e| unsafe { ice_session_commit_err(s, e) });
    append(twin, 2, 5);
    assert!(attended(s) == attended(twin) && unsafe { ice_session_len(s) } == 2);
    ok(|e| push(0, e));
    refused(ICE_ERR_STATE, &["ice_session_commit_err: append: heads hold different numbers of rows"], |e| unsafe {
        ice_session_commit_err(s, e)
    });
    assert_eq!(attended(s), attended(twin));
    unsafe {
        ice_session_free(s);
        ice_session_free(twin);
    }
}

/// A report of zeros that nobody initialised gets its message.
#[test]
fn zeros_are_a_report() {
    let mut e = ice_error { struct_size: 0, status: 0, message: [0; 240] };
    let mut ix = null_mut();
    let got = unsafe { ice_index_new(null(), &mut ix, &mut e) };
    assert_eq!((got, e.status, e.struct_size as usize), (ICE_ERR_NULL, ICE_ERR_NULL, size_of::<ice_error>()));
    assert_eq!(message(&e), "ice_index_new: options: is NULL");
}

#[test]
fn exclusive_calls_report() {
    let s = new_session(&session_options());
    append(s, 9, 4);
    refused(ICE_ERR_ARGUMENT, &["ice_session_truncate_err: len: ", "(need 10, have 9)"], |e| unsafe {
        ice_session_truncate_err(s, 10, e)
    });
    refused(ICE_ERR_ARGUMENT, &["ice_session_remove_range_err: end: "], |e| unsafe {
        ice_session_remove_range_err(s, 3, 10, e)
    });
    let mut small = [0u8; 10];
    refused(ICE_ERR_BUFFER, &["ice_session_save_err: buf: "], |e| unsafe {
        ice_session_save_err(s, small.as_mut_ptr().cast(), 10, null_mut(), e)
    });
    let (mut k, v) = tokens(3, 5);
    k[2 * DIM] = f32::NAN;
    refused(ICE_ERR_NOT_FINITE, &[], |e| unsafe { ice_session_append(s, &tensor(&k), &tensor(&v), 3, 0, 1, e) });
    refused(ICE_ERR_NOT_FINITE, &["ice_session_commit_err: k: ", "(row 2)"], |e| unsafe {
        ice_session_commit_err(s, e)
    });
    assert_eq!(unsafe { ice_session_len(s) }, 9);
    ok(|e| unsafe { ice_session_truncate_err(s, 8, e) });
    ok(|e| unsafe { ice_session_remove_range_err(s, 3, 5, e) });
    assert_eq!(unsafe { ice_session_len(s) }, 6);
    ok(|e| unsafe { ice_session_reset_err(s, e) });
    assert_eq!(unsafe { ice_session_len(s) }, 0);
    unsafe { ice_session_free(s) };
}

#[test]
fn exclusive_calls_of_an_index_report() {
    const KEYS: usize = 3;
    let mut o: ice_index_options = made(|p| unsafe { ice_index_options_init(p, DIM as u32) });
    (o.capacity, o.flags, o.engine) = (KEYS, ICE_INDEX_FIXED_CAPACITY, ICE_ENGINE_CELLS);
    let mut ix = null_mut();
    ok(|e| unsafe { ice_index_new(&o, &mut ix, e) });
    let keys = numbers(KEYS * DIM, 3);
    ok(|e| unsafe { ice_index_insert(ix, keys.as_ptr(), KEYS, null(), e) });
    refused(ICE_ERR_CAPACITY, &["ice_index_reserve_err: ", "(need 4, have 3)"], |e| unsafe {
        ice_index_reserve_err(ix, KEYS + 1, e)
    });
    refused(ICE_ERR_NOT_FOUND, &["ice_index_remove_err: ids: ", "(id 9)"], |e| unsafe {
        ice_index_remove_err(ix, [0u64, 9].as_ptr(), 2, null_mut(), e)
    });
    refused(ICE_ERR_ARGUMENT, &["ice_index_fit_err: "], |e| unsafe { ice_index_fit_err(ix, keys.as_ptr(), 1, e) });
    let mut small = [0u8; 10];
    refused(ICE_ERR_BUFFER, &["ice_index_save_err: buf: ", "have 10)"], |e| unsafe {
        ice_index_save_err(ix, small.as_mut_ptr().cast(), 10, null_mut(), e)
    });
    refused(ICE_ERR_NULL, &["ice_index_clear_err: "], |e| unsafe { ice_index_clear_err(null_mut(), e) });
    assert_eq!(unsafe { ice_index_len(ix) }, KEYS);
    ok(|e| unsafe { ice_index_reserve_err(ix, KEYS, e) });
    ok(|e| unsafe { ice_index_remove_err(ix, [1u64].as_ptr(), 1, null_mut(), e) });
    assert_eq!(unsafe { ice_index_len(ix) }, KEYS - 1);
    let mut needed = 0;
    ok(|e| unsafe { ice_index_save_err(ix, null_mut(), 0, &mut needed, e) });
    let mut plain = 0;
    assert_eq!((unsafe { ice_index_save(ix, null_mut(), 0, &mut plain) }, plain), (ICE_OK, needed));
    ok(|e| unsafe { ice_index_fit_err(ix, null(), 0, e) });
    ok(|e| unsafe { ice_index_clear_err(ix, e) });
    assert_eq!(unsafe { ice_index_len(ix) }, 0);
    unsafe { ice_index_free(ix) };
}
