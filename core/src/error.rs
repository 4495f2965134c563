//! Errors without a heap: a status, the field at fault, the reason, and the offending row or value.

use core::fmt;

/// What went wrong, by kind. The discriminants are the `ICE_ERR_*` numbers of the C contract: append only.
///
/// ```
/// use iceformer_core::Status;
///
/// assert_eq!((Status::Shape as i32, Status::Shape.message()), (-3, "shapes do not fit together"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Status {
    /// A required pointer is NULL.
    Null = -1,
    /// A value outside its documented range.
    Argument = -2,
    /// Shapes that do not fit together.
    Shape = -3,
    /// A stride that is too small or no multiple of the element size.
    Stride = -4,
    /// A pointer that is not aligned for its element type.
    Alignment = -5,
    /// NaN or infinity where a finite number is needed, or a norm that overflows.
    NotFinite = -6,
    /// The allocator returned nothing.
    NoMemory = -7,
    /// The memory limit set by the caller would be exceeded.
    Budget = -8,
    /// A fixed capacity is exhausted.
    Capacity = -9,
    /// An id that is not there.
    NotFound = -10,
    /// An id that is already there, or twice in one call.
    Duplicate = -11,
    /// The call is not allowed now (wrong order of calls).
    State = -12,
    /// A documented feature that this build or version does not have.
    Unsupported = -13,
    /// A struct of a size or version this library does not know.
    Abi = -14,
    /// A buffer of the caller that is too small, or bytes that are damaged or foreign.
    Buffer = -15,
    /// A bug in this library.
    Internal = -16,
}

impl Status {
    /// Every status, in numeric order from -1 downwards.
    pub const ALL: [Status; 16] = [
        Status::Null,
        Status::Argument,
        Status::Shape,
        Status::Stride,
        Status::Alignment,
        Status::NotFinite,
        Status::NoMemory,
        Status::Budget,
        Status::Capacity,
        Status::NotFound,
        Status::Duplicate,
        Status::State,
        Status::Unsupported,
        Status::Abi,
        Status::Buffer,
        Status::Internal,
    ];

    /// One sentence for people, static text.
    pub const fn message(self) -> &'static str {
        match self {
            Status::Null => "a required pointer is NULL",
            Status::Argument => "an argument is outside its range",
            Status::Shape => "shapes do not fit together",
            Status::Stride => "a stride is too small or not a multiple of the element size",
            Status::Alignment => "a pointer is not aligned for its element type",
            Status::NotFinite => "a number is NaN or infinite, or its norm overflows",
            Status::NoMemory => "the allocator returned no memory",
            Status::Budget => "the memory limit would be exceeded",
            Status::Capacity => "a fixed capacity is exhausted",
            Status::NotFound => "an id is not in the index",
            Status::Duplicate => "an id is already in use",
            Status::State => "the call is not allowed in this state",
            Status::Unsupported => "not supported by this build or version",
            Status::Abi => "a struct has a size or version this library does not know",
            Status::Buffer => "a buffer is too small, damaged or foreign",
            Status::Internal => "internal error: please report it",
        }
    }
}

/// The offending place or value of an [`Error`].
///
/// ```
/// # #[cfg(feature = "messages")] {
/// use iceformer_core::mem::Rows;
/// use iceformer_core::{Detail, Status};
///
/// let e = Rows::new(&[1.0; 7], 2).unwrap_err();
/// assert_eq!((e.status, e.detail), (Status::Shape, Detail::Value(7)));
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Detail {
    /// Nothing more to say.
    None,
    /// Row (zero-based) of the field.
    Row(u64),
    /// The value that was refused.
    Value(u64),
    /// The number that was refused.
    Number(f32),
    /// The id at fault.
    Id(u64),
    /// What was needed and what was there.
    Need {
        /// Needed amount.
        need: u64,
        /// Available amount.
        have: u64,
    },
}

