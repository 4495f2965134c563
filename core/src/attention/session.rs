//! A session: the KV cache of one layer with its index or cells, for decoders that append tokens and attend with the newest.

use super::cache::HeadCache;
use super::certificates;
use super::clustered::{self, BlockWork, FewWork, Heads, SEGMENT, Watch};
use super::dense::heads::{Dense, most_pieces};
use super::dense::{Call, FEW, PIECE, exact, uses_fixed_scores};
use super::problem::{check_finite, check_norms, check_range};
use super::retrieve::Retrieval;
use super::session_options::SessionOptions;
use super::stats::{AttentionStats, Reason};
use super::tunables::{DECODE_BELOW, FINEST, TOP_K_SHARE};
use super::{Mask, Masking, Mode, clock};
use crate::dci::{IndexOptions, Scratch};
use crate::error::{Error, Result, Status, same_shape};
use crate::features::{ACCELERATED, CERTIFICATES, TOP_K};
use crate::mem::{Dtype, Maker, Memory, MemoryReport, Objects, Plan, Tensor, TensorMut};

/// KV cache with its index or cells. Tokens are appended by KV head and published by [`commit`](Session::commit); rows attend to
/// published tokens.
///
/// Thread class: `attend` may run from several threads at once; appends to disjoint heads too; everything else is
/// exclusive. Allocation class: creation only.
///
/// ```
/// # #[cfg(feature = "std")] {
/// use iceformer_core::attention::{Attend, Session, SessionOptions};
/// use iceformer_core::mem::{Memory, Plan, Tensor, TensorMut};
///
/// // Four query heads on two KV heads; a prompt of five tokens, then one more.
/// let mut session = Session::new(&SessionOptions::new([4, 2], 8, 16))?;
/// for tokens in [5, 1] {
///     let kv = vec![0.5; 2 * tokens * 8];
///     let kv = Tensor::new(&kv, [1, 2, tokens, 8])?;
///     session.append(kv, kv)?;
///     session.commit()?;
///     let (q, mut out) = (vec![1.0; 4 * tokens * 8], vec![0.0; 4 * tokens * 8]);
///     let q = Tensor::new(&q, [1, 4, tokens, 8])?;
///     let to = TensorMut::new(&mut out, [1, 4, tokens, 8])?;
///     session.attend(&Attend::new(q, &to), &Memory::system(0)?)?;
///     assert!(out.iter().all(|x| (x - 0.5).abs() < 1e-6));
/// }
/// assert_eq!(session.len(), 6);
/// session.truncate(5)?;
///
/// let mut bytes = vec![0; session.save_len()];
/// session.save(&mut bytes)?;
/// assert_eq!(Session::load(&bytes, &Memory::system(0)?)?.len(), 5);
/// # }
/// # Ok::<(), iceformer_core::Error>(())
/// ```
pub struct Session {
    options: SessionOptions,
    heads: Objects<HeadCache>,
    len: usize,
    memory: Memory,
}

/// What rows of queries a session attends, and where outputs go.
///
/// Rows are causal unless a mask says otherwise, the last row at the last token.
///
/// ```
/// # #[cfg(feature = "std")] {
/// use iceformer_core::attention::{Attend, Mask, Session, SessionOptions};
/// use iceformer_core::mem::{Memory, Tensor, TensorMut};
///
/// let mut session = Session::new(&SessionOptions::new([1, 1], 4, 8))?;
/// let (kv, mut out, mut lse) = ([1.0; 3 * 4], [0.0; 2 * 4], [0.0; 2]);
/// let kv = Tensor::new(&kv, [1, 1, 3, 4])?;
/// session.append(kv, kv)?;
/// session.commit()?;
/// let q = Tensor::new(&[0.0; 2 * 4], [1, 1, 2, 4])?;
/// let (to, lse_to) = (TensorMut::new(&mut out, [1, 1, 2, 4])?, TensorMut::new(&mut lse, [1, 1, 2, 1])?);
/// let call = Attend::new(q, &to).mask(Mask::None).lse(&lse_to);
/// // Threads of the caller may take a part each.
/// for ith in 0..2 {
///     session.attend(&call.part(ith, 2), &Memory::system(0)?)?;
/// }
/// assert!((lse[0] - 3f32.ln()).abs() < 1e-6);
/// # }
/// # Ok::<(), iceformer_core::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Attend<'a> {
    q: Tensor<'a>,
    out: &'a TensorMut<'a>,
    mask: Option<Mask<'a>>,
    lse: Option<&'a TensorMut<'a>>,
    part: [usize; 2],
}

