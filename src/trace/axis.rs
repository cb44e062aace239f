//! Named axes that collectives communicate along.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// The token of a named axis: the devices of a `pmap`, or the batch of a
/// [`vmap_axis`](super::vmap::vmap_axis). The transformation passes it to its closure, and
/// [`psum`](super::ops::psum) and the other collectives take it. It is valid inside of that closure
/// only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Axis {
    id: u32,
    size: usize,
    name: &'static str,
}

impl Axis {
    /// A new axis, equal to no other.
    pub(crate) fn new(name: &'static str, size: usize) -> Axis {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Axis { id, size, name }
    }

    /// The axis that a Program's text names: the same for the same name and size.
    pub(crate) fn named(name: &'static str, size: usize) -> Axis {
        static ALL: Mutex<Vec<Axis>> = Mutex::new(Vec::new());
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let there = all.iter().find(|axis| axis.name == name && axis.size() == size).copied();
        there.unwrap_or_else(|| {
            let axis = Axis::new(name, size);
            all.push(axis);
            axis
        })
    }

    /// Number of members of the axis. Known while tracing: `jax.lax.axis_size`.
    pub fn size(self) -> usize {
        self.size
    }

    /// The name, as messages and printed Programs show it.
    pub fn name(self) -> &'static str {
        self.name
    }
}

/// The text, kept for the life of the process; the same text once.
pub(crate) fn kept(text: &str) -> &'static str {
    static ALL: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(there) = all.get(text) {
        return there;
    }
    let text: &'static str = Box::leak(text.into());
    all.insert(text);
    text
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.size)
    }
}