/// An error: copyable, static text, no heap. `Display` writes `field: reason (detail)`. Without the feature `messages` it is
/// the status alone, whose sentence `Display` writes.
///
/// ```
/// use iceformer_core::Status;
/// use iceformer_core::mem::Tensor;
///
/// let e = Tensor::new(&[0.0; 5], [1, 1, 2, 3]).unwrap_err();
/// assert_eq!(e.status, Status::Shape);
/// # #[cfg(feature = "messages")]
/// assert_eq!(e.to_string(), "tensor: shape does not fit the slice (got 5)");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Error {
    /// The kind, one to one with the C status codes.
    pub status: Status,
    /// The argument or field at fault, by its public name.
    #[cfg(feature = "messages")]
    pub field: &'static str,
    /// Why it was refused.
    #[cfg(feature = "messages")]
    pub reason: &'static str,
    /// Where, or which value.
    #[cfg(feature = "messages")]
    pub detail: Detail,
}

/// Result of everything in this crate that can fail.
pub type Result<T, E = Error> = core::result::Result<T, E>;

impl Error {
    /// An error without a detail.
    #[cfg_attr(not(feature = "messages"), allow(unused_variables))]
    pub const fn new(status: Status, field: &'static str, reason: &'static str) -> Self {
        Error {
            status,
            #[cfg(feature = "messages")]
            field,
            #[cfg(feature = "messages")]
            reason,
            #[cfg(feature = "messages")]
            detail: Detail::None,
        }
    }

    #[cfg_attr(not(feature = "messages"), allow(unused_variables, clippy::needless_update))]
    const fn with(self, detail: Detail) -> Self {
        Error {
            #[cfg(feature = "messages")]
            detail,
            ..self
        }
    }

    /// Field, reason and detail, where this build keeps them.
    pub const fn message(&self) -> Option<(&'static str, &'static str, Detail)> {
        #[cfg(feature = "messages")]
        {
            Some((self.field, self.reason, self.detail))
        }
        #[cfg(not(feature = "messages"))]
        None
    }

    /// The same error, of another field.
    #[cfg_attr(not(feature = "messages"), allow(unused_variables, clippy::needless_update))]
    pub(crate) const fn of(self, field: &'static str) -> Self {
        Error {
            #[cfg(feature = "messages")]
            field,
            ..self
        }
    }

    /// The same error, pointing at a row.
    pub const fn row(self, row: usize) -> Self {
        self.with(Detail::Row(row as u64))
    }

    /// The same error, naming the refused value.
    pub const fn value(self, value: u64) -> Self {
        self.with(Detail::Value(value))
    }

    /// The same error, naming the refused number.
    pub const fn number(self, number: f32) -> Self {
        self.with(Detail::Number(number))
    }

    /// The same error, naming the id.
    pub const fn id(self, id: u64) -> Self {
        self.with(Detail::Id(id))
    }

    /// The same error, with what was needed and what was there.
    pub const fn need(self, need: usize, have: usize) -> Self {
        self.with(Detail::Need { need: need as u64, have: have as u64 })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((field, reason, detail)) = self.message() else { return f.write_str(self.status.message()) };
        write!(f, "{field}: {reason}")?;
        match detail {
            Detail::None => Ok(()),
            Detail::Row(r) => write!(f, " (row {r})"),
            Detail::Value(v) => write!(f, " (got {v})"),
            Detail::Number(x) => write!(f, " (got {x})"),
            Detail::Id(id) => write!(f, " (id {id})"),
            Detail::Need { need, have } => write!(f, " (need {need}, have {have})"),
        }
    }
}

impl core::error::Error for Error {}

/// Refuses numbers that differ.
///
/// # Errors
/// `Shape` unless `have` is `need`.
pub(crate) fn same(field: &'static str, reason: &'static str, need: usize, have: usize) -> Result<()> {
    if need == have { Ok(()) } else { Err(Error::new(Status::Shape, field, reason).need(need, have)) }
}

/// The same of sizes of tensors.
///
/// # Errors
/// As [`same`], for the first that differs.
pub(crate) fn same_shape(field: &'static str, reason: &'static str, need: [usize; 4], have: [usize; 4]) -> Result<()> {
    need.into_iter().zip(have).try_for_each(|(need, have)| same(field, reason, need, have))
}

/// For steps whose room was made beforehand: they cannot fail, and tests make sure that they do not.
#[inline]
pub(crate) fn reserved<T>(result: Result<T>) {
    debug_assert!(result.is_ok(), "room was reserved");
}
