//! STUB: replaced by the vector layer. Same public names.
use crate::error::Result;

/// Instruction sets, from least to most capable per architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust, one lane.
    Scalar,
    /// 128-bit Arm.
    Neon,
    /// 256-bit x86 with FMA and F16C.
    Avx2,
    /// 512-bit x86 (F, BW, VL, DQ).
    Avx512,
}

impl Isa {
    /// All of them.
    pub const ALL: [Isa; 4] = [Isa::Scalar, Isa::Neon, Isa::Avx2, Isa::Avx512];
    /// Lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Neon => "neon",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }
    /// Whether this machine has it.
    pub fn available(self) -> bool {
        self == Isa::Scalar
    }
    /// The best available one, within the process-wide limit.
    pub fn best() -> Isa {
        Isa::Scalar
    }
    /// Process-wide upper limit for [`Isa::best`]; `None` lifts it. Refused when not available.
    pub fn limit(_max: Option<Isa>) -> Result<()> {
        Ok(())
    }
    /// Inner product.
    pub fn dot(self, a: &[f32], b: &[f32]) -> f32 {
        a.iter().zip(b).map(|(x, y)| x * y).sum()
    }
    /// Squared Euclidean distance.
    pub fn sq_dist(self, a: &[f32], b: &[f32]) -> f32 {
        a.iter().zip(b).map(|(x, y)| (x - y) * (x - y)).sum()
    }
    /// `out[i] = <rows[i*stride..][..q.len()], q>` for `i < out.len()`.
    pub fn dots(self, rows: &[f32], stride: usize, q: &[f32], out: &mut [f32]) {
        for (i, o) in out.iter_mut().enumerate() {
            *o = self.dot(&rows[i * stride..][..q.len()], q);
        }
    }
    /// `out[i] = <rows[at[i]*stride..][..q.len()], q>`.
    pub fn dots_at(self, rows: &[f32], stride: usize, at: &[u32], q: &[f32], out: &mut [f32]) {
        for (o, &i) in out.iter_mut().zip(at) {
            *o = self.dot(&rows[i as usize * stride..][..q.len()], q);
        }
    }
    /// `out[i] = |rows[at[i]*stride..][..q.len()] - q|^2`.
    pub fn sq_dists_at(self, rows: &[f32], stride: usize, at: &[u32], q: &[f32], out: &mut [f32]) {
        for (o, &i) in out.iter_mut().zip(at) {
            *o = self.sq_dist(&rows[i as usize * stride..][..q.len()], q);
        }
    }
    /// `y += a * x`.
    pub fn axpy(self, a: f32, x: &[f32], y: &mut [f32]) {
        y.iter_mut().zip(x).for_each(|(y, x)| *y += a * x);
    }
    /// `x *= a`.
    pub fn scale(self, a: f32, x: &mut [f32]) {
        x.iter_mut().for_each(|x| *x *= a);
    }
    /// Largest element, -inf for none.
    pub fn max(self, x: &[f32]) -> f32 {
        x.iter().fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m })
    }
    /// `x[i] = exp(x[i] - m)`, returning the sum. `x[i] = -inf` gives 0.
    pub fn exp_sum(self, x: &mut [f32], m: f32) -> f32 {
        x.iter_mut()
            .map(|x| {
                *x = libm::expf(*x - m);
                *x
            })
            .sum()
    }
    /// Sum of squares.
    pub fn norm2(self, x: &[f32]) -> f32 {
        x.iter().map(|x| x * x).sum()
    }
}
