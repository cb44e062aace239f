//! The default precision of products that do not set their own.

use std::cell::Cell;

use crate::trace::op::Precision;

thread_local! {
    static SCOPE: Cell<Precision> = const { Cell::new(Precision::Default) };
}

/// `jax.default_matmul_precision`: products that `f` traces multiply with `precision`, unless a
/// product has a [`Precision`] of its own. Scopes nest; the innermost counts.
///
/// This includes products that a transformation traces inside `f`, such as those of a gradient. A
/// compiled function remembers the scope in which it was traced, and is traced again in another.
///
/// ```
/// use podracer::trace::op::Precision;
/// use podracer::trace::ops::default_matmul_precision;
/// use podracer::{Array, Tensor, make_program};
/// let f = |x: Tensor| default_matmul_precision(Precision::Highest, || x.matmul(x));
/// let program = make_program(f, &Array::from([[1.0f32, 2.0], [3.0, 4.0]]))?;
/// assert!(program.to_string().contains("precision=highest"));
/// # Ok::<(), podracer::Error>(())
/// ```
pub fn default_matmul_precision<R>(precision: Precision, f: impl FnOnce() -> R) -> R {
    struct Restore(Precision);
    impl Drop for Restore {
        fn drop(&mut self) {
            SCOPE.set(self.0);
        }
    }
    let _restore = Restore(SCOPE.replace(precision));
    f()
}

impl Precision {
    /// This precision, or that of the enclosing scope if it is the default.
    pub(crate) fn in_scope(self) -> Precision {
        if self == Precision::Default { SCOPE.get() } else { self }
    }
}

/// The hash of an argument's structure, another in every scope of [`default_matmul_precision`].
pub(crate) fn structure_in_scope(structure: u64) -> u64 {
    structure ^ (SCOPE.get() as u64)
}
