//! Calls of functions on the host.

use crate::error::Result;
use crate::trace::host::{HostFn, HostView, HostViewMut};
use crate::trace::literal::{AlignedBytes, Literal};
use crate::trace::types::{DType, TensorType};

/// A call of a function on the host. Operands: the function's arguments; results: the function's
/// results.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CallbackOp {
    /// The function.
    pub f: HostFn,
    /// The types of the function's results.
    pub results: Vec<TensorType>,
    /// Kind of the call, which decides the transformations that are allowed.
    pub kind: CallbackKind,
    /// True if the first operand and the first result are a token that orders the calls; the
    /// function does not see it. Only lowered Programs have tokens.
    pub token: bool,
}

/// Kind of a callback: the transformations that are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallbackKind {
    /// It may be left out, moved, and run more than once.
    Pure(VmapMethod),
    /// It runs at every execution of the call.
    Io {
        /// If true, calls happen in order between runs, too.
        ordered: bool,
        /// Batching rule under `vmap`.
        vmap: VmapMethod,
    },
    /// It runs at every execution of the call, and transformations leave it alone.
    Debug {
        /// If true, calls happen in order between runs, too.
        ordered: bool,
    },
}

/// Batching rule of a callback under `vmap`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum VmapMethod {
    /// A call for each example, one after another.
    #[default]
    Sequential,
    /// One call. Operands that differ between the examples have these along a new first axis;
    /// others have a first axis of size 1. Results must have the examples along a first axis.
    ExpandDims,
    /// One call. Every operand, and every result, has the examples along a new first axis.
    BroadcastAll,
}

impl CallbackKind {
    /// An io callback that `vmap` turns into a call for each example.
    pub const fn io(ordered: bool) -> CallbackKind {
        CallbackKind::Io { ordered, vmap: VmapMethod::Sequential }
    }

    /// The name, as printed in Programs and messages.
    pub fn name(self) -> &'static str {
        match self {
            CallbackKind::Pure(_) => "pure_callback",
            CallbackKind::Io { .. } => "io_callback",
            CallbackKind::Debug { .. } => "debug_callback",
        }
    }
}

impl CallbackOp {
    /// The type of the token of ordered callbacks: a number that each passes to the next.
    pub(crate) fn token_type() -> TensorType {
        TensorType::scalar(DType::U32)
    }

    /// Calls the function on the host.
    ///
    /// # Errors
    /// As [`HostFn::call`].
    pub fn run(&self, inputs: &[Literal]) -> Result<Vec<Literal>> {
        let (token, inputs) = inputs.split_at(usize::from(self.token));
        let bytes: Vec<_> = inputs.iter().map(Literal::bytes).collect();
        let views = inputs.iter().zip(&bytes);
        let operands: Vec<HostView<'_>> = views
            .map(|(input, bytes)| HostView { ty: input.ty().clone(), bytes: (**bytes).as_ref() })
            .collect();
        let mut memory: Vec<AlignedBytes> =
            self.results.iter().map(|ty| AlignedBytes::zeroed(ty.bytes())).collect();
        let mut results: Vec<HostViewMut<'_>> = memory
            .iter_mut()
            .zip(&self.results)
            .map(|(bytes, ty)| HostViewMut { ty: ty.clone(), bytes: bytes.as_mut() })
            .collect();
        self.f.call(&operands, &mut results)?;
        let results = memory.into_iter().zip(&self.results);
        let results = results.map(|(bytes, ty)| Literal::from_bytes(ty.clone(), bytes));
        Ok(token.iter().cloned().chain(results).collect())
    }

    /// Returns true if the call does something besides computing its results.
    pub fn has_effect(&self) -> bool {
        match self.kind {
            CallbackKind::Pure(_) => false,
            CallbackKind::Io { .. } | CallbackKind::Debug { .. } => true,
        }
    }

    /// Returns true if calls happen one after another also between runs.
    pub fn is_ordered(&self) -> bool {
        match self.kind {
            CallbackKind::Pure(_) => false,
            CallbackKind::Io { ordered, .. } | CallbackKind::Debug { ordered } => ordered,
        }
    }
}
