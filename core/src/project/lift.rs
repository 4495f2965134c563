//! The inner-product lift T_K, T_Q (paper, section 3): keys gain a coordinate that puts them all on one sphere.

/// The bound c on key norms and the coordinate it gives a key. c only grows, on a fixed geometric grid, so that the
/// order in which keys arrive cannot change where it ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lift {
    bound: f32,
}

/// Powers of 2^(1/4) in one octave.
const GRID: [f32; 5] = [1.0, 1.189_207_1, core::f32::consts::SQRT_2, 1.681_792_8, 2.0];

impl Lift {
    /// A lift with an initial bound (0 = none yet).
    pub const fn new(bound: f32) -> Self {
        Lift { bound }
    }

    /// The bound c.
    pub const fn bound(&self) -> f32 {
        self.bound
    }

    /// |x|^2 in f32, summed in eight fixed lanes: the same bits on every target.
    pub fn norm2(x: &[f32]) -> f32 {
        let mut lanes = [0.0f32; 8];
        let (chunks, tail) = x.as_chunks::<8>();
        for c in chunks {
            for i in 0..8 {
                lanes[i] += c[i] * c[i];
            }
        }
        for (lane, x) in lanes.iter_mut().zip(tail) {
            *lane += x * x;
        }
        let [a, b, c, d, e, f, g, h] = lanes;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }

    /// The bound that holds a key of this squared norm: unchanged, or the next one on the grid. Keys beyond the bound
    /// make it grow; they are never clamped.
    pub fn grown(&self, norm2: f32) -> Lift {
        let norm = libm::sqrtf(norm2);
        // Also compared squared: sqrt rounds, and the height needs c^2 >= |k|^2.
        let holds = |c: f32| c >= norm && c * c >= norm2;
        if holds(self.bound) {
            return *self;
        }
        let octave = libm::scalbnf(1.0, libm::ilogbf(norm));
        let on_grid = GRID.iter().map(|g| octave * g).find(|&c| holds(c));
        Lift { bound: on_grid.unwrap_or(octave * 2.0 * GRID[1]) }
    }

    /// sqrt(c^2 - |k|^2): the coordinate T_K adds, times c.
    pub fn height(&self, norm2: f32) -> f32 {
        libm::sqrtf((self.bound * self.bound - norm2).max(0.0))
    }
}
