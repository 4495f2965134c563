//! What every call goes through: panics stop here, and the caller's `ice_error` is written here.

use crate::text::Text;
use crate::types::*;
use iceformer_core::Result;
#[cfg(any(feature = "std", test))]
use iceformer_core::{Error, Status};

/// Runs a body without letting a panic reach C.
fn caught<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    #[cfg(feature = "std")]
    {
        // What the body touched is either poisoned by its handle guard or owned by the caller.
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or_else(|mut payload| {
            // Dropping a payload may panic with another one.
            while let Err(next) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(payload))) {
                payload = next;
            }
            Err(Error::new(Status::Internal, "library", "panicked: please report it"))
        })
    }
    #[cfg(not(feature = "std"))]
    body()
}

fn report(err: &mut ice_error, function: &str, result: &Result<()>) {
    if err.struct_size == 0 {
        err.struct_size = size_of::<ice_error>() as u32;
    }
    let mut text = Text::new(&mut err.message);
    err.status = ICE_OK;
    if let Err(e) = result {
        err.status = e.status as ice_status;
        text.str(function);
        text.str(": ");
        text.error(e);
    }
}

/// Runs a call and reports its outcome.
///
/// # Safety
/// `err` is NULL or points to an `ice_error` of the caller.
pub(crate) unsafe fn call(
    function: &'static str,
    err: *mut ice_error,
    body: impl FnOnce() -> Result<()>,
) -> ice_status {
    if !err.is_null() {
        if !err.is_aligned() {
            return ICE_ERR_ALIGNMENT;
        }
        // SAFETY: not NULL, aligned, and the caller's.
        let size = unsafe { (&raw const (*err).struct_size).read() };
        // Zeros are a report that nobody initialised: of this size since the first version. Any other smaller size is none that was
        // ever released, and there may be no room for the message.
        if size != 0 && (size as usize) < size_of::<ice_error>() {
            return ICE_ERR_ABI;
        }
    }
    let result = caught(body);
    // SAFETY: as above, and large enough.
    if let Some(err) = unsafe { err.as_mut() } {
        report(err, function, &result);
    }
    match result {
        Ok(()) => ICE_OK,
        Err(e) => e.status as ice_status,
    }
}

/// Runs a call that returns a plain status.
pub(crate) fn plain(body: impl FnOnce() -> Result<()>) -> ice_status {
    match caught(body) {
        Ok(()) => ICE_OK,
        Err(e) => e.status as ice_status,
    }
}

/// Runs a call that returns a value, `or` on any failure.
pub(crate) fn value<T>(or: T, body: impl FnOnce() -> Result<T>) -> T {
    caught(body).unwrap_or(or)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::c_char;

    fn fresh() -> ice_error {
        ice_error { struct_size: size_of::<ice_error>() as u32, status: 77, message: [b'x' as c_char; 240] }
    }

    fn text(e: &ice_error) -> String {
        let n = e.message.iter().position(|&c| c == 0).expect("terminated");
        e.message[..n].iter().map(|&c| c as u8 as char).collect()
    }

    #[test]
    #[cfg(feature = "messages")]
    fn messages_name_function_field_and_detail() {
        let mut e = fresh();
        // SAFETY: a live report.
        let s = unsafe {
            call("ice_f", &mut e, || Err(Error::new(Status::NotFinite, "keys", "holds NaN or infinity").row(7)))
        };
        assert_eq!((s, e.status), (ICE_ERR_NOT_FINITE, ICE_ERR_NOT_FINITE));
        assert_eq!(text(&e), "ice_f: keys: holds NaN or infinity (row 7)");
        // SAFETY: as above.
        assert_eq!(unsafe { call("ice_f", &mut e, || Ok(())) }, ICE_OK);
        assert_eq!((e.status, text(&e).as_str()), (ICE_OK, ""));
    }

    #[test]
    #[cfg(not(feature = "messages"))]
    fn messages_name_function_and_status() {
        let mut e = fresh();
        // SAFETY: a live report.
        let s = unsafe { call("ice_f", &mut e, || Err(Error::new(Status::NotFinite, "keys", "holds NaN").row(7))) };
        assert_eq!((s, e.status), (ICE_ERR_NOT_FINITE, ICE_ERR_NOT_FINITE));
        assert_eq!(text(&e), format!("ice_f: {}", Status::NotFinite.message()));
    }

    #[test]
    #[cfg(feature = "messages")]
    fn long_messages_are_cut_and_terminated() {
        const LONG: &str = "ééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééé\
                            éééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééé";
        for function in ["f", "ff"] {
            let mut e = fresh();
            // SAFETY: a live report.
            unsafe { call(function, &mut e, || Err(Error::new(Status::Argument, "x", LONG))) };
            let n = e.message.iter().position(|&c| c == 0).expect("terminated");
            assert!(n >= 237);
            let bytes: Vec<u8> = e.message[..n].iter().map(|&c| c as u8).collect();
            assert!(String::from_utf8(bytes).is_ok());
        }
    }

    #[test]
    #[cfg(feature = "std")]
    fn panics_become_a_status() {
        let mut e = fresh();
        // SAFETY: a live report.
        assert_eq!(unsafe { call("ice_f", &mut e, || panic!("on purpose")) }, ICE_ERR_INTERNAL);
        let said = if cfg!(feature = "messages") { "ice_f: library: panicked" } else { "ice_f: internal error" };
        assert!(text(&e).starts_with(said));
        assert_eq!(plain(|| panic!("on purpose")), ICE_ERR_INTERNAL);
        assert_eq!(value(9, || -> Result<i32> { panic!("on purpose") }), 9);

        // Nor does a payload that panics when it is dropped.
        struct Again;
        impl Drop for Again {
            fn drop(&mut self) {
                panic!("once more");
            }
        }
        assert_eq!(plain(|| std::panic::panic_any(Again)), ICE_ERR_INTERNAL);
    }

    #[test]
    fn a_report_of_unknown_size_is_left_alone() {
        let mut e = fresh();
        for size in [1, 4, 247] {
            e.struct_size = size;
            // SAFETY: a live report.
            let s = unsafe { call("ice_f", &mut e, || panic!("not reached")) };
            assert_eq!((s, e.status), (ICE_ERR_ABI, 77));
        }
        // Zeros that nobody initialised have room for a message.
        e.struct_size = 0;
        // SAFETY: a live report.
        let s = unsafe { call("ice_f", &mut e, || Err(Error::new(Status::Shape, "x", "is wrong"))) };
        assert_eq!((s, e.status, e.struct_size as usize), (ICE_ERR_SHAPE, ICE_ERR_SHAPE, size_of::<ice_error>()));
        assert!(text(&e).starts_with("ice_f: "));
        e.struct_size = 4096;
        // SAFETY: only the known part is written.
        assert_eq!(unsafe { call("ice_f", &mut e, || Ok(())) }, ICE_OK);
    }
}
