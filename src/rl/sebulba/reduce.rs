//! Sums and means over all environments of a run, over devices and processes.

use std::sync::Arc;

use super::exchange::Across;
use crate::trace::axis::Axis;
use crate::trace::control::scan;
use crate::trace::ops::{concatenate, zeros_like};
use crate::tree::{self, Tree};
use crate::{DType, Tensor, psum, value_and_grad};

/// Reduction of per-environment values to values of the whole run.
///
/// Sums of floats depend on their order, and the order on the layout: the last bits of a gradient
/// change with the number of devices. With `exact`, each environment's value is computed alone, by
/// operations of the same shapes in every layout, and the values are added as integers in units of
/// 2^-40, which gives the same sum in any order. This is slower, since environments are not
/// batched.
#[derive(Debug, Clone)]
pub struct Reduce {
    /// Axis of the learner devices of this process.
    pub axis: Axis,
    /// Number of learner devices of all processes.
    pub learners: usize,
    /// If true, sums are the same in every layout, bit for bit.
    pub exact: bool,
    /// Sums over the other processes, if there are any.
    pub across: Option<Arc<Across>>,
}

/// Number of fractional bits of exact sums; 22 bits remain before the binary point.
const POINT: i32 = 40;

/// Converts `f32` to units of 2^-40, `i64`.
fn units(x: Tensor) -> Tensor {
    (x.to(DType::F64) * f64::from(POINT).exp2()).round().to(DType::I64)
}

fn of_units(x: Tensor) -> Tensor {
    (x.to(DType::F64) * f64::from(-POINT).exp2()).to(DType::F32)
}

impl Reduce {
    /// Returns the mean over all environments of `x: f32[N, ..]`, where each learner device has N
    /// of them.
    #[track_caller]
    pub fn mean(&self, x: Tensor) -> Tensor {
        let count = x.dim(0) * self.learners;
        if !self.exact {
            return self.total(x.sum(0)) / count as f64;
        }
        of_units(self.total(units(x).sum(0))) / count as f64
    }

    /// Returns the sum over all learner devices of all processes, for leaves of one type.
    ///
    /// The leaves are concatenated for one reduction: every reduction makes the devices' threads
    /// wait for each other, which takes longer than adding the numbers of a small network.
    #[track_caller]
    fn total<M: Tree<Tensor, With<Tensor> = M>>(&self, tree: M) -> M {
        let leaves = tree::leaves(&tree);
        let flat: Vec<Tensor> = leaves.iter().map(|x| x.ravel()).collect();
        let mut sums = psum(concatenate(&flat, 0), self.axis);
        if let Some(across) = &self.across {
            sums = across.sum(sums, self.axis);
        }
        let mut from = 0;
        let parts = leaves.iter().map(|x| {
            let size = x.numel();
            from += size;
            sums.slice_axis(0, from - size, from).reshape(x.shape())
        });
        tree::replace(&tree, parts.collect::<Vec<_>>())
    }

    /// Returns the gradient of the mean over all environments of `loss(params, environment's
    /// data)`, and the mean of the metrics. The first axis of each leaf of `data` is that of
    /// environments.
    ///
    /// Without `exact`, `loss` gets all of a device's environments at once; with it, one at a time,
    /// as an axis of size 1. In both cases its result must be the mean over them. `count` is the
    /// number of environments on all devices; with `exact` it is the divisor of the sum.
    #[track_caller]
    pub fn gradient<P, D, M>(
        &self,
        params: &P,
        data: D,
        count: f64,
        loss: impl Fn(P, D) -> (Tensor, M),
    ) -> (M, P)
    where
        P: Tree<Tensor, With<Tensor> = P> + Clone,
        D: Tree<Tensor, With<Tensor> = D> + Clone,
        M: Tree<Tensor, With<Tensor> = M> + Clone,
    {
        let of = |data: D| {
            let ((_, metrics), grads) =
                value_and_grad(|params: P| loss(params, data.clone()))(params.clone());
            (metrics, grads)
        };
        if !self.exact {
            let learners = self.learners as f64;
            let (metrics, grads) = self.total(of(data));
            let mean = |x: Tensor| x / learners;
            return (tree::map(metrics, mean), tree::map(grads, mean));
        }
        let alone = |data: D| tree::map(data, |x: Tensor| x.expand_dims(0));
        let start = tree::map(params.clone(), |x: Tensor| zeros_like(x.to(DType::I64)));
        let step = |sum: P, data: D| {
            let (metrics, grads) = of(alone(data));
            let leaves = tree::leaves(&sum).into_iter().zip(tree::leaves(&grads));
            let leaves = leaves.map(|(sum, grad)| sum + units(grad)).collect::<Vec<_>>();
            (tree::replace(&sum, leaves), metrics)
        };
        let (sums, metrics) = scan(step, start, data);
        let mean = |sum: Tensor| of_units(sum) / count;
        let metrics = tree::map(metrics, |x: Tensor| units(x).sum(0));
        let (metrics, sums) = self.total((metrics, sums));
        (tree::map(metrics, mean), tree::map(sums, mean))
    }

    /// Applies `f` to rows, such as observations `[N, ..]`: to all at once, or with `exact` to one
    /// at a time, since the last bits of a matrix product depend on its number of rows.
    #[track_caller]
    pub fn rows<D, R>(exact: bool, data: D, f: impl Fn(D) -> R) -> R
    where
        D: Tree<Tensor, With<Tensor> = D>,
        R: Tree<Tensor, With<Tensor> = R>,
    {
        if !exact {
            return f(data);
        }
        let step = |(), data: D| {
            let one = tree::map(data, |x: Tensor| x.expand_dims(0));
            ((), tree::map(f(one), |x: Tensor| x.squeeze(0)))
        };
        scan(step, (), data).1
    }
}
