//! Names of statuses and instruction sets. Alone in its process, because the limit on instruction sets holds for all of it.
// Every unsafe block here calls the border with static text.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use iceformer::*;
use std::ptr::null;

#[test]
fn names_and_instruction_sets() {
    let text = |p| unsafe { std::ffi::CStr::from_ptr(p) }.to_str().expect("ASCII");
    assert_eq!((name(0), name(-1), name(-16)), ("ICE_OK", "ICE_ERR_NULL", "ICE_ERR_INTERNAL"));
    for s in [1, -17, i32::MAX, i32::MIN] {
        assert_eq!((name(s), text(ice_status_message(s))), ("ICE_ERR_UNKNOWN", "unknown status"));
    }
    assert_eq!(text(ice_status_message(0)), "success");
    for (s, status) in (1..).zip(iceformer_core::Status::ALL) {
        assert_eq!(text(ice_status_message(-s)), status.message());
    }
    unsafe {
        let best = text(ice_isa_name());
        assert_ne!(best, "unknown");
        for no_such in [c"mmx", c"", c"scala", c"scalars", c"SCALAR"] {
            status(ICE_ERR_ARGUMENT, ice_isa_limit(no_such.as_ptr()));
        }
        status(ICE_OK, ice_isa_limit(c"scalar".as_ptr()));
        assert_eq!(text(ice_isa_name()), "scalar");
        // What the machine lacks is unsupported, what it has is used.
        for isa in [c"neon", c"avx2", c"avx512"] {
            match ice_isa_limit(isa.as_ptr()) {
                ICE_OK => assert_eq!(text(ice_isa_name()).as_bytes(), isa.to_bytes()),
                s => status(ICE_ERR_UNSUPPORTED, s),
            }
        }
        status(ICE_OK, ice_isa_limit(null()));
        assert_eq!(text(ice_isa_name()), best);
    }
}
