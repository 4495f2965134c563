//! Memory of methods, in a process of its own: nothing else allocates meanwhile.

use iceformer_bench::baselines::catalogue::{self, Choice};
use iceformer_bench::baselines::{Head, Method, Vanilla};
use iceformer_bench::peak;
use iceformer_bench::speed::noise;

#[test]
fn what_is_counted_is_what_is_taken() {
    let (sum, bytes) = peak::of(|| {
        let first = vec![1u8; 3 << 20];
        let all: usize = first.iter().map(|&x| usize::from(x)).sum();
        drop(first);
        all + std::hint::black_box(vec![1u8; 1 << 20]).len()
    });
    assert_eq!(sum, 4 << 20);
    assert!((3 << 20..(3 << 20) + 4096).contains(&bytes), "{bytes}");
    assert_eq!(peak::of(|| ()).1, 0);
    // Scores of 64 rows against all keys; exact attention never holds as many.
    let (n, dim) = (2048, 32);
    let (q, k, v) = (noise(n * dim, 1), noise(n * dim, 2), noise(n * dim, 3));
    let head = Head { q: &q, k: &k, v: &v, dim, causal: false };
    let mut out = vec![0.0; n * dim];
    let vanilla = peak::of(|| Vanilla.attend(&head, &mut out)).1;
    assert!(vanilla >= 64 * n * 4, "{vanilla}");
    for method in catalogue::exact() {
        let bytes = peak::of(|| method.attend(&head, &mut out)).1;
        assert!(bytes <= vanilla, "{}: {bytes}", method.name());
    }
    // Landmarks, features and lists of keys are there while a method runs.
    for mut method in catalogue::methods(Choice::Paper, 1) {
        if method.cannot(false).is_none() {
            method.prepare(n, dim);
            let bytes = peak::of(|| method.attend(&head, &mut out)).1;
            assert!(bytes > 1024, "{}: {bytes}", method.name());
        }
    }
}
