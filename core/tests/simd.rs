//! Every vector kernel on every instruction set of this machine against f64.

use iceformer_core::Status;
use iceformer_core::simd::Isa;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
    fn vec(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.uniform()).collect()
    }
}

fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|i| i.available())
}

const SIZES: std::ops::RangeInclusive<usize> = if cfg!(miri) { 0..=9 } else { 0..=130 };

fn close(got: f32, want: f64, size: f64) {
    assert!((f64::from(got) - want).abs() <= 3e-6 * size + 1e-12, "got {got}, want {want}");
}

#[test]
fn products_and_distances() {
    let mut rng = Rng(7);
    for isa in isas() {
        for n in SIZES {
            for stride in [n, n + 1, n + 7] {
                let rows = rng.vec(9 * stride + n);
                let q = rng.vec(n);
                let row = |i: usize| &rows[i * stride..][..n];
                let dot = |i: usize| row(i).iter().zip(&q).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
                let dist =
                    |i: usize| row(i).iter().zip(&q).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum::<f64>();
                let size = n as f64;
                for count in 0..10 {
                    let mut out = vec![f32::NAN; count];
                    isa.dots(&rows, stride, &q, &mut out);
                    for (i, &x) in out.iter().enumerate() {
                        close(x, dot(i), size);
                        assert_eq!(x.to_bits(), isa.dot(row(i), &q).to_bits(), "a run of rows changed the bits");
                    }
                    let at: Vec<u32> = (0..count).map(|_| (rng.next() % 10) as u32).collect();
                    isa.dots_at(&rows, stride, &at, &q, &mut out);
                    for (&x, &i) in out.iter().zip(&at) {
                        assert_eq!(x.to_bits(), isa.dot(row(i as usize), &q).to_bits());
                    }
                    isa.sq_dists_at(&rows, stride, &at, &q, &mut out);
                    for (&x, &i) in out.iter().zip(&at) {
                        close(x, dist(i as usize), 4.0 * size);
                        assert_eq!(x.to_bits(), isa.sq_dist(row(i as usize), &q).to_bits());
                    }
                }
                close(isa.norm2(&q), q.iter().map(|&x| f64::from(x).powi(2)).sum(), size);
            }
        }
    }
}

#[test]
fn elementwise() {
    let mut rng = Rng(8);
    for isa in isas() {
        for n in SIZES {
            // Guards on both sides: nothing outside the slice may change.
            let x = rng.vec(n);
            let before = rng.vec(n + 2);
            let mut y = before.clone();
            isa.axpy(0.75, &x, &mut y[1..n + 1]);
            for i in 0..n {
                close(y[i + 1], f64::from(before[i + 1]) + 0.75 * f64::from(x[i]), 1.0);
            }
            assert_eq!((y[0], y[n + 1]), (before[0], before[n + 1]));

            let mut y = before.clone();
            isa.scale(-1.5, &mut y[1..n + 1]);
            assert!((0..n).all(|i| y[i + 1] == before[i + 1] * -1.5));
            assert_eq!((y[0], y[n + 1]), (before[0], before[n + 1]));

            let want = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(isa.max(&x), want);
            assert_eq!(isa.max(&vec![f32::NEG_INFINITY; n]), f32::NEG_INFINITY);
        }
    }
}

#[test]
fn exponentials_and_their_sums() {
    let mut rng = Rng(9);
    for isa in isas() {
        for n in SIZES {
            let before: Vec<f32> = (0..n + 2).map(|_| rng.uniform() * 20.0).collect();
            let mut y = before.clone();
            if n > 3 {
                y[3] = f32::NEG_INFINITY;
            }
            let m = isa.max(&y[1..n + 1]);
            let sum = isa.exp_sum(&mut y[1..n + 1], m);
            let mut want = 0.0;
            for i in 0..n {
                let e = if n > 3 && i == 2 { 0.0 } else { f64::from(before[i + 1] - m).exp() };
                assert!((f64::from(y[i + 1]) - e).abs() <= 5e-7 * e, "{} {} {e}", isa.name(), y[i + 1]);
                want += e;
            }
            close(sum, want, want);
            assert_eq!((y[0], y[n + 1]), (before[0], before[n + 1]));
            let mut none = vec![f32::NEG_INFINITY; n];
            assert_eq!(isa.exp_sum(&mut none, f32::NEG_INFINITY), 0.0);
            assert!(none.iter().all(|&x| x == 0.0));
            let mut none = vec![f32::NEG_INFINITY; n];
            assert_eq!(isa.exp_sum(&mut none, 3.0), 0.0);
            assert!(none.iter().all(|&x| x == 0.0));
        }
    }
}

