//! Meshes of devices with named axes, and the division of values over them: `jax.sharding`.

use std::collections::BTreeSet;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use super::axis::{Axis, AxisVec, interned};
use super::op::{ShardingKind, ShardingOp};
use crate::error::{Error, Result};
use crate::tree::{Leaf, Path, Segment, Tree, path_of};

/// `jax.sharding.Mesh`: devices in a grid whose axes have names. Cheap to clone.
///
/// ```
/// use podracer::Mesh;
/// // Device 0 to 7: four rows of two.
/// let mesh = Mesh::new(&[0, 1, 2, 3, 4, 5, 6, 7], &[4, 2], &["data", "model"])?;
/// assert_eq!(mesh.shape(), [("data", 4), ("model", 2)]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Mesh(Arc<Grid>);

#[derive(PartialEq, Eq, Hash)]
struct Grid {
    devices: Arc<[usize]>,
    axes: AxisVec,
}

impl Mesh {
    /// The devices with these numbers in row-major order: a grid of `axis_shapes`, whose axes are
    /// called `axis_names`.
    ///
    /// # Errors
    /// Returns an error if the grid has another number of devices, a device or a name stands twice,
    /// or an axis has no name.
    #[track_caller]
    pub fn new(devices: &[usize], axis_shapes: &[usize], axis_names: &[&str]) -> Result<Mesh> {
        let at = Location::caller();
        let wrong = |problem: String| Err(Error::Argument(format!("Mesh at {at}: {problem}")));
        if axis_shapes.len() != axis_names.len() || axis_shapes.is_empty() {
            return wrong(format!(
                "each axis takes a size and a name; sizes are {axis_shapes:?}, names {axis_names:?}"
            ));
        }
        let count = axis_shapes.iter().try_fold(1usize, |all, &size| all.checked_mul(size));
        if count != Some(devices.len()) || devices.is_empty() {
            let given = devices.len();
            return wrong(format!(
                "a grid of {axis_shapes:?} takes another number of devices than the {given} given"
            ));
        }
        if axis_names.iter().collect::<BTreeSet<_>>().len() != axis_names.len() {
            return wrong(format!("an axis name stands twice in {axis_names:?}"));
        }
        if devices.iter().collect::<BTreeSet<_>>().len() != devices.len() {
            return wrong(format!("a device stands twice in {devices:?}"));
        }
        let axes = axis_names.iter().zip(axis_shapes);
        let axes = axes.map(|(name, &size)| Axis::named(interned(name), size)).collect();
        Ok(Mesh(Arc::new(Grid { devices: devices.into(), axes })))
    }

    /// The devices, by their numbers, in row-major order.
    pub fn devices(&self) -> &[usize] {
        &self.0.devices
    }

    pub(crate) fn shared_devices(&self) -> &Arc<[usize]> {
        &self.0.devices
    }

    /// Number of devices.
    pub fn size(&self) -> usize {
        self.0.devices.len()
    }

    /// The name and size of each axis.
    pub fn shape(&self) -> Vec<(&'static str, usize)> {
        self.0.axes.iter().map(|axis| (axis.name(), axis.size())).collect()
    }

    /// The names of the axes.
    pub fn axis_names(&self) -> Vec<&'static str> {
        self.0.axes.iter().map(|axis| axis.name()).collect()
    }

    pub(crate) fn axes(&self) -> &AxisVec {
        &self.0.axes
    }
}

impl fmt::Debug for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes: Vec<String> = self.0.axes.iter().map(ToString::to_string).collect();
        write!(f, "Mesh({} of devices {:?})", axes.join(", "), self.devices())
    }
}

/// `jax.sharding.PartitionSpec`: the mesh axes that divide each dimension of a value. Dimensions
/// that it does not reach are not divided. Made by [`P`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct PartitionSpec(Vec<Division>);

impl Leaf for PartitionSpec {}

