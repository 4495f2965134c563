//! Fixtures of the border tests: small valid calls, failing allocators, guarded memory.
#![allow(dead_code, unreachable_pub)]
// Every unsafe block calls the border with live fixtures.
#![allow(clippy::undocumented_unsafe_blocks)]

use iceformer::*;
use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::Mutex;

/// A struct filled by its init function.
pub fn made<T>(init: impl FnOnce(*mut T)) -> T {
    let mut x = MaybeUninit::<T>::zeroed();
    init(x.as_mut_ptr());
    // SAFETY: every struct of the header is plain numbers and pointers; all-zero is valid before `init`.
    unsafe { x.assume_init() }
}

pub fn error() -> ice_error {
    made(|p| unsafe { ice_error_init(p) })
}

pub fn message(e: &ice_error) -> String {
    unsafe { CStr::from_ptr(e.message.as_ptr()) }.to_str().expect("ASCII").to_string()
}

pub fn name(status: ice_status) -> &'static str {
    unsafe { CStr::from_ptr(ice_status_name(status)) }.to_str().expect("ASCII")
}

/// Runs a call with a fresh report and wants this status and these words in the message.
#[track_caller]
pub fn refused(want: ice_status, words: &[&str], call: impl FnOnce(*mut ice_error) -> ice_status) {
    let mut e = error();
    let got = call(&mut e);
    let text = message(&e);
    assert_eq!(name(got), name(want), "{text}");
    assert_eq!(e.status, got);
    for w in words {
        assert!(text.contains(w), "{w:?} is not in {text:?}");
    }
}

/// Runs a call that must succeed.
#[track_caller]
pub fn ok(call: impl FnOnce(*mut ice_error) -> ice_status) {
    refused(ICE_OK, &[], call);
}

/// Wants this plain status.
#[track_caller]
pub fn status(want: ice_status, got: ice_status) {
    assert_eq!(name(got), name(want));
}

/// Small numbers from a seed, the same everywhere.
pub fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

pub const DIM: usize = 8;
pub const KEYS: usize = 40;
pub const K: usize = 3;

pub fn index_options() -> ice_index_options {
    made(|p| unsafe { ice_index_options_init(p, DIM as u32) })
}

pub fn query_options() -> ice_query_options {
    made(|p| unsafe { ice_query_options_init(p, K as u32) })
}

pub fn attention_options() -> ice_attention_options {
    made(|p| unsafe { ice_attention_options_init(p) })
}

pub fn mask() -> ice_mask {
    made(|p| unsafe { ice_mask_init(p) })
}

pub fn stats() -> ice_attention_stats {
    made(|p| unsafe { ice_attention_stats_init_sized(p, size_of::<ice_attention_stats>()) })
}

pub fn memory() -> ice_memory {
    made(|p| unsafe { ice_memory_init(p) })
}

#[track_caller]
pub fn new_index(o: &ice_index_options) -> *mut ice_index {
    let mut ix = null_mut();
    ok(|e| unsafe { ice_index_new(o, &mut ix, e) });
    assert!(!ix.is_null());
    ix
}

/// An index with ids 0..KEYS.
#[track_caller]
pub fn full_index(o: &ice_index_options) -> *mut ice_index {
    let ix = new_index(o);
    let keys = numbers(KEYS * DIM, 1);
    ok(|e| unsafe { ice_index_insert(ix, keys.as_ptr(), KEYS, null(), e) });
    ix
}

pub fn no_answer() -> ice_neighbor {
    ice_neighbor { id: 777, score: 7.0 }
}

/// The exact answers to one fixed query: how tests see that an index still works and has not changed.
#[track_caller]
pub fn answers(ix: *const ice_index) -> Vec<(u64, u32)> {
    let (q, qo) = (numbers(DIM, 99), query_options());
    let (mut out, mut n) = ([no_answer(); K], 0);
    ok(|e| unsafe { ice_index_query_exact(ix, null_mut(), q.as_ptr(), 1, &qo, out.as_mut_ptr(), &mut n, e) });
    assert!(n as usize <= K);
    out[..n as usize].iter().map(|a| (a.id, a.score.to_bits())).collect()
}

pub const HEADS_Q: usize = 4;
pub const HEADS_KV: usize = 2;
pub const ROWS_Q: usize = 5;
pub const ROWS_KV: usize = 7;
pub const DIM_V: usize = 6;

