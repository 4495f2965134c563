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

use super::Index;
use super::cells::{Asked, LEAST_ASKED, Way};
use super::params::{Directions, Engine, IndexOptions, MAX_KEYS, Metric};
use super::slots::NO_ID;
use crate::bytes::{Reader, Writer};
use crate::error::{Error, Result, Status};
use crate::mem::{Dtype, Memory, Plan, f32s};
use crate::project::Lift;

const MAGIC: [u8; 8] = *b"ICEIDX\0\0";
const VERSION: u32 = 1;
const HEADER: usize = 8 + 4 + 6 * 4 + 3 * 4 + 4 * 8;
const CHECKSUM: usize = 4;
/// What comes before the sample queries.
const FITTED: usize = 4 + 4 + 8;

const fn damaged(reason: &'static str) -> Error {
    Error::new(Status::Buffer, "index bytes", reason)
}

struct Header {
    options: IndexOptions,
    bound: f32,
    next_id: u64,
    keys: usize,
}

fn read_header(bytes: &[u8]) -> Result<(Header, Reader<'_>)> {
    let mut r = Reader::checked(bytes, MAGIC, VERSION).map_err(damaged)?;
    let short = damaged("shorter than its header says");
    let mut word = || r.u32().ok_or(short);
    let (dim, metric, num_simple, num_composite, levels, flags) =
        (word()?, word()?, word()?, word()?, word()?, word()?);
    let (promotion, max_norm, bound) = (f32::from_bits(word()?), f32::from_bits(word()?), f32::from_bits(word()?));
    let mut long = || r.u64().ok_or(short);
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
    let keys = usize::try_from(keys).ok().filter(|&n| n <= MAX_KEYS && n <= options.capacity);
    let keys = keys.ok_or(damaged("number of keys is out of range"))?;
    if flags > 31 || num_simple == 0 || num_composite == 0 || levels == 0 || !bound.is_finite() || bound < 0.0 {
        return Err(damaged("options are out of range"));
    }
    let options = options.resolve().map_err(|_| damaged("options are out of range"))?;
    let body = keys.checked_mul(8).zip(keys.checked_mul(options.dim).and_then(|k| k.checked_mul(4)));
    let misfit = damaged("length does not fit its header");
    let mut rest = body.and_then(|(ids, keys)| ids.checked_add(keys)).ok_or(misfit)?;
    if options.directions == Directions::Fitted {
        let mut fit = r;
        fit.skip(rest);
        let asked = fit.u32().ok_or(misfit)? as usize;
        if asked != 0 && !(LEAST_ASKED..=Asked::MOST).contains(&asked) {
            return Err(damaged("number of sample queries is out of range"));
        }
        rest = rest.checked_add(FITTED + asked * options.dim * 4).ok_or(misfit)?;
    }
    if rest != r.left() {
        return Err(misfit);
    }
    Ok((Header { options, bound, next_id, keys }, r))
}

/// The same with the keys in place.
fn read_view(bytes: &'static [u8]) -> Result<(Header, Reader<'static>, &'static [f32])> {
    let (header, r) = read_header(bytes)?;
    let mut body = r;
    body.skip(header.keys * 8);
    let keys = body.take(header.keys * header.options.dim * 4).ok_or(damaged("shorter than its header says"))?;
    Ok((header, r, f32s(keys, "buf")?))
}

impl Index {
    /// Bytes that [`save`](Index::save) writes.
    pub fn save_len(&self) -> usize {
        let fitted = self.options.directions == Directions::Fitted;
        let fit = if fitted { FITTED + 4 * self.cells.asked().saved(self.dim()).0.len() } else { 0 };
        HEADER + self.len() * (8 + 4 * self.dim()) + fit + CHECKSUM
    }

