//! Mapped axes of [`vmap_with`](super::vmap_with), leaf by leaf.

use crate::trace::tensor::Tensor;
use crate::tree::{Children, Path, Segment, Tree, path_of};

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
    /// By name, of a struct's fields that hold tensors, or a map's keys. All must be named.
    Named(Vec<(&'static str, LeafAxes)>),
}

impl LeafAxes {
    /// Checks that a tree, called `root` in messages, has the structure of these axes down to where
    /// one is given for all leaves.
    pub(super) fn check<A: Tree<Tensor>>(&self, root: &str, tree: &A) -> Result<(), String> {
        if let LeafAxes::All(_) | LeafAxes::Unmapped = self {
            return Ok(());
        }
        let mut outcome = Ok(());
        tree.visit_nodes(&Path::ROOT, &mut |path, children| {
            if outcome.is_ok()
                && let Some(axes) = self.below(path)
            {
                outcome = axes.check_node(path, children, root);
            }
        });
        tree.visit_leaves(&Path::ROOT, &mut |path, _| {
            if outcome.is_ok()
                && let Some(LeafAxes::Each(_) | LeafAxes::Named(_)) = self.below(path)
            {
                let leaf = path_of(root, path);
                outcome = Err(format!("several axes are given for {leaf}, which is one tensor"));
            }
        });
        outcome
    }

    fn check_node(
        &self,
        path: &Path<'_>,
        children: Children<'_>,
        root: &str,
    ) -> Result<(), String> {
        let node = path_of(root, path);
        match (self, children) {
            (LeafAxes::All(_) | LeafAxes::Unmapped, _) => Ok(()),
            (LeafAxes::Each(each), Children::Positions(count)) if each.len() == count => Ok(()),
            (LeafAxes::Each(each), Children::Positions(count)) => Err(format!(
                "{} axes are given for {node}, which has {count} parts; give one for each, or one \
                 for all",
                each.len()
            )),
            (LeafAxes::Named(named), Children::Names(names)) => {
                let missing = names.iter().find(|name| !named.iter().any(|(n, _)| n == *name));
                let unknown = named.iter().find(|(name, _)| !names.contains(name));
                match (missing, unknown) {
                    (_, Some((name, _))) => Err(format!(
                        "an axis is given for `{name}`, which {node} does not have: its names are \
                         {names:?}"
                    )),
                    (Some(name), None) => Err(format!("no axis is given for `{name}` of {node}")),
                    (None, None) => Ok(()),
                }
            }
            (LeafAxes::Each(_), Children::Names(_)) => {
                Err(format!("axes by position are given for {node}, whose parts have names"))
            }
            (LeafAxes::Named(_), Children::Positions(_)) => {
                Err(format!("axes by name are given for {node}, whose parts have positions"))
            }
        }
    }

    /// The axes given for the node at `path` alone or for all around it; `None` if it has none.
    fn below(&self, path: &Path<'_>) -> Option<&LeafAxes> {
        let mut axes = self;
        for segment in path.segments() {
            axes = match (axes, segment) {
                (LeafAxes::All(_) | LeafAxes::Unmapped, _) => break,
                (LeafAxes::Each(each), Segment::Index(i)) => each.get(i)?,
                (LeafAxes::Named(named), Segment::Field(name) | Segment::Key(name)) => {
                    &named.iter().find(|(there, _)| *there == name)?.1
                }
                (LeafAxes::Each(_), Segment::Field(_) | Segment::Key(_))
                | (LeafAxes::Named(_), Segment::Index(_)) => return None,
            };
        }
        Some(axes)
    }

    /// The axis of the leaf at `path` of a tree that was checked, if it is mapped.
    pub(super) fn of(&self, path: &Path<'_>) -> Option<isize> {
        match self.below(path) {
            Some(LeafAxes::All(axis)) => Some(*axis),
            Some(LeafAxes::Unmapped | LeafAxes::Each(_) | LeafAxes::Named(_)) | None => None,
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
