//! Mapped axes of [`vmap_with`](super::vmap_with), leaf by leaf.

use crate::tree::{Path, Segment, path_of};

/// Mapped axis of a tree's leaves. An axis given for a tree holds for all leaves below it, as with
/// the prefix trees of `jax.vmap`; tuples convert to it: `(0, None)` maps the first axis of every
/// leaf in the first element of a tuple, and no axis of the second.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeafAxes {
    /// This axis of every leaf; negative ones count from the end.
    All(isize),
    /// None: every leaf is the same for the whole batch.
    Unmapped,
    /// By position, of a tuple, vector or array. There must be as many as children.
    Each(Vec<LeafAxes>),
    /// By name, of a struct's fields or a map's keys. Fields and keys that are not named are
    /// unmapped.
    Named(Vec<(&'static str, LeafAxes)>),
}

impl LeafAxes {
    /// The axis of the leaf at `path`, if it is mapped.
    ///
    /// # Errors
    /// If these axes have another structure than the tree.
    pub(super) fn of(&self, path: &Path<'_>) -> Result<Option<isize>, String> {
        let leaf = |path: &Path<'_>| path_of("argument", path);
        let mut axes = self;
        for segment in path.segments() {
            axes = match (axes, segment) {
                (LeafAxes::All(_) | LeafAxes::Unmapped, _) => break,
                (LeafAxes::Each(each), Segment::Index(i)) => each.get(i).ok_or_else(|| {
                    format!("{} axes are given, and there is a leaf at {}", each.len(), leaf(path))
                })?,
                (LeafAxes::Named(named), Segment::Field(name) | Segment::Key(name)) => {
                    match named.iter().find(|(there, _)| *there == name) {
                        Some((_, axes)) => axes,
                        None => return Ok(None),
                    }
                }
                (LeafAxes::Each(_), Segment::Field(_) | Segment::Key(_)) => {
                    return Err(format!(
                        "axes by position are given for {}, which has a name",
                        leaf(path)
                    ));
                }
                (LeafAxes::Named(_), Segment::Index(_)) => {
                    return Err(format!(
                        "axes by name are given for {}, which has a position",
                        leaf(path)
                    ));
                }
            };
        }
        match axes {
            LeafAxes::All(axis) => Ok(Some(*axis)),
            LeafAxes::Unmapped => Ok(None),
            LeafAxes::Each(_) | LeafAxes::Named(_) => {
                Err(format!("several axes are given for {}, which is one tensor", leaf(path)))
            }
        }
    }
}

impl From<isize> for LeafAxes {
    fn from(axis: isize) -> LeafAxes {
        LeafAxes::All(axis)
    }
}

impl From<i32> for LeafAxes {
    fn from(axis: i32) -> LeafAxes {
        LeafAxes::All(axis as isize)
    }
}

impl From<Option<isize>> for LeafAxes {
    fn from(axis: Option<isize>) -> LeafAxes {
        axis.map_or(LeafAxes::Unmapped, LeafAxes::All)
    }
}

impl<A: Into<LeafAxes>> From<Vec<A>> for LeafAxes {
    fn from(each: Vec<A>) -> LeafAxes {
        LeafAxes::Each(each.into_iter().map(Into::into).collect())
    }
}

macro_rules! tuples {
    ($($name:ident $index:tt),+) => {
        impl<$($name: Into<LeafAxes>),+> From<($($name,)+)> for LeafAxes {
            fn from(each: ($($name,)+)) -> LeafAxes {
                LeafAxes::Each(vec![$(each.$index.into()),+])
            }
        }
    };
}
tuples!(A 0, B 1);
tuples!(A 0, B 1, C 2);
tuples!(A 0, B 1, C 2, D 3);
tuples!(A 0, B 1, C 2, D 3, E 4);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5);

/// Options of [`vmap_with`](super::vmap_with).
///
/// ```
/// use podracer::trace::{VmapOptions, vmap_with};
/// use podracer::{Array, Tensor, interpret};
/// // Each column of x by the same w.
/// let options = VmapOptions::default().in_axes((1, None)).out_axes(1);
/// let f = interpret(move |args: (Tensor, Tensor)| {
///     vmap_with(options.clone(), |(x, w): (Tensor, Tensor)| x * w)(args)
/// });
/// let x = Array::new([2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
/// let y = f.call((x, Array::from([10.0f32, 1.0])))?;
/// assert_eq!(y.to_vec::<f32>()?, [10.0, 20.0, 30.0, 4.0, 5.0, 6.0]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmapOptions {
    /// The axes of the argument's leaves that run over the batch.
    pub in_axes: LeafAxes,
    /// Position of the batch axis in the results' leaves. An unmapped one is an error if that
    /// result depends on a mapped argument.
    pub out_axes: LeafAxes,
    /// The size of the batch; needed when no argument determines it.
    pub size: Option<usize>,
}

impl Default for VmapOptions {
    fn default() -> VmapOptions {
        VmapOptions { in_axes: LeafAxes::All(0), out_axes: LeafAxes::All(0), size: None }
    }
}

impl VmapOptions {
    /// With these axes of the argument: `0`, `None`, or a tuple or vector of such.
    pub fn in_axes(mut self, axes: impl Into<LeafAxes>) -> VmapOptions {
        self.in_axes = axes.into();
        self
    }

    /// With these axes of the result.
    pub fn out_axes(mut self, axes: impl Into<LeafAxes>) -> VmapOptions {
        self.out_axes = axes.into();
        self
    }

    /// With a batch of this size.
    pub fn size(mut self, size: usize) -> VmapOptions {
        self.size = Some(size);
        self
    }
}
