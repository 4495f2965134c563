//! The thread classes of the header: shared calls from several threads, partitioned calls by several parts at once.
// Every unsafe block here calls the border with live fixtures, from as many threads as its class allows.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use iceformer::*;
use std::ptr::{null, null_mut};
use std::thread;

/// A pointer that the header allows to be used from another thread.
struct Across<T>(*mut T);

impl<T> Clone for Across<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Across<T> {}

// SAFETY: the tests keep to the thread class of what they pass.
unsafe impl<T> Send for Across<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Across<T> {}

impl<T> Across<T> {
    fn get(&self) -> *mut T {
        self.0
    }
}

#[test]
fn shared_queries() {
    let counter = Counter::default();
    let hooks = counter.hooks();
    let mut o = index_options();
    (o.allocator, o.levels) = (&hooks, 2);
    let ix = full_index(&o);
    let (want, before) = (answers(ix), (counter.live(), counter.live_bytes()));
    let shared = Across(ix);
    thread::scope(|scope| {
        for own_scratch in [false, true, false, true] {
            let want = &want;
            scope.spawn(move || {
                let ix = shared.get().cast_const();
                let mut sc = null_mut();
                if own_scratch {
                    ok(|e| unsafe { ice_scratch_new(ix, &mut sc, e) });
                }
                let (q, mut qo) = (numbers(DIM, 99), query_options());
                (qo.retrieve_fraction, qo.visit_fraction, qo.field_of_view) = (1.0, 1.0, u32::MAX);
                for _ in 0..50 {
                    let (mut out, mut n) = ([no_answer(); K], 0);
                    let out_ptr = out.as_mut_ptr();
                    ok(|e| unsafe { ice_index_query(ix, sc, q.as_ptr(), 1, &qo, out_ptr, &mut n, e) });
                    assert_eq!(out.map(|a| (a.id, a.score.to_bits())).to_vec(), *want);
                }
                unsafe { ice_scratch_free(sc) };
            });
        }
    });
    // Temporaries are not counted as the index's own, not even for a moment.
    let mut r = memory();
    status(ICE_OK, unsafe { ice_index_memory(ix, &mut r) });
    assert_eq!(((counter.live(), counter.live_bytes()), r.used), (before, before.1));
    unsafe { ice_index_free(ix) };
    assert_eq!(counter.live(), 0);
}

#[test]
fn partitioned_session() {
    for (mode, nth, size) in [
        (ICE_MODE_EXACT, 2, 1),
        (ICE_MODE_EXACT, 5, 1),
        (ICE_MODE_TOP_K, 2, 1),
        (ICE_MODE_TOP_K, 3, 1),
        (ICE_MODE_ACCELERATED, 2, 60),
        (ICE_MODE_ACCELERATED, 5, 60),
    ] {
        let mut o = session_options();
        (o.attention.mode, o.attention.top_k, o.capacity) = (mode, 4, size * TOKENS);
        let (one, many) = (new_session(&o), new_session(&o));
        let shared = Across(many);
        for (round, n) in [9, 1, 5].into_iter().enumerate() {
            let (n, seed) = (n * size, 80 + 10 * round as u64);
            append(one, n, seed);
            let (k, v) = tokens(n, seed);
            thread::scope(|scope| {
                for ith in 0..nth {
                    let (k, v) = (&k, &v);
                    scope.spawn(move || {
                        let s = shared.get();
                        ok(|e| unsafe { ice_session_append(s, &tensor(k), &tensor(v), n, ith, nth, e) });
                    });
                }
            });
            status(ICE_OK, unsafe { ice_session_commit(many) });
            assert_eq!(unsafe { ice_session_len(many) }, unsafe { ice_session_len(one) });
            assert_eq!(attend_by(many, nth), attend_by(one, 1));
        }
        unsafe {
            ice_session_free(one);
            ice_session_free(many);
        }
    }
}

/// Output and log-sum-exp of three rows, computed by `nth` threads at once in one piece of work memory.
fn attend_by(s: *mut ice_session, nth: u32) -> Vec<u32> {
    const ROWS: usize = 3;
    let q = numbers(HEADS_Q * ROWS * DIM, 70);
    let (mut out, mut lse) = (vec![7.0; HEADS_Q * ROWS * DIM_V], vec![7.0; HEADS_Q * ROWS]);
    let (mut bytes, mut align) = (0, 0);
    status(ICE_OK, unsafe { ice_session_work_required(s, ROWS, nth, &mut bytes, &mut align) });
    let mut work = Guarded::new(bytes);
    let (shared, mem) = (Across(s), Across(work.ptr()));
    let (out_data, lse_data) = (Across(out.as_mut_ptr()), Across(lse.as_mut_ptr()));
    thread::scope(|scope| {
        for ith in 0..nth {
            let q = &q;
            scope.spawn(move || {
                let out = ice_tensor_mut { data: out_data.get().cast(), ..tensor_mut(&mut []) };
                let (s, lse, mem) = (shared.get().cast_const(), lse_data.get(), mem.get());
                ok(|e| unsafe {
                    let q = tensor(q);
                    ice_session_attend(s, &q, ROWS, null(), &out, lse, mem, bytes, ith, nth, null_mut(), e)
                });
            });
        }
    });
    assert!(work.intact());
    out.iter().chain(&lse).map(|x| x.to_bits()).collect()
}
