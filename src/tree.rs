//! Trees: structs, tuples, vectors, arrays, options and maps whose leaves are tensors.
//!
//! The same struct holds [`Tensor`](crate::Tensor)s inside a trace and [`Array`](crate::Array)s
//! outside: `Params<Tensor>` and `Params<Array>`. Everything that takes or gives many values
//! takes or gives a tree, and every message names a leaf by its path, as in `$.layers[0].w`.
//!
//! Derive [`Tree`] for your structs; fields that do not mention the leaf parameter are static, parts of
//! the structure: a function compiled for one structure is compiled anew for another.
//!
//! ```
//! use podracer::tree::{self, Tree};
//!
//! #[derive(Tree, Clone)]
//! struct Dense<T> {
//!     w: T,
//!     b: Option<T>,
//! }
//!
//! #[derive(Tree, Clone)]
//! struct Mlp<T> {
//!     layers: Vec<Dense<T>>,
//!     width: usize, // static
//! }
//!
//! let mlp = Mlp { layers: vec![Dense { w: 1, b: Some(2) }], width: 64 };
//! assert_eq!(tree::paths::<usize, _>(&mlp), ["$.layers[0].w", "$.layers[0].b"]);
//! let texts: Mlp<String> = tree::map(mlp, |leaf: usize| leaf.to_string());
//! assert_eq!(texts.layers[0].w, "1");
//! ```

pub mod leaf_path;

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::Location;

use crate::error::{Error, Result, TraceError, fail};

pub use leaf_path::{Path, Segment};
// The derive and the trait share a name, and so do their paths.
pub use podracer_derive::Tree;

/// A type that can be a leaf of a tree.
///
/// A leaf is a tree of itself, so a bare leaf can be passed wherever a tree is taken. Besides the
/// tensor types, positions, flags and texts are leaves: results that a walk over a tree collects.
///
/// Do not implement it for a type that has leaves itself.
pub trait Leaf: Sized + 'static {}

impl Leaf for usize {}
impl Leaf for f32 {}
impl Leaf for bool {}
impl Leaf for String {}

/// The children of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Children<'a> {
    /// This many, by position: a tuple, vector or array.
    Positions(usize),
    /// By name: the subtrees of a struct, or a map's keys.
    Names(&'a [&'a str]),
}

/// A tree with leaves of type `T`; see the [module](self).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tree of `{T}`",
    note = "add #[derive(Tree)] to the struct, and give it the leaf type as its parameter",
    note = "a Tensor exists inside a traced function, an Array outside: pass Arrays to a compiled \
            function, as in `jit(grad(f)).call(array)`",
    note = "a Rust number becomes a tensor inside a traced function by `constant(0.0f32)`, and an \
            Array outside by `Array::from(0.0f32)`; a function can also capture it"
)]
pub trait Tree<T: Leaf>: Sized {
    /// The same tree with other leaves.
    type With<U: Leaf>: Tree<U, With<T> = Self>;

    /// Rebuilds the tree with `f` applied to each leaf, in order.
    fn map_leaves<U: Leaf>(
        self,
        path: &Path<'_>,
        f: &mut dyn FnMut(&Path<'_>, T) -> U,
    ) -> Self::With<U>;

    /// Builds a tree of the same structure from the leaves seen by reference, in order.
    fn map_leaves_ref<U: Leaf>(
        &self,
        path: &Path<'_>,
        f: &mut dyn FnMut(&Path<'_>, &T) -> U,
    ) -> Self::With<U>;

    /// Shows each leaf to `f`, in order.
    fn visit_leaves<'t>(&'t self, path: &Path<'_>, f: &mut dyn FnMut(&Path<'_>, &'t T));

    /// Shows each node with children to `f`, a node before its children. An option is no node of its
    /// own. A tree that does not define this has no nodes, and trees of axes are not held against
    /// them.
    fn visit_nodes(&self, path: &Path<'_>, f: &mut dyn FnMut(&Path<'_>, Children<'_>)) {
        let _ = (path, f);
    }

    /// Feeds everything but the leaves to `state`: lengths, variants, static fields.
    fn hash_structure(&self, state: &mut dyn Hasher);
}

impl<T: Leaf> Tree<T> for T {
    type With<U: Leaf> = U;

    fn map_leaves<U: Leaf>(self, path: &Path<'_>, f: &mut dyn FnMut(&Path<'_>, T) -> U) -> U {
        f(path, self)
    }

    fn map_leaves_ref<U: Leaf>(&self, path: &Path<'_>, f: &mut dyn FnMut(&Path<'_>, &T) -> U) -> U {
        f(path, self)
    }

