//! Outputs that share bytes with what a call reads are refused: rows are read while others are written.

use iceformer_core::attention::Mask;
use iceformer_core::mem::{Dtype, Tensor, TensorMut};
use iceformer_core::{Error, Result, Status};

/// Where the rows of a tensor lie, by address.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    base: usize,
    /// Bytes of a row; 0 when there is nothing.
    width: usize,
    /// Number and stride of batches, heads and rows.
    dims: [(usize, usize); 3],
}

impl Place {
    fn new((base, strides): (*const u8, [usize; 3]), shape: [usize; 4], dtype: Dtype) -> Place {
        let [batch, heads, rows, cols] = shape;
        let width = if base.is_null() || shape.contains(&0) { 0 } else { cols * dtype.size() };
        Place { base: base.addr(), width, dims: [(batch, strides[0]), (heads, strides[1]), (rows, strides[2])] }
    }

    pub(crate) fn of(t: &Tensor<'_>) -> Place {
        Place::new(t.place(), t.shape(), t.dtype())
    }

    pub(crate) fn of_mut(t: &TensorMut<'_>) -> Place {
        Place::new(t.place(), t.shape(), t.dtype())
    }

    /// What a mask reads. Biases of more batches or heads than there are will be refused: their number is nothing to go by.
    pub(crate) fn of_mask(mask: &Mask<'_>, batch: usize, heads: usize) -> Place {
        match *mask {
            Mask::Prefix(counts) => Place::array(counts.as_ptr(), counts.len()),
            Mask::Keys(keep) | Mask::CausalKeys { keep, .. } => Place::array(keep.as_ptr(), keep.len()),
            Mask::Additive(bias) => {
                let mut place = Place::of(&bias);
                place.dims[0].0 = place.dims[0].0.min(batch);
                place.dims[1].0 = place.dims[1].0.min(heads);
                place
            }
            _ => Place::array(core::ptr::null::<u8>(), 0),
        }
    }

    /// `n` elements in a row.
    pub(crate) fn array<T>(p: *const T, n: usize) -> Place {
        let width = if p.is_null() { 0 } else { n.saturating_mul(size_of::<T>()) };
        Place { base: p.addr(), width, dims: [(1, width), (1, width), (1, width)] }
    }

    /// Past the last byte.
    fn end(&self) -> usize {
        // An array whose size nobody has checked yet may not fit; all of one do.
        let rows = self.dims.iter().map(|&(n, stride)| (n - 1) * stride).sum::<usize>();
        self.base.saturating_add(rows).saturating_add(self.width)
    }

    fn apart(&self, other: &Place) -> bool {
        self.width == 0 || other.width == 0 || self.end() <= other.base || other.end() <= self.base
    }

    /// Head `i` of all batches alone.
    fn head(&self, i: usize) -> Place {
        let [(_, batch), (heads, head), rows] = self.dims;
        Place { base: self.base + i / heads * batch + i % heads * head, dims: [(1, 0), (1, 0), rows], ..*self }
    }

    /// Heads may lie between each other, and so may their rows: looked at one by one only where they are not apart as a whole.
    fn overlaps(&self, other: &Place) -> bool {
        let heads = |p: &Place| p.dims[0].0 * p.dims[1].0;
        !self.apart(other)
            && (0..heads(self)).map(|i| self.head(i)).any(|a| {
                (0..heads(other)).map(|i| other.head(i)).any(|b| {
                    let [.., (rows, row)] = b.dims;
                    !a.apart(&b)
                        && (0..a.dims[2].0).map(|i| a.base + i * a.dims[2].1).any(|low| {
                            // The first row that ends behind `low`.
                            let r = (low + 1).saturating_sub(b.base.saturating_add(b.width)).div_ceil(row.max(1));
                            r < rows && b.base + r * row < low.saturating_add(a.width)
                        })
                })
            })
    }
}

/// Refuses an output that shares bytes with an input, or with an output before it.
pub(crate) fn refuse(outputs: &[(Place, &'static str)], inputs: &[Place]) -> Result<()> {
    for (i, (output, field)) in outputs.iter().enumerate() {
        if inputs.iter().chain(outputs[..i].iter().map(|(other, _)| other)).any(|other| output.overlaps(other)) {
            return Err(Error::new(Status::Argument, field, "overlaps what the call reads, or another output"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(base: usize, shape: [usize; 4], strides: [usize; 3]) -> Place {
        Place::new((core::ptr::without_provenance(base), strides), shape, Dtype::F32)
    }

    /// Every byte of a place, one by one.
    fn bytes(p: &Place) -> std::collections::BTreeSet<usize> {
        let [(batches, batch), (heads, head), (rows, row)] = p.dims;
        let starts = (0..batches).flat_map(|b| (0..heads).flat_map(move |h| (0..rows).map(move |r| (b, h, r))));
        starts.flat_map(|(b, h, r)| (0..p.width).map(move |i| p.base + b * batch + h * head + r * row + i)).collect()
    }

    #[test]
    fn places_overlap_where_bytes_do() {
        let mut state = 7u64;
        let mut draw = |n: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % n
        };
        let (mut yes, mut no) = (0, 0);
        for _ in 0..20_000 {
            let mut any = || {
                let shape = [1 + draw(2), 1 + draw(3), draw(4), 1 + draw(3)];
                let strides = [30, 12, 9].map(|most| 4 * (1 + draw(most)));
                place(4 * (20 + draw(60)), shape, strides)
            };
            let (a, b) = (any(), any());
            let last = bytes(&a).last().copied();
            assert!(last.is_none_or(|last| a.end() == last + 1), "{:?} ends at {}", (a.base, a.dims), a.end());
            let want = !bytes(&a).is_disjoint(&bytes(&b));
            assert!(a.overlaps(&b) == want && b.overlaps(&a) == want, "{:?} {:?}", (a.base, a.dims), (b.base, b.dims));
            (yes, no) = (yes + usize::from(want), no + usize::from(!want));
        }
        assert!(yes > 3000 && no > 3000, "{yes} {no}");
        // Rows of one buffer side by side, as of queries and outputs that are interleaved.
        let side = |at: usize| place(1000 + at, [1, 4, 1000, 8], [0, 4 * 8, 4 * 64]);
        assert!(!side(0).overlaps(&side(4 * 32)) && side(0).overlaps(&side(4 * 31)));
    }
}
