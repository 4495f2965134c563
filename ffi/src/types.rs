//! Every type and constant that crosses the border. Enumerations are 32-bit integers, because a value that is no
//! enumerator must be an error and not undefined behaviour; `bool` never crosses inside a struct.

use core::ffi::{c_char, c_void};

/// Outcome of a call: ICE_OK or a negative ICE_ERR_* number. Numbers are never reused.
pub type ice_status = i32;
/// Success.
pub const ICE_OK: ice_status = 0;
/// A required pointer is NULL.
pub const ICE_ERR_NULL: ice_status = -1;
/// A value is outside its documented range.
pub const ICE_ERR_ARGUMENT: ice_status = -2;
/// Shapes do not fit together.
pub const ICE_ERR_SHAPE: ice_status = -3;
/// A stride is too small or not a multiple of the element size.
pub const ICE_ERR_STRIDE: ice_status = -4;
/// A pointer is not aligned for its element type, or caller memory not to 64 bytes.
pub const ICE_ERR_ALIGNMENT: ice_status = -5;
/// NaN or infinity where a finite number is needed, or a norm that overflows.
pub const ICE_ERR_NOT_FINITE: ice_status = -6;
/// The allocator returned nothing.
pub const ICE_ERR_NO_MEMORY: ice_status = -7;
/// The memory limit would be exceeded.
pub const ICE_ERR_BUDGET: ice_status = -8;
/// A fixed capacity is exhausted.
pub const ICE_ERR_CAPACITY: ice_status = -9;
/// An id that is not there.
pub const ICE_ERR_NOT_FOUND: ice_status = -10;
/// An id that is already there, or twice in one call.
pub const ICE_ERR_DUPLICATE: ice_status = -11;
/// The call is not allowed now.
pub const ICE_ERR_STATE: ice_status = -12;
/// A documented feature that this build or version does not have. Builds for small machines may leave out accelerated and
/// top-k attention, certificates, ICE_ENGINE_CELLS, ICE_F16 and ICE_BF16: what asks for one of them is refused with this, and
/// the message says "this build has no ..."; ICE_MODE_AUTO is exact there.
pub const ICE_ERR_UNSUPPORTED: ice_status = -13;
/// A struct of a size or version this library does not know.
pub const ICE_ERR_ABI: ice_status = -14;
/// A buffer that is too small, or bytes that are damaged or foreign.
pub const ICE_ERR_BUFFER: ice_status = -15;
/// A bug in this library.
pub const ICE_ERR_INTERNAL: ice_status = -16;

/// What "near" means.
pub type ice_metric = i32;
/// Largest inner product first (default).
pub const ICE_METRIC_INNER_PRODUCT: ice_metric = 0;
/// Smallest squared Euclidean distance first.
pub const ICE_METRIC_L2: ice_metric = 1;
/// Largest cosine first: keys are scaled to unit norm as they come in (a zero key stays zero), queries as they are read.
pub const ICE_METRIC_COSINE: ice_metric = 2;

/// Where the directions of an index come from. Those of sorted lists are random unit vectors from the seed, always.
pub type ice_directions = i32;
/// No room is kept for sample queries: those of cells come from the keys (default).
pub const ICE_DIRECTIONS_RANDOM: ice_directions = 0;
/// Room for 1072 sample queries is kept: ice_index_fit allocates nothing, and works in caller memory. Until it is called as
/// ICE_DIRECTIONS_RANDOM. Only for an index with cells.
pub const ICE_DIRECTIONS_FITTED: ice_directions = 1;

/// How candidates are found; of an index: what it keeps for that.
pub type ice_engine = i32;
/// Of a query: cells where the index has them and no budget is given, else walk or scan. Of an index: lists and cells
/// (default).
pub const ICE_ENGINE_AUTO: ice_engine = 0;
/// Cursors over sorted lists: sublinear. Of an index: lists alone.
pub const ICE_ENGINE_WALK: ice_engine = 1;
/// Block-wise comparison of projections: linear with a small constant, same answers as the walk. Of an index: lists alone.
pub const ICE_ENGINE_SCAN: ice_engine = 2;
/// Cells of similar keys coded in a byte a coordinate, exact scores of the best: made for batches of queries. Of an index:
/// cells alone, so that keys enter in a few microseconds.
pub const ICE_ENGINE_CELLS: ice_engine = 3;