    fn visit_leaves<'t>(&'t self, path: &Path<'_>, f: &mut dyn FnMut(&Path<'_>, &'t T)) {
        f(path, self);
    }

    fn hash_structure(&self, _: &mut dyn Hasher) {}
}

impl<T: Leaf, M: Tree<T>> Tree<T> for Vec<M> {
    type With<U: Leaf> = Vec<M::With<U>>;

    fn map_leaves<U: Leaf>(
        self,
        path: &Path<'_>,
        f: &mut dyn FnMut(&Path<'_>, T) -> U,
    ) -> Self::With<U> {
        self.into_iter().enumerate().map(|(i, m)| m.map_leaves(&path.index(i), f)).collect()
    }

    fn map_leaves_ref<U: Leaf>(
        &self,
        path: &Path<'_>,
        f: &mut dyn FnMut(&Path<'_>, &T) -> U,
    ) -> Self::With<U> {
        self.iter().enumerate().map(|(i, m)| m.map_leaves_ref(&path.index(i), f)).collect()
    }

    fn visit_leaves<'t>(&'t self, path: &Path<'_>, f: &mut dyn FnMut(&Path<'_>, &'t T)) {
        for (i, m) in self.iter().enumerate() {
            m.visit_leaves(&path.index(i), f);
        }
    }

    fn visit_nodes(&self, path: &Path<'_>, f: &mut dyn FnMut(&Path<'_>, Children<'_>)) {
        f(path, Children::Positions(self.len()));
        for (i, m) in self.iter().enumerate() {
            m.visit_nodes(&path.index(i), f);
        }
    }

    fn hash_structure(&self, state: &mut dyn Hasher) {
        state.write_usize(self.len());
        self.iter().for_each(|m| m.hash_structure(state));
    }
}

impl<T: Leaf, M: Tree<T>, const N: usize> Tree<T> for [M; N] {
    type With<U: Leaf> = [M::With<U>; N];

    fn map_leaves<U: Leaf>(
        self,
        path: &Path<'_>,
        f: &mut dyn FnMut(&Path<'_>, T) -> U,
    ) -> Self::With<U> {
        let mut i = 0;
        self.map(|m| {
            i += 1;
            m.map_leaves(&path.index(i - 1), f)
        })
    }

    fn map_leaves_ref<U: Leaf>(
        &self,
        path: &Path<'_>,
        f: &mut dyn FnMut(&Path<'_>, &T) -> U,
    ) -> Self::With<U> {
        std::array::from_fn(|i| self[i].map_leaves_ref(&path.index(i), f))
    }

    fn visit_leaves<'t>(&'t self, path: &Path<'_>, f: &mut dyn FnMut(&Path<'_>, &'t T)) {
        for (i, m) in self.iter().enumerate() {
            m.visit_leaves(&path.index(i), f);
        }
    }

    fn visit_nodes(&self, path: &Path<'_>, f: &mut dyn FnMut(&Path<'_>, Children<'_>)) {
        f(path, Children::Positions(self.len()));
        for (i, m) in self.iter().enumerate() {
            m.visit_nodes(&path.index(i), f);
        }
    }

    fn hash_structure(&self, state: &mut dyn Hasher) {
        self.iter().for_each(|m| m.hash_structure(state));
    }
}

impl<T: Leaf, M: Tree<T>> Tree<T> for Option<M> {
    type With<U: Leaf> = Option<M::With<U>>;

