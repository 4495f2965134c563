//! What a build leaves out is refused at the border, with a message that says so; what every build has works.
// Every unsafe block here calls the border with live fixtures.
#![allow(clippy::undocumented_unsafe_blocks)]

use iceformer::*;
use iceformer_core::features::{ACCELERATED, CELLS, CERTIFICATES, HALF, LEVELS, MESSAGES, SHARED_QK, TOP_K};
use std::mem::zeroed;
use std::ptr::{null, null_mut};

fn error() -> ice_error {
    let mut e: ice_error = unsafe { zeroed() };
    unsafe { ice_error_init(&mut e) };
    e
}

fn said(status: ice_status, e: &ice_error, has: bool, message: &str) {
    let n = e.message.iter().position(|&c| c == 0).expect("terminated");
    let text: String = e.message[..n].iter().map(|&c| c as u8 as char).collect();
    if has {
        assert_eq!((status, text.as_str()), (ICE_OK, ""));
    } else if MESSAGES {
        assert_eq!((status, text.as_str()), (ICE_ERR_UNSUPPORTED, message));
    } else {
        // The call and the status, whose sentence is the library's.
        let (call, _) = message.split_once(": ").expect("names the call");
        assert_eq!((status, text), (ICE_ERR_UNSUPPORTED, format!("{call}: not supported by this build or version")));
    }
}

#[repr(align(64))]
struct Room([u8; 1 << 20]);

#[test]
fn sessions() {
    for (mode, flags, dtype, has, message) in [
        (ICE_MODE_AUTO, 0, ICE_F32, true, ""),
        (ICE_MODE_EXACT, 0, ICE_F32, true, ""),
        (ICE_MODE_ACCELERATED, 0, ICE_F32, ACCELERATED, "mode: this build has no accelerated attention"),
        (ICE_MODE_TOP_K, 0, ICE_F32, TOP_K, "mode: this build has no top-k attention"),
        (ICE_MODE_EXACT, ICE_ATTENTION_CERTIFICATE, ICE_F32, CERTIFICATES, "flags: this build has no certificates"),
        (ICE_MODE_EXACT, ICE_ATTENTION_VERIFIED, ICE_F32, CERTIFICATES, "flags: this build has no certificates"),
        (ICE_MODE_EXACT, ICE_ATTENTION_SHARED_QK, ICE_F32, false, "flags: shared query-key mode has no sessions"),
        (ICE_MODE_EXACT, 0, ICE_F16, HALF, "kv_dtype: this build stores f32 only"),
        (ICE_MODE_EXACT, 0, ICE_BF16, HALF, "kv_dtype: this build stores f32 only"),
    ] {
        let (mut o, mut e): (ice_session_options, _) = unsafe { (zeroed(), error()) };
        unsafe { ice_session_options_init(&mut o) };
        (o.heads_kv, o.dim_k, o.capacity, o.kv_dtype) = (1, 8, 300, dtype);
        (o.attention.mode, o.attention.flags) = (mode, flags);
        let (mut bytes, mut align, mut room) = (0, 0, Box::new(Room([0; 1 << 20])));
        let status = unsafe { ice_session_required(&o, &mut bytes, &mut align, &mut e) };
        said(status, &e, has, &format!("ice_session_required: {message}"));
        let mut session = null_mut();
        let status = unsafe { ice_session_new_in(room.0.as_mut_ptr().cast(), 1 << 20, &o, &mut session, &mut e) };
        said(status, &e, has, &format!("ice_session_new_in: {message}"));
        assert_eq!(session.is_null(), !has);
        unsafe { ice_session_free(session) };
    }
}

#[test]
fn indices() {
    for (engine, has) in [(ICE_ENGINE_AUTO, true), (ICE_ENGINE_WALK, true), (ICE_ENGINE_CELLS, CELLS)] {
        let (mut o, mut e): (ice_index_options, _) = unsafe { (zeroed(), error()) };
        unsafe { ice_index_options_init(&mut o, 8) };
        (o.capacity, o.engine) = (100, engine);
        let (mut index, mut room) = (null_mut(), Box::new(Room([0; 1 << 20])));
        let status = unsafe { ice_index_new_in(room.0.as_mut_ptr().cast(), 1 << 20, &o, &mut index, &mut e) };
        said(status, &e, has, "ice_index_new_in: engine: this build keeps no cells");
        if !has {
            continue;
        }
        let keys: Vec<f32> = (0..800).map(|i| ((i * 37) % 101) as f32 - 50.0).collect();
        assert_eq!(unsafe { ice_index_insert(index, keys.as_ptr(), 100, null(), &mut e) }, ICE_OK);
        let bits = [0u16; 8];
        let halves =
            ice_tensor { data: bits.as_ptr().cast(), dtype: ICE_F16, row_stride: 0, head_stride: 0, batch_stride: 0 };
        let mut session_options: ice_session_options = unsafe { zeroed() };
        unsafe { ice_session_options_init(&mut session_options) };
        (session_options.heads_kv, session_options.dim_k, session_options.capacity) = (1, 8, 10);
        let (mut session, mut other) = (null_mut(), Box::new(Room([0; 1 << 20])));
        let place = other.0.as_mut_ptr().cast();
        assert_eq!(unsafe { ice_session_new_in(place, 1 << 20, &session_options, &mut session, &mut e) }, ICE_OK);
        let status = unsafe { ice_session_append(session, &halves, &halves, 1, 0, 1, &mut e) };
        said(status, &e, HALF, "ice_session_append: k: this build has no 16-bit elements");
        unsafe { ice_session_free(session) };
        unsafe { ice_index_free(index) };
    }
}

#[test]
fn levels() {
    let (mut o, mut e): (ice_index_options, _) = unsafe { (zeroed(), error()) };
    unsafe { ice_index_options_init(&mut o, 8) };
    (o.capacity, o.levels) = (100, 2);
    let (mut bytes, mut align) = (0, 0);
    let status = unsafe { ice_index_required(&o, &mut bytes, &mut align, &mut e) };
    said(status, &e, LEVELS, "ice_index_required: levels: this build has one level");
}

#[test]
fn queries_that_are_the_keys() {
    let (mut d, mut e): (ice_attention_desc, _) = unsafe { (zeroed(), error()) };
    unsafe { ice_attention_desc_init(&mut d) };
    let q: Vec<f32> = (0..32).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
    let mut out = [7.0f32; 32];
    (d.rows_q, d.rows_kv, d.dim_k) = (4, 4, 8);
    (d.q.data, d.v.data, d.out.data) = (q.as_ptr().cast(), q.as_ptr().cast(), out.as_mut_ptr().cast());
    (d.options.mode, d.options.flags) = (ICE_MODE_EXACT, ICE_ATTENTION_SHARED_QK);
    let mut room = Box::new(Room([0; 1 << 20]));
    let status = unsafe { ice_attention(&d, room.0.as_mut_ptr().cast(), 1 << 20, null_mut(), &mut e) };
    said(status, &e, SHARED_QK, "ice_attention: flags: this build has no shared query-key mode");
    assert!(SHARED_QK || out == [7.0; 32]);
}
