//! Transformations of some leaves, and different ones for different leaves.

use super::{SetToZero, leaves_of, set_to_zero};
use crate::optim::transformation::GradientTransformation;
use crate::trace::tensor::fail_op;
use crate::trace::{Tensor, TensorType};
use crate::tree::{self, Tree};

/// Returns the path of every leaf, as in `$.layers[0].w`, and its type.
fn paths_and_types<P: Tree<Tensor>>(params: &P) -> Vec<(String, TensorType)> {
    let types = tree::leaves(params).into_iter().map(|leaf| leaf.ty());
    tree::paths(params).into_iter().zip(types).collect()
}

/// Returns the leaves whose label is `label`.
fn leaves_with<P: Tree<Tensor>>(tree: &P, labels: &[usize], label: usize) -> Vec<Tensor> {
    let leaves = tree::leaves(tree).into_iter().zip(labels);
    leaves.filter(|(_, of_leaf)| **of_leaf == label).map(|(leaf, _)| leaf).collect()
}

/// Replaces the leaves whose label is `label`, in order.
fn put(all: &mut [Tensor], labels: &[usize], label: usize, leaves: Vec<Tensor>) {
    let places = all.iter_mut().zip(labels).filter(|(_, of_leaf)| **of_leaf == label);
    for ((place, _), leaf) in places.zip(leaves) {
        *place = leaf;
    }
}

/// Transformation built by [`masked`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Masked<O, F> {
    inner: O,
    mask: F,
}

/// Applies `inner` to the leaves for which `mask` returns true; other updates are unchanged:
/// `optax.masked`.
///
/// `mask` takes the path of a leaf, as in `$.layers[0].kernel`, and its type. `inner` transforms a
/// `Vec` of the chosen leaves, so that its state is a state over `Vec<Tensor>`.
///
/// ```
/// use podracer::optim::{
///     add_decayed_weights, chain, masked, scale_by_adam, scale_by_learning_rate,
/// };
///
/// // AdamW whose weight decay leaves out biases and scales.
/// let optimizer = chain((
///     scale_by_adam(),
///     masked(add_decayed_weights(1e-4), |_, ty| ty.rank() > 1),
///     scale_by_learning_rate(1e-3),
/// ));
/// # fn check<O: podracer::optim::Optimizer<podracer::Tensor>>(_: O) {}
/// # check(optimizer);
/// ```
pub fn masked<O, F: Fn(&str, &TensorType) -> bool>(inner: O, mask: F) -> Masked<O, F> {
    Masked { inner, mask }
}

impl<O, F: Fn(&str, &TensorType) -> bool> Masked<O, F> {
    /// Returns 1 for each leaf to be transformed, else 0.
    fn labels<P: Tree<Tensor>>(&self, params: &P) -> Vec<usize> {
        let leaves = paths_and_types(params);
        leaves.iter().map(|(path, ty)| (self.mask)(path, ty) as usize).collect()
    }
}

impl<O, F, P> GradientTransformation<P> for Masked<O, F>
where
    O: GradientTransformation<Vec<Tensor>>,
    F: Fn(&str, &TensorType) -> bool,
    P: Tree<Tensor>,
{
    type State = O::State;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        self.inner.init(&leaves_with(params, &self.labels(params), 1))
    }

    #[track_caller]
    fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
        leaves_of("masked", ["params", "updates"], [params, grads]);
        let labels = self.labels(params);
        let chosen = leaves_with(grads, &labels, 1);
        let (updates, state) = self.inner.update(&chosen, state, &leaves_with(params, &labels, 1));
        let mut all = tree::leaves(grads);
        put(&mut all, &labels, 1, updates);
        (tree::replace(grads, all), state)
    }
}

/// Freezes the leaves for which `mask` returns true: their updates are zeros, others are unchanged,
/// `optax.transforms.freeze`. `mask` is that of [`masked`].
pub fn freeze<F: Fn(&str, &TensorType) -> bool>(mask: F) -> Masked<SetToZero, F> {
    masked(set_to_zero(), mask)
}

/// Transformation built by [`multi_transform`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MultiTransform<C, F> {
    transforms: C,
    label: F,
}

