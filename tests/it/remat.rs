//! What `checkpoint` saves.

use podracer::trace::Op;
use podracer::trace::control::scan;
use podracer::{
    Array, DType, Program, RematPolicy, Tensor, checkpoint_name, checkpoint_with, grad, jit,
    make_program,
};
use pretty_assertions::assert_eq;

const TURNS: usize = 64;
const WIDTH: usize = 128;

/// Some turns of a network, each checkpointed or not.
fn loss(policy: Option<RematPolicy>) -> impl Fn((Tensor, Tensor)) -> Tensor {
    move |(w, h): (Tensor, Tensor)| {
        let step = |h: Tensor| {
            let h = checkpoint_name(h.matmul(w), "hidden").tanh();
            (h * h.sin() + h.cos()).matmul(w).tanh()
        };
        let step = |h: Tensor| match &policy {
            Some(policy) => checkpoint_with(policy.clone(), step)(h),
            None => step(h),
        };
        let steps = podracer::trace::ops::zeros([TURNS], DType::F32);
        scan(|h: Tensor, _: Tensor| (step(h), ()), h, steps).0.sum(..)
    }
}

fn arguments() -> (Array, Array) {
    (Array::zeros([WIDTH, WIDTH], DType::F32), Array::zeros([32, WIDTH], DType::F32))
}

/// Tensors of a turn's size that the loop over values stacks up.
fn stacked(program: &Program) -> usize {
    let scan = program.equations.iter().find(|e| matches!(e.op, Op::Scan(_))).expect("a scan");
    let Op::Scan(op) = &scan.op else { unreachable!() };
    scan.outputs[op.num_carry..].iter().map(|&var| program.ty(var).numel()).sum::<usize>()
        / (TURNS * 32 * WIDTH)
}

#[test]
fn a_checkpointed_turn_saves_its_carry() {
    let program = |policy| {
        let f = loss(policy);
        make_program(move |args: (Tensor, Tensor)| grad(&f)(args), &arguments()).unwrap()
    };
    use RematPolicy::*;
    let hidden = || vec!["hidden"];
    let plain = stacked(&program(None));
    assert_eq!(stacked(&program(Some(NothingSaveable))), 1);
    assert_eq!(stacked(&program(Some(SaveOnlyTheseNames(hidden())))), 2);
    assert_eq!(stacked(&program(Some(DotsSaveable))), 3);
    assert_eq!(stacked(&program(Some(DotsWithNoBatchDimsSaveable))), 3);
    let everything = stacked(&program(Some(EverythingSaveable)));
    assert!(plain > 3 && everything >= plain, "{plain} {everything}");
}

/// The product is named by the policy, and the derivative of its sum does not use it.
#[test]
fn values_that_the_derivative_does_not_use_are_not_kept() {
    let f = |(w, h): (Tensor, Tensor)| {
        checkpoint_with(RematPolicy::DotsSaveable, |(w, h): (Tensor, Tensor)| h.matmul(w).sum(..))(
            (w, h),
        )
    };
    let program = make_program(move |args: (Tensor, Tensor)| grad(f)(args), &arguments()).unwrap();
    let bodies: Vec<&Program> =
        (program.equations.iter()).flat_map(|equation| equation.op.subprograms()).collect();
    assert!(!bodies.is_empty(), "{program}");
    for body in bodies {
        let inputs = body.equations.iter().flat_map(|equation| &equation.inputs);
        let used: Vec<_> = inputs.chain(&body.outputs).collect();
        let unused = body.inputs.iter().find(|input| !used.contains(input));
        assert_eq!(unused, None, "{program}");
    }
}

#[test]
fn the_compiler_takes_less_memory() {
    let temporary = |policy| {
        let f = loss(policy);
        let lowered = jit(move |args: (Tensor, Tensor)| grad(&f)(args)).lower(&arguments());
        lowered.unwrap().compile().unwrap().memory_stats().unwrap().temporary
    };
    let (plain, checkpointed) = (temporary(None), temporary(Some(RematPolicy::NothingSaveable)));
    assert!(checkpointed * 2 < plain, "{checkpointed} {plain}");
}

#[test]
fn gradients_are_the_same() {
    let policies = [None, Some(RematPolicy::NothingSaveable), Some(RematPolicy::DotsSaveable)];
    let values = |n: usize, scale: f32| -> Vec<f32> {
        (0..n).map(|i| (((i * 37) % 101) as f32 / 50.0 - 1.0) * scale).collect()
    };
    let results = policies.map(|policy| {
        let f = loss(policy);
        let w = Array::new([WIDTH, WIDTH], &values(WIDTH * WIDTH, 0.1)).unwrap();
        let h = Array::new([32, WIDTH], &values(32 * WIDTH, 1.0)).unwrap();
        let (dw, _) = jit(move |args: (Tensor, Tensor)| grad(&f)(args)).call((w, h)).unwrap();
        dw.to_vec::<f32>().unwrap()
    });
    let largest = results[0].iter().fold(0.0f32, |m, x| m.max(x.abs()));
    assert!(largest > 0.0);
    for other in &results[1..] {
        for (a, b) in results[0].iter().zip(other) {
            assert!((a - b).abs() <= 1e-4 * largest, "{a} {b} of {largest}");
        }
    }
}
