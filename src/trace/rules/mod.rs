//! Rules that are longer than an arm, by family of operations.

pub(crate) mod batch_control;
pub(crate) mod batch_conv;
pub(crate) mod batch_dot;
pub(crate) mod batch_gather;
pub(crate) mod control;
pub(crate) mod conv;
pub(crate) mod differentiate_control;
pub(crate) mod dot;
pub(crate) mod gather;
pub(crate) mod reduce;
pub(crate) mod transpose_control;
