//! An index as bytes: little-endian, versioned, with a checksum. Keys and ids are stored; lists are rebuilt on loading,
//! since they are a function of the keys, the options and the norm bound.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | magic `ICEIDX` + two zero bytes |
//! | 4 | format version |
//! | 4 x 6 | dim, metric, num_simple, num_composite, levels, flags (1 = fixed, 2 = trusted, 4 x engine, 16 = fitted) |
//! | 4 x 3 | promotion, max_norm, norm bound (f32) |
//! | 8 x 4 | seed, capacity, next id, number of keys n |
//! | 8 x n | ids |
//! | 4 x n x dim | keys (f32) |
//! | 4 x 2, 8 | if fitted: sample queries m, how directions are chosen (0 undecided, 1 keys, 2 balanced), keys then |
//! | 4 x m x dim | if fitted: sample queries (f32) |
//! | 4 | CRC-32 of all bytes before |
//!
//! Bytes in memory are checked as a whole before anything is made of them; bytes that come piece by piece as they come.

use super::Index;
use super::codes::{Asked, Fit, LEAST_ASKED};
use super::params::{Directions, Engine, IndexOptions, Metric};
use super::slots::NO_ID;
use crate::bytes::{self, CHECKSUM, Reader, Writer};
use crate::error::{Error, Result, Status};
use crate::mem::{Dtype, Memory, Plan, f32s};
use crate::project::Lift;

const INDEX_MAGIC: [u8; 8] = *b"ICEIDX\0\0";
const VERSION: u32 = 1;
const HEADER: usize = 8 + 4 + 6 * 4 + 3 * 4 + 4 * 8;
/// What comes before the sample queries.
const FITTED: usize = 4 + 4 + 8;

const fn damaged(reason: &'static str) -> Error {
    Error::new(Status::Buffer, "index bytes", reason)
}

const SHORT: Error = damaged("shorter than its header says");
const OPTIONS: Error = damaged("options are out of range");

struct Header {
    options: IndexOptions,
    bound: f32,
    next_id: u64,
    keys: usize,
}

fn read_header(r: &mut Reader<'_>) -> Result<Header> {
    let mut word = || r.u32().ok_or(SHORT);
    let (dim, metric, num_simple, num_composite, levels, flags) =
        (word()?, word()?, word()?, word()?, word()?, word()?);
    let (promotion, max_norm, bound) = (f32::from_bits(word()?), f32::from_bits(word()?), f32::from_bits(word()?));
    let mut long = || r.u64().ok_or(SHORT);
    let (seed, capacity, next_id, keys) = (long()?, long()?, long()?, long()?);
    let options = IndexOptions {
        dim: dim as usize,
        metric: match metric {
            0 => Metric::InnerProduct,
            1 => Metric::L2,
            2 => Metric::Cosine,
            _ => return Err(damaged("unknown metric")),
        },
        num_simple: num_simple as usize,
        num_composite: num_composite as usize,
        levels: levels as usize,
        promotion,
        seed,
        directions: if flags & 16 != 0 { Directions::Fitted } else { Directions::Random },
        capacity: usize::try_from(capacity).map_err(|_| damaged("capacity does not fit this machine"))?,
        fixed: flags & 1 != 0,
        max_norm,
        trusted: flags & 2 != 0,
        isa: None,
        engine: match flags >> 2 & 3 {
            0 => Engine::Auto,
            1 => Engine::Walk,
            2 => Engine::Scan,
            _ => Engine::Cells,
        },
    };
    let keys = usize::try_from(keys).ok().filter(|&n| n <= options.capacity);
    let keys = keys.ok_or(damaged("number of keys is out of range"))?;
    if flags > 31 || num_simple == 0 || num_composite == 0 || levels == 0 || !bound.is_finite() || bound < 0.0 {
        return Err(OPTIONS);
    }
    let options = options.resolve().map_err(|e| bytes::refusal(e, OPTIONS))?;
    Ok(Header { options, bound, next_id, keys })
}

/// Number of sample queries.
fn read_asked(r: &mut Reader<'_>) -> Result<usize> {
    let asked = r.u32().ok_or(SHORT)? as usize;
    if asked != 0 && !(LEAST_ASKED..=Asked::MOST).contains(&asked) {
        return Err(damaged("number of sample queries is out of range"));
    }
    Ok(asked)
}

