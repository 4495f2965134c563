//! The C border with hostile numbers in every field: sizes, strides, enumerators, counts. Pointers stay honest, since C has
//! no way to check them: a call is made for real only when what it describes lies inside the buffers it points to.
//! Expected: a documented status, never ICE_ERR_INTERNAL; a message that fits; outputs untouched on failure.

use crate::twin::noise;
use crate::{Budget, give, take};
use arbitrary::{Result, Unstructured};
use iceformer::*;
use std::ptr::{null, null_mut};

const ROOM: usize = 1 << 16;
/// Pairs of a query row and a key that one call may cost.
const PAIRS: u128 = 1 << 20;
const MEMORY: usize = 64 << 20;

/// Keeps every buffer 64-byte aligned.
#[repr(C, align(64))]
#[derive(Clone)]
struct Room([u8; ROOM]);

struct World {
    floats: Box<Room>,
    out: Box<Room>,
    lse: Box<Room>,
    bounds: Box<Room>,
}

const UNTOUCHED: u8 = 0x5a;

pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let mut floats = Box::new(Room([0; ROOM]));
    // Numbers around a few others, in runs; finite in every element type, since no half of their bytes is an f16 infinity.
    let near = noise(ROOM / 4, 1, 0.5);
    for (i, (b, x)) in floats.0.chunks_mut(4).zip(near).enumerate() {
        let x = x + (i / 300 % 5) as f32 - 2.0;
        b.copy_from_slice(&(x.to_bits() & !0x4000).to_le_bytes());
    }
    let blank = || Box::new(Room([UNTOUCHED; ROOM]));
    let mut w = World { floats, out: blank(), lse: blank(), bounds: blank() };
    let _ = match u.int_in_range(0..=3) {
        Ok(0 | 1) => w.attention(&mut u),
        Ok(2) => w.session(&mut u),
        _ => w.index(&mut u),
    };
}

fn made<T>(init: impl FnOnce(*mut T)) -> T {
    let mut x = std::mem::MaybeUninit::<T>::zeroed();
    init(x.as_mut_ptr());
    // SAFETY: the structs of the header are numbers and pointers; all-zero is valid, and `init` wrote the rest.
    unsafe { x.assume_init() }
}

/// A call with a report; returns its status after looking at the report.
fn call(f: impl FnOnce(*mut ice_error) -> ice_status) -> ice_status {
    let mut e: ice_error = made(|p| unsafe { ice_error_init(p) });
    let status = f(&mut e);
    let text: Vec<u8> = e.message.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    assert!(text.len() < e.message.len() && std::str::from_utf8(&text).is_ok());
    assert_eq!(status, e.status);
    assert_eq!(status == ICE_OK, text.is_empty(), "{}", String::from_utf8_lossy(&text));
    known(status)
}

fn known(status: ice_status) -> ice_status {
    assert!(status <= ICE_OK && status > ICE_ERR_INTERNAL, "status {status}");
    status
}

fn number(u: &mut Unstructured<'_>) -> Result<u64> {
    const HOSTILE: [u64; 24] = [
        0,
        1,
        2,
        3,
        4,
        7,
        8,
        63,
        64,
        65,
        255,
        256,
        4095,
        65535,
        65536,
        1 << 31,
        (1 << 31) - 1,
        u32::MAX as u64,
        1 << 32,
        1 << 62,
        i64::MAX as u64,
        i64::MAX as u64 + 1,
        u64::MAX - 63,
        u64::MAX,
    ];
    if u.ratio(1, 3)? { Ok(u64::from(u.arbitrary::<u8>()?)) } else { Ok(*u.choose(&HOSTILE)?) }
}

