//! Parts of accelerated attention that a measurement can leave out, to see what they are worth.
//!
//! Without the feature `ablation` nothing can be left out, and the compiler knows it.

/// A part that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Keys that are heavy in sampled rows are known.
    KnownKeys,
    /// Keys or values much longer than the others of their segment stay out of the cells.
    Outliers,
    /// Bidirectional heads: cells hold similar keys of the whole sequence, not of a segment.
    Order,
    /// A cell opens by its spread, too, not only by its mean.
    Spread,
    /// A cell's estimate is widened by its spread.
    Widening,
    /// Estimates lean to the values of keys that score above their cell's mean.
    CrossCovariance,
    /// Cells that are not opened are estimated; without it they count for nothing.
    Means,
    /// Thresholds look at what a key adds to the output, not at its weight alone.
    OutputLength,
    /// Sampled rows choose the threshold, or exact attention.
    Control,
    /// No sampled row may err by much.
    WorstRow,
    /// Sampled rows of blocks before count, too.
    Memory,
}

#[cfg(feature = "ablation")]
impl Part {
    /// All of them.
    pub const ALL: [Part; 11] = [
        Part::KnownKeys,
        Part::Outliers,
        Part::Order,
        Part::Spread,
        Part::Widening,
        Part::CrossCovariance,
        Part::Means,
        Part::OutputLength,
        Part::Control,
        Part::WorstRow,
        Part::Memory,
    ];
}

#[cfg(feature = "ablation")]
static LEFT_OUT: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

/// Leaves these parts out of calls to come, of the whole process, and no others.
#[cfg(feature = "ablation")]
pub fn leave_out(parts: &[Part]) {
    let bits = parts.iter().fold(0, |bits, &part| bits | 1 << part as u32);
    LEFT_OUT.store(bits, core::sync::atomic::Ordering::Relaxed);
}

/// Whether a part is left out.
#[cfg(feature = "ablation")]
pub(super) fn without(part: Part) -> bool {
    LEFT_OUT.load(core::sync::atomic::Ordering::Relaxed) >> part as u32 & 1 != 0
}

/// Whether a part is left out: never, in a build that is no measurement.
#[cfg(not(feature = "ablation"))]
pub(super) const fn without(_: Part) -> bool {
    false
}
