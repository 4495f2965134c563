//! One head over an index that the caller keeps.

use super::index_room::{AttentionRoom, OverIndex};
use super::retrieve::Retrieval;
use super::{AttentionOptions, AttentionStats, Mask, Masking, Mode, Reason, clock};
use crate::dci::{Engine, Index, Metric, Scratch};
use crate::error::{Error, Result, Status, same};
use crate::features::ACCELERATED;
use crate::mem::{Rows, RowsMut};

/// Attention of query rows over the keys of an index (paper, Algorithm 1, one head), without a mask and with default options unless
/// others are set: `queries [n, dim]`, `values [*, dim_v]` where row `id` belongs to the key with that id. Mask positions
/// are ids: row i sees the keys whose ids the mask shows to row i among `values.rows()` ids.
///
/// ```
/// # #[cfg(all(feature = "std", feature = "full"))] {
/// use iceformer_core::attention::{AttentionOptions, AttentionRoom, IndexProblem, Mode, index_attention};
/// use iceformer_core::dci::{Index, IndexOptions, Scratch};
/// use iceformer_core::mem::{Memory, Rows, RowsMut};
///
/// let (keys, values) = ([1.0, 0.0, 0.0, 1.0, 1.0, 1.0], [1.0, 2.0, 3.0]);
/// let mut index = Index::new(&IndexOptions::new(2))?;
/// index.insert(Rows::new(&keys, 2)?, None)?;
/// let memory = Memory::system(0)?;
/// let (mut scratch, mut room) = (Scratch::new_in(&index, &memory)?, AttentionRoom::new_in(&index, 1, &memory)?);
/// let mut out = [0.0; 1];
/// let problem = IndexProblem::new(&index, Rows::new(&[0.0, 9.0], 2)?, Rows::new(&values, 1)?);
/// let options = AttentionOptions { mode: Mode::Exact, ..AttentionOptions::default() };
/// let to = &mut RowsMut::new(&mut out, 1)?;
/// index_attention(&problem.options(options), &mut scratch, Some(&mut room), to, None)?;
/// // Keys 1 and 2 share the weight, half and half.
/// assert!((out[0] - 2.5).abs() < 0.01);
/// # }
/// # Ok::<(), iceformer_core::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct IndexProblem<'a> {
    index: &'a Index,
    queries: Rows<'a>,
    values: Rows<'a>,
    mask: Mask<'a>,
    options: AttentionOptions,
}

impl<'a> IndexProblem<'a> {
    /// All keys of the index for every row.
    pub fn new(index: &'a Index, queries: Rows<'a>, values: Rows<'a>) -> Self {
        IndexProblem { index, queries, values, mask: Mask::None, options: AttentionOptions::default() }
    }

    /// A mask.
    pub fn mask(self, mask: Mask<'a>) -> Self {
        IndexProblem { mask, ..self }
    }

    /// Other options.
    pub fn options(self, options: AttentionOptions) -> Self {
        IndexProblem { options, ..self }
    }
}