/// The mesh axes that divide one dimension, major first: a name, several in a tuple, or `None`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Division(Vec<&'static str>);

/// `jax.sharding.PartitionSpec`, as JAX's users call it: the mesh axes of each dimension.
///
/// ```
/// use podracer::P;
/// let rows = P("data"); // the first dimension
/// let columns = P((None, "model")); // the second one
/// let both = P((("data", "model"), None)); // the first one, by two axes
/// let copies = P(());
/// assert_eq!(format!("{rows} {columns} {both} {copies}"),
///     "P(data) P(None, model) P((data, model), None) P()");
/// ```
#[allow(non_snake_case)]
pub fn P(spec: impl Into<PartitionSpec>) -> PartitionSpec {
    spec.into()
}

impl From<&'static str> for Division {
    fn from(name: &'static str) -> Division {
        Division(vec![name])
    }
}

impl From<Option<&'static str>> for Division {
    fn from(name: Option<&'static str>) -> Division {
        Division(name.into_iter().collect())
    }
}

impl From<(&'static str, &'static str)> for Division {
    fn from((major, minor): (&'static str, &'static str)) -> Division {
        Division(vec![major, minor])
    }
}

impl<const COUNT: usize> From<[&'static str; COUNT]> for Division {
    fn from(names: [&'static str; COUNT]) -> Division {
        Division(names.to_vec())
    }
}

impl From<()> for PartitionSpec {
    fn from((): ()) -> PartitionSpec {
        PartitionSpec::default()
    }
}

impl From<&'static str> for PartitionSpec {
    fn from(name: &'static str) -> PartitionSpec {
        PartitionSpec(vec![name.into()])
    }
}

impl From<Vec<Division>> for PartitionSpec {
    fn from(dimensions: Vec<Division>) -> PartitionSpec {
        PartitionSpec(dimensions)
    }
}

macro_rules! tuples {
    ($($name:ident $index:tt),+) => {
        impl<$($name: Into<Division>),+> From<($($name,)+)> for PartitionSpec {
            fn from(each: ($($name,)+)) -> PartitionSpec {
                PartitionSpec(vec![$(each.$index.into()),+])
            }
        }

        impl<$($name: Into<Specs>),+> From<($($name,)+)> for Specs {
            fn from(each: ($($name,)+)) -> Specs {
                Specs::Each(vec![$(each.$index.into()),+])
            }
        }
    };
}
tuples!(A 0);
tuples!(A 0, B 1);
tuples!(A 0, B 1, C 2);
tuples!(A 0, B 1, C 2, D 3);
tuples!(A 0, B 1, C 2, D 3, E 4);

impl fmt::Display for PartitionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dimension = |Division(names): &Division| match names.as_slice() {
            [] => "None".to_string(),
            [name] => name.to_string(),
            names => format!("({})", names.join(", ")),
        };
        let dimensions: Vec<String> = self.0.iter().map(dimension).collect();
        write!(f, "P({})", dimensions.join(", "))
    }
}

impl PartitionSpec {
    /// The operation of a value with `rank` dimensions.
    pub(crate) fn op(
        &self,
        kind: ShardingKind,
        mesh: &Mesh,
        rank: usize,
    ) -> Result<ShardingOp, String> {
        if self.0.len() > rank {
            return Err(format!("{self} has {} dimensions, and the value {rank}", self.0.len()));
        }
        let mut spec = vec![AxisVec::new(); rank];
        let mut given = AxisVec::new();
        for (axes, Division(names)) in spec.iter_mut().zip(&self.0) {
            for name in names {
                let there = mesh.axes().iter().find(|axis| axis.name() == *name);
                let Some(&axis) = there else {
                    let names = mesh.axis_names().join("`, `");
                    return Err(format!("{self}: the mesh has no axis `{name}`; it has `{names}`"));
                };
                if given.contains(&axis) {
                    return Err(format!("{self} names axis `{name}` twice"));
                }
                given.push(axis);
                axes.push(axis);
            }
        }
        Ok(ShardingOp { kind, mesh: mesh.axes().clone(), spec })
    }

