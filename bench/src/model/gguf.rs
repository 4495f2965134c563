//! GGUF versions 2 and 3: metadata and tensors, little-endian.

use super::Result;
use super::quant::Kind;
use std::collections::HashMap;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Any whole number, and booleans as 0 and 1.
    Whole(i128),
    /// f32 or f64.
    Float(f64),
    /// Text.
    Text(String),
    /// Values of one type.
    List(Vec<Value>),
}

struct Tensor {
    /// Fastest dimension first.
    shape: Vec<usize>,
    kind: Kind,
    offset: usize,
}

/// A parsed file.
pub struct Gguf {
    values: HashMap<String, Value>,
    tensors: HashMap<String, Tensor>,
    bytes: Vec<u8>,
    data: usize,
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn take(&mut self, n: usize) -> Result<&[u8]> {
        let part = self.at.checked_add(n).and_then(|end| self.bytes.get(self.at..end)).ok_or("the file ends early")?;
        self.at += n;
        Ok(part)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.take(N)?.try_into()?)
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn size(&mut self) -> Result<usize> {
        Ok(usize::try_from(u64::from_le_bytes(self.array()?))?)
    }

    fn text(&mut self) -> Result<String> {
        let n = self.size()?;
        Ok(String::from_utf8(self.take(n)?.to_vec())?)
    }