pub fn tensor(data: &[f32]) -> ice_tensor {
    ice_tensor { data: data.as_ptr().cast(), dtype: ICE_F32, row_stride: 0, head_stride: 0, batch_stride: 0 }
}

pub fn tensor_mut(data: &mut [f32]) -> ice_tensor_mut {
    ice_tensor_mut { data: data.as_mut_ptr().cast(), dtype: ICE_F32, row_stride: 0, head_stride: 0, batch_stride: 0 }
}

/// Buffers of one attention call.
pub struct Heads {
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    pub out: Vec<f32>,
    pub lse: Vec<f32>,
}

impl Heads {
    pub fn new() -> Heads {
        Heads {
            q: numbers(HEADS_Q * ROWS_Q * DIM, 2),
            k: numbers(HEADS_KV * ROWS_KV * DIM, 3),
            v: numbers(HEADS_KV * ROWS_KV * DIM_V, 4),
            out: vec![7.0; HEADS_Q * ROWS_Q * DIM_V],
            lse: vec![7.0; HEADS_Q * ROWS_Q],
        }
    }

    pub fn desc(&mut self) -> ice_attention_desc {
        let mut d: ice_attention_desc = made(|p| unsafe { ice_attention_desc_init(p) });
        (d.batch, d.heads_q, d.heads_kv) = (1, HEADS_Q as u32, HEADS_KV as u32);
        (d.dim_k, d.dim_v) = (DIM as u32, DIM_V as u32);
        (d.rows_q, d.rows_kv) = (ROWS_Q, ROWS_KV);
        (d.q, d.k, d.v) = (tensor(&self.q), tensor(&self.k), tensor(&self.v));
        d.out = tensor_mut(&mut self.out);
        d.lse = self.lse.as_mut_ptr();
        d
    }

    pub fn untouched(&self) -> bool {
        self.out.iter().chain(&self.lse).all(|&x| x == 7.0)
    }
}

pub const TOKENS: usize = 24;

pub fn session_options() -> ice_session_options {
    let mut o: ice_session_options = made(|p| unsafe { ice_session_options_init(p) });
    (o.heads_q, o.heads_kv) = (HEADS_Q as u32, HEADS_KV as u32);
    (o.dim_k, o.dim_v, o.capacity) = (DIM as u32, DIM_V as u32, TOKENS);
    o
}

#[track_caller]
pub fn new_session(o: &ice_session_options) -> *mut ice_session {
    let mut s = null_mut();
    ok(|e| unsafe { ice_session_new(o, &mut s, e) });
    assert!(!s.is_null());
    s
}

/// Keys and values of `n` tokens for all heads.
pub fn tokens(n: usize, seed: u64) -> (Vec<f32>, Vec<f32>) {
    (numbers(HEADS_KV * n * DIM, seed), numbers(HEADS_KV * n * DIM_V, seed + 1))
}

/// Appends and publishes `n` tokens.
#[track_caller]
pub fn append(s: *mut ice_session, n: usize, seed: u64) {
    let (k, v) = tokens(n, seed);
    ok(|e| unsafe { ice_session_append(s, &tensor(&k), &tensor(&v), n, 0, 1, e) });
    status(ICE_OK, unsafe { ice_session_commit(s) });
}

/// Output of one fixed query row per head: how tests see that a session still works and has not changed.
#[track_caller]
pub fn attended(s: *const ice_session) -> Vec<u32> {
    let q = numbers(HEADS_Q * DIM, 98);
    let mut out = vec![7.0; HEADS_Q * DIM_V];
    let o = tensor_mut(&mut out);
    ok(|e| unsafe {
        ice_session_attend(s, &tensor(&q), 1, null(), &o, null_mut(), null_mut(), 0, 0, 1, null_mut(), e)
    });
    out.iter().map(|x| x.to_bits()).collect()
}

/// Allocator that counts, checks what it gets back, and fails on demand.
#[derive(Default)]
pub struct Counter {
    state: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    live: BTreeMap<usize, (usize, usize)>,
    calls: usize,
    /// Numbers of the calls that fail.
    fail: std::ops::Range<usize>,
    failed: bool,
}

unsafe extern "C" fn hook_alloc(user: *mut c_void, size: usize, align: usize) -> *mut c_void {
    let mut c = unsafe { &*user.cast::<Counter>() }.state.lock().expect("not poisoned");
    assert!(size > 0 && align.is_power_of_two());
    let call = c.calls;
    c.calls += 1;
    if c.fail.contains(&call) {
        c.failed = true;
        return null_mut();
    }
    let p = unsafe { alloc(Layout::from_size_align(size, align).expect("a layout")) };
    c.live.insert(p.addr(), (size, align));
    p.cast()
}