    /// The spec of an operation.
    pub(crate) fn of(op: &ShardingOp) -> PartitionSpec {
        let names = |axes: &AxisVec| Division(axes.iter().map(|axis| axis.name()).collect());
        PartitionSpec(op.spec.iter().map(names).collect())
    }
}

/// [`PartitionSpec`]s of a tree's leaves. One given for a tree holds for all leaves below it, as
/// JAX's prefix trees; tuples convert to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Specs {
    /// This one for every leaf.
    All(PartitionSpec),
    /// By position, of a tuple, vector or array. There must be as many as children.
    Each(Vec<Specs>),
    /// By the path of each leaf: those of a tree of specs.
    Paths(Vec<(String, PartitionSpec)>),
}

impl From<PartitionSpec> for Specs {
    fn from(spec: PartitionSpec) -> Specs {
        Specs::All(spec)
    }
}

impl Specs {
    /// The specs that are the leaves of a tree, such as a struct of parameters.
    pub fn tree<M: Tree<PartitionSpec>>(specs: &M) -> Specs {
        let mut paths = Vec::new();
        specs.visit_leaves(&Path::ROOT, &mut |path, spec: &PartitionSpec| {
            paths.push((path.to_string(), spec.clone()));
        });
        Specs::Paths(paths)
    }

    /// The spec of the leaf at `path`.
    fn of(&self, path: &Path<'_>) -> Result<&PartitionSpec, String> {
        let mut specs = self;
        let segments = path.segments();
        for (i, segment) in segments.iter().enumerate() {
            match (specs, segment) {
                (Specs::All(spec), _) => return Ok(spec),
                (Specs::Paths(_), _) => return specs.at(&segments[i..], path),
                (Specs::Each(each), Segment::Index(index)) => {
                    let (count, leaf) = (each.len(), path_of("argument", path));
                    let missing =
                        || format!("{count} specs are given, and there is a leaf at {leaf}");
                    specs = each.get(*index).ok_or_else(missing)?;
                }
                (Specs::Each(_), Segment::Field(_) | Segment::Key(_)) => {
                    let leaf = path_of("argument", path);
                    return Err(format!(
                        "specs by position are given for {leaf}, which has a name"
                    ));
                }
            }
        }
        specs.at(&[], path)
    }

    /// The spec at the last segments of a path.
    fn at(&self, segments: &[Segment<'_>], path: &Path<'_>) -> Result<&PartitionSpec, String> {
        let leaf = || path_of("argument", path);
        match self {
            Specs::All(spec) => Ok(spec),
            Specs::Each(_) => {
                Err(format!("several specs are given for {}, which is one tensor", leaf()))
            }
            Specs::Paths(paths) => {
                let end = segments.iter().fold("$".to_string(), |text, segment| match segment {
                    Segment::Field(name) => format!("{text}.{name}"),
                    Segment::Index(index) => format!("{text}[{index}]"),
                    Segment::Key(key) => format!("{text}[{key:?}]"),
                });
                let found = paths.iter().find(|(there, _)| *there == end);
                let missing = || format!("the tree of specs has none for {}", leaf());
                found.map(|(_, spec)| spec).ok_or_else(missing)
            }
        }
    }

    /// The operation of each leaf of a tree of values with these numbers of dimensions.
    ///
    /// # Errors
    /// If these specs have another structure than the tree, or do not fit the mesh.
    pub(crate) fn ops<T: Leaf, M: Tree<T>>(
        &self,
        kind: ShardingKind,
        mesh: &Mesh,
        tree: &M,
        rank: impl Fn(&T) -> usize,
    ) -> Result<Vec<ShardingOp>, String> {
        let (mut ops, mut problem, mut children) = (Vec::new(), None, 0);
        tree.visit_leaves(&Path::ROOT, &mut |path, leaf| {
            if let Some(Segment::Index(index)) = path.segments().first() {
                children = children.max(index + 1);
            }
            match self.of(path).and_then(|spec| spec.op(kind, mesh, rank(leaf))) {
                Ok(op) => ops.push(op),
                Err(text) => {
                    problem.get_or_insert(format!("{}: {text}", path_of("argument", path)));
                }
            }
        });
        match (problem, self) {
            (Some(problem), _) => Err(problem),
            (None, Specs::Each(each)) if each.len() > children => {
                Err(format!("{} specs are given for {children} values", each.len()))
            }
            (None, _) => Ok(ops),
        }
    }
}

/// `jax.sharding.NamedSharding`: a mesh, and the axes of it that divide each dimension of a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NamedSharding {
    /// The mesh.
    pub mesh: Mesh,
    /// The division.
    pub spec: PartitionSpec,
}