/// Element type of a tensor.
pub type ice_dtype = i32;
/// 32-bit float (default).
pub const ICE_F32: ice_dtype = 0;
/// IEEE 16-bit float.
pub const ICE_F16: ice_dtype = 1;
/// bfloat16.
pub const ICE_BF16: ice_dtype = 2;

/// Kind of an ice_mask.
pub type ice_mask_kind = i32;
/// Every key is visible (default).
pub const ICE_MASK_NONE: ice_mask_kind = 0;
/// Row i sees keys up to and with q_pos0 + i. As ice_mask_init leaves q_pos0, the last row stands at the last key.
pub const ICE_MASK_CAUSAL: ice_mask_kind = 1;
/// Row i sees the first prefix[i] keys.
pub const ICE_MASK_PREFIX: ice_mask_kind = 2;
/// Key j is padding where keys[j] is 0.
pub const ICE_MASK_KEYS: ice_mask_kind = 3;
/// A bias is added to every logit; -inf excludes.
pub const ICE_MASK_ADDITIVE: ice_mask_kind = 4;
/// ICE_MASK_CAUSAL and ICE_MASK_KEYS together: batches of prompts that are padded on the left. Positions and sinks count
/// padding. Rows that see padding alone get zeros.
pub const ICE_MASK_CAUSAL_KEYS: ice_mask_kind = 5;

/// In q_pos0 of a mask: the last row stands at the last key. With more rows than keys row 0 stands at key 0.
pub const ICE_POSITION_LAST: u64 = u64::MAX;

/// How attention is computed.
pub type ice_mode = i32;
/// The fastest way that keeps the tolerance (default): accelerated where cells are predicted to cost less than every key,
/// else exact. Contexts or calls too short for cells run exact.
pub const ICE_MODE_AUTO: ice_mode = 0;
/// Every visible key.
pub const ICE_MODE_EXACT: ice_mode = 1;
/// Keys are gathered into cells of similar keys; cells that matter to a row are opened and attended exactly, the others are
/// estimated by their means. Nothing is dropped. A few rows of every block are attended exactly: they find keys that are
/// heavy for all rows, which are then attended exactly for all, and measure the error. Where that exceeds the tolerance more is
/// opened and, if that does not help, everything.
pub const ICE_MODE_ACCELERATED: ice_mode = 2;
/// Retrieves top_k keys per row by the index, softmax over those (the paper's Algorithm 1).
pub const ICE_MODE_TOP_K: ice_mode = 3;

/// Why the mode in the statistics was used.
pub type ice_reason = i32;
/// The caller asked for it.
pub const ICE_REASON_REQUESTED: ice_reason = 0;
/// This kind of call has no faster way that keeps a tolerance: certificates, and masks that accelerated mode does not take.
pub const ICE_REASON_ONLY_WAY: ice_reason = 1;
/// Too few keys or rows: fewer keys than dense_below or in sight, or top_k covers all of them.
pub const ICE_REASON_SHORT: ice_reason = 2;
/// AUTO: cells were predicted to cost less than every key.
pub const ICE_REASON_CHEAPER: ice_reason = 3;
/// AUTO: cells were predicted to cost as much as every key, as on heads that attend to everything alike.
pub const ICE_REASON_DIFFUSE: ice_reason = 4;

/// Index flag: refuse keys beyond `capacity` instead of growing. Always so in caller memory.
pub const ICE_INDEX_FIXED_CAPACITY: u32 = 1;
/// Index flag: keys and queries are known to be finite, skip the check.
pub const ICE_INDEX_TRUSTED_INPUT: u32 = 2;

