//! From what C hands over to checked Rust values: pointers, arrays, sized structs, enumerators, flags.

use crate::types::*;
use core::ptr::NonNull;
use iceformer_core::{Error, Result, Status};

/// "is NULL".
pub(crate) const fn null(field: &'static str) -> Error {
    Error::new(Status::Null, field, "is NULL")
}

const fn misaligned(field: &'static str) -> Error {
    Error::new(Status::Alignment, field, "is not aligned for its type")
}

/// A number for a message: enumerators may be negative, which `Detail::Value` cannot show.
pub(crate) fn shown(e: Error, value: i64) -> Error {
    if value < 0 { e.number(value as f32) } else { e.value(value as u64) }
}

/// A pointer that must be there and aligned.
pub(crate) fn pointer<T>(p: *const T, field: &'static str) -> Result<NonNull<T>> {
    let p = NonNull::new(p.cast_mut()).ok_or(null(field))?;
    if p.is_aligned() { Ok(p) } else { Err(misaligned(field)) }
}

/// Checks where an output goes, before any work is done.
pub(crate) fn output<T>(p: *mut T, field: &'static str) -> Result<NonNull<T>> {
    pointer(p, field)
}

/// As [`output`], for one that may be NULL.
pub(crate) fn nullable_output<T>(p: *mut T, field: &'static str) -> Result<Option<NonNull<T>>> {
    if p.is_null() { Ok(None) } else { output(p, field).map(Some) }
}

fn elements<T>(p: *const T, n: usize, field: &'static str) -> Result<NonNull<T>> {
    if n == 0 {
        return Ok(NonNull::dangling());
    }
    let p = pointer(p, field)?;
    match n.checked_mul(size_of::<T>()) {
        Some(bytes) if bytes <= isize::MAX as usize && p.addr().checked_add(bytes).is_some() => Ok(p),
        _ => Err(Error::new(Status::Shape, field, "size overflows").value(n as u64)),
    }
}

/// An array of `n` elements; NULL is fine for none.
///
/// # Safety
/// If not NULL, `p` is readable for `n` elements during `'a` and nobody writes them.
pub(crate) unsafe fn array<'a, T>(p: *const T, n: usize, field: &'static str) -> Result<&'a [T]> {
    let p = elements(p, n, field)?;
    // SAFETY: checked above and vouched for by the caller.
    Ok(unsafe { core::slice::from_raw_parts(p.as_ptr(), n) })
}

/// A writable array of `n` elements; NULL is fine for none.
///
/// # Safety
/// If not NULL, `p` is writable for `n` elements during `'a` and nobody else touches them.
pub(crate) unsafe fn array_mut<'a, T>(p: *mut T, n: usize, field: &'static str) -> Result<&'a mut [T]> {
    let p = elements(p, n, field)?;
    // SAFETY: checked above and vouched for by the caller.
    Ok(unsafe { core::slice::from_raw_parts_mut(p.as_ptr(), n) })
}

/// `a * b`, or a shape error.
pub(crate) fn product(a: usize, b: usize, field: &'static str) -> Result<usize> {
    a.checked_mul(b).ok_or(Error::new(Status::Shape, field, "size overflows").value(a as u64))
}

/// A struct that starts with its own size.
///
/// # Safety
/// `repr(C)`, the first field is `struct_size: u32`, and every bit pattern of the fields is valid.
pub(crate) unsafe trait SizedStruct: Copy {
    /// Size in the first release: what every caller has at least.
    const MIN: usize;
}

macro_rules! sized_structs {
    ($($t:ident = $min:expr),* $(,)?) => {$(
        // SAFETY: integers, floats, pointers and nullable functions only, size first.
        unsafe impl SizedStruct for $t {
            const MIN: usize = $min;
        }
        const _: () = assert!(core::mem::offset_of!($t, struct_size) == 0 && $t::MIN <= size_of::<$t>());
    )*};
}