fn float(u: &mut Unstructured<'_>) -> Result<f32> {
    let hostile = [0.0, -0.0, 1.0, 0.5, -1.0, 1e-38, 1e-45, 3e38, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    if u.ratio(1, 4)? { Ok(f32::from_bits(u.arbitrary()?)) } else { Ok(*u.choose(&hostile)?) }
}

/// Bytes a tensor describes; packed where strides are 0.
fn extent(shape: [u64; 4], dtype: ice_dtype, strides: [usize; 3]) -> u128 {
    let [b, h, r, c] = shape.map(u128::from);
    if b * h == 0 || r == 0 || c == 0 {
        return 0;
    }
    let size = if dtype == ICE_F32 { 4 } else { 2 };
    let or = |x: usize, packed: u128| if x == 0 { packed } else { x as u128 };
    let row = or(strides[0], c * size);
    let head = or(strides[1], r.saturating_mul(row));
    let batch = or(strides[2], h.saturating_mul(head));
    let last = (b - 1).saturating_mul(batch).saturating_add((h - 1).saturating_mul(head));
    last.saturating_add((r - 1).saturating_mul(row)).saturating_add(c * size)
}

fn tensor_extent(t: &ice_tensor, shape: [u64; 4]) -> u128 {
    extent(shape, t.dtype, [t.row_stride, t.head_stride, t.batch_stride])
}

impl World {
    fn poke_tensor(&self, u: &mut Unstructured<'_>, t: &mut ice_tensor) -> Result<()> {
        match u.int_in_range(0..=4)? {
            0 => t.dtype = number(u)? as ice_dtype,
            1 => t.row_stride = number(u)? as usize,
            2 => t.head_stride = number(u)? as usize,
            3 => t.batch_stride = number(u)? as usize,
            _ => t.data = null(),
        }
        Ok(())
    }

    fn tensor(&self) -> ice_tensor {
        let data = self.floats.0.as_ptr().cast();
        ice_tensor { data, dtype: ICE_F32, row_stride: 0, head_stride: 0, batch_stride: 0 }
    }

    fn fits(&self, t: &ice_tensor, shape: [u64; 4]) -> bool {
        t.data.is_null() || tensor_extent(t, shape) <= ROOM as u128
    }

    fn untouched(&self) -> bool {
        self.out.0.iter().chain(&self.lse.0).chain(&self.bounds.0).all(|&b| b == UNTOUCHED)
    }

    fn poke_mask(&mut self, u: &mut Unstructured<'_>, m: &mut ice_mask) -> Result<()> {
        match u.int_in_range(0..=10)? {
            0 => m.struct_size = number(u)? as u32,
            1 => m.kind = number(u)? as ice_mask_kind,
            2 => m.q_pos0 = number(u)?,
            3 => m.prefix = self.floats.0.as_ptr().cast(),
            4 => m.prefix_len = number(u)? as usize,
            5 => m.keys = self.floats.0.as_ptr(),
            6 => m.keys_len = number(u)? as usize,
            7 => {
                if m.bias.data.is_null() {
                    m.bias = self.tensor();
                } else {
                    let mut t = m.bias;
                    self.poke_tensor(u, &mut t)?;
                    m.bias = t;
                }
            }
            8 => m.bias_heads = number(u)? as u32,
            9 => m.bias_batch = number(u)? as u32,
            _ => m.reserved[u.int_in_range(0..=7)?] = number(u)? as u32,
        }
        Ok(())
    }

    /// Whether everything a mask points to is there. Its struct size may be read up to 4096 bytes: honest sizes only.
    fn mask_fits(&self, m: &ice_mask, rows_q: u64, rows_kv: u64) -> bool {
        let or1 = |x: u32| u64::from(x.max(1));
        m.struct_size as usize <= size_of::<ice_mask>()
            && (m.prefix.is_null() || m.prefix_len <= ROOM / 8)
            && (m.keys.is_null() || m.keys_len <= ROOM)
            && self.fits(&m.bias, [or1(m.bias_batch), or1(m.bias_heads), rows_q, rows_kv])
    }

    fn attention(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let mut d: ice_attention_desc = made(|p| unsafe { ice_attention_desc_init(p) });
        (d.heads_q, d.heads_kv, d.dim_k, d.rows_q, d.rows_kv) = (2, 1, 4, 5, 7);
        (d.q, d.k, d.v) = (self.tensor(), self.tensor(), self.tensor());
        d.out.data = self.out.0.as_mut_ptr().cast();
        d.lse = self.lse.0.as_mut_ptr().cast();
        d.mask.kind = u.int_in_range(0..=5)?;
        // Cells, some of them with bounds, and fewer numbers that are refused before.
        let cells = u.ratio(1, 3)?;
        if cells {
            d.options.mode = ICE_MODE_ACCELERATED;
            d.options.tolerance = *u.choose(&[0.3, 0.05, 1.0])?;
            d.options.flags = *u.choose(&[0, 0, ICE_ATTENTION_CERTIFICATE, ICE_ATTENTION_VERIFIED])?;
            (d.rows_kv, d.rows_q) = (u.int_in_range(250..=1100)?, u.int_in_range(1..=14)?);
            let floats = self.floats.0.as_ptr();
            (d.mask.q_pos0, d.mask.bias) = (1000, self.tensor());
            (d.mask.prefix, d.mask.prefix_len) = (floats.cast(), d.rows_q);
            (d.mask.keys, d.mask.keys_len) = (floats, d.rows_kv);
            if u.ratio(1, 4)? {
                d.bounds = self.bounds.0.as_mut_ptr().cast();
            }
        }
        for _ in 0..u.int_in_range(0..=if cells { 2 } else { 6 })? {
            match u.int_in_range(0..=13)? {
                0 => d.batch = number(u)? as u32,
                1 => d.heads_q = number(u)? as u32,
                2 => d.heads_kv = number(u)? as u32,
                3 => d.dim_k = number(u)? as u32,
                4 => d.dim_v = number(u)? as u32,
                5 => d.rows_q = number(u)? as usize,
                6 => d.rows_kv = number(u)? as usize,
                7 => {
                    let which = u.int_in_range(0..=2)?;
                    let mut t = [d.q, d.k, d.v][which];
                    self.poke_tensor(u, &mut t)?;
                    *[&mut d.q, &mut d.k, &mut d.v][which] = t;
                }
                8 => {
                    let o = &d.out;
                    let mut t = ice_tensor {
                        data: o.data.cast_const(),
                        dtype: o.dtype,
                        row_stride: o.row_stride,
                        head_stride: o.head_stride,
                        batch_stride: o.batch_stride,
                    };
                    self.poke_tensor(u, &mut t)?;
                    d.out.data = t.data.cast_mut();
                    (d.out.dtype, d.out.row_stride) = (t.dtype, t.row_stride);
                    (d.out.head_stride, d.out.batch_stride) = (t.head_stride, t.batch_stride);
                }
                9 => d.lse = null_mut(),
                10 => poke_options(u, &mut d.options)?,
                11 => d.struct_size = (number(u)? as u32).min(size_of::<ice_attention_desc>() as u32),
                _ => {
                    let mut m = d.mask;
                    self.poke_mask(u, &mut m)?;
                    d.mask = m;
                }
            }
        }
        let (mut bytes, mut align) = (7, 7);
        let status = call(|e| unsafe { ice_attention_required(&d, &mut bytes, &mut align, e) });
        assert_eq!(status == ICE_OK, align == 64);
        assert!(status == ICE_OK || bytes == 7, "outputs are written only on success");
        let batch = u64::from(d.batch.max(1));
        let heads_q = u64::from(d.heads_q.max(1));
        let heads_kv = if d.heads_kv == 0 { heads_q } else { u64::from(d.heads_kv) };
        let dim_v = u64::from(if d.dim_v == 0 { d.dim_k } else { d.dim_v });
        let (rows_q, rows_kv) = (d.rows_q as u64, d.rows_kv as u64);
        let out = ice_tensor {
            data: d.out.data.cast_const(),
            dtype: d.out.dtype,
            row_stride: d.out.row_stride,
            head_stride: d.out.head_stride,
            batch_stride: d.out.batch_stride,
        };
        let lse = u128::from(batch) * u128::from(heads_q) * u128::from(rows_q) * 4;
        let pairs = lse.saturating_mul(u128::from(rows_kv.max(1)));
        let fits = self.fits(&d.q, [batch, heads_q, rows_q, u64::from(d.dim_k)])
            && self.fits(&d.k, [batch, heads_kv, rows_kv, u64::from(d.dim_k)])
            && self.fits(&d.v, [batch, heads_kv, rows_kv, dim_v])
            && self.fits(&out, [batch, heads_q, rows_q, dim_v])
            && (d.lse.is_null() && d.bounds.is_null() || lse <= ROOM as u128)
            && self.mask_fits(&d.mask, rows_q, rows_kv)
            && (status != ICE_OK || (pairs <= PAIRS && bytes <= MEMORY));
        if !fits {
            return Ok(());
        }
        let mut stats: ice_attention_stats =
            made(|p| unsafe { ice_attention_stats_init_sized(p, size_of::<ice_attention_stats>()) });
        let have = call(|e| unsafe { ice_attention(&d, null_mut(), 0, &mut stats, e) });
        assert!(have == ICE_OK || self.untouched(), "outputs are written only on success");
        // Verified rows that miss their tolerance are attended again.
        assert!(have != ICE_OK || (status == ICE_OK && stats.pairs <= 2 * stats.pairs_dense));
        if have == ICE_OK && !d.out.data.is_null() {
            // With just the memory it asks for, the same bits.
            let want = self.out.clone();
            let mut work = vec![Room([0; ROOM]); bytes.div_ceil(ROOM)];
            let again = call(|e| unsafe { ice_attention(&d, work.as_mut_ptr().cast(), bytes, null_mut(), e) });
            assert!(again == ICE_OK && self.out.0 == want.0);
        }
        let mut mass = vec![0f32; 64];
        if batch * heads_q <= 64 && pairs <= PAIRS {
            call(|e| unsafe { ice_attention_sparsity(&d, number(u).unwrap_or(3) as u32, 3, mass.as_mut_ptr(), e) });
        }
        Ok(())
    }

    fn session(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let budget = Budget::new(MEMORY);
        let hooks = hooks(&budget);
        let mut o: ice_session_options = made(|p| unsafe { ice_session_options_init(p) });
        (o.heads_q, o.heads_kv, o.dim_k, o.capacity, o.allocator) = (2, 1, 4, 300, &hooks);
        if u.arbitrary()? {
            (o.attention.mode, o.capacity) = (ICE_MODE_ACCELERATED, 1200);
            o.attention.flags = *u.choose(&[0, 0, ICE_ATTENTION_CERTIFICATE, ICE_ATTENTION_VERIFIED])?;
        }
        for _ in 0..u.int_in_range(0..=4)? {
            match u.int_in_range(0..=10)? {
                0 => o.struct_size = (number(u)? as u32).min(size_of::<ice_session_options>() as u32),
                1 => o.heads_q = number(u)? as u32,
                2 => o.heads_kv = number(u)? as u32,
                3 => o.dim_k = number(u)? as u32,
                4 => o.dim_v = number(u)? as u32,
                5 => o.kv_dtype = number(u)? as ice_dtype,
                6 => o.capacity = number(u)? as usize,
                7 => o.dense_below = number(u)? as usize,
                8 => o.memory_limit = number(u)? as usize,
                9 => o.attention.mode = number(u)? as ice_mode,
                _ => poke_options(u, &mut o.attention)?,
            }
        }
        let (mut bytes, mut align) = (0, 0);
        let sized = call(|e| unsafe { ice_session_required(&o, &mut bytes, &mut align, e) });
        let mut s = null_mut();
        let status = call(|e| unsafe { ice_session_new(&o, &mut s, e) });
        assert!(status != ICE_OK || sized == ICE_OK);
        if status != ICE_OK {
            assert!(s.is_null() && budget.live.get() == 0);
            return Ok(());
        }
        let done = self.use_session(u, s, &o);
        unsafe { ice_session_free(s) };
        assert_eq!(budget.live.get(), 0, "leaked");
        done
    }

    fn use_session(&mut self, u: &mut Unstructured<'_>, s: *mut ice_session, o: &ice_session_options) -> Result<()> {
        let heads_kv = u64::from(o.heads_kv);
        let heads_q = if o.heads_q == 0 { heads_kv } else { u64::from(o.heads_q) };
        let (dim_k, dim_v) = (u64::from(o.dim_k), u64::from(if o.dim_v == 0 { o.dim_k } else { o.dim_v }));
        for _ in 0..12 {
            let len = unsafe { ice_session_len(s) };
            match u.int_in_range(0..=7)? {
                0..=2 => {
                    let (mut k, mut v) = (self.tensor(), self.tensor());
                    if u.ratio(1, 3)? {
                        let which = if u.arbitrary()? { &mut k } else { &mut v };
                        self.poke_tensor(u, which)?;
                    }
                    let n = match u.int_in_range(0..=2)? {
                        0 => u64::from(u.arbitrary::<u8>()?),
                        1 => 520,
                        _ => number(u)?,
                    };
                    let (ith, nth) = if u.ratio(1, 4)? { (number(u)?, number(u)?) } else { (0, 1) };
                    if self.fits(&k, [1, heads_kv, n, dim_k]) && self.fits(&v, [1, heads_kv, n, dim_v]) {
                        let (ith, nth) = (ith as u32, nth as u32);
                        let one = call(|e| unsafe { ice_session_append(s, &k, &v, n as usize, ith, nth, e) });
                        let whole = known(unsafe { ice_session_commit(s) });
                        // Whatever failed, nothing of this round is published; parts beyond the heads are empty.
                        let grown = unsafe { ice_session_len(s) } - len;
                        let came = whole == ICE_OK && one == ICE_OK && u64::from(ith) < heads_kv;
                        assert_eq!(grown, if came { n as usize } else { 0 });
                        assert!(one == ICE_OK || whole == one || ith >= nth || ith as u64 >= heads_kv);
                    }
                }
                3 => {
                    let to = number(u)? as usize;
                    let status = known(unsafe { ice_session_truncate(s, to) });
                    assert_eq!(status == ICE_OK, to <= len);
                }
                4 => {
                    let (a, b) = (number(u)? as usize, number(u)? as usize);
                    let status = known(unsafe { ice_session_remove_range(s, a, b) });
                    assert_eq!(status == ICE_OK, a <= b && b <= len);
                }
                5 => {
                    let (mut bytes, mut align) = (0, 0);
                    let (rows, nth) = (number(u)? as usize, number(u)? as u32);
                    known(unsafe { ice_session_work_required(s, rows, nth, &mut bytes, &mut align) });
                }
                6 => {
                    let mut need = 0;
                    if known(unsafe { ice_session_save(s, null_mut(), 0, &mut need) }) == ICE_OK && need < 1 << 22 {
                        let mut buf = vec![0u8; need];
                        let cap = (number(u)? as usize).min(need);
                        let status = unsafe { ice_session_save(s, buf.as_mut_ptr().cast(), cap, null_mut()) };
                        assert_eq!(status == ICE_OK, cap == need && need > 0);
                    }
                }
                _ => {
                    let mut q = self.tensor();
                    if u.ratio(1, 4)? {
                        self.poke_tensor(u, &mut q)?;
                    }
                    let mut m: ice_mask = made(|p| unsafe { ice_mask_init(p) });
                    let masked: bool = u.arbitrary()?;
                    for _ in 0..u.int_in_range(0..=3)? {
                        self.poke_mask(u, &mut m)?;
                    }
                    if u.ratio(1, 3)? {
                        (m.kind, m.bias) = (ICE_MASK_ADDITIVE, self.tensor());
                    }
                    let rows = if u.arbitrary()? { u.int_in_range(0..=14)? } else { number(u)? };
                    let (ith, nth) = if u.ratio(1, 4)? { (number(u)?, number(u)?) } else { (0, 1) };
                    let lse = u128::from(heads_q) * u128::from(rows) * 4;
                    let out = ice_tensor_mut {
                        data: self.out.0.as_mut_ptr().cast(),
                        dtype: ICE_F32,
                        row_stride: 0,
                        head_stride: 0,
                        batch_stride: 0,
                    };
                    let fits = self.fits(&q, [1, heads_q, rows, dim_k])
                        && extent([1, heads_q, rows, dim_v], ICE_F32, [0; 3]) <= ROOM as u128
                        && lse <= ROOM as u128
                        && lse * (len.max(1) as u128) <= PAIRS
                        && (!masked || self.mask_fits(&m, rows, len as u64));
                    if fits {
                        let mask = if masked { &raw const m } else { null() };
                        let lse = self.lse.0.as_mut_ptr().cast();
                        let (ith, nth) = (ith as u32, nth as u32);
                        self.out.0.fill(UNTOUCHED);
                        self.lse.0.fill(UNTOUCHED);
                        let (rows, w) = (rows as usize, null_mut());
                        let mut stats: ice_attention_stats =
                            made(|p| unsafe { ice_attention_stats_init_sized(p, size_of::<ice_attention_stats>()) });
                        let status = call(|e| unsafe {
                            ice_session_attend(s, &q, rows, mask, &out, lse, w, 0, ith, nth, &mut stats, e)
                        });
                        assert!(status == ICE_OK || self.untouched());
                    }
                }
            }
        }
        Ok(())
    }

    fn index(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let budget = Budget::new(MEMORY);
        let hooks = hooks(&budget);
        let dim = if u.ratio(1, 4)? { number(u)? as u32 } else { 4 };
        let mut o: ice_index_options = made(|p| unsafe { ice_index_options_init(p, dim) });
        o.allocator = &hooks;
        for _ in 0..u.int_in_range(0..=4)? {
            match u.int_in_range(0..=11)? {
                0 => o.struct_size = (number(u)? as u32).min(size_of::<ice_index_options>() as u32),
                1 => o.metric = number(u)? as ice_metric,
                2 => o.num_simple = number(u)? as u32,
                3 => o.num_composite = number(u)? as u32,
                4 => o.levels = number(u)? as u32,
                5 => o.promotion = float(u)?,
                6 => o.directions = number(u)? as ice_directions,
                7 => o.capacity = number(u)? as usize,
                8 => o.memory_limit = number(u)? as usize,
                9 => o.max_norm = float(u)?,
                10 => o.flags = number(u)? as u32,
                _ => o.seed = number(u)?,
            }
        }
        let (mut bytes, mut align) = (0, 0);
        let sized = call(|e| unsafe { ice_index_required(&o, &mut bytes, &mut align, e) });
        let mut ix = null_mut();
        let status = call(|e| unsafe { ice_index_new(&o, &mut ix, e) });
        assert!(status != ICE_OK || sized == ICE_OK);
        if status != ICE_OK {
            assert!(ix.is_null() && budget.live.get() == 0);
            return Ok(());
        }
        let done = self.use_index(u, ix, dim as usize);
        unsafe { ice_index_free(ix) };
        assert_eq!(budget.live.get(), 0, "leaked");
        done
    }

    fn use_index(&mut self, u: &mut Unstructured<'_>, ix: *mut ice_index, dim: usize) -> Result<()> {
        let most = ROOM / 4 / dim;
        let floats: *const f32 = self.floats.0.as_ptr().cast();
        for _ in 0..12 {
            match u.int_in_range(0..=5)? {
                0 | 1 => {
                    let n = number(u)? as usize;
                    let ids: Vec<u64> = (0..n.min(8)).map(|_| number(u)).collect::<Result<_>>()?;
                    let named = n <= 8 && u.arbitrary()?;
                    if n <= most.min(300) {
                        let ids = if named { ids.as_ptr() } else { null() };
                        call(|e| unsafe { ice_index_insert(ix, floats, n, ids, e) });
                    } else {
                        let status = call(|e| unsafe { ice_index_insert(ix, null(), n, null(), e) });
                        assert_ne!(status, ICE_OK);
                    }
                }
                2 => {
                    let n = u.int_in_range(0..=8)?;
                    let ids: Vec<u64> = (0..n).map(|_| number(u)).collect::<Result<_>>()?;
                    let (before, mut removed) = (unsafe { ice_index_len(ix) }, 0);
                    let count = if u.arbitrary()? { &raw mut removed } else { null_mut() };
                    let status = known(unsafe { ice_index_remove(ix, ids.as_ptr(), n, count) });
                    let after = unsafe { ice_index_len(ix) };
                    assert!(if status == ICE_OK { after + n >= before } else { after == before });
                }
                3 => {
                    known(unsafe { ice_index_reserve(ix, number(u)? as usize) });
                }
                4 => {
                    let mut need = 0;
                    if known(unsafe { ice_index_save(ix, null_mut(), 0, &mut need) }) == ICE_OK {
                        let mut buf = vec![0u8; need];
                        let cap = (number(u)? as usize).min(need);
                        let status = unsafe { ice_index_save(ix, buf.as_mut_ptr().cast(), cap, null_mut()) };
                        assert_eq!(status == ICE_OK, cap == need);
                    }
                }
                _ => self.query(u, ix, dim)?,
            }
        }
        Ok(())
    }

    fn query(&mut self, u: &mut Unstructured<'_>, ix: *mut ice_index, dim: usize) -> Result<()> {
        let mut q: ice_query_options = made(|p| unsafe { ice_query_options_init(p, 3) });
        for _ in 0..u.int_in_range(0..=4)? {
            match u.int_in_range(0..=11)? {
                0 => q.struct_size = (number(u)? as u32).min(size_of::<ice_query_options>() as u32),
                1 => q.k = number(u)? as u32,
                2 => q.visit = number(u)? as u32,
                3 => q.retrieve = number(u)? as u32,
                4 => q.visit_fraction = float(u)?,
                5 => q.retrieve_fraction = float(u)?,
                6 => q.field_of_view = number(u)? as u32,
                7 => q.target_recall = float(u)?,
                8 => q.id_begin = number(u)?,
                9 => q.id_end = number(u)?,
                10 => q.engine = number(u)? as ice_engine,
                _ => q.flags = number(u)? as u32,
            }
        }
        let n = u.int_in_range(0..=3)?;
        if dim * n * 4 > ROOM || n * q.k as usize > ROOM / size_of::<ice_neighbor>() {
            return Ok(());
        }
        let floats: *const f32 = self.floats.0.as_ptr().cast();
        let f = if u.arbitrary()? { ice_index_query } else { ice_index_query_exact };
        self.out.0.fill(UNTOUCHED);
        self.lse.0.fill(UNTOUCHED);
        let (out, counts) = (self.out.0.as_mut_ptr().cast(), self.lse.0.as_mut_ptr().cast());
        let status = call(|e| unsafe { f(ix, null_mut(), floats, n, &q, out, counts, e) });
        assert!(status == ICE_OK || self.untouched());
        if status == ICE_OK {
            let counts: &[u32] = unsafe { std::slice::from_raw_parts(self.lse.0.as_ptr().cast(), n) };
            assert!(counts.iter().all(|&c| c <= q.k && c as usize <= unsafe { ice_index_len(ix) }));
        }
        // One head over the index, with an id range that the values cover.
        let len = unsafe { ice_index_len(ix) };
        let mut o: ice_attention_options = made(|p| unsafe { ice_attention_options_init(p) });
        o.mode = *u.choose(&[ICE_MODE_TOP_K, ICE_MODE_ACCELERATED, ICE_MODE_AUTO])?;
        poke_options(u, &mut o)?;
        let mut m: ice_mask = made(|p| unsafe { ice_mask_init(p) });
        self.poke_mask(u, &mut m)?;
        // Ids of these programs reach 2^64: only indices that never named one are attended.
        let mut found = vec![ice_neighbor { id: 0, score: 0.0 }; len.max(1)];
        let mut all: ice_query_options = made(|p| unsafe { ice_query_options_init(p, len.max(1) as u32) });
        (all.visit_fraction, all.retrieve_fraction) = (1.0, 1.0);
        let (qs, list) = (floats, found.as_mut_ptr());
        let listed = call(|e| unsafe { ice_index_query_exact(ix, null_mut(), qs, 1, &all, list, null_mut(), e) });
        let range = found.iter().map(|n| n.id).max().unwrap_or(0);
        if listed == ICE_OK && len > 0 && range < 512 && self.mask_fits(&m, n as u64, range + 1) {
            let v = self.tensor();
            self.out.0.fill(UNTOUCHED);
            let out = self.out.0.as_mut_ptr().cast();
            let status =
                call(|e| unsafe { ice_index_attention(ix, null_mut(), floats, n, &v, 4, &m, &o, out, null_mut(), e) });
            assert!(status == ICE_OK || self.out.0.iter().all(|&b| b == UNTOUCHED));
        }
        Ok(())
    }
}

fn poke_options(u: &mut Unstructured<'_>, o: &mut ice_attention_options) -> Result<()> {
    match u.int_in_range(0..=16)? {
        0 => o.struct_size = (number(u)? as u32).min(size_of::<ice_attention_options>() as u32),
        1 => o.mode = number(u)? as ice_mode,
        2 => o.tolerance = float(u)?,
        3 => o.top_k = number(u)? as u32,
        4 => o.scale = float(u)?,
        5 => o.softcap = float(u)?,
        6 => o.window = number(u)?,
        7 => o.sinks = number(u)?,
        8 => o.seed = number(u)?,
        // Threads are started for as many parts as there is work; thousands say nothing new.
        9 => o.num_threads = number(u)? as u32,
        10 => o.levels = number(u)? as u32,
        11 => o.num_simple = number(u)? as u32,
        12 => o.num_composite = number(u)? as u32,
        13 => o.field_of_view = number(u)? as u32,
        14 => o.retrieve_fraction = float(u)?,
        15 => o.flags = number(u)? as u32,
        _ => o.reserved[u.int_in_range(0..=8)?] = number(u)? as u32,
    }
    Ok(())
}

fn hooks(budget: &Budget) -> ice_allocator {
    ice_allocator {
        struct_size: size_of::<ice_allocator>() as u32,
        user: budget.user(),
        alloc: Some(take),
        free: Some(give),
    }
}
