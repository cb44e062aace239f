//! Spaces of observations and actions, as in `gymnasium.spaces`, and the kinds of spaces that
//! networks and algorithms distinguish.

#[cfg(feature = "envs")]
pub(crate) mod described;
mod kinds;

use std::fmt;

pub use self::kinds::{ActionKind, ObsKind};
use crate::trace::types::{DType, Shape};

/// One side of the bounds of a [`Space::Box`].
#[derive(Debug, Clone, PartialEq)]
pub enum Bound {
    /// The same bound for every element, so that an image need not list 28,224 of them.
    All(f64),
    /// One bound per element, in row-major order.
    Each(Vec<f64>),
}

impl Bound {
    /// Returns the bound of element `i`, counted in row-major order.
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

/// Set of the possible observations or actions of one environment.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Space {
    /// A whole number from 0 to `n - 1`.
    Discrete {
        /// Number of choices.
        n: usize,
    },
    /// Several whole numbers, each from 0 to one less than its entry of `nvec`: an `i32` array of
    /// that length.
    MultiDiscrete {
        /// Number of choices of each component.
        nvec: Vec<usize>,
        /// True if an observation holds the mask of allowed actions: then it is a vector that ends
        /// with one number for each choice of each component, in the order of the components: 1 if
        /// the choice is allowed and 0 if not. At least one choice of each component is always
        /// allowed.
        masked: bool,
    },
    /// An array whose elements lie between bounds, both included.
    Box {
        /// Lower bounds; negative infinity for an unbounded element.
        low: Bound,
        /// Upper bounds; infinity for an unbounded element.
        high: Bound,
        /// Sizes of the axes, without the batch axis.
        shape: Shape,
        /// Type of the elements.
        dtype: DType,
    },
}

impl Space {
    /// Makes a box of `f32` with the given bounds.
    pub fn f32(shape: impl Into<Shape>, low: impl Into<Bound>, high: impl Into<Bound>) -> Space {
        Space::Box { low: low.into(), high: high.into(), shape: shape.into(), dtype: DType::F32 }
    }

    /// Makes a box of bytes from 0 to 255, the space of images.
    pub fn image(shape: impl Into<Shape>) -> Space {
        let (low, high) = (Bound::All(0.0), Bound::All(255.0));
        Space::Box { low, high, shape: shape.into(), dtype: DType::U8 }
    }

    /// Returns the sizes of the axes, without the batch axis; a discrete space is a scalar.
    pub fn shape(&self) -> Shape {
        match self {
            Space::Discrete { .. } => Shape::scalar(),
            Space::MultiDiscrete { nvec, .. } => [nvec.len()].into(),
            Space::Box { shape, .. } => shape.clone(),
        }
    }

    /// Returns the type of the elements; `i32` for a discrete space.
    pub fn dtype(&self) -> DType {
        match self {
            Space::Discrete { .. } | Space::MultiDiscrete { .. } => DType::I32,
            Space::Box { dtype, .. } => *dtype,
        }
    }

    /// Describes the first problem of this space, or returns `None` if the space is valid.
    pub fn problem(&self) -> Option<String> {
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
                    None if numel == 0 => Some("it has no elements".into()),
                    None => (0..numel).find_map(|i| {
                        let (low, high) = (low.at(i), high.at(i));
                        let fits = low <= high; // False for NaN.
                        (!fits).then(|| format!("element {i} has the bounds {low} and {high}"))
                    }),
                }
            }
        }
    }

    /// Returns the number of bytes of one element of this space.
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