    fn map_leaves<U: Leaf>(
        self,
        path: &Path<'_>,
        f: &mut dyn FnMut(&Path<'_>, T) -> U,
    ) -> Self::With<U> {
        self.map(|m| m.map_leaves(path, f))
    }

    fn map_leaves_ref<U: Leaf>(
        &self,
        path: &Path<'_>,
        f: &mut dyn FnMut(&Path<'_>, &T) -> U,
    ) -> Self::With<U> {
        self.as_ref().map(|m| m.map_leaves_ref(path, f))
    }

    fn visit_leaves<'t>(&'t self, path: &Path<'_>, f: &mut dyn FnMut(&Path<'_>, &'t T)) {
        if let Some(m) = self {
            m.visit_leaves(path, f);
        }
    }

    fn visit_nodes(&self, path: &Path<'_>, f: &mut dyn FnMut(&Path<'_>, Children<'_>)) {
        if let Some(m) = self {
            m.visit_nodes(path, f);
        }
    }

    fn hash_structure(&self, state: &mut dyn Hasher) {
        state.write_u8(self.is_some() as u8);
        if let Some(m) = self {
            m.hash_structure(state);
        }
    }
}

impl<T: Leaf, M: Tree<T>> Tree<T> for BTreeMap<String, M> {
    type With<U: Leaf> = BTreeMap<String, M::With<U>>;