/// Attention flag: bound the error of every output row, relative to its length. The statistics
/// give worst, mean and the number of rows that keep the tolerance; `bounds` of ice_attention_desc the bound of each row.
/// What is bounded is rounding: attention is exact then whatever the mode, with ICE_REASON_ONLY_WAY where another was asked for.
/// Rows that no bound says anything about have INFINITY. Scores stay in f32 whatever ICE_ATTENTION_FIXED_SCORES says. Top-k
/// mode and ice_index_attention answer ICE_ERR_UNSUPPORTED.
pub const ICE_ATTENTION_CERTIFICATE: u32 = 1;
/// Attention flag: the same as ICE_ATTENTION_CERTIFICATE; kept for programs that name it. What accelerated attention errs by is
/// measured in every call without it (measured_error in the statistics).
pub const ICE_ATTENTION_VERIFIED: u32 = 2;
/// Attention flag: keys are the queries scaled to unit norm; a row does not see itself unless it sees nothing else.
/// The key tensor is not read.
pub const ICE_ATTENTION_SHARED_QK: u32 = 4;
/// Attention flag: inputs are known to be finite, skip the check.
pub const ICE_ATTENTION_TRUSTED_INPUT: u32 = 8;
/// Attention flag: exact mode may multiply queries and keys in 16-bit fixed point where that is faster (AVX-512 with VNNI,
/// calls of more than twelve rows). Logits are then off by a standard error of at most stats->score_error, a few 1e-4 for
/// usual heads.
pub const ICE_ATTENTION_FIXED_SCORES: u32 = 16;

/// Error report, owned by the caller: no heap, no thread-local state. Fill with ice_error_init, or with zeros; every call that
/// takes one writes it, ICE_OK and an empty message on success.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ice_error {
    /// Bytes of this struct.
    pub struct_size: u32,
    /// The status the call returned.
    pub status: ice_status,
    /// "function: field: reason (row or value)", NUL-terminated.
    pub message: [c_char; 240],
}

/// Allocation hooks. Both may be called from any thread that uses an object made with them.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ice_allocator {
    /// Bytes of this struct.
    pub struct_size: u32,
    /// Passed through to both functions.
    pub user: *mut c_void,
    /// Returns `size` bytes aligned to `align` (a power of two), or NULL. Required.
    pub alloc: Option<unsafe extern "C" fn(user: *mut c_void, size: usize, align: usize) -> *mut c_void>,
    /// Takes back a block with the size and alignment it was asked for. Required.
    pub free: Option<unsafe extern "C" fn(user: *mut c_void, ptr: *mut c_void, size: usize, align: usize)>,
}

/// Where saved bytes come from, and what they may cost. Fill with ice_load_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ice_load_options {
    /// Bytes of this struct.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Saved bytes in memory, any alignment; NULL: `read` brings them.
    pub data: *const c_void,
    /// Bytes of `data`, all of one object.
    pub len: usize,
    /// Nullable: fills `to` with the next `bytes` bytes, at most 1024, and returns how many there were: fewer only at the end
    /// or after a failure, as fread. It is asked for the bytes of one object and no more. Ignored where `data` is given.
    pub read: Option<unsafe extern "C" fn(user: *mut c_void, to: *mut c_void, bytes: usize) -> usize>,
    /// Passed through to `read`.
    pub user: *mut c_void,
    /// Most bytes the object may use; 0 = no limit. What would need more is refused before any of it is allocated: set it for
    /// bytes of strangers, which may ask for any capacity.
    pub memory_limit: usize,
    /// Nullable: the system allocator.
    pub allocator: *const ice_allocator,
}

/// Byte counts of one object.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ice_memory {
    /// Bytes of this struct.
    pub struct_size: u32,
    /// Bytes in use now.
    pub used: usize,
    /// Bytes taken from the source: equal to used, or the whole caller memory.
    pub reserved: usize,
    /// Highest used so far.
    pub peak: usize,
    /// Limit on used; 0 = none.
    pub limit: usize,
}

/// An index over keys with ids (Prioritized DCI, one or more levels).
pub struct ice_index {
    _opaque: [u8; 0],
}

/// Query state of one thread.
pub struct ice_scratch {
    _opaque: [u8; 0],
}

/// A KV cache with its index.
pub struct ice_session {
    _opaque: [u8; 0],
}