/// Attends to the keys of an index: `out [n, dim_v]`, `lse[n]`.
///
/// Exact mode scores every key of the index, top-k mode those it retrieves, accelerated mode opens cells where they matter
/// and estimates elsewhere. With a `room` exact attention takes rows by blocks; accelerated attention is to be had with one
/// only, and [`Mode::Auto`] chooses it where it is cheaper and keeps the tolerance. A call with a room spends
/// O(keys x (dim + dim_v)) before its first row, accelerated ones more: bring many rows at a time. A bias, unless ids are
/// 0, 1, 2.. in the order of insertion and none has gone, is added row by row to exact scores, whatever the mode.
///
/// Thread class: shared index, exclusive scratch and room. Never allocates. O(rows x retrieval).
///
/// # Errors
/// `Shape`, `NotFinite` with the row, `Argument`; `NotFound` when a key's id has no row in `values`; `Capacity` for a
/// scratch or room made before the index grew, and in accelerated mode for none; `Unsupported` for an L2 index, threads,
/// or shared query-key mode (whose keys are not the index's). Nothing is written then.
pub fn index_attention(
    &IndexProblem { index, queries, values, mask, options }: &IndexProblem<'_>,
    scratch: &mut Scratch,
    room: Option<&mut AttentionRoom>,
    out: &mut RowsMut<'_>,
    mut lse: Option<&mut [f32]>,
) -> Result<AttentionStats> {
    let o = options.resolve(index.dim(), index.len())?;
    scratch.check(index)?;
    if let Some(room) = &room {
        room.check(index, values.cols())?;
    }
    let n = queries.rows();
    same("queries", "row size is not the index's dim", index.dim(), queries.cols())?;
    same("out", "rows differ from the queries'", n, out.rows())?;
    same("out", "row size is not dim_v", values.cols(), out.cols())?;
    if let Some(lse) = &lse {
        same("lse", "one per query row is needed", n, lse.len())?;
    }
    let unsupported = |field, reason| Err(Error::new(Status::Unsupported, field, reason));
    if index.options().metric != Metric::InnerProduct {
        return unsupported("index", "attention needs the inner-product metric");
    }
    if o.mode == Mode::TopK && index.options().engine == Engine::Cells {
        return unsupported("mode", "top-k attention walks sorted lists: the index was made for cells alone");
    }
    if o.shared() {
        return unsupported("flags", "shared query-key mode builds its own keys");
    }
    if o.certificate {
        return unsupported("flags", "attention over an index has no certificates: use a call or a session");
    }
    if o.mode == Mode::Accelerated && room.is_none() {
        let reason = "has no room for accelerated attention: make it for attention";
        return Err(Error::new(Status::Capacity, "scratch", reason));
    }
    if o.num_threads > 1 {
        return unsupported("num_threads", "one head over an index runs on the caller's thread");
    }
    if let Some(id) = index.ids().find(|&id| id >= values.rows() as u64) {
        return Err(Error::new(Status::NotFound, "values", "no row for a key of the index").id(id));
    }
    let masking = Masking::new(mask, o.window, o.sinks, [1, 1, n, values.rows()], o.trusted)?;
    if !o.trusted {
        queries.check_finite("queries")?;
        // Rows of ids that no key has may hold anything.
        let finite = |id: u64| values.slice(id as usize, 1).check_finite("values").map_err(|e| e.row(id as usize));
        index.ids().try_for_each(finite)?;
        super::problem::check_norms(&queries, "queries")?;
        let largest = index.ids().map(|id| values.largest(id as usize)).fold(0.0, f32::max);
        if f64::from(largest) * index.len() as f64 > f64::from(f32::MAX) / 4.0 {
            return Err(Error::new(Status::NotFinite, "values", "sums of the values overflow").number(largest));
        }
    }
    // Without accelerated attention nothing makes a room.
    if let Some(room) = room.filter(|_| ACCELERATED && o.mode != Mode::TopK) {
        let over = OverIndex { index, queries, values, masking, options: o, mode: options.mode };
        if room.can(&over) {
            return room.attend(&over, out, lse);
        }
    }
    let (mode, reason) = match options.mode {
        Mode::TopK => (Mode::TopK, Reason::Requested),
        Mode::Auto | Mode::Accelerated => (Mode::Exact, Reason::OnlyWay),
        _ => (Mode::Exact, Reason::Requested),
    };
    let k = if mode == Mode::TopK { o.top_k } else { usize::MAX };
    let retrieval = Retrieval::new(index, values, &masking, [0, 0], &o, k);
    let mut stats = AttentionStats::new(mode, reason);
    let start = clock::now();
    for row in 0..n {
        stats.pairs += retrieval.attend(scratch, &queries, row, out, lse.as_deref_mut(), row);
        let visible = masking.visible(0, row);
        let all = visible.begin == 0 && visible.end == values.rows();
        stats.pairs_dense += match all && masking.keep(0).is_none() {
            true => index.len() as u64,
            false => index.ids().filter(|&id| retrieval.sees(visible, id)).count() as u64,
        };
    }
    stats.attend_seconds = clock::since(start);
    Ok(stats)
}
