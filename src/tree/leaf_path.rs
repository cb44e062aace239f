//! Paths of leaves: borrowed while a tree is walked, and as data that outlive the tree, for exported and
//! compiled functions.

use std::fmt;

use super::{Leaf, Tree};

/// One step from a node to a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segment<'a> {
    /// A named field.
    Field(&'a str),
    /// A position in a tuple, vector or array.
    Index(usize),
    /// A key of a map.
    Key(&'a str),
}

/// The way from the root to a leaf. It lives on the stack while a tree is walked.
#[derive(Debug, Clone, Copy)]
pub struct Path<'a> {
    pub(super) parent: Option<&'a Path<'a>>,
    pub(super) segment: Option<Segment<'a>>,
}

impl Path<'static> {
    /// The root: `$`.
    pub const ROOT: Path<'static> = Path { parent: None, segment: None };
}

impl<'a> Path<'a> {
    /// The steps from the root, in order.
    pub fn segments(&self) -> Vec<Segment<'a>> {
        let mut segments = self.parent.map_or_else(Vec::new, Path::segments);
        segments.extend(self.segment);
        segments
    }

    /// The path to a named field below this one.
    pub fn field(&'a self, name: &'a str) -> Path<'a> {
        Path { parent: Some(self), segment: Some(Segment::Field(name)) }
    }

    /// The path to a position below this one.
    pub fn index(&'a self, index: usize) -> Path<'a> {
        Path { parent: Some(self), segment: Some(Segment::Index(index)) }
    }

    /// The path to a map's key below this one.
    pub fn key(&'a self, key: &'a str) -> Path<'a> {
        Path { parent: Some(self), segment: Some(Segment::Key(key)) }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parent {
            Some(parent) => parent.fmt(f)?,
            None => f.write_str("$")?,
        }
        match self.segment {
            None => Ok(()),
            Some(Segment::Field(name)) => write!(f, ".{name}"),
            Some(Segment::Index(index)) => write!(f, "[{index}]"),
            Some(Segment::Key(key)) => write!(f, "[{key:?}]"),
        }
    }
}

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