    fn value(&mut self, kind: u32) -> Result<Value> {
        Ok(match kind {
            0 | 7 => Value::Whole(self.array::<1>()?[0].into()),
            1 => Value::Whole(i8::from_le_bytes(self.array()?).into()),
            2 => Value::Whole(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Whole(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Whole(u32::from_le_bytes(self.array()?).into()),
            5 => Value::Whole(i32::from_le_bytes(self.array()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            8 => Value::Text(self.text()?),
            9 => {
                let (kind, n) = (self.u32()?, self.size()?);
                if kind == 9 {
                    return Err("lists of lists are not supported".into());
                }
                Value::List((0..n).map(|_| self.value(kind)).collect::<Result<_>>()?)
            }
            10 => Value::Whole(u64::from_le_bytes(self.array()?).into()),
            11 => Value::Whole(i64::from_le_bytes(self.array()?).into()),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            other => return Err(format!("metadata type {other} is not known").into()),
        })
    }
}

impl Gguf {
    /// Parses a whole file. Tensor data is checked when read.
    ///
    /// # Errors
    /// Damaged files, other versions, other element types.
    pub fn parse(bytes: Vec<u8>) -> Result<Gguf> {
        let mut c = Cursor { bytes: &bytes, at: 0 };
        if c.take(4)? != b"GGUF" {
            return Err("not a GGUF file".into());
        }
        let version = c.u32()?;
        if !(2..=3).contains(&version) {
            return Err(format!("GGUF version {version} is not supported").into());
        }
        let (tensor_count, value_count) = (c.size()?, c.size()?);
        let mut values = HashMap::new();
        for _ in 0..value_count {
            let key = c.text()?;
            let kind = c.u32()?;
            values.insert(key, c.value(kind)?);
        }
        let mut tensors = HashMap::new();
        for _ in 0..tensor_count {
            let name = c.text()?;
            let dims = c.u32()?;
            let shape = (0..dims).map(|_| c.size()).collect::<Result<_>>()?;
            let number = c.u32()?;
            let kind = Kind::of(number).ok_or_else(|| format!("{name}: element type {number} is not supported"))?;
            tensors.insert(name, Tensor { shape, kind, offset: c.size()? });
        }
        let alignment = match values.get("general.alignment") {
            Some(&Value::Whole(n)) => usize::try_from(n).ok().filter(|n| n.is_power_of_two()),
            _ => Some(32),
        };
        let data =
            alignment.and_then(|a| c.at.checked_next_multiple_of(a)).ok_or("general.alignment is no power of two")?;
        Ok(Gguf { values, tensors, bytes, data })
    }

    fn value(&self, key: &str) -> Result<&Value> {
        self.values.get(key).ok_or_else(|| format!("{key} is missing").into())
    }

    /// A whole number that fits `usize`.
    ///
    /// # Errors
    /// Missing, or something else.
    pub fn whole(&self, key: &str) -> Result<usize> {
        match self.value(key)? {
            &Value::Whole(n) => Ok(usize::try_from(n)?),
            _ => Err(format!("{key} is not a whole number").into()),
        }
    }

    /// A whole number that fits `usize`, or another where it is missing.
    ///
    /// # Errors
    /// Something else.
    pub fn whole_or(&self, key: &str, or: usize) -> Result<usize> {
        if self.has(key) { self.whole(key) } else { Ok(or) }
    }

    /// A floating-point number.
    ///
    /// # Errors
    /// Missing, or something else.
    pub fn float(&self, key: &str) -> Result<f64> {
        match self.value(key)? {
            &Value::Float(x) => Ok(x),
            _ => Err(format!("{key} is not a floating-point number").into()),
        }
    }

    /// A floating-point number, or another where it is missing.
    ///
    /// # Errors
    /// Something else.
    pub fn float_or(&self, key: &str, or: f64) -> Result<f64> {
        if self.has(key) { self.float(key) } else { Ok(or) }
    }

    /// Text.
    ///
    /// # Errors
    /// Missing, or something else.
    pub fn text(&self, key: &str) -> Result<&str> {
        match self.value(key)? {
            Value::Text(s) => Ok(s),
            _ => Err(format!("{key} is not text").into()),
        }
    }

    /// Whether a key is there.
    pub fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// A truth value, where it is there.
    ///
    /// # Errors
    /// Something else.
    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Whole(n)) => Ok(Some(*n != 0)),
            Some(_) => Err(format!("{key} is not a truth value").into()),
        }
    }

    /// A list of whole numbers.
    ///
    /// # Errors
    /// Missing, or something else.
    pub fn wholes(&self, key: &str) -> Result<Vec<i128>> {
        let Value::List(list) = self.value(key)? else { return Err(format!("{key} is not a list").into()) };
        list.iter()
            .map(|v| match v {
                &Value::Whole(n) => Ok(n),
                _ => Err(format!("{key} holds something else than whole numbers").into()),
            })
            .collect()
    }

    /// A list of texts.
    ///
    /// # Errors
    /// Missing, or something else.
    pub fn texts(&self, key: &str) -> Result<Vec<&str>> {
        let Value::List(list) = self.value(key)? else { return Err(format!("{key} is not a list").into()) };
        list.iter()
            .map(|v| match v {
                Value::Text(s) => Ok(s.as_str()),
                _ => Err(format!("{key} holds something else than text").into()),
            })
            .collect()
    }

    /// A tensor in f32; `shape` has the fastest dimension first.
    ///
    /// # Errors
    /// Missing, of another shape, or beyond the end of the file.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let t = self.tensors.get(name).ok_or_else(|| format!("tensor {name} is missing"))?;
        if t.shape != shape {
            return Err(format!("tensor {name} is {:?}, expected {shape:?}", t.shape).into());
        }
        let (elements, size) = t.kind.block();
        if shape.first().is_none_or(|n| n % elements != 0) {
            return Err(format!("tensor {name}: rows of {shape:?} are no whole blocks of {:?}", t.kind).into());
        }
        let all = shape.iter().try_fold(1, |a: usize, &n| a.checked_mul(n));
        let bytes = all.and_then(|n| (n / elements).checked_mul(size));
        let begin = self.data.checked_add(t.offset);
        let range = begin.zip(bytes).and_then(|(b, n)| Some(b..b.checked_add(n)?));
        let bytes =
            range.and_then(|r| self.bytes.get(r)).ok_or_else(|| format!("tensor {name}: the file ends early"))?;
        Ok(t.kind.numbers(bytes))
    }

    /// Names of all tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }
}
