//! C51: its projection and its loss against JAX, small runs, its bad settings.

use podracer::algos::c51::{Args, QNetwork, loss};
use podracer::rl::atoms::Atoms;
use podracer::rl::playing::Transition;
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
    case.close("projected", &run.call(inputs).unwrap());
    // Nothing is lost at the ends of uneven atoms either, where rounding could.
    let odd = Atoms { count: 51, v_min: -0.1, v_max: 0.7 };
    let run = interpret(|(reward, discount, probs): (Tensor, Tensor, Tensor)| {
        odd.project(reward, discount, probs).sum(-1)
    });
    let probs = Array::new([3, 51], &[1.0f32 / 51.0; 3 * 51]).unwrap();
    let inputs = (Array::from([9.0f32, -9.0, 0.3]), Array::from([1.0f32, 1.0, 0.77]), probs);
    for total in run.call(inputs).unwrap().to_vec::<f32>().unwrap() {
        assert!((total - 1.0).abs() < 1e-5, "{total}");
    }
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
    assert_eq!(told(&["--n-atoms=1"]), "--n-atoms 1: must be at least 2");
    assert_eq!(told(&["--v-max=-200"]), "--v-max -200: must be above --v-min -100");
    assert_eq!(told(&["--v-min=NaN"]), "--v-min NaN: must be a number, as --v-max");
    assert_eq!(
        told(&["--train-frequency=7"]),
        "--target-network-frequency 100: must be a multiple of --train-frequency 7"
    );
    let told_env = told(&["--env-id=Pendulum-v1"]);
    assert!(told_env.contains("c51 chooses among discrete actions"), "{told_env}");
}
