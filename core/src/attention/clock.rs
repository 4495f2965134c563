//! Elapsed time where there is a clock (feature `std`); zero elsewhere.

#[cfg(feature = "std")]
pub(super) type Instant = std::time::Instant;
/// There is no clock.
#[cfg(not(feature = "std"))]
#[derive(Clone, Copy)]
pub(super) struct Instant;

pub(super) fn now() -> Instant {
    #[cfg(feature = "std")]
    return std::time::Instant::now();
    #[cfg(not(feature = "std"))]
    Instant
}

/// Seconds since `start`.
pub(super) fn since(start: Instant) -> f64 {
    #[cfg(feature = "std")]
    return start.elapsed().as_secs_f64();
    #[cfg(not(feature = "std"))]
    {
        let Instant = start;
        0.0
    }
}
