//! Named axes that collectives communicate along.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use smallvec::SmallVec;

/// The token of a named axis: the devices of a `pmap`, the batch of a
/// [`vmap_axis`](super::vmap::vmap_axis), or an axis of a [`Mesh`](super::mesh::Mesh). The first two
/// pass it to their closure, and [`psum`](super::ops::psum) and the other collectives take it. It is
/// valid inside of that closure only.
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

/// The text, interned for the life of the process; the same text once.
pub(crate) fn interned(text: &str) -> &'static str {
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

/// One or several axes, major first.
pub type AxisVec = SmallVec<[Axis; 2]>;

/// The axis that a collective goes along: a token, a name, or several of either, major first, as
/// JAX's `axis_name`. A name stands for the innermost axis of that name in scope. With
/// [`axis_index_groups`], the members of the axis work together in groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AxisNames {
    pub(crate) names: SmallVec<[AxisName; 2]>,
    pub(crate) groups: Option<Vec<Vec<usize>>>,
}

/// One axis, by its token or its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AxisName {
    /// The axis of this token.
    Token(Axis),
    /// The innermost axis in scope with this name.
    Name(&'static str),
}

impl From<Axis> for AxisName {
    fn from(axis: Axis) -> AxisName {
        AxisName::Token(axis)
    }
}

impl From<&'static str> for AxisName {
    fn from(name: &'static str) -> AxisName {
        AxisName::Name(name)
    }
}

impl From<Axis> for AxisNames {
    fn from(axis: Axis) -> AxisNames {
        AxisNames::from([axis])
    }
}

impl From<&'static str> for AxisNames {
    fn from(name: &'static str) -> AxisNames {
        AxisNames::from([name])
    }
}

impl<M: Into<AxisName>, N: Into<AxisName>> From<(M, N)> for AxisNames {
    fn from((major, minor): (M, N)) -> AxisNames {
        AxisNames { names: [major.into(), minor.into()].into_iter().collect(), groups: None }
    }
}

impl<N: Into<AxisName>, const COUNT: usize> From<[N; COUNT]> for AxisNames {
    fn from(names: [N; COUNT]) -> AxisNames {
        AxisNames { names: names.into_iter().map(Into::into).collect(), groups: None }
    }
}

/// `axis_index_groups` of JAX's collectives: the members of `axis` in groups, each of which
/// exchanges its values on its own. Every member is in one group, and all groups have the same size.
///
/// ```
/// use podracer::{Array, Tensor, axis_index_groups, interpret, psum, vmap_axis};
/// let pairs = [[0, 1], [2, 3]];
/// let f = interpret(move |x: Tensor| {
///     vmap_axis("i", move |i, x: Tensor| psum(x, axis_index_groups(i, &pairs)))(x)
/// });
/// let sums = f.call(Array::from([1.0f32, 2.0, 3.0, 4.0]))?;
/// assert_eq!(sums.to_vec::<f32>()?, [3.0, 3.0, 7.0, 7.0]);
/// # Ok::<(), podracer::Error>(())
/// ```
pub fn axis_index_groups<G: AsRef<[usize]>>(axis: impl Into<AxisNames>, groups: &[G]) -> AxisNames {
    let groups = groups.iter().map(|group| group.as_ref().to_vec()).collect();
    AxisNames { groups: Some(groups), ..axis.into() }
}
