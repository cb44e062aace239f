//! `vmap` with the other transformations, in both orders.

use super::*;
use crate::trace::jvp::jvp;
use crate::trace::transpose::grad;

/// A scalar function of `x` and the weights with products, a scan and a branch in it.
fn loss(w: Tensor, x: Tensor) -> Tensor {
    let hidden = w.matmul(x).tanh();
    let (last, sums) = control::scan(
        |c: Tensor, h: Tensor| {
            let next = control::cond(h.gt(0.0), |c: Tensor| c * 2.0, |c| c.sin(), c + h);
            (next, next * h)
        },
        x.sum(..) * w.sum(..),
        hidden,
    );
    last + sums.take(constant([0i32, 2]), 0).sum(..)
}

fn derivatives() -> Vec<Case> {
    vec![
        case("grad", [floats([3, 2]), floats([2])], |x| {
            let input = x[1];
            vec![grad(move |w: Tensor| loss(w, input))(x[0])]
        }),
        case("grad of grad", [floats([3, 2]), floats([2])], |x| {
            let input = x[1];
            let norm = move |w: Tensor| grad(move |w: Tensor| loss(w, input))(w).square().sum(..);
            vec![grad(norm)(x[0])]
        }),
        case("jvp", [floats([3, 2]), floats([2]), floats([2])], |x| {
            let w = x[0];
            let (value, tangent) = jvp(move |x: Tensor| loss(w, x), x[1], x[2]);
            vec![value, tangent]
        }),
    ]
}

#[test]
fn derivatives_of_examples_are_a_loop() {
    hold_all(derivatives());
}

#[test]
fn the_derivative_of_a_batch_is_that_of_a_loop() {
    let inputs = [floats([3, 2]), floats([4, 2])];
    let types: Vec<TensorType> = inputs.iter().map(|input| input.ty.clone()).collect();
    let batched = trace(&types, |x| {
        let xs = x[1];
        vec![grad(move |w: Tensor| vmap(move |x: Tensor| loss(w, x))(xs).sum(..))(x[0])]
    });
    let looped = trace(&types, |x| {
        let xs = x[1];
        vec![grad(move |w: Tensor| {
            let rest: Vec<Tensor> = (1..4).map(|i| loss(w, xs.index_axis(0, i))).collect();
            rest.into_iter().fold(loss(w, xs.index_axis(0, 0)), |a, b| a + b)
        })(x[0])]
    });
    let values: Vec<Literal> =
        inputs.iter().enumerate().map(|(i, input)| random(input, i as u64)).collect();
    let (batched, looped) = (eval(&batched, &values).unwrap(), eval(&looped, &values).unwrap());
    assert!(close(&batched[0], &looped[0]), "{batched:?} {looped:?}");
}
