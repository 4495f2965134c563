//! Which keys a row sees: one mask, a window and sinks, reduced to ranges and biases.

use crate::error::{Error, Result, Status};
use crate::features::ACCELERATED;
use crate::mem::{Dtype, Rows, Tensor};
use crate::simd::Isa;
use crate::simd::bias::{Largest, SEGMENT};
use core::ops::Range;

/// Mask of an attention call; see the fields' shapes. "Position" of query row i is `q_pos0 + i` for [`Mask::Causal`] and
/// [`Mask::CausalKeys`], i otherwise; the position of a key is its row.
///
/// ```
/// use iceformer_core::attention::{Mask, Problem};
/// use iceformer_core::mem::{Tensor, TensorMut};
///
/// let (x, mut out) = ([0.5; 3 * 4], [0.0; 3 * 4]);
/// let t = Tensor::new(&x, [1, 1, 3, 4])?;
/// // Key 1 is padding.
/// let problem = Problem::new(t, t, t, TensorMut::new(&mut out, [1, 1, 3, 4])?).mask(Mask::Keys(&[1, 0, 1]));
/// # Ok::<(), iceformer_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub enum Mask<'a> {
    /// Every key.
    #[default]
    None,
    /// Row i sees keys `0 ..= q_pos0 + i`.
    Causal {
        /// Position of query row 0.
        q_pos0: u64,
    },
    /// Row i of batch b sees keys `0 .. counts[b * rows_q + i]` (counts beyond the keys mean all). Length `rows_q` (shared by
    /// all batches) or `batch * rows_q`.
    Prefix(&'a [u64]),
    /// Key j of batch b is padding where `keep[b * rows_kv + j] == 0`. Length `rows_kv` (shared) or `batch * rows_kv`.
    Keys(&'a [u8]),
    /// [`Mask::Causal`] and [`Mask::Keys`] together: batches of prompts padded on the left. Positions count padding.
    CausalKeys {
        /// Position of query row 0.
        q_pos0: u64,
        /// As in [`Mask::Keys`].
        keep: &'a [u8],
    },
    /// `bias[b][h][i][j]` is added to the logit (f32 or f16, finite or -inf; -inf excludes). Batch and head counts of 1 are
    /// shared by all batches or heads.
    Additive(Tensor<'a>),
}

/// Keys visible to one row before padding and bias: `0..sinks` and `begin..end`, disjoint and ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visible {
    /// End of the sink range (which starts at 0); 0 when there is none.
    pub sinks: usize,
    /// First key of the main range.
    pub begin: usize,
    /// End of the main range, `>= begin`.
    pub end: usize,
}

impl Visible {
    /// Whether key `j` is in.
    pub fn contains(&self, j: usize) -> bool {
        j < self.sinks || (self.begin..self.end).contains(&j)
    }

    /// Number of keys in.
    pub fn len(&self) -> usize {
        self.sinks + self.end - self.begin
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A mask with its window and sinks, checked against a problem's shape.
#[derive(Clone, Copy, Debug)]
pub struct Masking<'a> {
    mask: Mask<'a>,
    window: usize,
    sinks: usize,
    rows_q: usize,
    rows_kv: usize,
    /// Where keys are not numbered by their rows: those of the rows, ascending.
    ids: Option<&'a [u64]>,
}

impl<'a> Masking<'a> {
    /// Checks the mask's shape against `[batch, heads_q, rows_q, rows_kv]`.
    ///
    /// # Errors
    /// `Shape` naming the mask's field; `NotFinite` for NaN or +inf in a bias (unless `trusted`).
    pub fn new(mask: Mask<'a>, window: usize, sinks: usize, shape: [usize; 4], trusted: bool) -> Result<Self> {
        let [batch, heads, rows_q, rows_kv] = shape;
        let length = |field, have: usize, one: usize| {
            if have == one || one.checked_mul(batch) == Some(have) {
                return Ok(());
            }
            Err(Error::new(Status::Shape, field, "length fits neither one batch nor all").need(one, have))
        };
        if let Mask::Keys(keep) | Mask::CausalKeys { keep, .. } = mask {
            length("mask.keys", keep.len(), rows_kv)?;
        }
        match mask {
            Mask::None | Mask::Keys(_) => {}
            Mask::Causal { q_pos0 } | Mask::CausalKeys { q_pos0, .. } => {
                if q_pos0.checked_add(rows_q as u64).is_none_or(|end| end > i64::MAX as u64) {
                    return Err(Error::new(Status::Argument, "mask.q_pos0", "positions overflow").value(q_pos0));
                }
            }
            Mask::Prefix(counts) => length("mask.prefix", counts.len(), rows_q)?,
            Mask::Additive(bias) => {
                let [b, h, r, c] = bias.shape();
                if r != rows_q || c != rows_kv || (b != 1 && b != batch) || (h != 1 && h != heads) {
                    return Err(Error::new(Status::Shape, "mask.bias", "shape does not fit the queries and keys"));
                }
                if bias.dtype() == Dtype::Bf16 {
                    return Err(Error::new(Status::Unsupported, "mask.bias", "must be f32 or f16"));
                }
                if !trusted {
                    for bi in 0..b {
                        for hi in 0..h {
                            let rows = bias.head(bi, hi);
                            if let Some(i) = (0..r).find(|&i| !bias_row_is_valid(&rows, i)) {
                                return Err(Error::new(Status::NotFinite, "mask.bias", "holds NaN or +inf").row(i));
                            }
                        }
                    }
                }
            }
        }
        Ok(Masking { mask, window, sinks, rows_q, rows_kv, ids: None })
    }

    /// Every row sees every key.
    pub(super) fn all(rows_q: usize, rows_kv: usize) -> Self {
        Masking { mask: Mask::None, window: 0, sinks: 0, rows_q, rows_kv, ids: None }
    }

    /// The same for keys of which only those of `ids`, ascending, are there, none of them padding: ranges of their rows.
    /// Not for a bias.
    pub(super) fn over(self, ids: &'a [u64]) -> Self {
        Masking { ids: Some(ids), ..self }
    }

    /// Whether rows see all keys but padding, as every mask of this kind lets them.
    pub(super) fn shows_all(&self) -> bool {
        self.window == 0 && matches!(self.mask, Mask::None | Mask::Keys(_))
    }

    /// Whether the first `rows` rows see the same keys by position.
    pub(super) fn is_uniform(&self, batch: usize, rows: usize) -> bool {
        let first = self.visible(batch, 0);
        (1..rows).all(|row| self.visible(batch, row) == first)
    }

    /// Keys row `row` of batch `batch` may see by position.
    pub fn visible(&self, batch: usize, row: usize) -> Visible {
        let seen = self.visible_ids(batch, row);
        let Some(ids) = self.ids.filter(|_| ACCELERATED) else { return seen };
        let place = |id: usize| ids.partition_point(|&x| x < id as u64);
        Visible { sinks: place(seen.sinks), begin: place(seen.begin), end: place(seen.end) }
    }

    fn visible_ids(&self, batch: usize, row: usize) -> Visible {
        let (pos, end) = match self.mask {
            Mask::Causal { q_pos0 } | Mask::CausalKeys { q_pos0, .. } => {
                let pos = usize::try_from(q_pos0).unwrap_or(usize::MAX).saturating_add(row);
                (pos, pos.saturating_add(1))
            }
            Mask::Prefix(counts) => {
                let at = if counts.len() == self.rows_q { row } else { batch * self.rows_q + row };
                // The row stands at the last key it sees.
                let n = usize::try_from(counts[at]).unwrap_or(usize::MAX).min(self.rows_kv);
                (n.saturating_sub(1), n)
            }
            _ if self.window > 0 => (row, row.saturating_add(self.window)),
            _ => (row, usize::MAX),
        };
        let end = end.min(self.rows_kv);
        let begin = if self.window > 0 { pos.saturating_add(1).saturating_sub(self.window).min(end) } else { 0 };
        let sinks = if self.window > 0 { self.sinks.min(self.limit(batch, row)) } else { 0 };
        // Sinks that reach into the range may reach beyond it: a window to both sides ends before other keys do.
        let end = if sinks > begin { end.max(sinks) } else { end };
        Visible { sinks: sinks.min(begin), begin, end }
    }

    /// Keys visible without the window: causal or prefix end.
    fn limit(&self, batch: usize, row: usize) -> usize {
        match self.mask {
            Mask::Causal { .. } | Mask::CausalKeys { .. } | Mask::Prefix(_) => {
                Masking { window: 0, ..*self }.visible_ids(batch, row).end
            }
            _ => self.rows_kv,
        }
    }

    /// Whether one of the first `rows` rows sees a run of at least `n` keys.
    pub(super) fn any_sees(&self, batch: usize, rows: usize, n: usize) -> bool {
        (0..rows).rev().map(|i| self.visible(batch, i)).any(|v| v.end - v.begin >= n)
    }

    /// Visible keys of a row that are not padding.
    pub fn count(&self, batch: usize, visible: Visible) -> usize {
        match self.keep(batch) {
            None => visible.len(),
            Some(keep) => (0..visible.end).filter(|&j| visible.contains(j) && keep[j] != 0).count(),
        }
    }

    /// Padding bytes of a batch (0 = padding), if the mask has them.
    pub fn keep(&self, batch: usize) -> Option<&'a [u8]> {
        match self.mask {
            _ if self.ids.is_some() => None,
            Mask::Keys(keep) | Mask::CausalKeys { keep, .. } => {
                Some(if keep.len() == self.rows_kv { keep } else { &keep[batch * self.rows_kv..][..self.rows_kv] })
            }
            _ => None,
        }
    }

    /// Bias rows of a batch and query head, if the mask has them: `[rows_q, rows_kv]`.
    pub fn bias(&self, batch: usize, head: usize) -> Option<Rows<'a>> {
        match self.mask {
            Mask::Additive(t) => {
                let [b, h, _, _] = t.shape();
                Some(t.head(if b == 1 { 0 } else { batch }, if h == 1 { 0 } else { head }))
            }
            _ => None,
        }
    }

    /// Biases of some query heads of a batch, those that they share once.
    pub(super) fn biases_of(&self, batch: usize, heads: Range<usize>) -> impl Iterator<Item = Rows<'a>> {
        let shared = self.biases().is_some_and(|t| t.shape()[1] == 1);
        let n = if shared { 1 } else { heads.len() };
        heads.take(n).filter_map(move |head| self.bias(batch, head))
    }

    /// Whether each key of the segment from `first` on is seen by some row of these heads, as far as padding and biases say.
    pub(super) fn shows_segment(&self, isa: Isa, batch: usize, heads: Range<usize>, first: usize) -> bool {
        let mut most = [f32::NEG_INFINITY; SEGMENT];
        self.keep(batch).is_none_or(|keep| !keep[first..][..SEGMENT].contains(&0))
            && (self.biases().is_none()
                || self.biases_of(batch, heads).any(|biases| isa.run(Largest { biases, first, most: &mut most })))
    }

    /// Biases of all heads, if the mask has them.
    pub(super) fn biases(&self) -> Option<Tensor<'a>> {
        match self.mask {
            Mask::Additive(t) => Some(t),
            _ => None,
        }
    }
}

/// No NaN and no +inf; -inf is how a bias excludes.
fn bias_row_is_valid(rows: &Rows<'_>, i: usize) -> bool {
    // All of a part are looked at, so that the loops become vectors: biases are the most that a call reads.
    const PART: usize = 1024;
    match (rows.row_f32(i), rows.row_bits(i)) {
        // Neither NaN nor positive infinity is less.
        (Some(row), _) => row.chunks(PART).all(|part| part.iter().fold(true, |ok, &x| ok & (x < f32::INFINITY))),
        (_, Some(bits)) => {
            let valid = |b: u16| b & 0x7c00 != 0x7c00 || b == 0xfc00;
            bits.chunks(PART).all(|part| part.iter().fold(true, |ok, &b| ok & valid(b)))
        }
        _ => true,
    }
}
