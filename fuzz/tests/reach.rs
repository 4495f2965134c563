//! Programs of random bytes must come to the attention by cells that they are for: all kinds of it open cells and leave some
//! closed. On any compiler, as the committed inputs.

use iceformer_core::math::hash;
use iceformer_fuzz::tally::{self, KINDS};

/// Programs of each target, unless `ICE_PROGRAMS` says how many.
const PROGRAMS: u64 = 900;

#[test]
fn programs_open_cells_and_leave_some_closed() {
    let programs = std::env::var("ICE_PROGRAMS").map_or(PROGRAMS, |n| n.parse().expect("a number of programs"));
    for i in 0..programs {
        let data: Vec<u8> = (0..500).map(|j| hash(i, j) as u8).collect();
        for run in [iceformer_fuzz::attention::run, iceformer_fuzz::session::run, iceformer_fuzz::border::run] {
            run(&data);
        }
    }
    for &kind in KINDS {
        let [all, opened, closed] = tally::of(kind);
        println!("{kind:?}: {all} calls, {opened} opened cells, {closed} left some closed");
        assert!(opened >= 2 && closed >= 2, "{kind:?} is hardly ever reached");
    }
}
