//! Rows in memory of their own, in the type that a session stores.

use crate::error::reserved;
use crate::mem::{Buf, Dtype, Maker, Rows};
use crate::simd::Isa;
use crate::simd::gather::Gather;
#[cfg(feature = "half")]
use half::{bf16, f16, slice::HalfBitsSliceExt, slice::HalfFloatSliceExt};

/// Rows of one size, one after another, in one of the types that sessions store.
pub(super) enum Store {
    F32(Buf<f32>),
    #[cfg(feature = "half")]
    F16(Buf<f16>),
    #[cfg(feature = "half")]
    Bf16(Buf<bf16>),
}

/// What is done alike with elements of every type.
macro_rules! of_any_type {
    ($store:expr, $b:ident => $do:expr) => {
        match $store {
            Store::F32($b) => $do,
            #[cfg(feature = "half")]
            Store::F16($b) => $do,
            #[cfg(feature = "half")]
            Store::Bf16($b) => $do,
        }
    };
}

impl Store {
    pub(super) fn made(m: &mut Maker<'_>, dtype: Dtype, n: usize) -> Self {
        match dtype.used() {
            Dtype::F32 => Store::F32(m.room(n)),
            #[cfg(feature = "half")]
            Dtype::F16 => Store::F16(m.room(n)),
            #[cfg(feature = "half")]
            Dtype::Bf16 => Store::Bf16(m.room(n)),
            #[cfg(not(feature = "half"))]
            Dtype::F16 | Dtype::Bf16 => unreachable!("refused with the options"),
        }
    }

    /// Appends row `i` as it is, if it is of the storage type; `false` if it is not.
    pub(super) fn push_same(&mut self, rows: &Rows<'_>, i: usize) -> bool {
        match (self, rows.dtype(), rows.row_f32(i), rows.row_bits(i)) {
            (Store::F32(b), _, Some(row), _) => reserved(b.extend_from_slice(row)),
            #[cfg(feature = "half")]
            (Store::F16(b), Dtype::F16, _, Some(bits)) => reserved(b.extend_from_slice(bits.reinterpret_cast())),
            #[cfg(feature = "half")]
            (Store::Bf16(b), Dtype::Bf16, _, Some(bits)) => reserved(b.extend_from_slice(bits.reinterpret_cast())),
            _ => return false,
        }
        true
    }

    /// Rows `ids` of a matrix in place of all that was there, as they are or, where f32 is stored, as f32.
    pub(super) fn gather(&mut self, isa: Isa, from: &Rows<'_>, ids: &[u32]) {
        self.truncate(0);
        match self {
            Store::F32(b) => {
                let stride = from.cols();
                reserved(b.resize(ids.len() * stride, 0.0));
                isa.run(Gather { from, ids, stride, out: b });
            }
            #[cfg(feature = "half")]
            _ => {
                for &id in ids {
                    let same = self.push_same(from, id as usize);
                    debug_assert!(same, "16-bit rows come from 16-bit rows of that type");
                }
            }
        }
    }

    /// Appends numbers of one row, or several; `false` when a finite number does not fit the storage type (they are then of no use).
    pub(super) fn push_row(&mut self, isa: Isa, row: &[f32]) -> bool {
        #[cfg(not(feature = "half"))]
        let _ = isa;
        match self {
            Store::F32(b) => {
                reserved(b.extend_from_slice(row));
                true
            }
            #[cfg(feature = "half")]
            Store::F16(b) => {
                let len = b.len();
                reserved(b.resize(len + row.len(), f16::ZERO));
                isa.round_f16(row, b[len..].reinterpret_cast_mut());
                // Half of the last step beyond the largest is where rounding leaves the finite ones.
                let most = 65520f32.to_bits()..f32::INFINITY.to_bits();
                !row.iter().fold(false, |lost, x| lost | most.contains(&(x.to_bits() & 0x7fff_ffff)))
            }
            #[cfg(feature = "half")]
            Store::Bf16(b) => {
                let mut fits = true;
                for &x in row {
                    let h = bf16::from_f32(x);
                    fits &= h.is_finite() || !x.is_finite();
                    reserved(b.push(h));
                }
                fits
            }
        }
    }

    /// Writes row `i` anew, whose numbers fit the storage type.
    pub(super) fn set_row(&mut self, isa: Isa, i: usize, row: &[f32]) {
        #[cfg(not(feature = "half"))]
        let _ = isa;
        let at = i * row.len()..(i + 1) * row.len();
        match self {
            Store::F32(b) => b[at].copy_from_slice(row),
            #[cfg(feature = "half")]
            Store::F16(b) => isa.round_f16(row, b[at].reinterpret_cast_mut()),
            #[cfg(feature = "half")]
            Store::Bf16(b) => b[at].iter_mut().zip(row).for_each(|(to, &x)| *to = bf16::from_f32(x)),
        }
    }

    pub(super) fn truncate(&mut self, n: usize) {
        of_any_type!(self, b => b.truncate(n));
    }

    /// Removes elements `begin..end`, moving what follows down.
    pub(super) fn drain(&mut self, begin: usize, end: usize) {
        of_any_type!(self, b => {
            let len = b.len();
            b.copy_within(end..len, begin);
            b.truncate(len - (end - begin));
        });
    }

    pub(super) fn rows(&self, n: usize, cols: usize) -> Rows<'_> {
        of_any_type!(self, b => Rows::new(&b[..n * cols], cols))
            .unwrap_or_else(|_| unreachable!("whole rows are stored"))
    }
}