/// The header of bytes of which checksum and length are right.
fn checked(bytes: &[u8]) -> Result<Header> {
    let mut from = bytes::within(bytes);
    let mut r = Reader::new(&mut from, INDEX_MAGIC, VERSION).map_err(damaged)?;
    bytes::check(bytes).map_err(damaged)?;
    let header = read_header(&mut r)?;
    let misfit = damaged("length does not fit its header");
    let dim = header.options.dim;
    let keys = dim.checked_mul(4).and_then(|key| (key + 8).checked_mul(header.keys)).ok_or(misfit)?;
    let mut need = keys.checked_add(HEADER + CHECKSUM).ok_or(misfit)?;
    if header.options.directions == Directions::Fitted {
        // Bytes that are there bound what is passed over.
        if need > bytes.len() {
            return Err(misfit);
        }
        r.skip(keys).ok_or(misfit)?;
        need = need.checked_add(FITTED + read_asked(&mut r)? * dim * 4).ok_or(misfit)?;
    }
    if need == bytes.len() { Ok(header) } else { Err(misfit) }
}

/// The same with the keys in place.
fn checked_view(bytes: &'static [u8]) -> Result<(Header, &'static [f32])> {
    let header = checked(bytes)?;
    let at = HEADER + header.keys * 8;
    let keys = bytes.get(at..at + header.keys * header.options.dim * 4).ok_or(SHORT)?;
    Ok((header, f32s(keys, "buf")?))
}

impl Index {
    /// Bytes that [`save`](Index::save) writes.
    pub fn save_len(&self) -> usize {
        let fitted = self.options.directions == Directions::Fitted;
        let fit = if fitted { FITTED + 4 * self.codes.asked().saved(self.dim()).0.len() } else { 0 };
        HEADER + self.len() * (8 + 4 * self.dim()) + fit + CHECKSUM
    }

    /// Writes the index into `out[..save_len()]`; returns the bytes written. O(n). Never allocates.
    ///
    /// # Errors
    /// `Buffer` when `out` is too small; nothing is written then.
    pub fn save(&self, out: &mut [u8]) -> Result<usize> {
        bytes::save_in(out, self.save_len(), |write| self.save_to(write))
    }

    /// Writes the index, [`save_len`](Index::save_len) bytes in pieces of at most 1 KiB: `write` takes one, or says `false`. O(n).
    /// Never allocates.
    ///
    /// # Errors
    /// `Buffer` when `write` did not take all.
    pub fn save_to(&self, write: &mut dyn FnMut(&[u8]) -> bool) -> Result<()> {
        let o = &self.options;
        let mut w = Writer::new(write, INDEX_MAGIC, VERSION);
        let fitted = o.directions == Directions::Fitted;
        let flags = u32::from(o.fixed) | u32::from(o.trusted) << 1 | (o.engine as u32) << 2 | u32::from(fitted) << 4;
        for x in [o.dim as u32, o.metric as u32, o.num_simple as u32, o.num_composite as u32, o.levels as u32, flags] {
            w.u32(x);
        }
        for x in [o.promotion, o.max_norm, self.lift.bound()] {
            w.u32(x.to_bits());
        }
        for x in [o.seed, self.capacity().max(self.len()) as u64, self.next_id, self.len() as u64] {
            w.u64(x);
        }
        let live = || (0..self.ids.len()).filter(|&s| self.ids[s] != NO_ID);
        live().for_each(|s| w.u64(self.ids[s]));
        live().for_each(|s| w.f32s(self.key_at(s as u32)));
        if fitted {
            let (asked, way, decided) = self.codes.asked().saved(o.dim);
            w.u32((asked.len() / o.dim) as u32);
            w.u32(way as u32);
            w.u64(decided as u64);
            w.f32s(asked);
        }
        w.finish()
    }

    /// The options stored in saved bytes, after checking them all: what to plan for before [`load`](Index::load).
    ///
    /// # Errors
    /// `Buffer` for damaged, truncated or foreign bytes.
    pub fn peek(bytes: &[u8]) -> Result<IndexOptions> {
        checked(bytes).map(|h| h.options)
    }

    /// Rebuilds a saved index in `memory`; it answers as the saved one did. O(n log n) per list. Nothing is allocated where all of it
    /// would exceed the limit of `memory`: set one for bytes of strangers, whose header may ask for any capacity.
    ///
    /// # Errors
    /// `Buffer` for damaged, truncated or foreign bytes; `Unsupported` where this build lacks what they need; `NoMemory`,
    /// `Budget`, `Alignment` from `memory`.
    pub fn load(bytes: &[u8], memory: &Memory) -> Result<Index> {
        checked(bytes)?;
        Self::load_from(&mut bytes::within(bytes), memory)
    }

