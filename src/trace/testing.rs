//! Tests run a closure as a Program on the host.

use std::collections::BTreeMap;
use std::panic::Location;

use super::eval::eval;
use super::literal::Literal;
use super::tensor::{FrameKind, catch, trace_frame};
use super::{Shape, Tensor, TensorType};
use crate::error::Result;
use crate::tree::{self, Path, Tree};

/// Traces `f` and interprets its Program on `args`.
#[track_caller]
pub(crate) fn interpret<A: Tree<Tensor>, B: Tree<Tensor>>(
    args: A::With<Literal>,
    f: impl FnOnce(A) -> B,
) -> Result<B::With<Literal>> {
    let at = Location::caller();
    let mut inputs: Vec<Literal> = Vec::new();
    args.visit_leaves(&Path::ROOT, &mut |_, literal| inputs.push(literal.clone()));
    let types: Vec<TensorType> = inputs.iter().map(|literal| literal.ty().clone()).collect();
    let (traced, result) = catch(|| {
        trace_frame(FrameKind::Body, &types, at, |tensors| {
            let mut tensors = tensors.iter().copied();
            let tree: A = args
                .map_leaves(&Path::ROOT, &mut |_, _| tensors.next().expect("one tensor a leaf"));
            let result = f(tree);
            (tree::leaves(&result), result)
        })
    })?;
    Ok(tree::rebuild(&result, eval(&traced.program, &inputs)?))
}

/// Evaluates `f` and returns the elements of its results as numbers.
#[track_caller]
pub(crate) fn numbers<B: Tree<Tensor>>(f: impl FnOnce() -> B) -> Vec<f64> {
    let result = interpret::<(), B>((), |()| f()).unwrap();
    tree::leaves(&result).iter().flat_map(Literal::to_f64_vec).collect()
}

/// A fixture file: lists of numbers by name.
pub(crate) struct Fixture(BTreeMap<String, Vec<f64>>);

impl Fixture {
    pub(crate) fn new(text: &str) -> Fixture {
        Fixture(serde_json::from_str(text).expect("a fixture is a map of lists of numbers"))
    }

    /// The numbers of one case.
    #[track_caller]
    pub(crate) fn case(&self, name: &str) -> &[f64] {
        self.0.get(name).unwrap_or_else(|| panic!("the fixture has no {name}"))
    }

    /// Checks that values are equal to the bit of an f32; the file has their shortest decimals.
    #[track_caller]
    pub(crate) fn same(&self, name: &str, ours: impl AsRef<[f64]>) {
        let (ours, theirs) = (ours.as_ref(), self.case(name));
        let equal = ours.len() == theirs.len()
            && ours.iter().zip(theirs).all(|(a, b)| a == b || *a == (*b as f32) as f64);
        assert!(equal, "{name}: ours {ours:?}, theirs {theirs:?}");
    }

    /// Checks that values differ by at most `tolerance * max(|theirs|, 1)`.
    #[track_caller]
    pub(crate) fn close(&self, name: &str, ours: impl AsRef<[f64]>, tolerance: f64) {
        let (ours, theirs) = (ours.as_ref(), self.case(name));
        assert_eq!(ours.len(), theirs.len(), "{name}: ours {ours:?}, theirs {theirs:?}");
        for (a, b) in ours.iter().zip(theirs) {
            let error = (a - b).abs() / b.abs().max(1.0);
            assert!(error <= tolerance, "{name}: {a} and {b} differ by {error:e}");
        }
    }
}

/// `sin(0.7 i + phase)`: the inputs of `tests/fixtures/nn/make.py`.
#[track_caller]
pub(crate) fn wave(shape: impl Into<Shape>, phase: f64) -> Tensor {
    let shape = shape.into();
    let values: Vec<f32> =
        (0..shape.numel()).map(|i| (0.7 * i as f64 + phase).sin() as f32).collect();
    super::ops::constant(Literal::new(shape, &values))
}