unsafe extern "C" fn hook_free(user: *mut c_void, ptr: *mut c_void, size: usize, align: usize) {
    let mut c = unsafe { &*user.cast::<Counter>() }.state.lock().expect("not poisoned");
    assert_eq!(c.live.remove(&ptr.addr()), Some((size, align)), "a block must come back as it was asked for");
    unsafe { dealloc(ptr.cast(), Layout::from_size_align(size, align).expect("a layout")) };
}

impl Counter {
    pub fn hooks(&self) -> ice_allocator {
        let mut a: ice_allocator = made(|p| unsafe { ice_allocator_init(p) });
        a.user = (&raw const *self).cast_mut().cast();
        a.alloc = Some(hook_alloc);
        a.free = Some(hook_free);
        a
    }

    fn fail(&self, fail: std::ops::Range<usize>) {
        let mut c = self.state.lock().expect("not poisoned");
        (c.calls, c.fail, c.failed) = (0, fail, false);
    }

    /// Gives `i` more blocks and then none.
    pub fn exhausted_after(&self, i: usize) {
        self.fail(i..usize::MAX);
    }

    /// Refuses one block, the `i`-th from now on.
    pub fn refuse_one(&self, i: usize) {
        self.fail(i..i + 1);
    }

    /// Gives whatever is asked for.
    pub fn give(&self) {
        self.fail(0..0);
    }

    pub fn failed(&self) -> bool {
        self.state.lock().expect("not poisoned").failed
    }

    pub fn live(&self) -> usize {
        self.state.lock().expect("not poisoned").live.len()
    }

    pub fn live_bytes(&self) -> usize {
        self.state.lock().expect("not poisoned").live.values().map(|v| v.0).sum()
    }
}

/// Memory aligned to 64 bytes with guard bytes on both sides.
pub struct Guarded {
    blocks: Vec<Block>,
    pub bytes: usize,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Block([u8; 64]);

const GUARD: u8 = 0xa5;

impl Guarded {
    pub fn new(bytes: usize) -> Guarded {
        Guarded { blocks: vec![Block([GUARD; 64]); bytes.div_ceil(64) + 2], bytes }
    }

    pub fn ptr(&mut self) -> *mut c_void {
        unsafe { self.blocks.as_mut_ptr().add(1).cast() }
    }

    /// Whether every byte outside `bytes` is as it was.
    pub fn intact(&self) -> bool {
        let all: &[u8] = unsafe { std::slice::from_raw_parts(self.blocks.as_ptr().cast(), self.blocks.len() * 64) };
        all[..64].iter().chain(&all[64 + self.bytes..]).all(|&b| b == GUARD)
    }
}

/// What brings saved bytes in a test.
pub type Get = unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> usize;

/// What takes saved bytes in a test.
pub type Put = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> usize;

/// Saved bytes that come and go in pieces.
#[derive(Default)]
pub struct Pieces {
    pub bytes: Vec<u8>,
    /// Where reading stands.
    pub at: usize,
    /// Pieces that are still taken, if not all.
    pub room: Option<usize>,
}

impl Pieces {
    pub fn user(&mut self) -> *mut c_void {
        (&raw mut *self).cast()
    }

    /// Options that read from here.
    pub fn options(&mut self) -> ice_load_options {
        let mut o: ice_load_options = made(|p| unsafe { ice_load_options_init(p) });
        (o.read, o.user) = (Some(get as Get), self.user());
        o
    }
}

/// As fwrite.
pub unsafe extern "C" fn put(user: *mut c_void, from: *const c_void, n: usize) -> usize {
    let to = unsafe { &mut *user.cast::<Pieces>() };
    if to.room == Some(0) {
        return n - 1;
    }
    to.room = to.room.map(|room| room - 1);
    assert!((1..=1024).contains(&n));
    to.bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(from.cast(), n) });
    n
}

/// As fread.
pub unsafe extern "C" fn get(user: *mut c_void, to: *mut c_void, n: usize) -> usize {
    let from = unsafe { &mut *user.cast::<Pieces>() };
    assert!((1..=1024).contains(&n));
    let n = n.min(from.bytes.len() - from.at);
    unsafe { to.cast::<u8>().copy_from(from.bytes[from.at..].as_ptr(), n) };
    from.at += n;
    n
}