// When a struct grows, its minimum stays at the size of 0.1 and `sized` fills the new tail with zeros.
sized_structs! {
    ice_allocator = size_of::<ice_allocator>(),
    ice_memory = size_of::<ice_memory>(),
    ice_load_options = size_of::<ice_load_options>(),
    ice_index_options = core::mem::offset_of!(ice_index_options, engine),
    ice_query_options = core::mem::offset_of!(ice_query_options, filter),
    ice_mask = size_of::<ice_mask>(),
    ice_attention_options = size_of::<ice_attention_options>(),
    ice_attention_desc = size_of::<ice_attention_desc>(),
    ice_attention_stats = core::mem::offset_of!(ice_attention_stats, rows_measured),
    ice_session_options = size_of::<ice_session_options>(),
}

/// No struct of this library comes near; a larger size is a field that was never set.
const MAX_STRUCT: usize = 4096;

fn abi(field: &'static str, reason: &'static str, size: usize) -> Error {
    Error::new(Status::Abi, field, reason).value(size as u64)
}

/// Reads `struct_size` and checks it against what this library knows.
///
/// # Safety
/// If not NULL, `p` points to at least a `u32`.
unsafe fn size_of_struct<T: SizedStruct>(p: *const T, field: &'static str) -> Result<(NonNull<T>, usize)> {
    let p = pointer(p, field)?;
    // SAFETY: not NULL, aligned; the size is the first field.
    let size = unsafe { p.cast::<u32>().read() } as usize;
    if size == 0 {
        return Err(abi(field, "struct_size is 0: call its init function", size));
    }
    if size < T::MIN {
        return Err(abi(field, "struct_size is smaller than any released version", size));
    }
    // The size of every version is whole words: anything else would cut a field in two.
    if !size.is_multiple_of(align_of::<T>()) {
        return Err(abi(field, "struct_size is that of no version", size));
    }
    if size > MAX_STRUCT {
        return Err(abi(field, "struct_size is larger than any known version", size));
    }
    Ok((p, size))
}

/// Copies a sized struct: shorter ones get zeros (the defaults) at the tail, longer ones must have zeros there, because
/// anything else asks for something this library does not know.
///
/// # Safety
/// If not NULL, `p` points to as many readable bytes as its `struct_size` says.
pub(crate) unsafe fn sized<T: SizedStruct>(p: *const T, field: &'static str) -> Result<T> {
    // SAFETY: passed on.
    let (p, size) = unsafe { size_of_struct(p, field)? };
    let known = size_of::<T>();
    for at in known..size.max(known) {
        // SAFETY: at < size.
        if unsafe { p.cast::<u8>().add(at).read() } != 0 {
            return Err(abi(field, "uses fields of a newer version", size));
        }
    }
    let mut copy = core::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: both sides have that many bytes; all-zero is a valid tail.
    unsafe {
        core::ptr::copy_nonoverlapping(p.as_ptr().cast::<u8>(), copy.as_mut_ptr().cast::<u8>(), size.min(known));
        Ok(copy.assume_init())
    }
}

/// As [`sized`], NULL meaning `None`.
///
/// # Safety
/// As [`sized`].
pub(crate) unsafe fn nullable_sized<T: SizedStruct>(p: *const T, field: &'static str) -> Result<Option<T>> {
    // SAFETY: passed on.
    if p.is_null() { Ok(None) } else { unsafe { sized(p, field) }.map(Some) }
}

/// Checks the size of a struct embedded in another one: its place is fixed, so it cannot differ.
pub(crate) fn embedded<T: SizedStruct>(struct_size: u32, field: &'static str) -> Result<()> {
    match struct_size as usize {
        0 => Err(abi(field, "struct_size is 0: call its init function", 0)),
        size if size != size_of::<T>() => Err(abi(field, "struct_size is not that of this version", size)),
        _ => Ok(()),
    }
}

/// A sized struct that a call fills in.
pub(crate) struct SizedOutput<T> {
    p: NonNull<T>,
    size: usize,
}

