//! Saved objects as bytes: a magic, a version, little-endian fields, and a CRC-32 at the end; read and written piece by piece, so
//! that they need not lie in memory.

use crate::error::{Error, Result, Status};
use crate::mem::Dtype;
use crc32fast::Hasher;
use half::{bf16, f16};

/// Bytes handed over at a time; a multiple of every element.
const CHUNK: usize = 1024;
/// Bytes of the checksum.
pub(crate) const CHECKSUM: usize = 4;

/// Fills as much of its argument as there are bytes left, and says how much: less only at the end.
pub(crate) type Read<'a> = dyn FnMut(&mut [u8]) -> usize + 'a;
/// Takes its argument, or says that it cannot.
pub(crate) type Write<'a> = dyn FnMut(&[u8]) -> bool + 'a;

/// Reads fields.
pub(crate) struct Reader<'a> {
    from: &'a mut Read<'a>,
    sum: Hasher,
}

impl<'a> Reader<'a> {
    /// Checks magic and version; the reader then stands at the first field.
    pub(crate) fn new(from: &'a mut Read<'a>, magic: [u8; 8], version: u32) -> Result<Self, &'static str> {
        let mut r = Reader { from, sum: Hasher::new() };
        let mut head = [0; 8];
        r.fill(&mut head).ok_or("too short")?;
        if head != magic {
            return Err("not saved by this library (wrong magic)");
        }
        if r.u32().ok_or("too short")? != version {
            return Err("unknown format version");
        }
        Ok(r)
    }

    fn fill(&mut self, to: &mut [u8]) -> Option<()> {
        let whole = (self.from)(to) == to.len();
        self.sum.update(to);
        whole.then_some(())
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        let mut x = [0; 4];
        self.fill(&mut x).map(|()| u32::from_le_bytes(x))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        let mut x = [0; 8];
        self.fill(&mut x).map(|()| u64::from_le_bytes(x))
    }

    /// Passes over `n` bytes.
    pub(crate) fn skip(&mut self, n: usize) -> Option<()> {
        let mut piece = [0; CHUNK];
        (0..n).step_by(CHUNK).try_for_each(|at| self.fill(&mut piece[..CHUNK.min(n - at)]))
    }

    /// Fills `out` with numbers stored in `dtype`.
    pub(crate) fn floats(&mut self, dtype: Dtype, out: &mut [f32]) -> Option<()> {
        let (size, mut piece) = (dtype.size(), [0; CHUNK]);
        for out in out.chunks_mut(CHUNK / size) {
            let bytes = &mut piece[..out.len() * size];
            self.fill(bytes)?;
            for (x, b) in out.iter_mut().zip(bytes.chunks_exact(size)) {
                *x = match (dtype, b) {
                    (Dtype::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
                    (Dtype::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
                    (Dtype::Bf16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
                    _ => *x,
                };
            }
        }
        Some(())
    }

    /// Reads the checksum and compares.
    pub(crate) fn finish(self) -> Result<(), &'static str> {
        let mut sum = [0; CHECKSUM];
        if (self.from)(&mut sum) != CHECKSUM {
            return Err("shorter than its header says");
        }
        compare(self.sum, sum)
    }

    /// The same, the checksum being the last of all bytes that there are.
    pub(crate) fn finish_at_end(mut self) -> Result<(), &'static str> {
        let mut window = [0; CHECKSUM + CHUNK];
        let mut held = 0;
        loop {
            let n = (self.from)(&mut window[held..][..CHUNK]).min(CHUNK);
            let all = held + n;
            held = all.min(CHECKSUM);
            self.sum.update(&window[..all - held]);
            window.copy_within(all - held..all, 0);
            if n == 0 {
                break;
            }
        }
        match window.first_chunk::<CHECKSUM>() {
            Some(&sum) if held == CHECKSUM => compare(self.sum, sum),
            _ => Err("shorter than its header says"),
        }
    }
}

fn compare(sum: Hasher, saved: [u8; CHECKSUM]) -> Result<(), &'static str> {
    if sum.finalize() == u32::from_le_bytes(saved) {
        Ok(())
    } else {
        Err("checksum does not match: the bytes are damaged")
    }
}

/// Whether the checksum of saved bytes is right.
pub(crate) fn check(bytes: &[u8]) -> Result<(), &'static str> {
    let (body, sum) = bytes.split_last_chunk::<CHECKSUM>().ok_or("too short")?;
    let mut all = Hasher::new();
    all.update(body);
    compare(all, *sum)
}

/// A source that is bytes in memory.
pub(crate) fn within(mut bytes: &[u8]) -> impl FnMut(&mut [u8]) -> usize {
    move |to| {
        let (now, rest) = bytes.split_at(to.len().min(bytes.len()));
        to[..now.len()].copy_from_slice(now);
        bytes = rest;
        now.len()
    }
}

/// What loading may fail with: what memory says stays, all else is a damaged header or body.
pub(crate) fn refusal(e: Error, damaged: Error) -> Error {
    match e.status {
        Status::NoMemory | Status::Budget | Status::Alignment | Status::Unsupported | Status::Buffer => e,
        _ => damaged,
    }
}

/// Writes fields.
pub(crate) struct Writer<'a> {
    to: &'a mut Write<'a>,
    piece: [u8; CHUNK],
    held: usize,
    sum: Hasher,
    taken: bool,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(to: &'a mut Write<'a>, magic: [u8; 8], version: u32) -> Self {
        let mut w = Writer { to, piece: [0; CHUNK], held: 0, sum: Hasher::new(), taken: true };
        w.put(&magic);
        w.u32(version);
        w
    }

    /// Appends at most a piece.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        if self.held + bytes.len() > CHUNK {
            self.flush();
        }
        self.piece[self.held..][..bytes.len()].copy_from_slice(bytes);
        self.held += bytes.len();
    }

    fn flush(&mut self) {
        let piece = &self.piece[..core::mem::take(&mut self.held)];
        self.sum.update(piece);
        self.taken = self.taken && (self.to)(piece);
    }

    pub(crate) fn u32(&mut self, x: u32) {
        self.put(&x.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, x: u64) {
        self.put(&x.to_le_bytes());
    }

    pub(crate) fn f32s(&mut self, xs: &[f32]) {
        xs.iter().for_each(|x| self.u32(x.to_bits()));
    }

    /// Appends the checksum.
    ///
    /// # Errors
    /// `Buffer` when the bytes were not taken.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.flush();
        let sum = self.sum.clone().finalize();
        self.u32(sum);
        self.flush();
        if self.taken { Ok(()) } else { Err(Error::new(Status::Buffer, "write", "did not take all bytes")) }
    }
}

/// Saves into `out[..need]`; returns `need`.
///
/// # Errors
/// `Buffer` when `out` is too small; nothing is written then.
pub(crate) fn save_in(
    out: &mut [u8],
    need: usize,
    save: impl FnOnce(&mut dyn FnMut(&[u8]) -> bool) -> Result<()>,
) -> Result<usize> {
    let have = out.len();
    let mut rest = out.get_mut(..need).ok_or(Error::new(Status::Buffer, "buf", "too small").need(need, have))?;
    save(&mut |piece| {
        let Some((now, later)) = core::mem::take(&mut rest).split_at_mut_checked(piece.len()) else { return false };
        now.copy_from_slice(piece);
        rest = later;
        true
    })?;
    assert!(rest.is_empty(), "the saved length was computed right");
    Ok(need)
}
