//! Attention of many rows over an index: the keys that rows see brought together, then the kernels of a call.
//!
//! Rows that all see the same keys get them in the order in which the index has gathered them, like beside like: what the
//! index knows is the upper part of the tree that accelerated attention walks, whose nodes are cut from that order. Rows
//! that see different keys get them in the order of ids, so that what a row sees is a range.

use super::clustered::{BlockWork, Control, Heads, Tree};
use super::dense::{Call, exact};
use super::tunables::{DENSE_BELOW, FINEST, MOST_KEYS, ROWS_BELOW};
use super::{AttentionOptions, AttentionStats, Masking, Mode, Reason, clock};
use crate::dci::{Arranging, Index};
use crate::error::{Error, Result, Status, reserved};
use crate::features::{self, ACCELERATED};
use crate::mem::{Buf, Maker, Memory, Plan, Rows, RowsMut, Tensor, TensorMut};
use crate::simd::gather::Gather;

/// Rows of a call that work memory is for: any number of them.
const MANY: usize = usize::MAX;

/// What [`index_attention`](super::index_attention) works in beside a scratch, for one index at its capacity when this was
/// made and values of one size: with it exact attention takes whole blocks of rows, and accelerated attention is to be had.
///
/// Thread class: exclusive to one call at a time. Allocation class: creation only. Memory: `capacity x (dim + dim_v)`
/// numbers for keys and values in the order that attention takes them, a quarter of that for the tree, and about 3 MiB.
///
/// ```
/// # #[cfg(all(feature = "std", feature = "full"))] {
/// use iceformer_core::attention::AttentionRoom;
/// use iceformer_core::dci::{Index, IndexOptions};
/// use iceformer_core::mem::Plan;
///
/// let index = Index::new(&IndexOptions { capacity: 1000, ..IndexOptions::new(64) })?;
/// let mut plan = Plan::new();
/// AttentionRoom::plan(&index, 64, &mut plan);
/// assert!(plan.finish()?.bytes > 1000 * 2 * 64 * 4);
/// # }
/// # Ok::<(), iceformer_core::Error>(())
/// ```
pub struct AttentionRoom {
    slots: usize,
    dim: usize,
    dim_v: usize,
    arranging: Arranging,
    /// Slots of the keys that rows see, and their ids.
    order: Buf<u32>,
    ids: Buf<u64>,
    /// Keys and values by that order.
    keys: Buf<f32>,
    values: Buf<f32>,
    work: BlockWork,
    tree: Tree,
}

/// What is attended, checked.
pub(super) struct OverIndex<'a> {
    pub(super) index: &'a Index,
    pub(super) queries: Rows<'a>,
    /// Row `id` belongs to the key with that id.
    pub(super) values: Rows<'a>,
    pub(super) masking: Masking<'a>,
    /// Resolved.
    pub(super) options: AttentionOptions,
    /// As asked for: [`Mode::Auto`] is resolved to another.
    pub(super) mode: Mode,
}

/// Keys and values of the rows that are seen, with a mask for them.
struct InView<'a> {
    keys: Rows<'a>,
    values: Rows<'a>,
    masking: Masking<'a>,
}

impl AttentionRoom {
    /// Adds the blocks of the room for `index` and values of `dim_v` elements to a plan.
    pub fn plan(index: &Index, dim_v: usize, plan: &mut Plan) {
        plan.count(|m| AttentionRoom::made(m, index, dim_v));
    }

    /// Room for `index` and values of `dim_v` elements.
    ///
    /// # Errors
    /// `Unsupported` without the feature `accelerated`: attention goes row by row there; `Shape` for values without
    /// elements; `NoMemory`, `Budget`.
    pub fn new_in(index: &Index, dim_v: usize, memory: &Memory) -> Result<AttentionRoom> {
        features::need(ACCELERATED, "room", "this build has no accelerated attention")?;
        if dim_v == 0 {
            return Err(Error::new(Status::Shape, "dim_v", "must be at least 1").value(0));
        }
        Maker::make(memory, |m| AttentionRoom::made(m, index, dim_v))
    }

    fn made(m: &mut Maker<'_>, index: &Index, dim_v: usize) -> AttentionRoom {
        let (n, dim) = (index.capacity(), index.dim());
        AttentionRoom {
            slots: n,
            dim,
            dim_v,
            arranging: index.arranging(m),
            order: m.room(n),
            ids: m.room(n),
            keys: m.filled(n.saturating_mul(dim), 0.0),
            values: m.filled(n.saturating_mul(dim_v), 0.0),
            work: BlockWork::made(m, [dim, dim_v], 1, MANY, n),
            tree: Tree::made(m, dim, dim_v, n),
        }
    }

    /// Elements of a value.
    pub fn dim_v(&self) -> usize {
        self.dim_v
    }

    /// Whether this room fits the index as it is now, and the values.
    pub(super) fn check(&self, index: &Index, dim_v: usize) -> Result<()> {
        if self.dim != index.dim() {
            return Err(Error::new(Status::Shape, "scratch", "was made for an index of another shape"));
        }
        if self.dim_v != dim_v {
            let e = Error::new(Status::Shape, "dim_v", "is not the one that the scratch was made for");
            return Err(e.need(self.dim_v, dim_v));
        }
        if self.slots < index.slots() || !index.fits_arranging(&self.arranging) {
            let e = Error::new(Status::Capacity, "scratch", "was made before the index grew");
            return Err(e.need(index.slots(), self.slots));
        }
        Ok(())
    }

