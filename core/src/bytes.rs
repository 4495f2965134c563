//! Saved objects as bytes: a magic, a version, little-endian fields, and a CRC-32 at the end.

use crate::mem::Dtype;
use half::{bf16, f16};

/// Reads fields from checked bytes.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Checks magic, version and checksum; the reader then stands at the first field and ends before the checksum.
    pub(crate) fn checked(bytes: &'a [u8], magic: [u8; 8], version: u32) -> Result<Self, &'static str> {
        let (body, sum) = bytes.split_last_chunk::<4>().ok_or("too short")?;
        let (head, rest) = body.split_first_chunk::<8>().ok_or("too short")?;
        if *head != magic {
            return Err("not saved by this library (wrong magic)");
        }
        let (v, rest) = rest.split_first_chunk::<4>().ok_or("too short")?;
        if u32::from_le_bytes(*v) != version {
            return Err("unknown format version");
        }
        if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
            return Err("checksum does not match: the bytes are damaged");
        }
        Ok(Reader { bytes: rest })
    }

    pub(crate) fn left(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        let (x, rest) = self.bytes.split_first_chunk::<4>()?;
        self.bytes = rest;
        Some(u32::from_le_bytes(*x))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        let (x, rest) = self.bytes.split_first_chunk::<8>()?;
        self.bytes = rest;
        Some(u64::from_le_bytes(*x))
    }

    /// The next `n` bytes.
    pub(crate) fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (x, rest) = self.bytes.split_at_checked(n)?;
        self.bytes = rest;
        Some(x)
    }

    pub(crate) fn skip(&mut self, n: usize) {
        self.bytes = self.bytes.get(n..).unwrap_or(&[]);
    }

    /// A reader over bytes that were checked as part of others.
    pub(crate) fn over(bytes: &'a [u8]) -> Self {
        Reader { bytes }
    }

    /// Fills `out` with numbers stored in `dtype`; short bytes leave the rest as it was.
    pub(crate) fn floats(&mut self, dtype: Dtype, out: &mut [f32]) {
        let (size, n) = (dtype.size(), out.len());
        let bytes = self.take(n * size).unwrap_or(&[]);
        for (x, b) in out.iter_mut().zip(bytes.chunks_exact(size)) {
            *x = match (dtype, b) {
                (Dtype::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
                (Dtype::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
                (Dtype::Bf16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
                _ => *x,
            };
        }
    }
}

/// Writes fields into a buffer of exactly the saved length.
pub(crate) struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(out: &'a mut [u8], magic: [u8; 8], version: u32) -> Self {
        let mut w = Writer { out, at: 0 };
        w.put(&magic);
        w.u32(version);
        w
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.out[self.at..][..bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
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
    pub(crate) fn finish(mut self) {
        let sum = crc32fast::hash(&self.out[..self.at]);
        self.u32(sum);
        assert_eq!(self.at, self.out.len(), "the saved length was computed right");
    }
}
