//! The C border of iceformer: `libiceformer.a`, `libiceformer.so` and `include/iceformer.h`.
//!
//! One file per section of the header, in its order. Everything that touches a caller's pointer goes through `cast`
//! (NULL, alignment, size, struct growth) and everything that returns goes through `guard` (panics, messages).
#![cfg_attr(not(feature = "std"), no_std)]
#![allow(non_camel_case_types)]
// The comments here become the header, where brackets are shapes.
#![allow(rustdoc::broken_intra_doc_links)]

mod alloc_hook;
mod cast;
mod guard;
mod object;
mod overlap;
mod text;
mod types;
mod view;

// From here on in the order of the header; blank lines keep rustfmt from sorting them.

mod version;

mod status;

mod memory;

mod index;

mod query;

mod scratch;

mod saved;

mod attention;

mod session;

mod session_saved;

pub use attention::*;
pub use index::*;
pub use memory::*;
pub use query::*;
pub use saved::*;
pub use scratch::*;
pub use session::*;
pub use session_saved::*;
pub use status::*;
pub use types::*;
pub use version::*;

#[cfg(all(feature = "panic-handler", not(feature = "std")))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // No console and no caller to return to: stop here, where a debugger finds it.
    loop {
        core::hint::spin_loop();
    }
}