    /// Whether this can attend to what is asked for: a bias goes by ids, which must be the keys' rows then.
    pub(super) fn can(&self, over: &OverIndex<'_>) -> bool {
        // Rows are numbered in 32 bits.
        over.is_straight() || over.masking.bias(0, 0).is_none() && over.values.rows() <= MOST_KEYS
    }

    /// Attends all rows. Never allocates.
    pub(super) fn attend(
        &mut self,
        over: &OverIndex<'_>,
        out: &mut RowsMut<'_>,
        lse: Option<&mut [f32]>,
    ) -> Result<AttentionStats> {
        let rows = over.queries.rows();
        let start = clock::now();
        let whole = over.options.tolerance < FINEST;
        let by_cells = match over.mode {
            // The finest tolerances need every key.
            Mode::Accelerated | Mode::Auto if whole => false,
            Mode::Accelerated => true,
            Mode::Auto => over.index.len() >= DENSE_BELOW && rows >= ROWS_BELOW,
            _ => false,
        };
        let uniform = rows > 0 && over.masking.bias(0, 0).is_none() && over.masking.is_uniform(0, rows);
        let straight = over.is_straight() && !(by_cells && uniform);
        if !straight {
            self.gather(over, by_cells, uniform);
        }
        let AttentionRoom { ids, keys, values, work, tree, .. } = self;
        let n = ids.len();
        let seen = if straight {
            InView { keys: over.index.keys_by_slot(), values: over.values, masking: over.masking }
        } else {
            let (Ok(k), Ok(v)) =
                (Rows::new(&keys[..n * self.dim], self.dim), Rows::new(&values[..n * self.dim_v], self.dim_v))
            else {
                unreachable!("whole rows")
            };
            let masking = match uniform {
                true => Masking::all(rows, n),
                false => over.masking.over(ids),
            };
            InView { keys: k, values: v, masking }
        };
        let lse = lse.map(|lse| TensorMut::new(&mut lse[..rows], [1, 1, rows, 1])).transpose()?;
        let (isa, out) = (over.index.isa(), TensorMut::of(out));
        let (q, lse, masking) = (Tensor::of(over.queries), lse.as_ref(), &seen.masking);
        let call = Call { q, out: &out, lse, masking, options: &over.options, isa };
        let auto = over.mode == Mode::Auto;
        let reason = match (auto, by_cells) {
            (true, true) => Reason::Cheaper,
            (true, false) if whole => Reason::OnlyWay,
            (true, false) => Reason::Short,
            (false, false) if over.mode == Mode::Accelerated => Reason::OnlyWay,
            _ => Reason::Requested,
        };
        if !by_cells {
            let mut stats = AttentionStats::new(Mode::Exact, reason);
            let start = clock::now();
            let (head, (mut out, lse)) = (call.head(0, 0, seen.keys, seen.values), call.rows(0, 0, 0, rows));
            stats.add_exact(exact::attend(isa, &head, 0, rows, &mut out, lse, work.exact()));
            stats.attend_seconds = clock::since(start);
            return Ok(stats);
        }
        tree.clear();
        tree.fill(isa, &seen.keys, &seen.values, |first| masking.shows_segment(isa, 0, 0..1, first));
        tree.publish();
        let mut stats = AttentionStats::new(Mode::Accelerated, reason);
        stats.build_seconds = clock::since(start);
        let start = clock::now();
        let tree = &*tree;
        let all = Heads {
            call,
            auto,
            heads_kv: 1,
            kv: &|_, _| (seen.keys, seen.values, tree),
            before: &|_| Control::default(),
            after: &|_, _, _| {},
        };
        all.run(work, 0, 1, &mut stats, &mut None);
        stats.attend_seconds = clock::since(start);
        if auto {
            stats.settle();
        }
        Ok(stats)
    }

    /// Brings keys and values together: by cells, or by slots, those that all rows see, or by ids those that are not padding.
    fn gather(&mut self, over: &OverIndex<'_>, by_cells: bool, uniform: bool) {
        let AttentionRoom { arranging, order, ids, keys, values, dim, dim_v, .. } = self;
        order.clear();
        if by_cells && uniform {
            over.index.list_by_cells(arranging, order);
        } else {
            over.index.list_slots(order);
        }
        let id_of = |slot: u32| over.index.held_at(slot).unwrap_or_else(|| unreachable!("slots with a key are listed"));
        let seen = uniform.then(|| over.masking.visible(0, 0));
        let keep = over.masking.keep(0);
        let mut n = 0;
        for i in 0..order.len() {
            let id = id_of(order[i]) as usize;
            if seen.is_none_or(|seen| seen.contains(id)) && keep.is_none_or(|keep| keep[id] != 0) {
                order[n] = order[i];
                n += 1;
            }
        }
        order.truncate(n);
        if !uniform {
            order.sort_unstable_by_key(|&slot| id_of(slot));
        }
        ids.clear();
        order.iter().for_each(|&slot| reserved(ids.push(id_of(slot))));
        let isa = over.index.isa();
        isa.run(Gather { from: &over.index.keys_by_slot(), ids: order, stride: *dim, out: keys });
        // From here on slots are not needed: rows of values.
        order.iter_mut().zip(&**ids).for_each(|(row, &id)| *row = id as u32);
        isa.run(Gather { from: &over.values, ids: order, stride: *dim_v, out: values });
    }
}

impl OverIndex<'_> {
    /// Whether the keys and values lie as attention takes them: every id is its slot, and there are no others.
    fn is_straight(&self) -> bool {
        let n = self.index.slots();
        n == self.values.rows() && (0..n as u32).all(|slot| self.index.held_at(slot) == Some(u64::from(slot)))
    }
}
