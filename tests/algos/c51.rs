//! C51: its projection and its loss against JAX, small runs, its bad settings.

use podracer::algos::c51::{Args, QNetwork, loss};
use podracer::rl::atoms::Atoms;
use podracer::rl::replay::Transition;
use podracer::{Array, Tensor, interpret, value_and_grad};

use super::cases::{Case, one_seed_gives_one_run, refused};

const SMALL: &[&str] = &[
    "--total-timesteps=600",
    "--learning-starts=200",
    "--target-network-frequency=100",
    "--buffer-size=250",
    "--batch-size=16",
    "--n-atoms=21",
];
const ATOMS: Atoms = Atoms { count: 5, v_min: -2.0, v_max: 2.0 };

#[test]
fn returns_go_back_to_the_atoms() {
    let case = Case::of("project");
    let run = interpret(|(reward, discount, probs): (Tensor, Tensor, Tensor)| {
        ATOMS.project(reward, discount, probs)
    });
    let inputs = (case.f32("reward"), case.f32("discount"), case.f32("probs"));
    case.close("projected", &run.call(inputs.clone()).unwrap());
    let near = interpret(|(reward, discount, probs): (Tensor, Tensor, Tensor)| {
        ATOMS.project_near(reward, discount, 0.5, probs)
    });
    case.close("projected", &near.call(inputs).unwrap());
    // Nothing is lost at the ends of uneven atoms either, where rounding could.
    let odd = Atoms { count: 51, v_min: -0.1, v_max: 0.7 };
    let run = interpret(|(reward, discount, probs): (Tensor, Tensor, Tensor)| {
        let near = odd.project_near(reward, discount, 0.77, probs);
        (odd.project(reward, discount, probs).sum(-1), near.sum(-1))
    });
    let probs = Array::new([4, 51], &[1.0f32 / 51.0; 4 * 51]).unwrap();
    let inputs =
        (Array::from([9.0f32, -9.0, 0.3, 0.69]), Array::from([1.0f32, 1.0, 0.77, 0.0]), probs);
    let (all, near) = run.call(inputs).unwrap();
    for total in [all, near].iter().flat_map(|x| x.to_vec::<f32>().unwrap()) {
        assert!((total - 1.0).abs() < 1e-5, "{total}");
    }
}

#[test]
fn only_near_atoms_are_asked() {
    let atoms = Atoms { count: 101, v_min: -100.0, v_max: 100.0 };
    let run = interpret(|(reward, discount, probs): (Tensor, Tensor, Tensor)| {
        let near = atoms.project_near(reward, discount, 0.3, probs);
        (near - atoms.project(reward, discount, probs)).abs().max(..)
    });
    let rows = 64;
    let number = |i: usize, of: usize| ((i * 7919) % of) as f32 / of as f32;
    let rewards: Vec<f32> = (0..rows).map(|i| 240.0 * number(i, 61) - 120.0).collect();
    let discount = |i: usize| if i.is_multiple_of(5) { 0.0 } else { 0.3 + 0.7 * number(i, 53) };
    let discounts: Vec<f32> = (0..rows).map(discount).collect();
    let probs: Vec<f32> = (0..rows * 101).map(|i| number(i, 97) / 50.0).collect();
    let array = |x: &[f32]| Array::new([rows], x).unwrap();
    let probs = Array::new([rows, 101], &probs).unwrap();
    let most = run.call((array(&rewards), array(&discounts), probs)).unwrap();
    assert!(most.item::<f32>().unwrap() < 1e-5, "{most:?}");
}

#[test]
fn the_loss_is_that_of_jax() {
    let case = Case::of("c51");
    let q = QNetwork { layers: case.mlp("w", "b") };
    let target = QNetwork { layers: case.mlp("target_w", "target_b") };
    let batch = Transition {
        obs: case.f32("obs"),
        action: case.i32("action"),
        reward: case.f32("reward"),
        next_obs: case.f32("next_obs"),
        terminated: case.f32("terminated"),
    };
    type Nets = (QNetwork<Tensor>, QNetwork<Tensor>);
    let run = interpret(|((q, target), batch): (Nets, Transition<Tensor>)| {
        value_and_grad(|q: QNetwork<Tensor>| loss(&q, &target, &batch, &ATOMS, 0.9))(q)
    });
    let ((value, q_values), grads) = run.call(((q, target), batch)).unwrap();
    case.close("loss", &value);
    case.close("q_values", &q_values);
    case.close("grad_w", &grads.layers.layers[0].w);
    case.close("grad_b", grads.layers.layers[0].b.as_ref().unwrap());
}

#[test]
fn one_seed_is_one_run() {
    let tags = one_seed_gives_one_run::<Args>(SMALL);
    for tag in ["charts/episodic_return", "eval/episodic_return", "losses/q_values", "losses/loss"]
    {
        assert!(tags.iter().any(|t| t == tag), "{tags:?}");
    }
}

#[test]
fn settings_that_cannot_be_are_told() {
    let told = |more: &[&str]| refused::<Args>(SMALL, more);
    assert_eq!(told(&["--n-atoms=1"]), "--n-atoms 1: must be a whole number from 2 to 1024");
    assert_eq!(told(&["--v-max=-200"]), "--v-max -200: must be above --v-min -100");
    assert_eq!(told(&["--v-min=NaN"]), "--v-min NaN: must be a number, as --v-max");
    assert_eq!(
        told(&["--train-frequency=7"]),
        "--target-network-frequency 100: must be a multiple of --train-frequency 7"
    );
    let told_env = told(&["--env-id=Pendulum-v1"]);
    assert!(told_env.contains("c51 chooses among discrete actions"), "{told_env}");
}