impl<T: SizedStruct> SizedOutput<T> {
    /// Checks where it goes; NULL is an error.
    ///
    /// # Safety
    /// If not NULL, `p` points to as many writable bytes as its `struct_size` says.
    pub(crate) unsafe fn new(p: *mut T, field: &'static str) -> Result<Self> {
        // SAFETY: passed on.
        let (p, size) = unsafe { size_of_struct(p, field)? };
        Ok(SizedOutput { p, size })
    }

    /// Writes what both sides know; the caller's size stays.
    pub(crate) fn write(self, value: T) {
        let (value, n) = (&raw const value, self.size.min(size_of::<T>()));
        // SAFETY: both have n bytes, n >= 4, and the caller vouched for its side in `new`.
        unsafe {
            let (from, to) = (value.cast::<u8>(), self.p.as_ptr().cast::<u8>());
            core::ptr::copy_nonoverlapping(from.add(4), to.add(4), n - 4);
        }
    }
}

/// Initialises a struct of the caller; NULL and misaligned pointers are ignored, there being nowhere to say so.
///
/// # Safety
/// If not NULL, `p` is writable for a `T`.
pub(crate) unsafe fn init<T>(p: *mut T, value: T) {
    if let Ok(p) = output(p, "") {
        // SAFETY: not NULL, aligned, vouched for.
        unsafe { p.write(value) };
    }
}

/// Initialises a struct that has grown, of which the caller has `size` bytes: as much as both sides know, with that as its
/// `struct_size`. One shorter than any version gets a size of 0, which later calls refuse.
///
/// # Safety
/// If not NULL, `p` is writable for `size` bytes.
pub(crate) unsafe fn init_sized<T: SizedStruct>(p: *mut T, size: usize, value: T) {
    let Ok(p) = output(p, "") else { return };
    let known = size.min(size_of::<T>()) / align_of::<T>() * align_of::<T>();
    let (written, struct_size) = if known < T::MIN { (0, 0) } else { (known, known as u32) };
    if size >= size_of::<u32>() {
        // SAFETY: not NULL, aligned, `written` and a u32 are at most `size`, which is vouched for; the size is the first field.
        unsafe {
            core::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), p.as_ptr().cast::<u8>(), written);
            p.cast::<u32>().write(struct_size);
        }
    }
}

/// The choice an enumerator stands for.
pub(crate) fn choice<T: Copy>(value: i32, field: &'static str, choices: &[T]) -> Result<T> {
    usize::try_from(value)
        .ok()
        .and_then(|i| choices.get(i).copied())
        .ok_or_else(|| shown(Error::new(Status::Argument, field, "unknown enumerator"), value.into()))
}

/// Refuses flag bits that mean nothing.
pub(crate) fn flags(value: u32, known: u32, field: &'static str) -> Result<()> {
    if value & !known == 0 {
        return Ok(());
    }
    Err(Error::new(Status::Argument, field, "unknown flag bits").value((value & !known).into()))
}

/// Refuses reserved fields in use: they belong to a newer version.
pub(crate) fn reserved(values: &[u32], field: &'static str) -> Result<()> {
    match values.iter().find(|&&v| v != 0) {
        None => Ok(()),
        Some(&v) => Err(Error::new(Status::Abi, field, "must be zero").value(v.into())),
    }
}

