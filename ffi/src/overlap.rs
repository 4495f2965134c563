//! Outputs that share bytes with what a call reads are refused: rows are read while others are written.

use crate::types::{ice_tensor, ice_tensor_mut};
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
    /// Rows `[batch, heads, rows, cols]` of elements of `size` bytes, their strides as in the header; checked to fit the address
    /// space.
    fn new(base: usize, size: usize, shape: [usize; 4], strides: [usize; 3]) -> Place {
        let [batch, heads, rows, cols] = shape;
        if base == 0 || shape.contains(&0) {
            return Place { base, width: 0, dims: [(0, 0); 3] };
        }
        let or = |s: usize, packed: usize| if s == 0 { packed } else { s };
        let row = or(strides[0], cols * size);
        let head = or(strides[1], rows * row);
        Place { base, width: cols * size, dims: [(batch, or(strides[2], heads * head)), (heads, head), (rows, row)] }
    }

    pub(crate) fn of(t: &ice_tensor, size: usize, shape: [usize; 4]) -> Place {
        Place::new(t.data.addr(), size, shape, [t.row_stride, t.head_stride, t.batch_stride])
    }

    pub(crate) fn of_mut(t: &ice_tensor_mut, size: usize, shape: [usize; 4]) -> Place {
        Place::new(t.data.addr(), size, shape, [t.row_stride, t.head_stride, t.batch_stride])
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

    /// Whether a row of this one shares a byte with `low..high`.
    fn touches(&self, low: usize, high: usize) -> bool {
        let [(batches, batch), (heads, head), (rows, row)] = self.dims;
        let after = (low + 1).saturating_sub(self.width);
        (0..batches).flat_map(|b| (0..heads).map(move |h| (b, h))).any(|(b, h)| {
            let base = self.base + b * batch + h * head;
            // The first row that ends behind `low`.
            let r = after.saturating_sub(base).div_ceil(row.max(1));
            r < rows && base + r * row < high
        })
    }

    fn overlaps(&self, other: &Place) -> bool {
        if self.width == 0 || other.width == 0 || self.end() <= other.base || other.end() <= self.base {
            return false;
        }
        // They may still lie between each other: row by row then.
        let [(batches, batch), (heads, head), (rows, row)] = self.dims;
        (0..batches).any(|b| {
            (0..heads).any(|h| {
                (0..rows).any(|r| {
                    let low = self.base + b * batch + h * head + r * row;
                    other.touches(low, low.saturating_add(self.width))
                })
            })
        })
    }
}

/// Refuses an output that shares bytes with one of `others`.
pub(crate) fn refuse(output: Place, field: &'static str, others: &[Place]) -> Result<()> {
    if others.iter().any(|other| output.overlaps(other)) {
        return Err(Error::new(Status::Argument, field, "overlaps what the call reads, or another output"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let mut place = || {
                let shape = [1 + draw(2), 1 + draw(3), draw(4), 1 + draw(3)];
                let strides = [4 * draw(9), 4 * draw(12), 4 * draw(30)];
                Place::new(4 * (20 + draw(60)), 4, shape, strides)
            };
            let (a, b) = (place(), place());
            let want = !bytes(&a).is_disjoint(&bytes(&b));
            assert!(a.overlaps(&b) == want && b.overlaps(&a) == want, "{:?} {:?}", (a.base, a.dims), (b.base, b.dims));
            (yes, no) = (yes + usize::from(want), no + usize::from(!want));
        }
        assert!(yes > 3000 && no > 3000, "{yes} {no}");
        // Rows of one buffer side by side, as of queries and outputs that are interleaved.
        let side = |at: usize| Place::new(1000 + at, 4, [1, 4, 1000, 8], [4 * 64, 4 * 8, 0]);
        assert!(!side(0).overlaps(&side(4 * 32)) && side(0).overlaps(&side(4 * 31)));
    }
}