    /// As [`load`](Index::load), from bytes that come piece by piece: `read` fills as much of its argument as there is left and
    /// says how much. It is asked for the bytes of one index, at most 1 KiB at a time, and no more.
    ///
    /// The checksum comes last, so the header is believed until then: set a limit.
    ///
    /// # Errors
    /// As [`load`](Index::load).
    pub fn load_from(read: &mut dyn FnMut(&mut [u8]) -> usize, memory: &Memory) -> Result<Index> {
        let mut r = Reader::new(read, INDEX_MAGIC, VERSION).map_err(damaged)?;
        let header = read_header(&mut r)?;
        let mut plan = Plan::new();
        Self::plan(&header.options, &mut plan)?;
        memory.admit(plan)?;
        Self::new_in(&header.options, memory)?.fill(&header, r)
    }

    /// As [`peek`](Index::peek), for [`view`](Index::view).
    ///
    /// # Errors
    /// As [`view`](Index::view), memory apart.
    pub fn peek_view(bytes: &'static [u8]) -> Result<IndexOptions> {
        checked_view(bytes).map(|(header, _)| header.options)
    }

    /// Adds every block of an index that [`view`](Index::view) makes to a plan: as [`plan`](Index::plan), without the keys.
    ///
    /// # Errors
    /// As [`IndexOptions::resolve`].
    pub fn plan_view(options: &IndexOptions, plan: &mut Plan) -> Result<()> {
        Self::plan_with(options, plan, false)
    }

    /// As [`load`](Index::load), but the keys stay where they are: they are read from `bytes`, which may be a mapped file
    /// or read-only memory, and only what finds them is built. The first insertion copies them, unless `memory` is a
    /// region: then it is refused. Removals write nothing to them.
    ///
    /// # Errors
    /// As [`load`](Index::load); `Alignment` unless `bytes` is aligned to 4; `Unsupported` on a big-endian machine.
    pub fn view(bytes: &'static [u8], memory: &Memory) -> Result<Index> {
        let (header, keys) = checked_view(bytes)?;
        let mut plan = Plan::new();
        Self::plan_view(&header.options, &mut plan)?;
        memory.admit(plan)?;
        let index = Index::new_with(&header.options, memory, Some(keys))?;
        let mut from = bytes::within(bytes);
        let mut r = Reader::new(&mut from, INDEX_MAGIC, VERSION).map_err(damaged)?;
        read_header(&mut r)?;
        index.fill(&header, r)
    }

    /// Takes ids and keys, and all that is made of them.
    fn fill(mut self, header: &Header, mut r: Reader<'_>) -> Result<Index> {
        let index = &mut self;
        index.lift = Lift::new(header.bound);
        for _ in 0..header.keys {
            let id = r.u64().ok_or(SHORT)?;
            index.restore_id(id).map_err(|e| bytes::refusal(e, damaged("an id is out of range")))?;
        }
        if index.keys.is_view() {
            r.skip(header.keys * index.options.dim * 4).ok_or(SHORT)?;
        }
        for slot in 0..header.keys as u32 {
            index.restore_key(slot, |key| r.floats(Dtype::F32, key).ok_or(SHORT))?;
        }
        if index.next_id > header.next_id {
            return Err(damaged("an id is out of range"));
        }
        index.next_id = header.next_id;
        if header.options.directions == Directions::Fitted {
            index.restore_asked(&mut r)?;
        }
        r.finish().map_err(damaged)?;
        index.rebuild();
        index.fold();
        Ok(self)
    }

    /// Reads sample queries, as many as the header was checked for.
    fn restore_asked(&mut self, r: &mut Reader<'_>) -> Result<()> {
        let asked = read_asked(r)?;
        let way = match r.u32().ok_or(SHORT)? {
            0 => Fit::Undecided,
            1 => Fit::Keys,
            2 => Fit::Balanced,
            _ => return Err(damaged("unknown choice of directions")),
        };
        let decided =
            usize::try_from(r.u64().ok_or(SHORT)?).map_err(|_| damaged("a number of keys is out of range"))?;
        let (dim, metric) = (self.options.dim, self.options.metric);
        let mut whole = None;
        self.codes.asked_mut().restore(dim, asked, way, decided, |queries| whole = r.floats(Dtype::F32, queries));
        whole.ok_or(SHORT)?;
        for query in self.codes.asked().saved(dim).0.chunks_exact(dim) {
            if query.iter().any(|x| !x.is_finite()) || Self::check_query(metric, query, "sample_queries").is_err() {
                return Err(damaged("a sample query cannot be one"));
            }
        }
        Ok(())
    }
}