/// Shape of an index. Fill with ice_index_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ice_index_options {
    /// Bytes of this struct.
    pub struct_size: u32,
    /// Elements of a key, 1 to 65535.
    pub dim: u32,
    /// Metric.
    pub metric: ice_metric,
    /// Simple indices per composite index (the paper's m), at most 255; 0 = 4.
    pub num_simple: u32,
    /// Composite indices (the paper's L), at most 255; 0 = 2.
    pub num_composite: u32,
    /// Levels, at most 8; 0 = 1.
    pub levels: u32,
    /// Share of a level's keys promoted to the level above, in (0, 1); 0 = from capacity and levels.
    pub promotion: f32,
    /// Directions: whether room is kept for ice_index_fit.
    pub directions: ice_directions,
    /// Seed of everything random.
    pub seed: u64,
    /// Keys to make room for at creation.
    pub capacity: usize,
    /// Most bytes the object may use; 0 = no limit.
    pub memory_limit: usize,
    /// Expected largest key norm; 0 = learnt from the keys. Larger keys are accepted at any time.
    pub max_norm: f32,
    /// ICE_INDEX_* flags.
    pub flags: u32,
    /// Nullable: the system allocator. Copied at creation; not used by _required and _new_in.
    pub allocator: *const ice_allocator,
    /// What queries are made ready for.
    pub engine: ice_engine,
    /// Zero.
    pub reserved: u32,
}

/// Budgets and limits of a query. Fill with ice_query_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ice_query_options {
    /// Bytes of this struct.
    pub struct_size: u32,
    /// Neighbours wanted per query, at least 1.
    pub k: u32,
    /// Most list entries visited per composite index and level (the paper's k1); by cells: keys whose codes are compared, in
    /// whole cells; 0 = from visit_fraction.
    pub visit: u32,
    /// Most points retrieved per composite index and level (the paper's k0); by cells: keys scored exactly; 0 = from
    /// retrieve_fraction.
    pub retrieve: u32,
    /// `visit` as a share of the entries searched at a level, in [0, 1]; 0 = all.
    pub visit_fraction: f32,
    /// `retrieve` as a share of the points searched at a level, in [0, 1]; 0 = target_recall.
    pub retrieve_fraction: f32,
    /// Parents kept per level above the leaves; 0 = max(30, k).
    pub field_of_view: u32,
    /// Aimed share of true neighbours found, in [0, 1]; 0 = 0.9. Sets what is left at 0 above; by cells from what the index has
    /// measured on its own keys, and in batches of 512 and more on some of the queries. 1 = every key is scored.
    pub target_recall: f32,
    /// Only ids in id_begin .. id_end (end excluded) are answers; both 0 = all.
    pub id_begin: u64,
    /// See id_begin; 0 = no upper limit.
    pub id_end: u64,
    /// Engine.
    pub engine: ice_engine,
    /// None are defined: 0.
    pub flags: u32,
    /// Nullable: every id. Else only ids whose bit is set are answers, bit id % 8 of byte id / 8. Ids beyond it are not.
    pub filter: *const u8,
    /// Bytes of `filter`; 0 if that is NULL.
    pub filter_len: usize,
}

/// One answer of a query.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ice_neighbor {
    /// The key's id.
    pub id: u64,
    /// Inner product with the query, its cosine, or the squared distance to it, as the metric is.
    pub score: f32,
}

/// Read-only tensor [batch, heads, rows, cols]; the shape is given by the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ice_tensor {
    /// First element, aligned for its type; nullable when there is no row.
    pub data: *const c_void,
    /// Element type.
    pub dtype: ice_dtype,
    /// Bytes from row to row; 0 = packed.
    pub row_stride: usize,
    /// Bytes from head to head; 0 = packed.
    pub head_stride: usize,
    /// Bytes from batch to batch; 0 = packed.
    pub batch_stride: usize,
}

/// Writable tensor, as ice_tensor. Rows must not overlap.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ice_tensor_mut {
    /// First element, aligned for its type; nullable when there is no row.
    pub data: *mut c_void,
    /// Element type.
    pub dtype: ice_dtype,
    /// Bytes from row to row; 0 = packed.
    pub row_stride: usize,
    /// Bytes from head to head; 0 = packed.
    pub head_stride: usize,
    /// Bytes from batch to batch; 0 = packed.
    pub batch_stride: usize,
}

