//! Elapsed time where there is a clock (feature `std`); zero elsewhere.

#[cfg(feature = "std")]
pub(super) type Instant = std::time::Instant;
#[cfg(not(feature = "std"))]
pub(super) type Instant = ();

pub(super) fn now() -> Instant {
    #[cfg(feature = "std")]
    return std::time::Instant::now();
}

/// Seconds since `start`.
pub(super) fn since(start: Instant) -> f64 {
    #[cfg(feature = "std")]
    return start.elapsed().as_secs_f64();
    #[cfg(not(feature = "std"))]
    {
        let () = start;
        0.0
    }
}
