//! Ways of attending.

/// How attention is computed.
///
/// ```
/// use iceformer_core::attention::Mode;
///
/// assert_eq!(Mode::default(), Mode::Auto);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The fastest way that keeps the tolerance: accelerated where that is predicted to be cheaper, else exact.
    #[default]
    Auto,
    /// Every visible key.
    Exact,
    /// Cells opened where they matter, estimated elsewhere.
    Accelerated,
    /// The paper's Algorithm 1: retrieve `top_k` keys by DCI, softmax over those, drop the rest.
    TopK,
}