    fn map_leaves<U: Leaf>(
        self,
        path: &Path<'_>,
        f: &mut dyn FnMut(&Path<'_>, T) -> U,
    ) -> Self::With<U> {
        self.into_iter()
            .map(|(k, m)| {
                let mapped = m.map_leaves(&path.key(&k), f);
                (k, mapped)
            })
            .collect()
    }

    fn map_leaves_ref<U: Leaf>(
        &self,
        path: &Path<'_>,
        f: &mut dyn FnMut(&Path<'_>, &T) -> U,
    ) -> Self::With<U> {
        self.iter().map(|(k, m)| (k.clone(), m.map_leaves_ref(&path.key(k), f))).collect()
    }

    fn visit_leaves<'t>(&'t self, path: &Path<'_>, f: &mut dyn FnMut(&Path<'_>, &'t T)) {
        for (k, m) in self {
            m.visit_leaves(&path.key(k), f);
        }
    }

    fn visit_nodes(&self, path: &Path<'_>, f: &mut dyn FnMut(&Path<'_>, Children<'_>)) {
        let keys: Vec<&str> = self.keys().map(String::as_str).collect();
        f(path, Children::Names(&keys));
        for (k, m) in self {
            m.visit_nodes(&path.key(k), f);
        }
    }

    fn hash_structure(&self, state: &mut dyn Hasher) {
        state.write_usize(self.len());
        for (k, m) in self {
            state.write(k.as_bytes());
            state.write_u8(0xff);
            m.hash_structure(state);
        }
    }
}

macro_rules! tuple_tree {
    ($($name:ident $index:tt),*) => {
        impl<T: Leaf, $($name: Tree<T>),*> Tree<T> for ($($name,)*) {
            type With<U: Leaf> = ($($name::With<U>,)*);

            #[allow(unused_variables, clippy::unused_unit)]
            fn map_leaves<U: Leaf>(
                self,
                path: &Path<'_>,
                f: &mut dyn FnMut(&Path<'_>, T) -> U,
            ) -> Self::With<U> {
                ($(self.$index.map_leaves(&path.index($index), f),)*)
            }

            #[allow(unused_variables, clippy::unused_unit)]
            fn map_leaves_ref<U: Leaf>(
                &self,
                path: &Path<'_>,
                f: &mut dyn FnMut(&Path<'_>, &T) -> U,
            ) -> Self::With<U> {
                ($(self.$index.map_leaves_ref(&path.index($index), f),)*)
            }

            #[allow(unused_variables)]
            fn visit_leaves<'t>(&'t self, path: &Path<'_>, f: &mut dyn FnMut(&Path<'_>, &'t T)) {
                $(self.$index.visit_leaves(&path.index($index), f);)*
            }

            fn visit_nodes(&self, path: &Path<'_>, f: &mut dyn FnMut(&Path<'_>, Children<'_>)) {
                const COUNT: usize = <[usize]>::len(&[$($index),*]);
                f(path, Children::Positions(COUNT));
                $(self.$index.visit_nodes(&path.index($index), f);)*
            }

            #[allow(unused_variables)]
            fn hash_structure(&self, state: &mut dyn Hasher) {
                $(self.$index.hash_structure(state);)*
            }
        }
    };
}

tuple_tree!();
tuple_tree!(A 0);
tuple_tree!(A 0, B 1);
tuple_tree!(A 0, B 1, C 2);
tuple_tree!(A 0, B 1, C 2, D 3);
tuple_tree!(A 0, B 1, C 2, D 3, E 4);
tuple_tree!(A 0, B 1, C 2, D 3, E 4, F 5);
tuple_tree!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuple_tree!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);

/// The tree with `f` applied to each leaf.
pub fn map<T: Leaf, U: Leaf, M: Tree<T>>(tree: M, mut f: impl FnMut(T) -> U) -> M::With<U> {
    tree.map_leaves(&Path::ROOT, &mut |_, leaf| f(leaf))
}

/// The leaves, in order.
pub fn leaves<T: Leaf + Clone, M: Tree<T>>(tree: &M) -> Vec<T> {
    let mut leaves = Vec::new();
    tree.visit_leaves(&Path::ROOT, &mut |_, leaf| leaves.push(leaf.clone()));
    leaves
}

/// The leaves, in order, with the tree given up for them.
pub fn into_leaves<T: Leaf, M: Tree<T>>(tree: M) -> Vec<T> {
    let mut leaves = Vec::new();
    tree.map_leaves::<bool>(&Path::ROOT, &mut |_, leaf| {
        leaves.push(leaf);
        true
    });
    leaves
}

/// The path of every leaf, as text, in order.
pub fn paths<T: Leaf, M: Tree<T>>(tree: &M) -> Vec<String> {
    let mut paths = Vec::new();
    tree.visit_leaves(&Path::ROOT, &mut |path, _| paths.push(path.to_string()));
    paths
}

/// The leaves with their paths, in order: `jax.tree_util.tree_leaves_with_path`.
pub fn leaves_with_path<T: Leaf + Clone, M: Tree<T>>(tree: &M) -> Vec<(String, T)> {
    let mut leaves = Vec::new();
    tree.visit_leaves(&Path::ROOT, &mut |path, leaf| leaves.push((path.to_string(), leaf.clone())));
    leaves
}

/// The tree with `f` applied to the path of each leaf and the leaf:
/// `jax.tree_util.tree_map_with_path`.
///
/// ```
/// use podracer::tree;
/// let named = tree::map_with_path((true, (false, true)), |path, leaf| leaf && path != "$[0]");
/// assert_eq!(named, (false, (false, true)));
/// ```
pub fn map_with_path<T: Leaf, U: Leaf, M: Tree<T>>(
    tree: M,
    mut f: impl FnMut(&str, T) -> U,
) -> M::With<U> {
    tree.map_leaves(&Path::ROOT, &mut |path, leaf| f(&path.to_string(), leaf))
}

/// `f` of the value so far, at first `init`, and each leaf, in order: `jax.tree_util.tree_reduce`.
pub fn reduce<T: Leaf + Clone, A, M: Tree<T>>(tree: &M, init: A, f: impl FnMut(A, T) -> A) -> A {
    leaves(tree).into_iter().fold(init, f)
}

/// `f` of pairs of leaves, and of pairs of the results, until one is left; `None` if there is no leaf:
/// `jax.tree_util.tree_reduce_associative`. A tree of additions is as deep as the logarithm of the number
/// of leaves.
///
/// ```
/// use podracer::tree;
/// let sum = tree::reduce_associative(&(1usize, vec![2, 3], [4, 5]), |a, b| a + b);
/// assert_eq!(sum, Some(15));
/// ```
pub fn reduce_associative<T: Leaf + Clone, M: Tree<T>>(
    tree: &M,
    mut f: impl FnMut(T, T) -> T,
) -> Option<T> {
    let mut values = leaves(tree);
    while values.len() > 1 {
        let mut pairs = values.into_iter();
        let mut next = Vec::new();
        while let Some(first) = pairs.next() {
            next.push(match pairs.next() {
                Some(second) => f(first, second),
                None => first,
            });
        }
        values = next;
    }
    values.pop()
}

/// A tree of the structure of `template` with `leaf` everywhere: `jax.tree_util.tree_broadcast` of one
/// leaf.
///
/// ```
/// use podracer::tree;
/// assert_eq!(tree::broadcast(true, &(1usize, [2usize, 3])), (true, [true, true]));
/// ```
pub fn broadcast<T: Leaf, U: Leaf + Clone, M: Tree<T>>(leaf: U, template: &M) -> M::With<U> {
    template.map_leaves_ref(&Path::ROOT, &mut |_, _| leaf.clone())
}

/// True if the tree is a leaf: `jax.tree_util.treedef_is_leaf`.
///
/// ```
/// use podracer::tree;
/// assert!(tree::is_leaf::<usize, _>(&1usize) && !tree::is_leaf::<usize, _>(&[1usize]));
/// ```
pub fn is_leaf<T: Leaf, M: Tree<T>>(tree: &M) -> bool {
    paths(tree) == ["$"]
}

/// True if the tree is no leaf: `jax.tree_util.is_tree_node`.
pub fn is_tree_node<T: Leaf, M: Tree<T>>(tree: &M) -> bool {
    !is_leaf(tree)
}

/// True if each of these trees is a leaf: `jax.tree_util.all_leaves`.
///
/// ```
/// use podracer::tree;
/// assert!(tree::all_leaves::<usize, usize>(&[1, 2]));
/// assert!(!tree::all_leaves::<usize, _>(&[vec![1usize], vec![2]]));
/// ```
pub fn all_leaves<'a, T: Leaf, M: Tree<T> + 'a>(trees: impl IntoIterator<Item = &'a M>) -> bool {
    trees.into_iter().all(|tree| is_leaf(tree))
}

/// The parts directly below the root, in order, each as its path and its leaves:
/// `jax.tree_util.flatten_one_level_with_keys`. Parts may have different types, so that they are given by
/// their leaves; those without a leaf are left out.
///
/// ```
/// use podracer::tree;
/// let parts = tree::flatten_one_level_with_keys(&([1usize, 2], 3usize)).unwrap();
/// assert_eq!(parts, [("$[0]".to_string(), vec![1, 2]), ("$[1]".to_string(), vec![3])]);
/// ```
///
/// # Errors
/// [`Error::Argument`] if the tree is a leaf.
pub fn flatten_one_level_with_keys<T: Leaf + Clone, M: Tree<T>>(
    tree: &M,
) -> Result<Vec<(String, Vec<T>)>> {
    let (mut parts, mut at_root) = (Vec::<(String, Vec<T>)>::new(), false);
    tree.visit_leaves(&Path::ROOT, &mut |path, leaf| {
        let segment = path.segments().first().copied();
        at_root |= segment.is_none();
        let key = Path { parent: None, segment }.to_string();
        match parts.last_mut() {
            Some((last, leaves)) if *last == key => leaves.push(leaf.clone()),
            _ => parts.push((key, vec![leaf.clone()])),
        }
    });
    if at_root {
        return Err(Error::Argument("takes a tree with parts, and was given a leaf".into()));
    }
    Ok(parts)
}

/// The leaves of each part directly below the root: `jax.tree_util.flatten_one_level`, see
/// [`flatten_one_level_with_keys`].
///
/// # Errors
/// [`Error::Argument`] if the tree is a leaf.
pub fn flatten_one_level<T: Leaf + Clone, M: Tree<T>>(tree: &M) -> Result<Vec<Vec<T>>> {
    Ok(flatten_one_level_with_keys(tree)?.into_iter().map(|(_, leaves)| leaves).collect())
}

/// The leaves of trees of one structure, for each place of a leaf those of all trees in order:
/// `jax.tree_util.tree_transpose` of a list of trees.
///
/// # Errors
/// [`Error::Argument`] if the trees have different structures, or if there is none.
///
/// ```
/// use podracer::tree;
/// let columns = tree::transpose(vec![(1usize, [2usize]), (3, [4])])?;
/// assert_eq!(columns, [vec![1, 3], vec![2, 4]]);
/// # Ok::<(), podracer::Error>(())
/// ```
pub fn transpose<T: Leaf, M: Tree<T>>(trees: Vec<M>) -> Result<Vec<Vec<T>>> {
    let Some(first) = trees.first() else {
        return Err(Error::Argument("takes one tree at least, and was given none".into()));
    };
    for other in &trees[1..] {
        same_structure::<T, T, M, M>(first, other)?;
    }
    let mut columns: Vec<Vec<T>> = (0..count(first)).map(|_| Vec::new()).collect();
    for tree in trees {
        for (column, leaf) in columns.iter_mut().zip(into_leaves(tree)) {
            column.push(leaf);
        }
    }
    Ok(columns)
}

/// True if all leaves are: `jax.tree_util.tree_all`.
pub fn all<M: Tree<bool>>(tree: &M) -> bool {
    leaves(tree).into_iter().all(|leaf| leaf)
}

/// Number of leaves.
pub fn count<T: Leaf, M: Tree<T>>(tree: &M) -> usize {
    let mut n = 0;
    tree.visit_leaves(&Path::ROOT, &mut |_, _| n += 1);
    n
}

/// A tree of the structure of `template` with the given leaves, in order.
///
/// # Panics
/// If there are fewer leaves than in `template`.
pub fn rebuild<T: Leaf, U: Leaf, M: Tree<T>>(
    template: &M,
    leaves: impl IntoIterator<Item = U>,
) -> M::With<U> {
    let mut leaves = leaves.into_iter();
    template.map_leaves_ref(&Path::ROOT, &mut |_, _| {
        leaves.next().expect("as many leaves as the structure has places")
    })
}

/// [`rebuild`] with leaves of the same type: the same tree with other leaves.
///
/// # Panics
/// If there are fewer leaves than in `template`.
pub fn replace<T: Leaf, M: Tree<T>>(template: &M, leaves: impl IntoIterator<Item = T>) -> M {
    // Through another leaf type: only from there does the type system know that the result is `M`.
    rebuild::<bool, T, M::With<bool>>(&broadcast(true, template), leaves)
}

/// A hash of the structure: equal for trees that differ in nothing but their leaves.
pub fn structure<T: Leaf, M: Tree<T>>(tree: &M) -> u64 {
    let mut state = DefaultHasher::new();
    tree.hash_structure(&mut state);
    state.finish()
}

/// Applies `f` to each pair of leaves of two trees: `jax.tree.map` of two trees.
///
/// # Errors
/// Ends the trace, or panics outside of one, if the trees have different structures; the message names
/// the first path that only one of them has.
#[track_caller]
pub fn zip_map<T: Leaf, S: Leaf, U: Leaf, M: Tree<T>>(
    left: M,
    right: M::With<S>,
    mut f: impl FnMut(T, S) -> U,
) -> M::With<U> {
    if let Err(error) = same_structure::<T, S, M, M::With<S>>(&left, &right) {
        let (problem, at) = (error.to_string(), Location::caller());
        let (op, operands, frames) = ("zip_map".into(), Vec::new(), Vec::new());
        fail(TraceError { op, problem, at, operands, frames });
    }
    let mut right = into_leaves(right).into_iter();
    left.map_leaves(&Path::ROOT, &mut |_, leaf| {
        f(leaf, right.next().expect("equal structures have as many leaves"))
    })
}

/// Checks that two trees have one structure.
///
/// # Errors
/// [`Error::Argument`] that names the first path that only one of them has.
pub(crate) fn same_structure<T: Leaf, S: Leaf, L: Tree<T>, R: Tree<S>>(
    left: &L,
    right: &R,
) -> Result<()> {
    match structure_difference(left, right, "$", ["the first", "the second"]) {
        None => Ok(()),
        Some(difference) => {
            Err(Error::Argument(format!("the trees have different structures: {difference}")))
        }
    }
}

/// The first difference in structure of two trees, if there is one. `root` represents the whole
/// tree in paths, `names` the two trees: `carry[1] is in the output and not in the input`.
pub(crate) fn structure_difference<T: Leaf, S: Leaf, L: Tree<T>, R: Tree<S>>(
    left: &L,
    right: &R,
    root: &str,
    names: [&str; 2],
) -> Option<String> {
    if structure(left) == structure(right) && count(left) == count(right) {
        return None;
    }
    Some(difference_of_paths(&paths(left), &paths(right), root, names))
}

/// [`structure_difference`] of trees with these paths, whose structures differ.
pub(crate) fn difference_of_paths(
    left: &[String],
    right: &[String],
    root: &str,
    names: [&str; 2],
) -> String {
    let only = |path: &str, here: &str, there: &str| {
        format!("{} is in {here} and not in {there}", path_of(root, path))
    };
    let only_left = left.iter().find(|path| !right.contains(path));
    let only_right = right.iter().find(|path| !left.contains(path));
    match (only_left, only_right) {
        (Some(path), _) => only(path, names[0], names[1]),
        (None, Some(path)) => only(path, names[1], names[0]),
        (None, None) => "their static fields differ, those without tensors".to_string(),
    }
}

/// Returns `path` with `$` replaced by `root`: `carry[1].weight`.
pub(crate) fn path_of(root: &str, path: impl fmt::Display) -> String {
    path.to_string().replacen('$', root, 1)
}

/// Feeds a static field to a structure's hash. The derive calls it.
#[doc(hidden)]
pub fn hash_static<H: Hash + ?Sized>(value: &H, mut state: &mut dyn Hasher) {
    value.hash(&mut state);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::catch;

    #[test]
    fn paths_name_every_leaf() {
        let mut map = BTreeMap::new();
        map.insert("b".to_string(), 3usize);
        let tree = (vec![1usize, 2], Some(map), None::<usize>);
        assert_eq!(paths::<usize, _>(&tree), ["$[0][0]", "$[0][1]", "$[1][\"b\"]"]);
    }

    #[test]
    fn a_rebuilt_tree_has_the_same_structure() {
        let tree = (vec![1usize, 2], [3usize; 2]);
        let texts = rebuild::<usize, String, _>(&tree, ["a", "b", "c", "d"].map(String::from));
        assert_eq!(texts.0, ["a", "b"]);
        assert_eq!(texts.1, ["c", "d"]);
        assert_eq!(structure::<usize, _>(&tree), structure::<String, _>(&texts));
    }

    #[test]
    fn the_derive_works_within_this_crate() {
        #[derive(Tree)]
        struct Dense<T> {
            w: T,
            size: usize,
        }
        let dense = map(Dense { w: 1usize, size: 2 }, |leaf: usize| leaf > 0);
        assert!(dense.w);
        assert_eq!(dense.size, 2);
    }

    #[test]
    fn parts_of_the_root_are_those_of_jax() {
        // flatten_one_level of {"a": [1, {"c": 2}], "b": (), "d": 3} has [1, {"c": 2}], () and 3.
        #[derive(Tree)]
        struct Parts<T> {
            a: (T, BTreeMap<String, T>),
            b: (),
            d: T,
        }
        let parts = Parts { a: (1usize, BTreeMap::from([("c".into(), 2)])), b: (), d: 3 };
        let expected = [("$.a".to_string(), vec![1, 2]), ("$.d".to_string(), vec![3])];
        assert_eq!(flatten_one_level_with_keys(&parts).unwrap(), expected);
        assert_eq!(flatten_one_level(&parts).unwrap(), [vec![1, 2], vec![3]]);
        assert!(is_tree_node(&parts) && !is_tree_node(&1usize));
        assert!(all_leaves(&[1usize, 2]) && !all_leaves::<usize, _>(&[parts]));
        let error = flatten_one_level(&1usize).unwrap_err().to_string();
        assert_eq!(error, "takes a tree with parts, and was given a leaf");
    }

    #[test]
    fn nodes_are_shown_with_their_children() {
        #[derive(Tree)]
        struct Dense<T> {
            w: T,
            b: Option<T>,
            size: usize,
        }
        #[derive(Tree)]
        struct Pair<T>(T, usize, [T; 1]);
        let map = BTreeMap::from([("k".to_string(), vec![3usize])]);
        let tree = (Dense { w: 1usize, b: None, size: 2 }, Some(map), Pair(4, 5, [6]), ());
        let mut nodes = Vec::new();
        tree.visit_nodes(&Path::ROOT, &mut |path, children| {
            nodes.push(format!("{path} {children:?}"));
        });
        let expected = [
            "$ Positions(4)",
            "$[0] Names([\"w\", \"b\"])",
            "$[1] Names([\"k\"])",
            "$[1][\"k\"] Positions(1)",
            "$[2] Positions(3)",
            "$[2][2] Positions(1)",
            "$[3] Positions(0)",
        ];
        assert_eq!(nodes, expected);
    }

    #[test]
    fn structures_are_told_apart() {
        let add = |a: usize, b: usize| a + b;
        let error = catch(|| zip_map::<_, _, usize, _>(vec![1, 2], vec![1], add)).unwrap_err();
        let problem =
            "the trees have different structures: $[1] is in the first and not in the second";
        assert_eq!((&*error.op, &*error.problem), ("zip_map", problem));
        let sum = zip_map::<_, _, usize, _>(vec![1, 2], vec![3, 4], add);
        assert_eq!(sum, [4, 6]);
    }
}
