//! Precision of products of floats.

/// `jax.lax.Precision`: precision with which a matrix product or a convolution multiplies floats.
///
/// It matters only for `f32`: `f64` is always exact, `f16` and `bf16` always go to the units for
/// narrow products that a device has, and are added up in `f32`. On CPU every precision multiplies
/// in `f32` itself; some convolutions add and subtract first, to multiply less, unless the precision
/// is the highest (`docs/decisions/0023-winograd-convolutions.md`). The interpreter does not read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Precision {
    /// The precision at which the device is fastest: TF32 (10 bits of mantissa) on NVIDIA GPUs
    /// since Ampere if XLA's own flags allow it, one product of `bf16` on TPUs; or the precision
    /// set by [`default_matmul_precision`](crate::trace::ops::default_matmul_precision).
    #[default]
    Default,
    /// In between: TF32 on NVIDIA GPUs, three products of `bf16` on TPUs.
    High,
    /// Full `f32`: no TF32 on GPUs, six products of `bf16` on TPUs, direct convolutions on CPUs.
    Highest,
}

impl Precision {
    /// Every one of them.
    pub const ALL: [Precision; 3] = [Precision::Default, Precision::High, Precision::Highest];

    /// The name, as printed in Programs and given to `jax.default_matmul_precision`.
    pub fn name(self) -> &'static str {
        match self {
            Precision::Default => "default",
            Precision::High => "high",
            Precision::Highest => "highest",
        }
    }
}