/// Which keys a row sees. Fill with ice_mask_init. Only the fields of its kind are read.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ice_mask {
    /// Bytes of this struct.
    pub struct_size: u32,
    /// Kind.
    pub kind: ice_mask_kind,
    /// CAUSAL, CAUSAL_KEYS: position of query row 0; ice_mask_init sets ICE_POSITION_LAST.
    pub q_pos0: u64,
    /// PREFIX: visible keys per row, [rows_q] or [batch, rows_q]; more than there are means all.
    pub prefix: *const u64,
    /// PREFIX: elements of `prefix`.
    pub prefix_len: usize,
    /// KEYS, CAUSAL_KEYS: one byte per key, 0 = padding, [rows_kv] or [batch, rows_kv].
    pub keys: *const u8,
    /// KEYS, CAUSAL_KEYS: elements of `keys`.
    pub keys_len: usize,
    /// ADDITIVE: f32 or f16 bias [bias_batch, bias_heads, rows_q, rows_kv], finite or -inf.
    pub bias: ice_tensor,
    /// ADDITIVE: heads of `bias`: 0 or 1 = shared by all query heads.
    pub bias_heads: u32,
    /// ADDITIVE: batches of `bias`: 0 or 1 = shared by all batches.
    pub bias_batch: u32,
    /// Zero.
    pub reserved: [u32; 8],
}

/// Options of attention. Fill with ice_attention_options_init: all defaults mean softmax(Q K^T / sqrt(dim_k)) V in ICE_MODE_AUTO,
/// which is exact below 2,048 keys and near that, by `tolerance`, where it pays; for every key set ICE_MODE_EXACT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ice_attention_options {
    /// Bytes of this struct.
    pub struct_size: u32,
    /// Mode.
    pub mode: ice_mode,
    /// Relative output error aimed at in accelerated and auto mode, in [0, 1]; 0 = 0.05. Smaller opens more cells. It is
    /// no bound: measured on sampled rows, query heads that share keys and values side by side as one row. Below 0.001
    /// attention is exact.
    pub tolerance: f32,
    /// Keys retrieved per row in top-k mode; 0 = ice_top_k_for(rows_kv, 0.005).
    pub top_k: u32,
    /// Softmax scale; 0 = 1/sqrt(dim_k).
    pub scale: f32,
    /// Logits become softcap * tanh(logit / softcap) before the mask; 0 = off.
    pub softcap: f32,
    /// Sliding window in keys: a row at position p sees keys above p - window; 0 = off.
    pub window: u64,
    /// Keys 0 .. sinks stay visible whatever the window says.
    pub sinks: u64,
    /// Seed of the index in top-k mode.
    pub seed: u64,
    /// Threads used inside one call; 0 or 1 = the caller's thread alone.
    pub num_threads: u32,
    /// Levels of the index in top-k mode; 0 = 3.
    pub levels: u32,
    /// Simple indices per composite index; 0 = 4.
    pub num_simple: u32,
    /// Composite indices; 0 = 2.
    pub num_composite: u32,
    /// Parents kept per level; 0 = 30.
    pub field_of_view: u32,
    /// Share of the points searched at a level that is retrieved, in [0, 1]; 0 = 0.8.
    pub retrieve_fraction: f32,
    /// ICE_ATTENTION_* flags.
    pub flags: u32,
    /// Zero.
    pub reserved: [u32; 9],
}

/// One attention call. Fill with ice_attention_desc_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ice_attention_desc {
    /// Bytes of this struct.
    pub struct_size: u32,
    /// Batches; 0 = 1.
    pub batch: u32,
    /// Query heads; 0 = 1.
    pub heads_q: u32,
    /// Key-value heads, a divisor of heads_q; 0 = heads_q.
    pub heads_kv: u32,
    /// Elements of a query and key row, at least 1.
    pub dim_k: u32,
    /// Elements of a value and output row; 0 = dim_k.
    pub dim_v: u32,
    /// Query rows per head.
    pub rows_q: usize,
    /// Key rows per head.
    pub rows_kv: usize,
    /// Queries [batch, heads_q, rows_q, dim_k].
    pub q: ice_tensor,
    /// Keys [batch, heads_kv, rows_kv, dim_k]; not read with ICE_ATTENTION_SHARED_QK.
    pub k: ice_tensor,
    /// Values [batch, heads_kv, rows_kv, dim_v].
    pub v: ice_tensor,
    /// Output [batch, heads_q, rows_q, dim_v].
    pub out: ice_tensor_mut,
    /// Nullable: log-sum-exp of each row's logits, packed [batch, heads_q, rows_q].
    pub lse: *mut f32,
    /// Mask.
    pub mask: ice_mask,
    /// Options.
    pub options: ice_attention_options,
    /// Nullable: certified relative error of each output row, packed [batch, heads_q, rows_q]; INFINITY where nothing is
    /// certified. Asks for certificates like ICE_ATTENTION_CERTIFICATE.
    pub bounds: *mut f32,
}