impl<'a> Attend<'a> {
    /// Queries `[1, heads_q, rows, dim_k]` and outputs `[1, heads_q, rows, dim_v]`, all of them, causal.
    pub fn new(q: Tensor<'a>, out: &'a TensorMut<'a>) -> Self {
        Attend { q, out, mask: None, lse: None, part: [0, 1] }
    }

    /// Another mask than the causal one.
    pub fn mask(self, mask: impl Into<Option<Mask<'a>>>) -> Self {
        Attend { mask: mask.into(), ..self }
    }

    /// Log-sum-exps too: f32 `[1, heads_q, rows, 1]`.
    pub fn lse(self, lse: impl Into<Option<&'a TensorMut<'a>>>) -> Self {
        Attend { lse: lse.into(), ..self }
    }

    /// Only part `ith` of `nth`, for threads of the caller.
    pub fn part(self, ith: usize, nth: usize) -> Self {
        Attend { part: [ith, nth], ..self }
    }
}

impl Session {
    /// Adds all blocks to a plan (without the `Memory` block and the struct itself).
    ///
    /// # Errors
    /// As [`SessionOptions::resolve`].
    pub fn plan(options: &SessionOptions, plan: &mut Plan) -> Result<()> {
        let o = options.resolve()?;
        let index = o.index()?;
        plan.count(|m| Session::heads_made(m, &o, index.as_ref()));
        Ok(())
    }

    /// A session on the system allocator, without a limit.
    ///
    /// # Errors
    /// As [`Session::new_in`].
    #[cfg(feature = "alloc")]
    pub fn new(options: &SessionOptions) -> Result<Session> {
        Session::new_in(options, &Memory::system(0)?)
    }

    /// A session in the given memory, all of it taken now.
    ///
    /// # Errors
    /// As [`SessionOptions::resolve`]; `NoMemory`, `Budget`.
    pub fn new_in(options: &SessionOptions, memory: &Memory) -> Result<Session> {
        let o = options.resolve()?;
        let index = o.index()?;
        let mut heads = Maker::make(memory, |m| Session::heads_made(m, &o, index.as_ref()))?;
        heads.iter_mut().for_each(HeadCache::begin);
        Ok(Session { options: o, heads, len: 0, memory: memory.clone() })
    }

    fn heads_made(m: &mut Maker<'_>, o: &SessionOptions, index: Option<&IndexOptions>) -> Objects<HeadCache> {
        m.objects(o.heads_kv, |m| HeadCache::made(m, o, index))
    }

    /// The options, with defaults filled in.
    pub fn options(&self) -> &SessionOptions {
        &self.options
    }

    /// Published tokens.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is published.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Byte counts of this session.
    pub fn memory(&self) -> MemoryReport {
        self.memory.report()
    }

    /// The KV heads, for appends partitioned by head. The slice never moves while the session lives.
    pub fn heads_mut(&mut self) -> &mut [HeadCache] {
        &mut self.heads
    }

    pub(super) fn heads(&self) -> impl Iterator<Item = &HeadCache> {
        self.heads.iter()
    }

    /// Appends to every head: `k [1, heads_kv, n, dim_k]`, `v [1, heads_kv, n, dim_v]`; published by
    /// [`commit`](Session::commit).
    ///
    /// # Errors
    /// `Shape`, and as [`HeadCache::append`]; heads before the failing one keep their rows until the commit rolls back.
    pub fn append(&mut self, k: Tensor<'_>, v: Tensor<'_>) -> Result<()> {
        for (field, t) in [("k", &k), ("v", &v)] {
            let [batch, heads, _, _] = t.shape();
            if batch != 1 || heads != self.heads.len() {
                return Err(Error::new(Status::Shape, field, "shape is not [1, heads_kv, n, dim]")
                    .need(self.heads.len(), heads));
            }
        }
        self.heads.iter_mut().enumerate().try_for_each(|(h, head)| head.append(k.head(0, h), v.head(0, h)))
    }

