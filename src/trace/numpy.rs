//! Functions composed of [`ops`](super::ops), control flow and transformations: the rest of NumPy's
//! and JAX's functions. No transformation uses them.
//!
//! Most are methods of [`Tensor`](super::Tensor). Shapes broadcast and axes count as in
//! [`ops`](super::ops).

mod cumulative;
mod einsum;
mod elementary;
mod linalg;
mod qr;
mod sorting;
mod special;
mod statistics;
mod window;

pub use einsum::{einsum, tensordot};
pub use linalg::{cho_solve, det, inv, lu, slogdet, solve};
pub use qr::{orthonormal_columns, qr};
pub use sorting::lexsort;
pub use special::betaln;
pub use window::WindowOptions;