    /// Writes the index into `out[..save_len()]`; returns the bytes written. O(n). Never allocates.
    ///
    /// # Errors
    /// `Buffer` when `out` is too small; nothing is written then.
    pub fn save(&self, out: &mut [u8]) -> Result<usize> {
        let (need, have) = (self.save_len(), out.len());
        let out = out.get_mut(..need).ok_or(Error::new(Status::Buffer, "buf", "too small").need(need, have))?;
        let o = &self.options;
        let mut w = Writer::new(out, MAGIC, VERSION);
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
            let (asked, way, decided) = self.cells.asked().saved(o.dim);
            w.u32((asked.len() / o.dim) as u32);
            w.u32(way as u32);
            w.u64(decided as u64);
            w.f32s(asked);
        }
        w.finish();
        Ok(need)
    }

    /// The options stored in saved bytes, after checking them all: what to plan for before [`load`](Index::load).
    ///
    /// # Errors
    /// `Buffer` for damaged, truncated or foreign bytes.
    pub fn peek(bytes: &[u8]) -> Result<IndexOptions> {
        read_header(bytes).map(|(h, _)| h.options)
    }

    /// Rebuilds a saved index in `memory`; it answers as the saved one did. O(n log n) per list.
    ///
    /// # Errors
    /// `Buffer` for damaged, truncated or foreign bytes; as [`Index::new_in`].
    pub fn load(bytes: &[u8], memory: &Memory) -> Result<Index> {
        let (header, r) = read_header(bytes)?;
        let index = Index::new_in(&header.options, memory)?;
        index.fill(&header, r)
    }

    /// As [`peek`](Index::peek), for [`view`](Index::view).
    ///
    /// # Errors
    /// As [`view`](Index::view), memory apart.
    pub fn peek_view(bytes: &'static [u8]) -> Result<IndexOptions> {
        read_view(bytes).map(|(header, ..)| header.options)
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
        let (header, r, keys) = read_view(bytes)?;
        let index = Index::new_with(&header.options, memory, Some(keys))?;
        index.fill(&header, r)
    }

    /// Takes ids and keys, and all that is made of them.
    fn fill(mut self, header: &Header, mut r: Reader<'_>) -> Result<Index> {
        let index = &mut self;
        index.lift = Lift::new(header.bound);
        let mut ids = r;
        r.skip(header.keys * 8);
        for _ in 0..header.keys {
            let id = ids.u64().filter(|&id| id != NO_ID).ok_or(damaged("an id is out of range"))?;
            // The length was checked: every key is there.
            let mut key = r;
            r.skip(index.options.dim * 4);
            index.restore(id, |to| key.floats(Dtype::F32, to))?;
        }
        if index.next_id > header.next_id {
            return Err(damaged("an id is out of range"));
        }
        index.next_id = header.next_id;
        if header.options.directions == Directions::Fitted {
            index.restore_asked(&mut r)?;
        }
        index.rebuild();
        index.fold();
        Ok(self)
    }

    /// Reads sample queries, as many as the header was checked for.
    fn restore_asked(&mut self, r: &mut Reader<'_>) -> Result<()> {
        let short = damaged("shorter than its header says");
        let asked = r.u32().ok_or(short)? as usize;
        let way = match r.u32().ok_or(short)? {
            0 => Way::Undecided,
            1 => Way::Keys,
            2 => Way::Balanced,
            _ => return Err(damaged("unknown choice of directions")),
        };
        let decided =
            usize::try_from(r.u64().ok_or(short)?).map_err(|_| damaged("a number of keys is out of range"))?;
        let (dim, metric) = (self.options.dim, self.options.metric);
        self.cells.asked_mut().restore(dim, asked, way, decided, |queries| r.floats(Dtype::F32, queries));
        for query in self.cells.asked().saved(dim).0.chunks_exact(dim) {
            if query.iter().any(|x| !x.is_finite()) || Self::check_query(metric, query, "sample_queries").is_err() {
                return Err(damaged("a sample query cannot be one"));
            }
        }
        Ok(())
    }
}
