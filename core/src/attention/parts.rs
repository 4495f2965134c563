//! Parts of a call on threads of their own.

use super::stats::AttentionStats;
use crate::error::{Error, Result, Status};

/// Whether the build has threads.
pub(super) const THREADS: bool = cfg!(feature = "std");

/// So many parts, which take a thread each.
///
/// # Errors
/// `Unsupported` for more than one where there are no threads.
pub(super) fn allowed(parts: usize) -> Result<usize> {
    if THREADS || parts == 1 {
        return Ok(parts);
    }
    Err(Error::new(Status::Unsupported, "num_threads", "threads need the std feature").value(parts as u64))
}

/// Runs every item on a thread of its own, one of them the caller's, and adds up what they say.
#[cfg(not(feature = "std"))]
pub(super) fn in_parts<T>(
    items: &mut [T],
    run: impl Fn(usize, &mut T) -> Result<AttentionStats>,
    stats: &mut AttentionStats,
) -> Result<()> {
    allowed(items.len())?;
    items.iter_mut().try_for_each(|item| {
        stats.add(&run(0, item)?);
        Ok(())
    })
}

/// Runs every item on a thread of its own, one of them the caller's, and adds up what they say.
#[cfg(feature = "std")]
pub(super) fn in_parts<T: Send>(
    items: &mut [T],
    run: impl Fn(usize, &mut T) -> Result<AttentionStats> + Sync,
    stats: &mut AttentionStats,
) -> Result<()> {
    // Alone nothing is allocated: the standard library's scopes take memory, and end the process where there is none.
    if let [item] = items {
        stats.add(&run(0, item)?);
        return Ok(());
    }
    let parts = items.len();
    let mut results = std::vec::Vec::new();
    results.try_reserve_exact(parts).map_err(|_| Error::new(Status::NoMemory, "num_threads", "returned no memory"))?;
    let run = &run;
    std::thread::scope(|scope| {
        let mut handles = std::vec::Vec::with_capacity(parts);
        let mut own = None;
        for (ith, item) in items.iter_mut().enumerate() {
            if ith + 1 == parts {
                own = Some(run(ith, item));
                break;
            }
            match std::thread::Builder::new().spawn_scoped(scope, move || run(ith, item)) {
                Ok(handle) => handles.push(handle),
                Err(_) => {
                    results.push(Err(Error::new(Status::NoMemory, "num_threads", "a thread could not be started")));
                    break;
                }
            }
        }
        results.extend(own);
        for handle in handles {
            let panicked = Error::new(Status::Internal, "num_threads", "a thread panicked");
            results.push(handle.join().unwrap_or(Err(panicked)));
        }
    });
    for result in results {
        stats.add(&result?);
    }
    Ok(())
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::in_parts;
    use crate::attention::{AttentionStats, Mode, Reason};
    use std::collections::HashSet;
    use std::thread::{ThreadId, current};

    #[test]
    fn one_part_runs_on_the_callers_thread() {
        for n in 1..5 {
            let mut items: std::vec::Vec<(usize, Option<ThreadId>)> = std::vec![(0, None); n];
            let run = |ith: usize, item: &mut (usize, Option<ThreadId>)| {
                *item = (ith, Some(current().id()));
                Ok(AttentionStats { rows: 1 << ith, ..AttentionStats::new(Mode::Exact, Reason::Requested) })
            };
            let mut stats = AttentionStats::new(Mode::Exact, Reason::Requested);
            in_parts(&mut items, run, &mut stats).unwrap();
            assert!(stats.rows == (1 << n) - 1 && items.iter().enumerate().all(|(i, item)| item.0 == i));
            assert_eq!(items.iter().filter(|item| item.1 == Some(current().id())).count(), 1);
            assert_eq!(items.iter().map(|item| item.1).collect::<HashSet<_>>().len(), n);
        }
    }
}
