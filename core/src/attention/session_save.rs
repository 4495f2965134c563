//! A session as bytes: little-endian, versioned, with a checksum. Options, then keys and values of every head in their
//! storage type; the index is rebuilt on loading, since it is a function of the keys, the seed and the options.

use super::{AttentionOptions, Mode, Session, SessionOptions};
use crate::bytes::{self, CHECKSUM, Reader, Writer};
use crate::error::{Error, Result, Status};
use crate::mem::{Dtype, Memory, Plan};

const SESSION_MAGIC: [u8; 8] = *b"ICESES\0\0";
const VERSION: u32 = 1;
const WORDS: usize = 16;
const LONGS: usize = 8;
const HEADER: usize = 8 + 4 + 4 * WORDS + 8 * LONGS;
/// In the last number of the header: an earlier build put what its rows had in common behind the tokens. Nothing reads that any more.
const COMMON: usize = 1;

const fn damaged(reason: &'static str) -> Error {
    Error::new(Status::Buffer, "session bytes", reason)
}

const SHORT: Error = damaged("shorter than its header says");
const MISFIT: Error = damaged("length does not fit its header");
const OPTIONS: Error = damaged("options are out of range");

fn words(o: &SessionOptions) -> [u32; WORDS] {
    let a = &o.attention;
    [
        o.heads_q as u32,
        o.heads_kv as u32,
        o.dim_k as u32,
        o.dim_v as u32,
        o.kv_dtype as u32,
        a.mode as u32,
        [a.trusted, a.fixed_scores, a.certificate, a.verified]
            .iter()
            .rev()
            .fold(0, |bits, &on| bits << 1 | u32::from(on)),
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

struct Header {
    options: SessionOptions,
    len: usize,
    /// Whether more follows the tokens.
    more: bool,
}

fn read_header(r: &mut Reader<'_>) -> Result<Header> {
    let (mut w, mut l) = ([0u32; WORDS], [0usize; LONGS]);
    for x in &mut w {
        *x = r.u32().ok_or(SHORT)?;
    }
    let seed = r.u64().ok_or(SHORT)?;
    for x in &mut l[1..] {
        *x = usize::try_from(r.u64().ok_or(SHORT)?).map_err(|_| damaged("a size does not fit this machine"))?;
    }
    let [_, capacity, len, dense_below, top_k, window, sinks, after] = l;
    let options = SessionOptions {
        heads_q: w[0] as usize,
        heads_kv: w[1] as usize,
        dim_k: w[2] as usize,
        dim_v: w[3] as usize,
        capacity,
        kv_dtype: [Dtype::F32, Dtype::F16, Dtype::Bf16].into_iter().find(|&d| d as u32 == w[4]).ok_or(OPTIONS)?,
        attention: AttentionOptions {
            mode: [Mode::Auto, Mode::Exact, Mode::Accelerated, Mode::TopK]
                .into_iter()
                .find(|&m| m as u32 == w[5])
                .ok_or(OPTIONS)?,
            trusted: w[6] & 1 != 0,
            fixed_scores: w[6] & 2 != 0,
            certificate: w[6] & 4 != 0,
            verified: w[6] & 8 != 0,
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
    if w[6] > 15 || w[15] != 0 {
        return Err(OPTIONS);
    }
    let refused = |e| bytes::refusal(e, OPTIONS);
    let options = options.resolve().map_err(refused)?;
    // What only an index takes is checked where there is one.
    options.index().map_err(refused)?;
    if len > capacity || body(&options, len).is_none() || after > COMMON {
        return Err(MISFIT);
    }
    Ok(Header { options, len, more: after == COMMON })
}

/// The header of bytes of which checksum and length are right.
fn checked(bytes: &[u8]) -> Result<Header> {
    let mut from = bytes::within(bytes);
    let mut r = Reader::new(&mut from, SESSION_MAGIC, VERSION).map_err(damaged)?;
    bytes::check(bytes).map_err(damaged)?;
    let header = read_header(&mut r)?;
    let need = body(&header.options, header.len).and_then(|n| n.checked_add(HEADER + CHECKSUM));
    match need.ok_or(MISFIT)? {
        need if need == bytes.len() || header.more && need < bytes.len() => Ok(header),
        _ => Err(MISFIT),
    }
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
        bytes::save_in(out, self.save_len(), |write| self.save_to(write))
    }

    /// Writes the published tokens, [`save_len`](Session::save_len) bytes in pieces of at most 1 KiB: `write` takes one, or says
    /// `false`. Never allocates.
    ///
    /// # Errors
    /// `Buffer` when `write` did not take all.
    pub fn save_to(&self, write: &mut dyn FnMut(&[u8]) -> bool) -> Result<()> {
        let o = self.options();
        let a = &o.attention;
        let mut w = Writer::new(write, SESSION_MAGIC, VERSION);
        words(o).into_iter().for_each(|x| w.u32(x));
        w.u64(a.seed);
        for x in [o.capacity, self.len(), o.dense_below, a.top_k, a.window, a.sinks, 0] {
            w.u64(x as u64);
        }
        for head in self.heads() {
            for rows in [head.keys(), head.values()] {
                for i in 0..rows.rows() {
                    if let Some(row) = rows.row_f32(i) {
                        w.f32s(row);
                    }
                    rows.row_bits(i).into_iter().flatten().for_each(|b| w.put(&b.to_le_bytes()));
                }
            }
        }
        w.finish()
    }

    /// The options stored in saved bytes, after checking them all: what to plan for before [`load`](Session::load).
    ///
    /// # Errors
    /// `Buffer` for damaged, truncated or foreign bytes; `Unsupported` where this build lacks what they need.
    pub fn peek(bytes: &[u8]) -> Result<SessionOptions> {
        checked(bytes).map(|header| header.options)
    }

    /// Rebuilds a saved session in `memory`; it attends as the saved one did, but for what accelerated rows had found: that is found anew.
    /// O(tokens), plus the index. Nothing is allocated where all of it would exceed the limit of `memory`: set one for bytes of
    /// strangers, whose header may ask for any capacity.
    ///
    /// # Errors
    /// `Buffer` for damaged, truncated or foreign bytes; `Unsupported` where this build lacks what they need; `NoMemory`,
    /// `Budget`, `Alignment` from `memory`.
    pub fn load(bytes: &[u8], memory: &Memory) -> Result<Session> {
        checked(bytes)?;
        Self::load_from(&mut bytes::within(bytes), memory)
    }

    /// As [`load`](Session::load), from bytes that come piece by piece: `read` fills as much of its argument as there is left and
    /// says how much. It is asked for the bytes of one session, at most 1 KiB at a time, and no more; only some sessions
    /// saved by version 0.1 are read to the end of all bytes.
    ///
    /// The checksum comes last, so the header is believed until then: set a limit.
    ///
    /// # Errors
    /// As [`load`](Session::load).
    pub fn load_from(read: &mut dyn FnMut(&mut [u8]) -> usize, memory: &Memory) -> Result<Session> {
        let mut r = Reader::new(read, SESSION_MAGIC, VERSION).map_err(damaged)?;
        let Header { options: o, len, more } = read_header(&mut r)?;
        let refused = |e| bytes::refusal(e, OPTIONS);
        let mut plan = Plan::new();
        Session::plan(&o, &mut plan).map_err(refused)?;
        memory.admit(plan)?;
        let mut session = Session::new_in(&o, memory).map_err(refused)?;
        for head in session.heads_mut() {
            head.restore(len, |row| match r.floats(o.kv_dtype, row) {
                Some(()) if row.iter().all(|x| x.is_finite()) => Ok(()),
                Some(()) => Err(damaged("a number is not finite")),
                None => Err(SHORT),
            })?;
        }
        if more { r.finish_at_end() } else { r.finish() }.map_err(damaged)?;
        for head in session.heads_mut() {
            head.restore_index().map_err(|e| bytes::refusal(e, damaged("a key is too long")))?;
        }
        session.commit()?;
        Ok(session)
    }
}
