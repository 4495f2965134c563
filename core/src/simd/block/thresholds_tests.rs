//! Thresholds that rise with what rows find and with the cells they open, beside a twin in f64.

use super::tests::{QUERIES, close, isas, lists, noise};
use super::*;
use std::vec;
use std::vec::Vec;

const SHARES: Shares =
    Shares { needle: 0.01, each: 0.5, most: 3.0, mass: [0.2, 0.3], fine: 0.05, coarse: 0.06, stand_out: [2.5, 3.0] };
const FACTOR: f32 = 1.125;

/// Everything that thresholds of queries are.
#[derive(Clone)]
struct Case {
    reference: Vec<f32>,
    dense: Vec<f32>,
    sigma: Vec<f32>,
    total: Vec<f32>,
    opened: Vec<f32>,
    bar: Vec<f32>,
    needle: Vec<f32>,
    mass: [Vec<f32>; 2],
    fine: Vec<f32>,
    coarse: Vec<f32>,
    along: Vec<Along>,
}

impl Case {
    fn new() -> Case {
        let zeros = || vec![0.0; QUERIES];
        let mut case = Case {
            reference: noise(QUERIES, 51),
            dense: noise(QUERIES, 52).iter().map(|x| x + 1.25).collect(),
            sigma: noise(QUERIES, 53).iter().map(|x| x + 1.5).collect(),
            // Some are known to be heavy, others find more than that.
            total: (0..QUERIES).map(|i| if i % 3 == 0 { 50.0 } else { 9.0 }).collect(),
            // Some have opened many cells before.
            opened: (0..QUERIES).map(|i| if i % 2 == 0 { 0.0 } else { 3.0 }).collect(),
            bar: zeros(),
            needle: zeros(),
            mass: [zeros(), zeros()],
            fine: zeros(),
            coarse: zeros(),
            along: vec![Along::default(); QUERIES],
        };
        let mut limits = case.limits();
        (0..QUERIES).for_each(|i| limits.set(i));
        case
    }

    fn limits(&mut self) -> Thresholds<'_> {
        let [cells, nodes] = &mut self.mass;
        Thresholds {
            shares: SHARES,
            reference: &self.reference,
            dense: &self.dense,
            sigma: &self.sigma,
            total: &mut self.total,
            opened: &mut self.opened,
            bar: &mut self.bar,
            needle: &mut self.needle,
            mass: [cells, nodes],
            fine: &mut self.fine,
            coarse: &mut self.coarse,
            along: &mut self.along,
        }
    }
}

#[test]
fn thresholds_rise_with_what_is_found_and_with_cells() {
    let exact: Vec<f32> = noise(QUERIES * BLOCK, 54).iter().map(|x| x + 1.0).collect();
    let before = Case::new();
    for isa in isas() {
        for rows in lists(QUERIES) {
            let mut case = before.clone();
            // Rows of the second list open two cells; they have been raised with the first.
            let lists: &[&[u16]] = &[&rows, &rows[..rows.len() / 2]];
            let count = isa.run(Raise { lists, exact: &exact, limits: &mut case.limits(), factor: FACTOR });
            let (mut raised, mut by_cells) = (0, 0);
            for i in 0..QUERIES {
                let opens = lists.iter().filter(|list| list.contains(&(i as u16))).count();
                let opened = before.opened[i] + opens as f32;
                assert_eq!(case.opened[i], opened);
                let found =
                    f64::from(before.dense[i]) + exact[i * BLOCK..][..BLOCK].iter().map(|&x| f64::from(x)).sum::<f64>();
                let (mut total, mut bar) = (f64::from(before.total[i]), f64::from(before.bar[i]));
                let all = total.max(found);
                let ease = (f64::from(opened) * 0.5).clamp(1.0, 3.0);
                assert!((all * ease / bar - f64::from(FACTOR)).abs() > 1e-4, "the test's own numbers are clear");
                if opens > 0 && all * ease > f64::from(FACTOR) * bar {
                    by_cells += usize::from(all == total);
                    (total, bar, raised) = (all, all * ease, raised + 1);
                }
                let what = isa.name();
                close(case.total[i], total, total, what);
                close(case.bar[i], bar, bar, what);
                close(case.needle[i], f64::from(before.reference[i]) + (bar * 0.01).log2(), 10.0, what);
                assert_eq!(case.along[i].needle, case.needle[i]);
                assert_eq!(case.along[i].far, 2.5 * before.sigma[i]);
                // Only the needle goes by cells.
                for (x, share) in [(&case.mass[0], 0.2), (&case.mass[1], 0.3), (&case.fine, 0.05), (&case.coarse, 0.06)]
                {
                    close(x[i], total * share, total, what);
                }
            }
            assert_eq!(count, raised, "{}", isa.name());
            if rows.len() == QUERIES {
                assert!(raised < QUERIES && 0 < by_cells && by_cells < raised, "{raised} raised, {by_cells} by cells");
            }
        }
    }
}

#[test]
fn a_row_that_opens_little_looks_for_the_lightest() {
    for (opened, want) in [(0.0, 1.0), (2.0, 1.0), (3.0, 1.5), (6.0, 3.0), (100.0, 3.0)] {
        assert_eq!(SHARES.ease(opened), want);
    }
    // A few rows, and thresholds of nothing.
    for most in [1.0, 0.0, f32::NAN] {
        assert_eq!(Shares { each: 0.0, most, ..SHARES }.ease(1e6), 1.0);
    }
}
