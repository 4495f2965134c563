//! Identity: versions and the instruction set in use.

use crate::guard;
use crate::types::*;
use core::ffi::{CStr, c_char};
use iceformer_core::simd::Isa;
use iceformer_core::{Error, Status};

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(s) => s,
    Err(_) => unreachable!(),
};

const fn decimal(s: &str) -> u32 {
    let (mut n, mut i) = (0, 0);
    while i < s.len() {
        n = n * 10 + (s.as_bytes()[i] - b'0') as u32;
        i += 1;
    }
    n
}

const NUMBER: u32 = decimal(env!("CARGO_PKG_VERSION_MAJOR")) * 10000
    + decimal(env!("CARGO_PKG_VERSION_MINOR")) * 100
    + decimal(env!("CARGO_PKG_VERSION_PATCH"));

/// cbindgen:ignore
const ABI: u32 = 1;

/// Version of the library that runs: major * 10000 + minor * 100 + patch, as ICE_VERSION_NUMBER.
///
/// Threads: any. Allocates: never. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn ice_version_number() -> u32 {
    NUMBER
}

/// Version of the library that runs as text, as ICE_VERSION_STRING.
///
/// Ownership: static text.
/// Threads: any. Allocates: never. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn ice_version_string() -> *const c_char {
    VERSION.as_ptr()
}

/// ABI version of the library that runs; differs from ICE_ABI_VERSION when header and library do not fit.
///
/// Threads: any. Allocates: never. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn ice_abi_version() -> u32 {
    ABI
}

const ISA_NAMES: [&CStr; 8] =
    [c"scalar", c"neon", c"neon-dotprod", c"avx2", c"avx2-vnni", c"avx512", c"avx512-vnni", c"simd128"];

/// Instruction set that new objects of this process use: "avx512", "avx2", "neon", "scalar".
///
/// Ownership: static text.
/// Threads: any. Allocates: never. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn ice_isa_name() -> *const c_char {
    guard::value(c"unknown", || {
        let name = Isa::best().name();
        Ok(ISA_NAMES.into_iter().find(|n| n.to_bytes() == name.as_bytes()).unwrap_or(c"unknown"))
    })
    .as_ptr()
}

/// Whether a C string is this text. Reads no further than the first difference, and needs no C library.
///
/// # Safety
/// `s` is NUL-terminated.
unsafe fn spells(s: *const c_char, text: &str) -> bool {
    // SAFETY: every byte before was equal to one of `text`, which has no NUL, so the string goes on.
    let byte = |i| unsafe { s.add(i).read() as u8 };
    text.bytes().enumerate().all(|(i, b)| byte(i) == b) && byte(text.len()) == 0
}

/// Limits the instruction set of objects made from now on, for tests and for the same bits on different machines.
///
/// @param name  a name as of ice_isa_name; nullable: no limit.
/// Errors: ICE_ERR_ARGUMENT (no such name), ICE_ERR_UNSUPPORTED (this machine does not have it).
/// Threads: any, but objects made meanwhile may use either. Allocates: never. Since 0.1.
///
/// # Safety
/// `name` is NULL or NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ice_isa_limit(name: *const c_char) -> ice_status {
    guard::plain(|| {
        if name.is_null() {
            return Isa::limit(None);
        }
        // SAFETY: vouched for by the caller.
        match Isa::ALL.into_iter().find(|i| unsafe { spells(name, i.name()) }) {
            Some(isa) if !isa.available() => Err(Error::new(Status::Unsupported, "name", "not on this machine")),
            Some(isa) => Isa::limit(Some(isa)),
            None => Err(Error::new(Status::Argument, "name", "no such instruction set")),
        }
    })
}