impl NamedSharding {
    /// A division by `spec` over `mesh`.
    pub fn new(mesh: &Mesh, spec: PartitionSpec) -> NamedSharding {
        NamedSharding { mesh: mesh.clone(), spec }
    }

    /// Returns true if every device has the whole value.
    pub fn is_fully_replicated(&self) -> bool {
        let divides = |name: &&str| {
            self.mesh.axes().iter().any(|axis| axis.name() == *name && axis.size() > 1)
        };
        !self.spec.0.iter().any(|Division(names)| names.iter().any(divides))
    }
}

/// Shardings of a tree's leaves: a mesh and [`Specs`]. A [`NamedSharding`] and a pair of both
/// convert to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shardings {
    /// The mesh.
    pub mesh: Mesh,
    /// The division of each leaf.
    pub specs: Specs,
}

impl From<&NamedSharding> for Shardings {
    fn from(sharding: &NamedSharding) -> Shardings {
        Shardings { mesh: sharding.mesh.clone(), specs: Specs::All(sharding.spec.clone()) }
    }
}

impl From<NamedSharding> for Shardings {
    fn from(sharding: NamedSharding) -> Shardings {
        Shardings::from(&sharding)
    }
}

impl<S: Into<Specs>> From<(&Mesh, S)> for Shardings {
    fn from((mesh, specs): (&Mesh, S)) -> Shardings {
        Shardings { mesh: mesh.clone(), specs: specs.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_of_prefixes_and_of_trees() {
        let mesh = Mesh::new(&[0, 1, 2, 3], &[2, 2], &["x", "y"]).unwrap();
        let value = (2usize, vec![1usize, 2]);
        let ops = |specs: Specs| specs.ops(ShardingKind::Constraint, &mesh, &value, |&rank| rank);
        let texts = |specs: Specs| -> Vec<String> {
            ops(specs).unwrap().iter().map(|op| PartitionSpec::of(op).to_string()).collect()
        };
        assert_eq!(texts(P("x").into()), ["P(x, None)", "P(x)", "P(x, None)"]);
        assert_eq!(texts((P(()), P("y")).into()), ["P(None, None)", "P(y)", "P(y, None)"]);
        let tree = Specs::tree(&(P(("x", "y")), vec![P(()), P("x")]));
        assert_eq!(texts(tree), ["P(x, y)", "P(None)", "P(x, None)"]);
        let inner = Specs::from((P(()), Specs::tree(&vec![P("x"), P("y")])));
        assert_eq!(texts(inner), ["P(None, None)", "P(x)", "P(y, None)"]);
        let problem = |specs: Specs| ops(specs).unwrap_err();
        assert_eq!(problem((P(()), P("x"), P("y")).into()), "3 specs are given for 2 values");
        assert!(problem(P("z").into()).contains("the mesh has no axis `z`; it has `x`, `y`"));
        assert!(problem(P(("x", "x")).into()).contains("names axis `x` twice"));
        assert!(problem(P((None, "x", "y")).into()).contains("has 3 dimensions"));
    }
}
