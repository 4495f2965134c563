//! Which mutant is on: copied into a crate whose mutants are behind a switch, never built with the others.
//!
//! `ICE_MUTANT` names the mutant; `ICE_REACHED` a file to which the places are appended that a run comes by, each once.

use core::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Shl, Shr, Sub};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::Relaxed};
use std::io::Write;
use std::os::fd::{FromRawFd, IntoRawFd};

const NONE: u32 = u32::MAX - 2;
/// From here on the slow way.
const NOTING: u32 = u32::MAX - 1;

static WHICH: AtomicU32 = AtomicU32::new(NONE);
static NOTES: AtomicI32 = AtomicI32::new(-1);
static SEEN: [AtomicBool; COUNT] = [const { AtomicBool::new(false) }; COUNT];

extern "C" fn start() {
    if let Some(path) = std::env::var_os("ICE_REACHED") {
        let file = std::fs::File::options().append(true).create(true).open(path).expect("ICE_REACHED");
        NOTES.store(file.into_raw_fd(), Relaxed);
        WHICH.store(NOTING, Relaxed);
    } else if let Some(n) = std::env::var("ICE_MUTANT").ok().and_then(|x| x.parse().ok()) {
        WHICH.store(n, Relaxed);
    }
}

/// Before `main`: tests count allocations.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[cold]
#[inline(never)]
fn note(n: u32) {
    if SEEN[n as usize].swap(true, Relaxed) {
        return;
    }
    let (mut line, mut at, mut rest) = ([b'\n'; 12], 11, n);
    loop {
        at -= 1;
        line[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    // SAFETY: open until the process ends.
    let mut file = core::mem::ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(NOTES.load(Relaxed)) });
    let _ = file.write_all(&line[at..]);
}

#[inline(always)]
fn at(n: u32) -> u32 {
    let which = WHICH.load(Relaxed);
    if which == NOTING {
        note(n);
        return NONE;
    }
    which.wrapping_sub(n)
}

/// Whether mutant `n` is on.
#[inline(always)]
pub fn on(n: u32) -> bool {
    at(n) == 0
}

macro_rules! binary {
    ($name:ident, $this:ident $op:tt, $first:ident $a:tt, $second:ident $b:tt) => {
        #[inline(always)]
        pub fn $name<T: $this<Output = T> + $first<Output = T> + $second<Output = T>>(n: u32, x: T, y: T) -> T {
            match at(n) {
                0 => x $a y,
                1 => x $b y,
                _ => x $op y,
            }
        }
    };
}
binary!(add, Add +, Sub -, Mul *);
binary!(sub, Sub -, Add +, Div /);
binary!(mul, Mul *, Add +, Div /);
binary!(div, Div /, Rem %, Mul *);
binary!(rem, Rem %, Div /, Add +);
binary!(bitand, BitAnd &, BitOr |, BitXor ^);
binary!(bitor, BitOr |, BitAnd &, BitXor ^);
binary!(bitxor, BitXor ^, BitOr |, BitAnd &);

#[inline(always)]
pub fn or_assign<T: BitAnd<Output = T> + BitOr<Output = T>>(n: u32, x: T, y: T) -> T {
    if on(n) { x & y } else { x | y }
}
#[inline(always)]
pub fn and_assign<T: BitAnd<Output = T> + BitOr<Output = T>>(n: u32, x: T, y: T) -> T {
    if on(n) { x | y } else { x & y }
}

/// `x OP= y`.
#[macro_export]
macro_rules! ice_assign {
    ($name:ident, $n:literal, $x:expr, $y:expr) => {{
        let by = $y;
        let to = &mut $x;
        *to = $crate::mutants::$name($n, *to, by);
    }};
}

#[inline(always)]
pub fn shl<T: Shl<U, Output = T> + Shr<U, Output = T>, U>(n: u32, x: T, y: U) -> T {
    if on(n) { x >> y } else { x << y }
}
#[inline(always)]
pub fn shr<T: Shl<U, Output = T> + Shr<U, Output = T>, U>(n: u32, x: T, y: U) -> T {
    if on(n) { x << y } else { x >> y }
}
#[inline(always)]
pub fn not<T: Not<Output = T>>(n: u32, x: T) -> T {
    if on(n) { x } else { !x }
}
#[inline(always)]
pub fn neg<T: Neg<Output = T>>(n: u32, x: T) -> T {
    if on(n) { x } else { -x }
}
#[inline(always)]
pub fn eq<T: PartialEq<U> + ?Sized, U: ?Sized>(n: u32, x: &T, y: &U) -> bool {
    if on(n) { x != y } else { x == y }
}
#[inline(always)]
pub fn ne<T: PartialEq<U> + ?Sized, U: ?Sized>(n: u32, x: &T, y: &U) -> bool {
    if on(n) { x == y } else { x != y }
}
#[inline(always)]
pub fn lt<T: PartialOrd>(n: u32, x: &T, y: &T) -> bool {
    match at(n) {
        0 => x == y,
        1 => x > y,
        2 => x <= y,
        _ => x < y,
    }
}
#[inline(always)]
pub fn gt<T: PartialOrd>(n: u32, x: &T, y: &T) -> bool {
    match at(n) {
        0 => x == y,
        1 => x < y,
        2 => x >= y,
        _ => x > y,
    }
}
#[inline(always)]
pub fn le<T: PartialOrd>(n: u32, x: &T, y: &T) -> bool {
    if on(n) { x > y } else { x <= y }
}
#[inline(always)]
pub fn ge<T: PartialOrd>(n: u32, x: &T, y: &T) -> bool {
    if on(n) { x < y } else { x >= y }
}