#[test]
fn exp_and_tanh_keep_their_bounds() {
    let steps = if cfg!(miri) { 500 } else { 400_000 };
    for isa in isas() {
        let x: Vec<f32> = (0..=steps).map(|i| -87.0 + 175.0 * i as f32 / steps as f32).collect();
        let mut y = x.clone();
        isa.exp(&mut y);
        let mut worst: f64 = 0.0;
        for (&x, &y) in x.iter().zip(&y) {
            let want = f64::from(x).exp();
            worst = worst.max(((f64::from(y) - want) / want).abs());
        }
        assert!(worst <= 5e-7, "{}: exp {worst:e}", isa.name());

        let mut edge = [0.0, -0.0, -87.5, -88.0, -100.0, -1e30, f32::MIN, f32::NEG_INFINITY, 1e9, f32::INFINITY];
        isa.exp(&mut edge);
        assert_eq!(edge[..8], [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert!(edge[8].is_finite() && edge[8] == edge[9]);

        let mut worst: f64 = 0.0;
        let x: Vec<f32> = (0..=steps)
            .map(|i| i as f32 / steps as f32)
            .flat_map(|t| [t * 12.0, -t * 12.0, t * 0.7, t * 1e-3, t * 1e-20])
            .collect();
        let mut y = x.clone();
        isa.tanh(&mut y);
        for (&x, &y) in x.iter().zip(&y) {
            let want = f64::from(x).tanh();
            if want == 0.0 {
                assert_eq!(y, 0.0);
            } else {
                worst = worst.max(((f64::from(y) - want) / want).abs());
            }
        }
        assert!(worst <= 1e-6, "{}: tanh {worst:e}", isa.name());
        let mut edge = [f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e30, 20.0, -20.0];
        isa.tanh(&mut edge);
        assert_eq!(edge, [1.0, -1.0, 1.0, -1.0, 1.0, -1.0]);
    }
}

#[test]
fn numbers_round_to_the_nearest_half() {
    // Halves, what lies between them, just beside that, and beyond the largest.
    let between = |b: u16| (half_to_f32(b) + half_to_f32(b + 1)) * 0.5;
    let step = if cfg!(miri) { 977 } else { 7 };
    let mut x =
        vec![0.0, -0.0, 65519.9, 65520.0, 1e30, f32::MIN_POSITIVE, 2.9e-8, 3.1e-8, f32::INFINITY, f32::NEG_INFINITY];
    for b in (0..0x7bff).step_by(step) {
        let tie = between(b);
        x.extend([half_to_f32(b), tie, -tie, tie.next_up(), tie.next_down()]);
    }
    let nearest = |x: f32| {
        let bits = (x.to_bits() >> 16 & 0x8000) as u16;
        let a = x.abs();
        if a >= 65520.0 {
            return bits | 0x7c00;
        }
        let (mut low, mut high) = (0u16, 0x7bff);
        while high - low > 1 {
            let b = (low + high) / 2;
            if half_to_f32(b) <= a { low = b } else { high = b }
        }
        let [below, above] = [low, high].map(|b| (f64::from(half_to_f32(b)) - f64::from(a)).abs());
        bits | if below < above || (below == above && low % 2 == 0) { low } else { high }
    };
    for isa in isas() {
        for n in [x.len(), 37, 1, 15, 0, 16] {
            let mut bits = vec![0; n];
            isa.round_f16(&x[..n], &mut bits);
            for (&x, &b) in x.iter().zip(&bits) {
                assert_eq!(b, nearest(x), "{}: {x:e}", isa.name());
            }
        }
    }
}

/// From the definition of the format.
fn half_to_f32(b: u16) -> f32 {
    let sign = if b >> 15 == 1 { -1.0 } else { 1.0 };
    let (e, m) = (i32::from(b >> 10 & 31), f64::from(b & 1023));
    let x = if e == 0 { m * 2f64.powi(-24) } else { (1024.0 + m) * 2f64.powi(e - 25) };
    (sign * x) as f32
}

#[test]
fn detection_and_limit() {
    assert!(Isa::Scalar.available());
    assert_eq!(Isa::ALL.map(Isa::name), ["scalar", "neon", "avx2", "avx512", "avx512-vnni"]);
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let avx2 =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        let avx512 = avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq");
        assert_eq!((Isa::Avx2.available(), Isa::Avx512.available()), (avx2, avx512));
        let vnni = avx512 && is_x86_feature_detected!("avx512vnni");
        assert_eq!(Isa::Avx512Vnni.available(), vnni);
    }
    let best = isas().max().unwrap();
    assert_eq!(Isa::best(), best);
    for isa in Isa::ALL {
        let set = Isa::limit(Some(isa));
        if isa.available() {
            set.unwrap();
            assert_eq!(Isa::best(), isa);
        } else {
            let e = set.unwrap_err();
            assert_eq!((e.status, e.field), (Status::Unsupported, "isa"));
        }
        Isa::limit(None).unwrap();
        assert_eq!(Isa::best(), best);
    }
}

#[test]
fn lengths_are_checked() {
    for isa in isas() {
        let (a, mut b) = (vec![1.0; 8], vec![0.0; 7]);
        let fails = |f: &mut dyn FnMut()| assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err());
        fails(&mut || assert!(isa.dot(&a, &b) > 1.0));
        fails(&mut || isa.axpy(1.0, &a, &mut b));
        fails(&mut || isa.dots(&a, 4, &[0.0; 4], &mut [0.0; 3]));
        fails(&mut || isa.dots_at(&a, 4, &[2], &[0.0; 4], &mut [0.0; 1]));
        fails(&mut || isa.dots(&a, usize::MAX, &[0.0; 4], &mut [0.0; 3]));
    }
}
