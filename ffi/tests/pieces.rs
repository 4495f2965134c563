//! Saving and loading through functions of the caller, within a limit: the statuses that the header lists, and no others.
// Every unsafe block here calls the border with live fixtures.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use iceformer::*;
use std::ptr::{null, null_mut};

fn index() -> *mut ice_index {
    full_index(&index_options())
}

fn session(mode: ice_mode) -> *mut ice_session {
    let mut o = session_options();
    (o.attention.mode, o.attention.top_k) = (mode, 3);
    let s = new_session(&o);
    append(s, 20, 5);
    s
}

fn bytes_of(save: impl Fn(*mut std::ffi::c_void, usize, *mut usize) -> ice_status) -> Vec<u8> {
    let mut n = 0;
    status(ICE_OK, save(null_mut(), 0, &mut n));
    let mut bytes = vec![0u8; n];
    status(ICE_OK, save(bytes.as_mut_ptr().cast(), n, null_mut()));
    bytes
}

fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len() - 4;
    let sum = crc32(&bytes[..end]);
    bytes[end..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes
        .iter()
        .fold(!0u32, |c, &b| (0..8).fold(c ^ u32::from(b), |c, _| c >> 1 ^ (0xedb8_8320 & (c & 1).wrapping_neg())))
}

#[test]
fn objects_go_through_functions() {
    let (ix, s) = (index(), session(ICE_MODE_TOP_K));
    let mut all = Pieces::default();
    ok(|e| unsafe { ice_index_save_to(ix, Some(put), all.user(), e) });
    ok(|e| unsafe { ice_session_save_to(s, Some(put), all.user(), e) });
    let mut whole = bytes_of(|b, n, need| unsafe { ice_index_save(ix, b, n, need) });
    let of_session = bytes_of(|b, n, need| unsafe { ice_session_save_err(s, b, n, need, null_mut()) });
    whole.extend(&of_session);
    assert!(all.bytes == whole);
    let (mut ix2, mut s2) = (null_mut(), null_mut());
    let mut o = all.options();
    let hooks = Counter::default();
    let allocator = hooks.hooks();
    o.allocator = &allocator;
    ok(|e| unsafe { ice_index_load_with(&o, &mut ix2, e) });
    ok(|e| unsafe { ice_session_load_with(&o, &mut s2, e) });
    assert_eq!(all.at, whole.len());
    assert!(answers(ix2) == answers(ix) && attended(s2) == attended(s));
    // A source at its end, one that fails halfway, and a taker that takes less.
    let mut none = null_mut();
    refused(ICE_ERR_BUFFER, &["ice_session_load_with: "], |e| unsafe { ice_session_load_with(&o, &mut none, e) });
    let before = hooks.live();
    for cut in [1, 100, of_session.len() - 1] {
        let mut half = Pieces { bytes: of_session[..cut].to_vec(), ..Pieces::default() };
        let o = ice_load_options { allocator: &allocator, ..half.options() };
        refused(ICE_ERR_BUFFER, &["ice_session_load_with: "], |e| unsafe { ice_session_load_with(&o, &mut none, e) });
    }
    assert!(none.is_null() && hooks.live() == before);
    let mut full = Pieces { room: Some(1), ..Pieces::default() };
    refused(ICE_ERR_BUFFER, &["write: did not take all"], |e| unsafe {
        ice_session_save_to(s, Some(put), full.user(), e)
    });
    unsafe {
        ice_index_free(ix);
        ice_index_free(ix2);
        ice_session_free(s);
        ice_session_free(s2);
    }
    assert_eq!(hooks.live(), 0);
}

#[test]
fn options_of_loading() {
    let ix = index();
    let bytes = bytes_of(|b, n, need| unsafe { ice_index_save(ix, b, n, need) });
    let mut copy = null_mut();
    let fresh: ice_load_options = made(|p| unsafe { ice_load_options_init(p) });
    let mut load = |o: ice_load_options, want, words: &[&str]| {
        refused(want, words, |e| unsafe { ice_index_load_with(&o, &mut copy, e) });
        assert!(copy.is_null());
    };
    load(fresh, ICE_ERR_NULL, &["ice_index_load_with: options.read: is NULL"]);
    load(ice_load_options { struct_size: 0, ..fresh }, ICE_ERR_ABI, &["options: struct_size is 0"]);
    load(ice_load_options { reserved: 1, ..fresh }, ICE_ERR_ABI, &["options.reserved"]);
    let given = ice_load_options { data: bytes.as_ptr().cast(), len: bytes.len(), ..fresh };
    load(ice_load_options { len: bytes.len() - 1, ..given }, ICE_ERR_BUFFER, &["index bytes: "]);
    load(ice_load_options { len: 0, ..given }, ICE_ERR_BUFFER, &["index bytes: too short"]);
    let bad = ice_allocator { alloc: None, ..Counter::default().hooks() };
    load(ice_load_options { allocator: &bad, ..given }, ICE_ERR_NULL, &["allocator.alloc"]);
    unsafe { ice_index_free(ix) };
}