    /// Publishes what was appended since the last commit.
    ///
    /// # Errors
    /// If a head failed, its error; if heads hold different numbers of rows, `State`. Then all of them are rolled back.
    pub fn commit(&mut self) -> Result<()> {
        let failed = self.heads.iter().find_map(HeadCache::failed);
        let pending = self.heads[0].pending();
        let uneven = self.heads.iter().find(|h| h.pending() != pending);
        let uneven = uneven.map(|h| {
            Error::new(Status::State, "append", "heads hold different numbers of rows").need(pending, h.pending())
        });
        if let Some(e) = failed.or(uneven) {
            self.roll_back();
            return Err(e);
        }
        self.heads.iter_mut().for_each(HeadCache::publish);
        self.len += pending;
        Ok(())
    }

    /// Drops what was appended since the last commit.
    pub fn roll_back(&mut self) {
        for head in self.heads.iter_mut() {
            head.roll_back();
        }
    }

    fn settled(&self, call: &'static str) -> Result<()> {
        if self.heads.iter().any(|h| h.pending() > 0 || h.failed().is_some()) {
            return Err(Error::new(Status::State, call, "appended rows wait for a commit"));
        }
        Ok(())
    }

    /// Keeps the first `len` tokens. O(tokens removed); O(tokens kept), too, when the largest key or value goes or, with cells, a complete
    /// segment.
    ///
    /// # Errors
    /// `Argument` beyond the length; `State` between append and commit.
    pub fn truncate(&mut self, len: usize) -> Result<()> {
        self.settled("truncate")?;
        if len > self.len {
            return Err(Error::new(Status::Argument, "len", "is beyond the session's length").need(len, self.len));
        }
        self.heads.iter_mut().for_each(|h| h.truncate(len));
        self.len = len;
        Ok(())
    }

    /// Removes tokens `begin..end`; later tokens move down to new positions (their keys stay as they are). O(tokens moved),
    /// with cells as [`truncate`](Session::truncate) before.
    ///
    /// # Errors
    /// `Argument` for a range that is not inside the session; `State` between append and commit.
    pub fn remove_range(&mut self, begin: usize, end: usize) -> Result<()> {
        self.settled("remove_range")?;
        if begin > end || end > self.len {
            return Err(Error::new(Status::Argument, "end", "range is not inside the session").need(end, self.len));
        }
        self.heads.iter_mut().for_each(|h| h.remove_range(begin, end));
        self.len -= end - begin;
        Ok(())
    }

    /// Removes all tokens, published or not; memory stays.
    pub fn reset(&mut self) {
        self.heads.iter_mut().for_each(HeadCache::reset);
        self.len = 0;
    }

    /// Mode for the present length and these rows.
    fn mode(&self, masking: &Masking<'_>, rows: usize) -> (Mode, Reason) {
        let o = &self.options;
        let short = self.len < o.least();
        // A few rows wait for memory rather than for arithmetic, of which cells save less.
        let few = o.dense_below == 0 && rows <= FEW;
        let pays = o.least().max(if few { DECODE_BELOW } else { SEGMENT });
        // Bounds and the finest tolerances need every key.
        let whole = ACCELERATED && (o.attention.certificate || o.attention.tolerance < FINEST);
        match o.attention.mode {
            Mode::TopK if !TOP_K || short || self.top_k() >= self.len => (Mode::Exact, Reason::Short),
            Mode::TopK => (Mode::TopK, Reason::Requested),
            Mode::Auto if !ACCELERATED => (Mode::Exact, Reason::OnlyWay),
            Mode::Accelerated | Mode::Auto if whole => (Mode::Exact, Reason::OnlyWay),
            Mode::Accelerated | Mode::Auto if short || !o.has_cells() => (Mode::Exact, Reason::Short),
            Mode::Accelerated => (Mode::Accelerated, Reason::Requested),
            Mode::Auto if !masking.any_sees(0, rows, pays) => (Mode::Exact, Reason::Short),
            Mode::Auto if rows <= FEW && self.rests() => (Mode::Exact, Reason::Diffuse),
            Mode::Auto => (Mode::Accelerated, Reason::Cheaper),
            Mode::Exact => (Mode::Exact, Reason::Requested),
        }
    }

    /// Whether the cells of all heads rest: they did not serve few rows of late.
    fn rests(&self) -> bool {
        self.heads.iter().all(|head| head.clusters().is_some_and(clustered::Clusters::rest))
    }

    fn top_k(&self) -> usize {
        match self.options.attention.top_k {
            0 => super::top_k_for(self.len, TOP_K_SHARE),
            k => k,
        }
    }

