//! Error messages without the formatting machinery of the standard library, which is larger than much of what it would report on.

use core::ffi::c_char;
use iceformer_core::{Detail, Error};

/// Fills a fixed buffer with text, cut at a character boundary, always NUL-terminated.
pub(crate) struct Text<'a> {
    buf: &'a mut [c_char],
    len: usize,
    cut: bool,
}

impl<'a> Text<'a> {
    /// Empties the buffer, which has room for at least the NUL.
    pub(crate) fn new(buf: &'a mut [c_char]) -> Self {
        buf[0] = 0;
        Text { buf, len: 0, cut: false }
    }

    /// Appends text; nothing comes behind text that was cut.
    pub(crate) fn str(&mut self, s: &str) {
        if self.cut {
            return;
        }
        let room = self.buf.len() - 1 - self.len;
        let mut n = s.len().min(room);
        while !s.is_char_boundary(n) {
            n -= 1;
        }
        for &b in &s.as_bytes()[..n] {
            // A NUL inside the text would end it for C.
            self.buf[self.len] = if b == 0 { b'?' as c_char } else { b as c_char };
            self.len += 1;
        }
        self.buf[self.len] = 0;
        self.cut = n < s.len();
    }

    /// Appends a whole number, zeros in front up to `digits`.
    fn whole(&mut self, mut x: u64, digits: usize) {
        let mut text = [b'0'; 20];
        let mut at = text.len();
        while x != 0 || at > text.len() - digits {
            at -= 1;
            text[at] = b'0' + (x % 10) as u8;
            x /= 10;
        }
        self.str(core::str::from_utf8(&text[at..]).unwrap_or("?"));
    }

    /// Appends an integer.
    pub(crate) fn int(&mut self, x: u64) {
        self.whole(x, 1);
    }

    /// Appends a number to seven digits: plainly from 1e-4 to 1e9, else as `1.5e-12`.
    fn number(&mut self, x: f32) {
        let text = match x.classify() {
            core::num::FpCategory::Nan => "NaN",
            core::num::FpCategory::Infinite => "inf",
            core::num::FpCategory::Zero => "0",
            _ => "",
        };
        if x.is_sign_negative() && !x.is_nan() {
            self.str("-");
        }
        if !text.is_empty() {
            return self.str(text);
        }
        // To m x 10^e, m in [1, 10): exact enough in f64 for the digits that an f32 has.
        let (mut m, mut e) = (f64::from(x.abs()), 0i32);
        while m >= 10.0 {
            m /= 10.0;
            e += 1;
        }
        while m < 1.0 {
            m *= 10.0;
            e -= 1;
        }
        let mut digits = (m * 1e6 + 0.5) as u64;
        if digits == 10_000_000 {
            (digits, e) = (1_000_000, e + 1);
        }
        let plain = (-4..9).contains(&e);
        // Digits in front of the point; the rest, without zeros at the end, behind it.
        let front = if plain { e } else { 0 };
        let mut behind = 6 - front;
        while behind > 0 && digits.is_multiple_of(10) {
            (digits, behind) = (digits / 10, behind - 1);
        }
        let power = 10u64.pow(behind.unsigned_abs());
        if behind > 0 {
            self.int(digits / power);
            self.str(".");
            self.whole(digits % power, behind as usize);
        } else {
            self.int(digits * power);
        }
        if !plain {
            self.str(if e < 0 { "e-" } else { "e" });
            self.int(e.unsigned_abs().into());
        }
    }

    /// Appends an error: `field: reason (detail)`.
    pub(crate) fn error(&mut self, e: &Error) {
        let Some((field, reason, detail)) = e.message() else { return self.str(e.status.message()) };
        self.str(field);
        self.str(": ");
        self.str(reason);
        let (word, x) = match detail {
            Detail::None => return,
            Detail::Row(x) => (" (row ", x),
            Detail::Value(x) => (" (got ", x),
            Detail::Id(x) => (" (id ", x),
            Detail::Number(x) => {
                self.str(" (got ");
                self.number(x);
                return self.str(")");
            }
            Detail::Need { need, have } => {
                self.str(" (need ");
                self.int(need);
                (", have ", have)
            }
        };
        self.str(word);
        self.int(x);
        self.str(")");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iceformer_core::Status;

    fn written(e: &Error) -> String {
        let mut buf = [b'x' as c_char; 240];
        Text::new(&mut buf).error(e);
        buf.iter().take_while(|&&c| c != 0).map(|&c| c as u8 as char).collect()
    }

    #[test]
    fn says_what_display_says() {
        let e = Error::new(Status::Shape, "k", "is wrong");
        for e in [
            e,
            e.row(0),
            e.row(7),
            e.value(u64::MAX),
            e.id(1 << 60),
            e.need(10, 9),
            e.number(0.0),
            e.number(-0.5),
            e.number(2.0),
            e.number(-1.25e-4),
            e.number(16384.0),
            e.number(3.0e7),
            e.number(f32::NAN),
            e.number(f32::INFINITY),
            e.number(f32::NEG_INFINITY),
        ] {
            assert_eq!(written(&e), e.to_string());
        }
    }

    #[test]
    #[cfg(feature = "messages")]
    fn numbers_read_back() {
        let number = |x: f32| {
            let text = written(&Error::new(Status::Shape, "", "").number(x));
            let number = text.rsplit(' ').next().unwrap_or("").trim_end_matches(')');
            number.parse::<f32>().unwrap_or_else(|_| panic!("{text}"))
        };
        for bits in (0..0x7f80_0000u32).step_by(0x1_2345).chain([1, 0x007f_ffff, 0x7f7f_ffff]) {
            let x = f32::from_bits(bits);
            for x in [x, -x] {
                let back = number(x);
                // Seven digits, and nothing finer than an f32 has.
                assert!((back - x).abs() <= x.abs() * 6e-7 + 1e-45, "{x:e} {back:e}");
            }
        }
    }

    #[test]
    #[cfg(feature = "messages")]
    fn numbers_end_where_their_digits_do() {
        for (x, text) in [
            (0.01f32, "0.01"),
            (0.1, "0.1"),
            (1.0, "1"),
            (-10.0, "-10"),
            (1_234_560.0, "1234560"),
            (1_234_567.0, "1234567"),
            (123_456_000.0, "123456000"),
            (1e9, "1e9"),
            (1.5e-12, "1.5e-12"),
            (0.0001, "0.0001"),
            (1e-5, "1e-5"),
        ] {
            assert_eq!(written(&Error::new(Status::Shape, "x", "is").number(x)), format!("x: is (got {text})"));
        }
    }
}
