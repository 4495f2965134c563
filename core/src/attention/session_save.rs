//! A session as bytes: little-endian, versioned, with a checksum. Options, then keys and values of every head in their
//! storage type; the index is rebuilt on loading, since it is a function of the keys, the seed and the options.

use super::{AttentionOptions, Mode, Session, SessionOptions};
use crate::bytes::{Reader, Writer};
use crate::error::{Error, Result, Status};
use crate::mem::{Dtype, Memory};

const MAGIC: [u8; 8] = *b"ICESES\0\0";
const VERSION: u32 = 1;
const WORDS: usize = 16;
const LONGS: usize = 8;
const HEADER: usize = 8 + 4 + 4 * WORDS + 8 * LONGS;
const CHECKSUM: usize = 4;

const fn damaged(reason: &'static str) -> Error {
    Error::new(Status::Buffer, "session bytes", reason)
}

fn words(o: &SessionOptions) -> [u32; WORDS] {
    let a = &o.attention;
    [
        o.heads_q as u32,
        o.heads_kv as u32,
        o.dim_k as u32,
        o.dim_v as u32,
        o.kv_dtype as u32,
        a.mode as u32,
        u32::from(a.trusted) | u32::from(a.fixed_scores) << 1,
        a.tolerance.to_bits(),
        a.scale.to_bits(),
        a.softcap.to_bits(),
        a.retrieve_fraction.to_bits(),
        a.levels as u32,
        a.num_simple as u32,
        a.num_composite as u32,
        a.field_of_view as u32,
        0,
    ]
}

/// Options, tokens, and the bytes after.
fn read_header(bytes: &[u8]) -> Result<(SessionOptions, usize, Reader<'_>)> {
    let mut r = Reader::checked(bytes, MAGIC, VERSION).map_err(damaged)?;
    let short = damaged("shorter than its header says");
    let (mut w, mut l) = ([0u32; WORDS], [0usize; LONGS]);
    for x in &mut w {
        *x = r.u32().ok_or(short)?;
    }
    let seed = r.u64().ok_or(short)?;
    for x in &mut l[1..] {
        *x = usize::try_from(r.u64().ok_or(short)?).map_err(|_| damaged("a size does not fit this machine"))?;
    }
    let [_, capacity, len, dense_below, top_k, window, sinks, carried] = l;
    let range = damaged("options are out of range");
    let options = SessionOptions {
        heads_q: w[0] as usize,
        heads_kv: w[1] as usize,
        dim_k: w[2] as usize,
        dim_v: w[3] as usize,
        capacity,
        kv_dtype: [Dtype::F32, Dtype::F16, Dtype::Bf16].into_iter().find(|&d| d as u32 == w[4]).ok_or(range)?,
        attention: AttentionOptions {
            mode: [Mode::Auto, Mode::Exact, Mode::Accelerated, Mode::TopK]
                .into_iter()
                .find(|&m| m as u32 == w[5])
                .ok_or(range)?,
            trusted: w[6] & 1 != 0,
            fixed_scores: w[6] & 2 != 0,
            tolerance: f32::from_bits(w[7]),
            scale: f32::from_bits(w[8]),
            softcap: f32::from_bits(w[9]),
            retrieve_fraction: f32::from_bits(w[10]),
            levels: w[11] as usize,
            num_simple: w[12] as usize,
            num_composite: w[13] as usize,
            field_of_view: w[14] as usize,
            top_k,
            window,
            sinks,
            seed,
            ..AttentionOptions::default()
        },
        dense_below,
    };
    if w[6] > 3 {
        return Err(range);
    }
    let options = options.resolve().map_err(|_| range)?;
    // 1: an earlier build put what its rows had in common behind the tokens. Nothing reads that any more.
    let fits = body(&options, len).is_some_and(|need| need == r.left() || carried == 1 && need < r.left());
    if carried > 1 || len > capacity || !fits {
        return Err(damaged("length does not fit its header"));
    }
    Ok((options, len, r))
}

/// Bytes of keys and values.
fn body(o: &SessionOptions, len: usize) -> Option<usize> {
    (o.dim_k + o.dim_v).checked_mul(o.kv_dtype.size())?.checked_mul(o.heads_kv)?.checked_mul(len)
}

impl Session {
    /// Bytes that [`save`](Session::save) writes.
    pub fn save_len(&self) -> usize {
        // What is there has a length.
        HEADER + body(self.options(), self.len()).unwrap_or_default() + CHECKSUM
    }

    /// Writes the published tokens into `out[..save_len()]`; returns the bytes written. Never allocates.
    ///
    /// # Errors
    /// `Buffer` when `out` is too small; nothing is written then.
    pub fn save(&self, out: &mut [u8]) -> Result<usize> {
        let (need, have) = (self.save_len(), out.len());
        let out = out.get_mut(..need).ok_or(Error::new(Status::Buffer, "buf", "too small").need(need, have))?;
        let o = self.options();
        let a = &o.attention;
        let mut w = Writer::new(out, MAGIC, VERSION);
        words(o).into_iter().for_each(|x| w.u32(x));
        w.u64(a.seed);
        for x in [o.capacity, self.len(), o.dense_below, a.top_k, a.window, a.sinks, 0] {
            w.u64(x as u64);
        }
        for h in 0..o.heads_kv {
            let head = self.head(h);
            for rows in [head.keys(), head.values()] {
                for i in 0..rows.rows() {
                    if let Some(row) = rows.row_f32(i) {
                        w.f32s(row);
                    }
                    rows.row_bits(i).into_iter().flatten().for_each(|b| w.put(&b.to_le_bytes()));
                }
            }
        }
        w.finish();
        Ok(need)
    }

    /// The options stored in saved bytes, after checking them all: what to plan for before [`load`](Session::load).
    ///
    /// # Errors
    /// `Buffer` for damaged, truncated or foreign bytes.
    pub fn peek(bytes: &[u8]) -> Result<SessionOptions> {
        read_header(bytes).map(|(o, ..)| o)
    }

    /// Rebuilds a saved session in `memory`; it attends as the saved one did. O(tokens), plus the index.
    ///
    /// # Errors
    /// `Buffer` for damaged, truncated or foreign bytes; as [`Session::new_in`].
    pub fn load(bytes: &[u8], memory: &Memory) -> Result<Session> {
        let (o, len, mut r) = read_header(bytes)?;
        let mut session = Session::new_in(&o, memory)?;
        let short = damaged("shorter than its header says");
        let size = o.kv_dtype.size();
        for h in 0..o.heads_kv {
            let mut keys = Reader::over(r.take(len * o.dim_k * size).ok_or(short)?);
            let mut values = Reader::over(r.take(len * o.dim_v * size).ok_or(short)?);
            let finite = session.heads_mut()[h].restore(len, |value, row| {
                // The length was checked: every row is there.
                let from = if value { &mut values } else { &mut keys };
                from.floats(o.kv_dtype, row);
            })?;
            if !finite {
                return Err(damaged("a number is not finite"));
            }
        }
        session.commit()?;
        Ok(session)
    }
}
