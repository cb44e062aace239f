//! What an environment promises: its spaces, its time limit, and when it counts as solved.

use std::fmt;

use crate::trace::types::{DType, Shape};

/// One side of the bounds of a [`Space::Box`].
#[derive(Debug, Clone, PartialEq)]
pub enum Bound {
    /// The same bound for every element: an image need not list 28,224 of them.
    All(f64),
    /// A bound per element, in row-major order.
    Each(Vec<f64>),
}

impl Bound {
    /// The bound of element `i`, counted in row-major order.
    pub fn at(&self, i: usize) -> f64 {
        match self {
            Bound::All(bound) => *bound,
            Bound::Each(bounds) => bounds[i],
        }
    }
}

impl From<f64> for Bound {
    fn from(bound: f64) -> Bound {
        Bound::All(bound)
    }
}

impl<const N: usize> From<[f64; N]> for Bound {
    fn from(bounds: [f64; N]) -> Bound {
        Bound::Each(bounds.into())
    }
}

impl From<Vec<f64>> for Bound {
    fn from(bounds: Vec<f64>) -> Bound {
        Bound::Each(bounds)
    }
}

/// The set that one observation or one action of one environment lies in.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Space {
    /// A whole number from 0 to `n - 1`.
    Discrete {
        /// How many there are.
        n: usize,
    },
    /// Several whole numbers at once, each from 0 to one less than its entry of `nvec`: `i32` of that
    /// length.
    MultiDiscrete {
        /// How many there are of each.
        nvec: Vec<usize>,
        /// Whether an observation says which actions are allowed: then it is a vector that ends with
        /// a number for each choice of each component in turn, 1 where it is allowed and 0 where not.
        /// At least one of each component always is.
        masked: bool,
    },
    /// An array whose elements lie between bounds, both included.
    Box {
        /// The lower bounds; negative infinity where there is none.
        low: Bound,
        /// The upper bounds; infinity where there is none.
        high: Bound,
        /// The sizes of the axes, without the batch axis.
        shape: Shape,
        /// The type of the elements.
        dtype: DType,
    },
}

impl Space {
    /// A box of `f32` with the given bounds.
    pub fn f32(shape: impl Into<Shape>, low: impl Into<Bound>, high: impl Into<Bound>) -> Space {
        Space::Box { low: low.into(), high: high.into(), shape: shape.into(), dtype: DType::F32 }
    }

    /// A box of bytes from 0 to 255, as images are.
    pub fn image(shape: impl Into<Shape>) -> Space {
        let (low, high) = (Bound::All(0.0), Bound::All(255.0));
        Space::Box { low, high, shape: shape.into(), dtype: DType::U8 }
    }

    /// The sizes of the axes, without the batch axis; a discrete space is a scalar.
    pub fn shape(&self) -> Shape {
        match self {
            Space::Discrete { .. } => Shape::scalar(),
            Space::MultiDiscrete { nvec, .. } => [nvec.len()].into(),
            Space::Box { shape, .. } => shape.clone(),
        }
    }

    /// The type of the elements; a discrete space has `i32`.
    pub fn dtype(&self) -> DType {
        match self {
            Space::Discrete { .. } | Space::MultiDiscrete { .. } => DType::I32,
            Space::Box { dtype, .. } => *dtype,
        }
    }

    /// What is wrong with this space, if something is.
    pub(super) fn problem(&self) -> Option<String> {
        match self {
            Space::Discrete { n: 0 } => Some("it has nothing to choose from".into()),
            Space::Discrete { n } if i32::try_from(*n).is_err() => {
                Some(format!("{n} choices do not fit i32"))
            }
            Space::Discrete { .. } => None,
            Space::MultiDiscrete { nvec, .. } if nvec.is_empty() => {
                Some("it has no components".into())
            }
            Space::MultiDiscrete { nvec, .. } => {
                nvec.iter().find_map(|&n| Space::Discrete { n }.problem())
            }
            Space::Box { low, high, shape, .. } => {
                let numel = shape.numel();
                let wrong = |bound: &Bound| match bound {
                    Bound::Each(bounds) if bounds.len() != numel => Some(bounds.len()),
                    _ => None,
                };
                match wrong(low).or(wrong(high)) {
                    Some(count) => Some(format!("{count} bounds for {numel} elements")),
                    None => (numel == 0).then(|| "it has no elements".into()),
                }
            }
        }
    }

    /// Bytes of one element of this space.
    pub fn bytes(&self) -> usize {
        self.shape().numel() * self.dtype().size()
    }
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Space::Discrete { n } => write!(f, "Discrete({n})"),
            Space::MultiDiscrete { nvec, masked } => {
                write!(f, "MultiDiscrete({nvec:?}{})", if *masked { ", masked" } else { "" })
            }
            Space::Box { low, high, shape, dtype } => match (low, high) {
                (Bound::All(low), Bound::All(high)) => {
                    write!(f, "Box({low}, {high}, {dtype}{shape})")
                }
                _ => write!(f, "Box({dtype}{shape})"),
            },
        }
    }
}

/// What an environment promises.
#[derive(Debug, Clone, PartialEq)]
pub struct EnvSpec {
    /// The name that [`make`](super::make) knows it by, as in `CartPole-v1`.
    pub id: String,
    /// Where one observation lies.
    pub observation: Space,
    /// Where one action lies.
    pub action: Space,
    /// Steps after which the pool truncates an episode; `None` for no limit.
    pub max_episode_steps: Option<u32>,
    /// The average episodic return from which the task counts as solved.
    pub reward_threshold: Option<f64>,
}
