//! Statuses as text, and the error report.

use crate::cast;
use crate::types::*;
use core::ffi::{CStr, c_char};
use iceformer_core::Status;

const NAMES: [&CStr; 17] = [
    c"ICE_OK",
    c"ICE_ERR_NULL",
    c"ICE_ERR_ARGUMENT",
    c"ICE_ERR_SHAPE",
    c"ICE_ERR_STRIDE",
    c"ICE_ERR_ALIGNMENT",
    c"ICE_ERR_NOT_FINITE",
    c"ICE_ERR_NO_MEMORY",
    c"ICE_ERR_BUDGET",
    c"ICE_ERR_CAPACITY",
    c"ICE_ERR_NOT_FOUND",
    c"ICE_ERR_DUPLICATE",
    c"ICE_ERR_STATE",
    c"ICE_ERR_UNSUPPORTED",
    c"ICE_ERR_ABI",
    c"ICE_ERR_BUFFER",
    c"ICE_ERR_INTERNAL",
];

const WIDTH: usize = 96;

/// The core's sentences with a NUL behind each.
static MESSAGES: [[u8; WIDTH]; 16] = {
    let mut all = [[0; WIDTH]; 16];
    let mut i = 0;
    while i < 16 {
        let text = Status::ALL[i].message().as_bytes();
        assert!(text.len() < WIDTH);
        let mut j = 0;
        while j < text.len() {
            all[i][j] = text[j];
            j += 1;
        }
        i += 1;
    }
    all
};

// The numbers are one contract written down twice.
const _: () = {
    let mut i = 0;
    while i < 16 {
        assert!(Status::ALL[i] as i32 == -(i as i32) - 1);
        i += 1;
    }
    assert!(Status::Internal as i32 == ICE_ERR_INTERNAL && Status::NotFound as i32 == ICE_ERR_NOT_FOUND);
};

/// Name of a status, "ICE_ERR_NULL"; "ICE_ERR_UNKNOWN" for any other integer.
///
/// Ownership: static text.
/// Threads: any. Allocates: never. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn ice_status_name(status: ice_status) -> *const c_char {
    let at = status.checked_neg().and_then(|i| usize::try_from(i).ok());
    at.and_then(|i| NAMES.get(i)).unwrap_or(&c"ICE_ERR_UNKNOWN").as_ptr()
}

/// One sentence about a status, for people; "unknown status" for integers that are none.
///
/// Ownership: static text.
/// Threads: any. Allocates: never. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn ice_status_message(status: ice_status) -> *const c_char {
    if status == ICE_OK {
        return c"success".as_ptr();
    }
    let at = status.checked_neg().and_then(|i| usize::try_from(i).ok()).and_then(|i| i.checked_sub(1));
    at.and_then(|i| MESSAGES.get(i)).map_or(c"unknown status".as_ptr(), |m| m.as_ptr().cast())
}

/// Prepares an error report: size set, ICE_OK, empty message. NULL does nothing.
///
/// Threads: any. Allocates: never. Since 0.1.
///
/// # Safety
/// `err` is NULL or writable for an ice_error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_error_init(err: *mut ice_error) {
    let value = ice_error { struct_size: size_of::<ice_error>() as u32, status: ICE_OK, message: [0; 240] };
    // SAFETY: passed on.
    unsafe { cast::init(err, value) };
}
