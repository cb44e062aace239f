//! The functions behind callbacks, and how they are called.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock, Weak};

use super::literal::{AlignedBytes, Literal};
use super::types::TensorType;
use crate::error::{Error, Loc, Result, TraceError};

/// An operand of a callback: a tensor's value, in place.
#[derive(Debug, Clone)]
pub struct HostView<'a> {
    /// Element type and shape.
    pub ty: TensorType,
    /// The bytes of the elements, row-major.
    pub bytes: &'a [u8],
}

impl HostView<'_> {
    /// A copy.
    pub fn to_literal(&self) -> Literal {
        Literal::from_bytes(self.ty.clone(), AlignedBytes::copy_of(self.bytes))
    }
}

/// A result of a callback: the memory that it fills.
#[derive(Debug)]
pub struct HostViewMut<'a> {
    /// Element type and shape.
    pub ty: TensorType,
    /// Memory for the bytes of the elements, row-major. All of them must be written.
    pub bytes: &'a mut [u8],
}

impl HostViewMut<'_> {
    /// A copy of the bytes written.
    pub(crate) fn to_literal(&self) -> Literal {
        Literal::from_bytes(self.ty.clone(), AlignedBytes::copy_of(self.bytes))
    }
}

type Function = dyn Fn(&[HostView<'_>], &mut [HostViewMut<'_>]) -> Result<()> + Send + Sync;

struct Inner {
    id: u64,
    name: &'static str,
    at: Loc,
    f: Box<Function>,
}

/// A function of the user's that Programs call. Cheap to clone; two are equal if they are clones of
/// one.
#[derive(Clone)]
pub struct HostFn(Arc<Inner>);

/// The functions alive, by number. An entry is removed with the last clone of its function.
static ALIVE: LazyLock<RwLock<HashMap<u64, Weak<Inner>>>> = LazyLock::new(RwLock::default);

impl Drop for Inner {
    fn drop(&mut self) {
        ALIVE.write().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

impl HostFn {
    /// A function made at the line `at` by `name`.
    pub fn new(
        name: &'static str,
        at: Loc,
        f: impl Fn(&[HostView<'_>], &mut [HostViewMut<'_>]) -> Result<()> + Send + Sync + 'static,
    ) -> HostFn {
        // Never used again: a run in progress may still call by it.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let inner = Arc::new(Inner { id, name, at, f: Box::new(f) });
        let weak = Arc::downgrade(&inner);
        ALIVE.write().unwrap_or_else(PoisonError::into_inner).insert(id, weak);
        HostFn(inner)
    }

    /// The function with something more to do when it has succeeded: `after` sees the results.
    pub(crate) fn then(
        &self,
        after: impl Fn(&[HostViewMut<'_>]) + Send + Sync + 'static,
    ) -> HostFn {
        let inner = self.0.clone();
        HostFn::new(inner.name, inner.at, move |operands, results| {
            (inner.f)(operands, results)?;
            after(results);
            Ok(())
        })
    }

    /// The function with this number, if it is still alive.
    pub fn with_id(id: u64) -> Option<HostFn> {
        let alive = ALIVE.read().unwrap_or_else(PoisonError::into_inner);
        alive.get(&id).and_then(Weak::upgrade).map(HostFn)
    }

    /// Its number, of this process's functions.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// The user's line that made it.
    pub fn at(&self) -> Loc {
        self.0.at
    }

    /// Calls it.
    ///
    /// # Errors
    /// [`Error::Callback`] with its line, if it fails or panics.
    pub fn call(&self, operands: &[HostView<'_>], results: &mut [HostViewMut<'_>]) -> Result<()> {
        let Inner { name, at, f, .. } = &*self.0;
        let outcome = catch_unwind(AssertUnwindSafe(|| f(operands, results)));
        let problem = match outcome {
            Ok(Ok(())) => match results.iter().position(|r| !r.ty.dtype.has_valid(r.bytes)) {
                None => return Ok(()),
                Some(i) => {
                    format!("the function gave bytes other than 0 and 1 as bools, result {i}")
                }
            },
            Ok(Err(Error::Callback(problem) | Error::Env(problem))) => problem,
            Ok(Err(error)) => format!("the function failed: {error}"),
            Err(payload) => format!("the function panicked: {}", panic_text(payload)),
        };
        Err(Error::Callback(format!("{name}: {problem}\n  --> {at}")))
    }
}

/// Returns the text of a panic in code of the user.
pub(crate) fn panic_text(payload: Box<dyn Any + Send>) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| text.to_string());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    // A tensor of the trace was used, which has no value there.
    let text = text.or_else(|| payload.downcast_ref::<TraceError>().map(TraceError::to_string));
    // The payload of a panic may itself panic when it is dropped, and so may that one's.
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(another);
    }
    text.unwrap_or_else(|| "no message".into())
}

impl PartialEq for HostFn {
    fn eq(&self, other: &HostFn) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for HostFn {}

impl Hash for HostFn {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.id.hash(state);
    }
}

impl fmt::Debug for HostFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostFn({} of {})", self.0.id, self.0.at)
    }
}