    /// Adds the work memory of one part (one `ith`) to a plan, including its `Memory` block. Holds for up to `rows` rows a call
    /// and any length up to the capacity.
    ///
    /// # Errors
    /// `NoMemory` when it does not fit the address space.
    pub fn work_plan(&self, rows: usize, plan: &mut Plan) -> Result<()> {
        let o = &self.options;
        Memory::plan(plan);
        let (mut most, rows) = (Plan::new(), rows.max(1));
        // Calls of few rows take other memory than those of many.
        for rows in [rows.min(4), rows.min(FEW), rows] {
            let mut form = Plan::new();
            form.count(|m| self.exact_work(m, rows));
            if let Some(index) = self.heads[0].index() {
                Scratch::plan(index, &mut form);
            }
            most = most.or(form);
            if o.has_cells() {
                let mut form = Plan::new();
                let dims = [o.dim_k, o.dim_v];
                match rows <= FEW {
                    true => form.count(|m| FewWork::made(m, dims, self.group(), rows, o.capacity)),
                    false => form.count(|m| BlockWork::made(m, dims, self.group(), rows, o.capacity)),
                }
                most = most.or(form);
            }
        }
        plan.add_plan(&most, 1);
        Ok(())
    }

    /// What exact attention of so many rows works in.
    fn exact_work(&self, m: &mut Maker<'_>, rows: usize) -> exact::Work {
        let o = &self.options;
        exact::Work::made(m, o.dim_k, o.dim_v, rows, uses_fixed_scores(&o.attention, rows))
    }

    /// Query heads of a KV head.
    fn group(&self) -> usize {
        self.options.heads_q / self.options.heads_kv
    }

    /// Attends query rows, or a part of them, to the published tokens: see [`Attend`]. Parts write disjoint rows and never wait for
    /// each other; the bits do not depend on their number. Each part needs its own `work` of
    /// [`work_plan`](Session::work_plan) its rows.
    ///
    /// Thread class: shared. Allocation class: in `work` alone.
    ///
    /// # Errors
    /// `Shape`, `Argument`, `NotFinite` with the row, `State` when more causal rows than tokens are asked for; `NoMemory`
    /// when `work` is too small. Nothing is written then.
    pub fn attend(&self, call: &Attend<'_>, work: &Memory) -> Result<AttentionStats> {
        self.attend_part(call, work, &mut None)
    }

    /// All of [`Session::attend`] in one part, to the same bits, with a look at the keys that are scored one by one though they are in
    /// cells, by query head, row and token: for studies. In exact and top-k mode `watch` is not called.
    ///
    /// # Errors
    /// As [`Session::attend`].
    #[cfg(feature = "internals")]
    pub fn attend_watched(&self, call: &Attend<'_>, work: &Memory, watch: Watch<'_>) -> Result<AttentionStats> {
        self.attend_part(call, work, &mut Some(watch))
    }

