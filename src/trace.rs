//! Tracing: closures become Programs, Programs become other Programs.
//!
//! A closure over [`Tensor`]s is run once, with tensors that only have types. Each operation adds
//! an equation to a [`Program`]. Transformations read a Program and trace another:
//!
//! ```text
//! closure --trace--> Program --jvp, linearize, transpose, vmap--> Program --lower--> executable
//!                       |
//!                       +--eval--> values, on the host, slowly and obviously
//! ```
//!
//! [`ops`] has the functions that add one operation, below the transformations; [`numpy`] the functions
//! composed of operations and transformations, above them. Nothing here knows of a compiler.

pub mod associative;
pub mod axis;
pub mod callback;
pub mod check;
pub mod control;
pub mod custom;
pub mod eval;
pub mod graph;
pub(crate) mod host;
pub mod jacobian;
pub mod jvp;
pub mod linearize;
pub mod literal;
mod load;
pub mod mesh;
mod narrow;
pub mod numpy;
pub mod op;
pub mod ops;
mod parse;
mod print;
pub mod program;
pub mod remat;
pub mod shard_map;
pub mod tensor;
#[cfg(test)]
pub(crate) mod testing;
pub mod transpose;
pub mod types;
pub mod vmap;

pub use axis::Axis;
pub use literal::{Element, Literal};
pub use load::LoadedProgram;
pub use op::Op;
pub use program::{Equation, Program, Var};
pub use tensor::Tensor;
pub use types::{DType, Shape, TensorType};
pub use vmap::{LeafAxes, VmapOptions, vmap, vmap_with};
