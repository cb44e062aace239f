//! Spaces as JSON: the descriptions of workers in Python, of exported environments, and of saved models.

use serde::{Deserialize, Serialize};

use super::{Bound, Space};
use crate::error::{Error, Result};
use crate::trace::types::DType;

/// A space, as JSON.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Described {
    Discrete {
        n: usize,
    },
    MultiDiscrete {
        nvec: Vec<usize>,
        #[serde(default)]
        masked: bool,
    },
    Box {
        shape: Vec<usize>,
        dtype: String,
        low: Side,
        high: Side,
    },
}

/// Bounds of a box; `None` is infinite.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
pub(crate) enum Side {
    All(Option<f64>),
    Each(Vec<Option<f64>>),
}

impl Side {
    #[cfg(feature = "rl")]
    fn new(bound: &Bound) -> Side {
        let finite = |bound: &f64| bound.is_finite().then_some(*bound);
        match bound {
            Bound::All(bound) => Side::All(finite(bound)),
            Bound::Each(bounds) => Side::Each(bounds.iter().map(finite).collect()),
        }
    }

    fn bound(self, infinity: f64) -> Bound {
        match self {
            Side::All(bound) => Bound::All(bound.unwrap_or(infinity)),
            Side::Each(bounds) => {
                let bounds = bounds.into_iter().map(|bound| bound.unwrap_or(infinity));
                Bound::Each(bounds.collect())
            }
        }
    }
}

/// Element types with their names in numpy, which stand for them in the JSON.
const DTYPES: [(DType, &str); 12] = [
    (DType::Bool, "bool"),
    (DType::I8, "int8"),
    (DType::I16, "int16"),
    (DType::I32, "int32"),
    (DType::I64, "int64"),
    (DType::U8, "uint8"),
    (DType::U16, "uint16"),
    (DType::U32, "uint32"),
    (DType::U64, "uint64"),
    (DType::F16, "float16"),
    (DType::F32, "float32"),
    (DType::F64, "float64"),
];

impl Described {
    /// Returns the description of a space. An infinite bound is described as the infinity of its side.
    ///
    /// # Errors
    /// [`Error::Env`] for a box of elements that numpy does not have.
    #[cfg(feature = "rl")]
    pub(crate) fn new(space: &Space) -> Result<Described> {
        Ok(match space {
            Space::Discrete { n } => Described::Discrete { n: *n },
            Space::MultiDiscrete { nvec, masked } => {
                Described::MultiDiscrete { nvec: nvec.clone(), masked: *masked }
            }
            Space::Box { low, high, shape, dtype } => {
                let name = DTYPES.iter().find(|(known, _)| known == dtype).map(|(_, name)| *name);
                let name =
                    name.ok_or_else(|| Error::Env(format!("a space has elements {dtype}")))?;
                Described::Box {
                    shape: shape.to_vec(),
                    dtype: name.into(),
                    low: Side::new(low),
                    high: Side::new(high),
                }
            }
        })
    }

    /// Returns the space, which may still have a [`Space::problem`].
    ///
    /// # Errors
    /// [`Error::Env`] for elements of an unknown type, and for more than the memory can hold.
    pub(crate) fn space(self) -> Result<Space> {
        Ok(match self {
            Described::Discrete { n } => Space::Discrete { n },
            Described::MultiDiscrete { nvec, masked } => Space::MultiDiscrete { nvec, masked },
            Described::Box { shape, dtype, low, high } => {
                let known = DTYPES.iter().find(|(_, name)| *name == dtype).map(|(known, _)| *known);
                let dtype =
                    known.ok_or_else(|| Error::Env(format!("a space has elements {dtype}")))?;
                let bytes = shape.iter().try_fold(dtype.size(), |n, &dim| n.checked_mul(dim));
                if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
                    return Err(Error::Env(format!("a space of shape {shape:?} is too large")));
                }
                let (low, high) = (low.bound(f64::NEG_INFINITY), high.bound(f64::INFINITY));
                Space::Box { low, high, shape: shape.into(), dtype }
            }
        })
    }
}