    /// With or without a look.
    fn attend_part(&self, call: &Attend<'_>, work: &Memory, watch: &mut Option<Watch<'_>>) -> Result<AttentionStats> {
        let Attend { q, out, mask, lse, part: [ith, nth] } = *call;
        let o = &self.options;
        if ith >= nth {
            return Err(Error::new(Status::Argument, "ith", "must be below nth").need(nth, ith));
        }
        let [_, _, rows, _] = q.shape();
        same_shape("q", "shape is not [1, heads_q, rows, dim_k]", [1, o.heads_q, rows, o.dim_k], q.shape())?;
        same_shape("out", "shape is not [1, heads_q, rows, dim_v]", [1, o.heads_q, rows, o.dim_v], out.shape())?;
        if let Some(lse) = lse {
            same_shape("lse", "shape is not [1, heads_q, rows]", [1, o.heads_q, rows, 1], lse.shape())?;
            if lse.dtype() != Dtype::F32 || !lse.rows_are_packed() {
                return Err(Error::new(Status::Unsupported, "lse", "must be packed f32"));
            }
        }
        let mask = match mask {
            Some(mask) => mask,
            None if rows > self.len => {
                let e = Error::new(Status::State, "q", "more rows than tokens: append and commit first");
                return Err(e.need(rows, self.len));
            }
            None => Mask::Causal { q_pos0: (self.len - rows) as u64 },
        };
        let a = &o.attention;
        let masking = Masking::new(mask, a.window, a.sinks, [1, o.heads_q, rows, self.len], a.trusted)?;
        let (mode, reason) = self.mode(&masking, rows);
        if !a.trusted {
            check_finite(&q, "q")?;
            let largest = self.heads.iter().map(HeadCache::largest);
            let largest = largest.fold([0.0f32; 2], |a, b| [a[0].max(b[0]), a[1].max(b[1])]);
            check_range(&q, largest, self.len)?;
            if TOP_K && mode == Mode::TopK {
                (0..o.heads_q).try_for_each(|h| check_norms(&q.head(0, h), "q"))?;
            }
        }
        let call = Call { q, out, lse, masking: &masking, options: a, isa: o.isa() };
        let mut stats = AttentionStats::new(mode, reason);
        let start = clock::now();
        if ACCELERATED && mode == Mode::Accelerated {
            self.accelerate(call, work, [ith, nth], &mut stats, watch)?;
            stats.attend_seconds = clock::since(start);
            return Ok(stats);
        }
        let mut exact_work = Maker::make(work, |m| self.exact_work(m, rows))?;
        if let Some(index) = self.heads[0].index().filter(|_| TOP_K && mode == Mode::TopK) {
            let mut scratch = Scratch::new_in(index, work)?;
            for piece in (ith..most_pieces(q.shape())).step_by(nth) {
                self.retrieve(&call, &mut scratch, piece, &mut stats);
            }
        } else {
            let longest = self.heads.iter().map(HeadCache::longest);
            let certificate = certificates::of_session(&call, longest, self.len);
            let dense = Dense {
                call,
                kv: &|_, head: usize| (self.heads[head].keys(), self.heads[head].values()),
                heads_kv: o.heads_kv,
            };
            dense.run(&mut exact_work, ith, nth, &mut stats, &|head, begin, n, stats| {
                if CERTIFICATES && let Some(certificate) = &certificate {
                    certificate.exact(&call, head, begin, n, stats);
                }
            });
            stats.score_error = exact_work.score_error() * a.scale;
        }
        stats.attend_seconds = clock::since(start);
        Ok(stats)
    }

    /// One piece in top-k mode: up to [`PIECE`] rows of a query head.
    fn retrieve(&self, call: &Call<'_>, scratch: &mut Scratch, piece: usize, stats: &mut AttentionStats) {
        let (o, masking, rows) = (&self.options, call.masking, call.q.shape()[2]);
        let blocks = rows.div_ceil(PIECE);
        let (head, block) = (piece / blocks, blocks - 1 - piece % blocks);
        let cache = &self.heads[head / (o.heads_q / o.heads_kv)];
        let Some(index) = cache.index() else { return };
        let begin = block * PIECE;
        let n = (rows - begin).min(PIECE);
        let (q, (mut out, mut lse)) = (call.q.head(0, head), call.rows(0, head, begin, n));
        let retrieval = Retrieval::new(index, cache.values(), masking, [0, head], &o.attention, self.top_k());
        for i in 0..n {
            stats.pairs += retrieval.attend(scratch, &q, begin + i, &mut out, lse.as_deref_mut(), i);
            stats.pairs_dense += masking.count(0, masking.visible(0, begin + i)) as u64;
        }
    }

    /// One part in accelerated mode.
    fn accelerate(
        &self,
        call: Call<'_>,
        work: &Memory,
        [ith, nth]: [usize; 2],
        stats: &mut AttentionStats,
        watch: &mut Option<Watch<'_>>,
    ) -> Result<()> {
        let o = &self.options;
        let (auto, rows) = (o.attention.mode == Mode::Auto, call.q.shape()[2]);
        let clusters =
            |head: usize| self.heads[head].clusters().unwrap_or_else(|| unreachable!("every head has cells"));
        let source =
            |_: usize, head: usize| (self.heads[head].keys(), self.heads[head].values(), clusters(head).tree());
        let all = Heads {
            call,
            auto,
            heads_kv: o.heads_kv,
            kv: &source,
            before: &|head| clusters(head).control(),
            after: &|head, control, work| clusters(head).note(control, work.heavy()),
        };
        let dims = [o.dim_k, o.dim_v];
        if rows <= FEW {
            let mut work = Maker::make(work, |m| FewWork::made(m, dims, self.group(), rows, self.len))?;
            all.run_few(&clusters, &mut work, ith, nth, stats, watch);
        } else {
            let mut work = Maker::make(work, |m| BlockWork::made(m, dims, self.group(), rows, self.len))?;
            all.run(&mut work, ith, nth, stats, watch);
        }
        if auto && stats.rows > 0 && stats.measured.rows() == 0 {
            stats.settle();
        }
        Ok(())
    }
}