/// Applies to each leaf the transformation of its label: `optax.multi_transform` (`partition`).
///
/// `transforms` is a tuple of 1 to 8 transformations, and `label` returns the position in it for
/// the path of a leaf, as in `$.layers[0].kernel`, and its type. Each transforms a `Vec` of its
/// leaves, so that the state is a tuple of states over `Vec<Tensor>`.
///
/// ```
/// use podracer::optim::{adam, multi_transform, set_to_zero};
///
/// // Freezes the encoder.
/// let optimizer = multi_transform((adam(1e-3), set_to_zero()), |path, _| {
///     path.starts_with("$.encoder") as usize
/// });
/// # fn check<O: podracer::optim::Optimizer<podracer::Tensor>>(_: O) {}
/// # check(optimizer);
/// ```
///
/// # Errors
/// The initialization ends the trace if a label is not the position of a transformation.
pub fn multi_transform<C, F: Fn(&str, &TensorType) -> usize>(
    transforms: C,
    label: F,
) -> MultiTransform<C, F> {
    MultiTransform { transforms, label }
}

/// Applies `optimizer` to the leaves for which `freeze_mask` returns false and freezes the others:
/// `optax.transforms.selective_transform`. Frozen leaves have no state.
///
/// ```
/// use podracer::optim::{adam, selective_transform};
///
/// let optimizer = selective_transform(adam(1e-3), |path, _| path.starts_with("$.encoder"));
/// # fn check<O: podracer::optim::Optimizer<podracer::Tensor>>(_: O) {}
/// # check(optimizer);
/// ```
pub fn selective_transform<O, F: Fn(&str, &TensorType) -> bool>(
    optimizer: O,
    freeze_mask: F,
) -> MultiTransform<(O, SetToZero), impl Fn(&str, &TensorType) -> usize> {
    multi_transform((optimizer, set_to_zero()), move |path: &str, ty: &TensorType| {
        freeze_mask(path, ty) as usize
    })
}

impl<C, F: Fn(&str, &TensorType) -> usize> MultiTransform<C, F> {
    /// Returns the label of each leaf; one that is not below `count` ends the trace.
    #[track_caller]
    fn labels<P: Tree<Tensor>>(&self, params: &P, count: usize) -> Vec<usize> {
        let mut labels = Vec::new();
        for (path, ty) in paths_and_types(params) {
            let label = (self.label)(&path, &ty);
            if label >= count {
                let problem = format!(
                    "the label of {path} is {label}; labels are positions among the {count} \
                     transformations, from 0"
                );
                fail_op("multi_transform", problem);
            }
            labels.push(label);
        }
        labels
    }
}

macro_rules! multi_transform_of_tuple {
    ($count:literal: $($name:ident $index:tt),*) => {
        impl<P, F, $($name),*> GradientTransformation<P> for MultiTransform<($($name,)*), F>
        where
            P: Tree<Tensor>,
            F: Fn(&str, &TensorType) -> usize,
            $($name: GradientTransformation<Vec<Tensor>>,)*
        {
            type State = ($($name::State,)*);

            #[track_caller]
            fn init(&self, params: &P) -> Self::State {
                let labels = self.labels(params, $count);
                ($(self.transforms.$index.init(&leaves_with(params, &labels, $index)),)*)
            }

            #[track_caller]
            fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
                leaves_of("multi_transform", ["params", "updates"], [params, grads]);
                let labels = self.labels(params, $count);
                let mut all = tree::leaves(grads);
                let state = ($({
                    let grads = leaves_with(grads, &labels, $index);
                    let params = leaves_with(params, &labels, $index);
                    let (updates, state) =
                        self.transforms.$index.update(&grads, state.$index, &params);
                    put(&mut all, &labels, $index, updates);
                    state
                },)*);
                (tree::replace(grads, all), state)
            }
        }
    };
}
multi_transform_of_tuple!(1: A 0);
multi_transform_of_tuple!(2: A 0, B 1);
multi_transform_of_tuple!(3: A 0, B 1, C 2);
multi_transform_of_tuple!(4: A 0, B 1, C 2, D 3);
multi_transform_of_tuple!(5: A 0, B 1, C 2, D 3, E 4);
multi_transform_of_tuple!(6: A 0, B 1, C 2, D 3, E 4, G 5);
multi_transform_of_tuple!(7: A 0, B 1, C 2, D 3, E 4, G 5, H 6);
multi_transform_of_tuple!(8: A 0, B 1, C 2, D 3, E 4, G 5, H 6, I 7);