/// A count of 64 bits on a machine that may have less.
pub(crate) fn count(x: u64) -> usize {
    usize::try_from(x).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u32 = size_of::<ice_query_options>() as u32;

    #[repr(C, align(8))]
    struct Grown {
        known: ice_query_options,
        tail: [u8; 16],
    }

    fn grown() -> Grown {
        // SAFETY: all-zero is valid.
        let mut g: Grown = unsafe { core::mem::zeroed() };
        g.known.struct_size = SIZE + 16;
        g.known.k = 5;
        g
    }

    fn read(g: &Grown) -> Result<ice_query_options> {
        // SAFETY: the size is within `Grown`, or refused before more than the first field is read.
        unsafe { sized((&raw const *g).cast::<ice_query_options>(), "options") }
    }

    #[test]
    fn structs_that_nobody_prepared_are_told_so() {
        let told = |size| embedded::<ice_query_options>(size, "options").err().and_then(|e| e.message()).map(|m| m.1);
        assert_eq!(told(SIZE), None);
        assert!(told(0).is_some_and(|why| why.contains("init function")));
        for size in [1, SIZE - 1, SIZE + 1, u32::MAX] {
            assert!(told(size).is_some_and(|why| why.contains("this version")), "{size}");
        }
    }

    #[test]
    fn longer_structs_pass_only_with_a_zero_tail() {
        let mut g = grown();
        assert_eq!(read(&g).map(|o| o.k), Ok(5));
        for at in 0..16 {
            g.tail = [0; 16];
            g.tail[at] = 1;
            assert_eq!(read(&g).map(|o| o.k).unwrap_err().status, Status::Abi);
        }
        for size in [0, 1, 4, SIZE - 1, 4097, u32::MAX] {
            g = grown();
            g.known.struct_size = size;
            let e = read(&g).map(|o| o.k).unwrap_err();
            assert_eq!((e.status, e.message().map_or("options", |m| m.0)), (Status::Abi, "options"), "{size}");
        }
    }

    #[test]
    fn shorter_structs_of_released_sizes_get_defaults() {
        let mut g = grown();
        g.known.struct_size = ice_query_options::MIN as u32;
        // Not the caller's: an older struct ends before these.
        (g.known.filter, g.known.filter_len) = (core::ptr::dangling(), 7);
        let o = read(&g).unwrap();
        assert_eq!((o.k, o.filter.is_null(), o.filter_len), (5, true, 0));
        for short in 1..8 {
            g.known.struct_size = SIZE - short;
            assert_eq!(read(&g).map(|o| o.k).unwrap_err().status, Status::Abi, "{short}");
        }
    }

    #[test]
    fn outputs_keep_their_size_and_tail() {
        let mut g = grown();
        g.tail = [9; 16];
        // SAFETY: all-zero is valid.
        let mut v: ice_query_options = unsafe { core::mem::zeroed() };
        v.k = 8;
        // SAFETY: `Grown` has the bytes it claims.
        unsafe { SizedOutput::new((&raw mut g).cast::<ice_query_options>(), "options") }.unwrap().write(v);
        assert_eq!((g.known.struct_size, g.known.k, g.tail), (SIZE + 16, 8, [9; 16]));
    }

    #[test]
    fn arrays() {
        let x = [1u64, 2, 3];
        // SAFETY: a live array, or refused before use.
        unsafe {
            assert_eq!(array(x.as_ptr(), 3, "x"), Ok(&x[..]));
            assert_eq!(array(core::ptr::null::<u64>(), 0, "x"), Ok(&[][..]));
            assert_eq!(array(core::ptr::null::<u64>(), 1, "x"), Err(null("x")));
            let odd = x.as_ptr().cast::<u8>().add(1).cast::<u64>();
            assert_eq!(array(odd, 1, "x").unwrap_err().status, Status::Alignment);
            assert_eq!(array(x.as_ptr(), usize::MAX, "x").unwrap_err().status, Status::Shape);
            assert_eq!(array(x.as_ptr(), usize::MAX / 8, "x").unwrap_err().status, Status::Shape);
        }
    }

    #[test]
    fn enumerators_and_flags() {
        assert_eq!(choice(1, "metric", &['a', 'b']), Ok('b'));
        for bad in [-1, 2, i32::MIN, i32::MAX] {
            assert_eq!(choice(bad, "metric", &['a', 'b']).unwrap_err().status, Status::Argument);
        }
        assert_eq!(flags(3, 3, "flags"), Ok(()));
        assert_eq!(
            flags(6, 3, "flags").unwrap_err(),
            Error::new(Status::Argument, "flags", "unknown flag bits").value(4)
        );
        assert!(reserved(&[0, 0], "reserved").is_ok() && reserved(&[0, 1], "reserved").is_err());
    }
}
