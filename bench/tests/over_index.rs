//! Accelerated attention over an index of the bundled heads: errors and needles.

use iceformer_bench::accelerated::over::{Over, study};
use iceformer_bench::accelerated::{Way, mean};
use iceformer_bench::heads;

#[test]
fn errors_on_the_bundled_heads() {
    let (mut errors, mut heavy, mut missed) = (Vec::new(), 0, 0);
    for mut layer in heads::load(&heads::bundled(), usize::MAX).expect("bundled heads") {
        let ways = [Over::IndexExact, Over::Index(Way::plain(0.05))];
        let [exact, accelerated] = &study(&mut layer, &ways, 24, 1).expect("attention over an index")[..] else {
            panic!("an outcome for each way")
        };
        assert!(mean(&exact.errors) < 1e-5, "exact attention over an index is off by {}", mean(&exact.errors));
        assert_eq!((exact.pairs, accelerated.pairs_dense), (exact.pairs_dense, exact.pairs_dense));
        assert!(accelerated.pairs < accelerated.pairs_dense / 2, "{accelerated:?}");
        errors.extend_from_slice(&accelerated.errors);
        (heavy, missed) = (heavy + accelerated.heavy, missed + accelerated.missed);
    }
    let error = mean(&errors);
    println!("error {error:.4}, {missed} of {heavy} heavy keys missed");
    assert!(error < 0.05 && error > 1e-5, "{error}");
    assert!(heavy > 100 && missed * 50 <= heavy, "{missed} of {heavy} heavy keys are missed");
}