/// A few bytes that ask for gigabytes: refused by the limit, and the allocator is not asked for more than the accounting.
#[test]
fn a_forged_capacity_is_refused_before_it_is_allocated() {
    let hooks = Counter::default();
    let allocator = hooks.hooks();
    let (ix, s) = (index(), session(ICE_MODE_AUTO));
    let huge = (1u64 << 30).to_le_bytes();
    let mut index = bytes_of(|b, n, need| unsafe { ice_index_save(ix, b, n, need) });
    index[12 + 4 * 9 + 8..][..8].copy_from_slice(&huge);
    let mut session = bytes_of(|b, n, need| unsafe { ice_session_save(s, b, n, need) });
    session[12 + 4 * 16 + 8..][..8].copy_from_slice(&huge);
    let asked = || hooks.live_bytes();
    for streamed in [false, true] {
        for (of_session, bytes) in [(false, &index), (true, &session)] {
            let mut all = Pieces { bytes: with_checksum(bytes.clone()), ..Pieces::default() };
            let whole = all.bytes.clone();
            let mut o = all.options();
            if !streamed {
                (o.data, o.len) = (whole.as_ptr().cast(), whole.len());
            }
            (o.allocator, o.memory_limit) = (&allocator, 1 << 20);
            // Room for the accounting and nothing else: what is asked for beyond it would be seen to fail.
            hooks.exhausted_after(1);
            let (mut none, mut nothing) = (null_mut(), null_mut());
            refused(ICE_ERR_BUDGET, &["memory_limit: would be exceeded"], |e| unsafe {
                match of_session {
                    true => ice_session_load_with(&o, &mut none, e),
                    false => ice_index_load_with(&o, &mut nothing, e),
                }
            });
            assert!(!hooks.failed() && asked() == 0 && none.is_null() && nothing.is_null());
        }
    }
    unsafe {
        ice_index_free(ix);
        ice_session_free(s);
    }
}

/// Damage with the checksum made right: only the statuses that the header lists.
#[test]
fn forged_bytes_give_the_statuses_of_the_header() {
    let ix = index();
    let sessions = [session(ICE_MODE_TOP_K), session(ICE_MODE_ACCELERATED)];
    let mut sources = vec![(false, bytes_of(|b, n, need| unsafe { ice_index_save(ix, b, n, need) }))];
    for s in sessions {
        sources.push((true, bytes_of(|b, n, need| unsafe { ice_session_save(s, b, n, need) })));
        unsafe { ice_session_free(s) };
    }
    unsafe { ice_index_free(ix) };
    let mut refusals = 0;
    for (of_session, honest) in &sources {
        for at in (0..160).chain((160..honest.len()).step_by(4)) {
            for by in [0u32, 1, 0xff, 0x10000, 0x7f80_0000, 0x7fc0_0000, 0x8000_0000, 0xffff_ffff, 0x5d5e_0b6b] {
                let mut bytes = honest.clone();
                if at + 8 > bytes.len() {
                    continue;
                }
                bytes[at..][..4].copy_from_slice(&by.to_le_bytes());
                let bytes = with_checksum(bytes);
                let (mut s, mut ix, mut e) = (null_mut(), null_mut(), error());
                let mut o: ice_load_options = made(|p| unsafe { ice_load_options_init(p) });
                (o.data, o.len, o.memory_limit) = (bytes.as_ptr().cast(), bytes.len(), 16 << 20);
                let got = unsafe {
                    match of_session {
                        true => ice_session_load_with(&o, &mut s, &mut e),
                        false => ice_index_load_with(&o, &mut ix, &mut e),
                    }
                };
                let listed = [ICE_OK, ICE_ERR_BUFFER, ICE_ERR_BUDGET, ICE_ERR_UNSUPPORTED, ICE_ERR_NO_MEMORY];
                assert!(listed.contains(&got), "{} at {at}: {}", name(got), message(&e));
                refusals += usize::from(got != ICE_OK);
                unsafe {
                    ice_session_free(s);
                    ice_index_free(ix);
                }
            }
        }
    }
    assert!(refusals > 500, "{refusals}");
    // Without a limit the same holds of the older functions.
    let (_, honest) = &sources[1];
    let mut bytes = honest.clone();
    bytes[12 + 4 * 11..][..4].copy_from_slice(&99u32.to_le_bytes());
    let bytes = with_checksum(bytes);
    let mut s = null_mut();
    refused(ICE_ERR_BUFFER, &["ice_session_load: "], |e| unsafe {
        ice_session_load(bytes.as_ptr().cast(), bytes.len(), null(), &mut s, e)
    });
}
