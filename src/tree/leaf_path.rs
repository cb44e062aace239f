//! Paths of leaves as data, which outlive the tree: for exported and compiled functions.

use super::{Leaf, Path, Segment, Tree};

/// One step of the path of a leaf: a position in a sequence, or a field's name or map's key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// A position.
    Index(usize),
    /// A name.
    Name(String),
}

/// The path of a leaf.
pub type LeafPath = Vec<Step>;

/// A path as messages name it: `$[0].w`.
pub fn path_text(path: &[Step]) -> String {
    let mut text = String::from("$");
    for step in path {
        match step {
            Step::Index(index) => text += &format!("[{index}]"),
            Step::Name(name) => text += &format!(".{name}"),
        }
    }
    text
}

/// The paths of the leaves of a tree.
pub(crate) fn leaf_paths<T: Leaf, M: Tree<T>>(tree: &M) -> Vec<LeafPath> {
    let mut paths = Vec::new();
    tree.visit_leaves(&Path::ROOT, &mut |path, _| {
        let step = |segment| match segment {
            Segment::Index(index) => Step::Index(index),
            Segment::Field(name) | Segment::Key(name) => Step::Name(name.to_string()),
        };
        paths.push(path.segments().into_iter().map(step).collect());
    });
    paths
}
