//! Programs of random bytes must come to the attention by cells that they are for: all kinds of it open cells and leave some
//! closed. On any compiler, as the committed inputs.

use iceformer_core::math::hash;
use iceformer_fuzz::tally::{self, KINDS};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Programs of the target for calls, of which few have two root blocks, and of the others, unless `ICE_PROGRAMS` says how many.
const PROGRAMS: [u64; 2] = [900, 300];

#[test]
fn programs_open_cells_and_leave_some_closed() {
    let asked = std::env::var("ICE_PROGRAMS").map(|n| n.parse().expect("a number of programs"));
    let [calls, others] = asked.map_or(PROGRAMS, |n| [n; 2]);
    let run = |i: u64| {
        let data: Vec<u8> = (0..500).map(|j| hash(i, j) as u8).collect();
        if i < calls {
            iceformer_fuzz::attention::run(&data);
        }
        if i < others {
            iceformer_fuzz::session::run(&data);
            iceformer_fuzz::border::run(&data);
        }
    };
    // Programs know nothing of each other, so that every core takes the next one.
    let (next, cores) = (AtomicU64::new(0), std::thread::available_parallelism().map_or(1, usize::from));
    let mine = || std::iter::repeat_with(|| next.fetch_add(1, Relaxed)).take_while(|&i| i < calls.max(others));
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| mine().for_each(run));
        }
    });
    for &kind in KINDS {
        let [all, opened, closed] = tally::of(kind);
        println!("{kind:?}: {all} calls, {opened} opened cells, {closed} left some closed");
        assert!(opened >= 2 && closed >= 2, "{kind:?} is hardly ever reached");
    }
}
