//! Memory that a call takes: the allocator of every program here counts.

use peak_alloc::PeakAlloc;

#[global_allocator]
static COUNTING: PeakAlloc = PeakAlloc;

/// What `work` returns, and the most bytes that were allocated at once meanwhile beyond those before, by all threads.
pub fn of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = COUNTING.current_usage();
    COUNTING.reset_peak_usage();
    let result = work();
    (result, COUNTING.peak_usage().saturating_sub(before))
}
