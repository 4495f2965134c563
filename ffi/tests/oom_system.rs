//! Each allocation of the system's allocator failing in turn, for the calls that take their memory there: status returned,
//! outputs as they were, nothing leaked, and the same call works afterwards. A program of its own: it replaces the allocator.
// Every unsafe block here calls the border with live fixtures, or is the allocator, which passes on to the system's.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use iceformer::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::{null, null_mut};

struct Failing;

thread_local! {
    /// Blocks this thread still gets; `None`: any number.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    /// Blocks and bytes this thread took and has not given back.
    static LIVE: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(left) = LEFT.get() {
            if left == 0 {
                return null_mut();
            }
            LEFT.set(Some(left - 1));
        }
        let (blocks, bytes) = LIVE.get();
        LIVE.set((blocks + 1, bytes + layout.size() as isize));
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        let (blocks, bytes) = LIVE.get();
        LIVE.set((blocks - 1, bytes - layout.size() as isize));
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;

/// Repeats `call` with no memory after 0, 1, 2, ... blocks until it has enough; says how many it needed. Calls that grow an
/// object may keep what a refused attempt got.
fn each(what: &str, mut call: impl FnMut(*mut ice_error) -> ice_status, unchanged: impl Fn() -> bool) -> usize {
    for i in 0..1000 {
        let mut e = error();
        let before = LIVE.get();
        LEFT.set(Some(i));
        let status = call(&mut e);
        LEFT.set(None);
        if status == ICE_OK {
            return i;
        }
        assert_eq!(name(status), "ICE_ERR_NO_MEMORY", "{what}, allocation {i}: {}", message(&e));
        let grows = ["ice_index_reserve", "ice_index_insert"].contains(&what);
        assert!(grows || LIVE.get() == before, "{what} leaked after allocation {i}: {:?} for {before:?}", LIVE.get());
        assert!(unchanged(), "{what} wrote to its outputs after allocation {i}");
    }
    panic!("{what} never ends");
}

const LONG: usize = 1200;

#[test]
fn attention_and_its_probe() {
    for (mode, keys) in
        [(ICE_MODE_EXACT, ROWS_KV), (ICE_MODE_TOP_K, ROWS_KV), (ICE_MODE_ACCELERATED, LONG), (ICE_MODE_AUTO, 2 * LONG)]
    {
        let (k, v) = (numbers(HEADS_KV * keys * DIM, 3), numbers(HEADS_KV * keys * DIM_V, 4));
        let mut heads = Heads::new();
        let outputs: *const Heads = &heads;
        let mut d = heads.desc();
        (d.rows_kv, d.k, d.v, d.options.mode, d.options.top_k) = (keys, tensor(&k), tensor(&v), mode, 3);
        let needed = each(
            "ice_attention",
            |e| unsafe { ice_attention(&d, null_mut(), 0, null_mut(), e) },
            || unsafe { (*outputs).untouched() },
        );
        assert!(needed > 0);
        let first = (heads.out.clone(), heads.lse.clone());
        ok(|e| unsafe { ice_attention(&d, null_mut(), 0, null_mut(), e) });
        assert_eq!((&heads.out, &heads.lse), (&first.0, &first.1));
        let mut mass = [7.0f32; HEADS_Q];
        let p = mass.as_mut_ptr();
        let needed = each(
            "ice_attention_sparsity",
            |e| unsafe { ice_attention_sparsity(&d, 2, 3, p, e) },
            || unsafe { p.read() == 7.0 },
        );
        assert!(needed > 0 && mass.iter().all(|m| (0.0..=1.0).contains(m)));
    }
}

#[test]
fn objects_without_an_allocator() {
    let keys = numbers(KEYS * DIM, 1);
    for levels in [1, 3] {
        let before = LIVE.get();
        let mut o = index_options();
        o.levels = levels;
        let mut ix = null_mut();
        each("ice_index_new", |e| unsafe { ice_index_new(&o, &mut ix, e) }, || true);
        each("ice_index_reserve", |_| unsafe { ice_index_reserve(ix, KEYS) }, || true);
        let len = || unsafe { ice_index_len(ix) };
        each("ice_index_insert", |e| unsafe { ice_index_insert(ix, keys.as_ptr(), KEYS, null(), e) }, || len() == 0);
        let answer = answers(ix);
        let (q, qo, mut out) = (numbers(DIM, 99), query_options(), [no_answer(); K]);
        let p = out.as_mut_ptr();
        for f in [ice_index_query, ice_index_query_exact] {
            unsafe { p.write(no_answer()) };
            each(
                "ice_index_query",
                |e| unsafe { f(ix, null_mut(), q.as_ptr(), 1, &qo, p, null_mut(), e) },
                || unsafe { p.read().id == no_answer().id },
            );
        }
        let mut sc = null_mut();
        each("ice_scratch_new", |e| unsafe { ice_scratch_new(ix, &mut sc, e) }, || true);
        let (mut bytes, mut len) = (vec![0u8; 1 << 16], 0);
        LEFT.set(Some(0));
        let saved = unsafe { ice_index_save(ix, bytes.as_mut_ptr().cast(), bytes.len(), &mut len) };
        LEFT.set(None);
        status(ICE_OK, saved);
        let mut copy = null_mut();
        let from = bytes.as_ptr().cast();
        each("ice_index_load", |e| unsafe { ice_index_load(from, len, null(), &mut copy, e) }, || true);
        assert_eq!((answers(copy), answers(ix)), (answer.clone(), answer));
        drop(q);
        unsafe {
            ice_scratch_free(sc);
            ice_index_free(copy);
            ice_index_free(ix);
        }
        drop(bytes);
        assert_eq!(LIVE.get(), before, "leaked");
    }
}

#[test]
fn sessions_without_an_allocator_or_work() {
    for (mode, tokens) in [(ICE_MODE_EXACT, TOKENS), (ICE_MODE_TOP_K, TOKENS), (ICE_MODE_ACCELERATED, LONG)] {
        let mut o = session_options();
        (o.attention.mode, o.attention.top_k, o.capacity) = (mode, 4, tokens);
        let mut s = null_mut();
        each("ice_session_new", |e| unsafe { ice_session_new(&o, &mut s, e) }, || true);
        append(s, tokens, 30);
        let q = numbers(HEADS_Q * DIM, 98);
        let mut out = vec![7.0f32; HEADS_Q * DIM_V];
        let (t, to, p) = (tensor(&q), tensor_mut(&mut out), out.as_ptr());
        let attend =
            |e| unsafe { ice_session_attend(s, &t, 1, null(), &to, null_mut(), null_mut(), 0, 0, 1, null_mut(), e) };
        let needed = each("ice_session_attend", attend, || unsafe { p.read() == 7.0 });
        assert!(needed > 0);
        let mut len = 0;
        status(ICE_OK, unsafe { ice_session_save(s, null_mut(), 0, &mut len) });
        let mut bytes = vec![0u8; len];
        status(ICE_OK, unsafe { ice_session_save(s, bytes.as_mut_ptr().cast(), len, null_mut()) });
        let (mut copy, from) = (null_mut(), bytes.as_ptr().cast());
        each("ice_session_load", |e| unsafe { ice_session_load(from, len, null(), &mut copy, e) }, || true);
        assert_eq!(attended(copy), attended(s));
        unsafe {
            ice_session_free(copy);
            ice_session_free(s);
        }
    }
}