/// What an attention call did. Fill with ice_attention_stats_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ice_attention_stats {
    /// Bytes of this struct.
    pub struct_size: u32,
    /// Mode that ran.
    pub mode: ice_mode,
    /// Why.
    pub reason: ice_reason,
    /// Deprecated: always 0, kept for the layout of this struct. See `measured_error`.
    pub estimated_mass: f32,
    /// Worst certified error of a row, relative to its output; INFINITY: nothing is certified; NaN: none was asked for.
    pub certified_error: f32,
    /// Largest standard error of a logit that came from fixed point; 0 where all came from f32.
    pub score_error: f32,
    /// Query-key pairs scored exactly.
    pub pairs: u64,
    /// Pairs exact attention would score.
    pub pairs_dense: u64,
    /// Pairs of a row and a cell that was opened for it.
    pub cells_opened: u64,
    /// Seconds this call spent building an index or cells; 0 in builds without a clock.
    pub build_seconds: f64,
    /// Seconds spent attending; 0 in builds without a clock.
    pub attend_seconds: f64,
    /// Rows attended in accelerated mode, all heads counted.
    pub rows: u64,
    /// Mean certified error, errors above 1 counted as 1; NaN: none was asked for.
    pub certified_mean: f64,
    /// Rows with a certified error, all heads counted.
    pub certificates: u64,
    /// Those of them that keep the tolerance by it.
    pub certified: u64,
    /// Sampled rows: attended exactly and approximately, which measures the error of accelerated mode. Of each KV head its own,
    /// query heads that share its keys side by side as one row. 0 where nothing was measured, as in short or exact calls.
    pub rows_measured: u64,
    /// Rows of `rows` that were attended exactly, all query heads counted, beside sampled ones.
    pub rows_exact: u64,
    /// Those of them whose block has too few rows, or too few runs of 256 keys that all of its rows see.
    pub rows_short: u64,
    /// Those of them where sampled rows err by more than the tolerance at every threshold.
    pub rows_strict: u64,
    /// Those of them where cells would have cost about as much (AUTO).
    pub rows_costly: u64,
    /// Pairs of a row and a known key, one that sampled rows found heavy; they are scored exactly for every row.
    pub known_pairs: u64,
    /// Relative output error of accelerated mode, measured on the sampled rows: root of their squared errors by their squared
    /// outputs, a fraction (0.05 is 5 %); NaN where nothing was measured. It is a measurement on a sample, no bound.
    pub measured_error: f32,
    /// Relative error that 95 of 100 sampled rows keep, within a factor of 1.42 above; NaN where nothing was measured.
    pub measured_p95: f32,
    /// Largest relative error of a sampled row; NaN where nothing was measured.
    pub measured_worst: f32,
}

/// Shape of a session. Fill with ice_session_options_init.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ice_session_options {
    /// Bytes of this struct.
    pub struct_size: u32,
    /// Query heads; 0 = heads_kv.
    pub heads_q: u32,
    /// Key-value heads, a divisor of heads_q, at least 1.
    pub heads_kv: u32,
    /// Elements of a query and key row, at least 1.
    pub dim_k: u32,
    /// Elements of a value row; 0 = dim_k.
    pub dim_v: u32,
    /// Storage type of keys and values.
    pub kv_dtype: ice_dtype,
    /// Tokens there is room for; all memory is taken at creation.
    pub capacity: usize,
    /// Below this many tokens attention is exact whatever the mode; 0 = no such limit, in auto mode 2048 and,
    /// for up to 12 rows at a time, 4096.
    pub dense_below: usize,
    /// Most bytes the object may use; 0 = no limit.
    pub memory_limit: usize,
    /// Nullable: the system allocator. Copied at creation; not used by _required and _new_in.
    pub allocator: *const ice_allocator,
    /// Attention options, the index knobs of the top-k mode among them.
    pub attention: ice_attention_options,
}
