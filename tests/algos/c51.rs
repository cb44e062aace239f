//! C51: its projection and its loss compared with JAX, small runs, invalid settings.

use podracer::algos::c51::{Args, QNetwork, project, td_loss};
use podracer::rl::Algorithm;
use podracer::rl::buffers::replay::Transition;
use podracer::{Array, Tensor, interpret, value_and_grad};

use super::cases::{Case, refused};

const SMALL: &[&str] = &[
    "--total-timesteps=600",
    "--learning-starts=200",
    "--target-network-frequency=100",
    "--buffer-size=250",
    "--batch-size=16",
    "--n-atoms=21",
];

/// Settings with this support and discount factor.
pub fn support<A: Algorithm>(n_atoms: usize, v_min: f64, v_max: f64, gamma: f64) -> A {
    let [n_atoms, gamma] = [format!("--n-atoms={n_atoms}"), format!("--gamma={gamma}")];
    let [v_min, v_max] = [format!("--v-min={v_min}"), format!("--v-max={v_max}")];
    A::from_flags([n_atoms, v_min, v_max, gamma].iter().map(String::as_str)).unwrap()
}

/// The distributions `probs: f32[B, atoms]` that [`project`] makes.
fn projected(args: &Args, reward: &Array, discount: &Array, probs: &Array) -> Array {
    let run = interpret(|(reward, discount, probs): (Tensor, Tensor, Tensor)| {
        project(reward, discount, probs, args)
    });
    run.call((reward.clone(), discount.clone(), probs.clone())).unwrap()
}

#[test]
fn distributions_are_projected_onto_the_support() {
    let case = Case::of("project");
    let [reward, discount, probs] = ["reward", "discount", "probs"].map(|key| case.f32(key));
    // Also with a gamma at which all atoms are compared.
    for gamma in [0.5, 0.01, 0.0] {
        let args = support(5, -2.0, 2.0, gamma);
        case.close("projected", &projected(&args, &reward, &discount, &probs));
    }
    // Nothing is lost at the ends of uneven atoms, where rounding could.
    let args = support(51, -0.1, 0.7, 0.77);
    let probs = Array::new([4, 51], &[1.0f32 / 51.0; 4 * 51]).unwrap();
    let reward = Array::from([9.0f32, -9.0, 0.3, 0.69]);
    let discount = Array::from([1.0f32, 1.0, 0.77, 0.0]);
    let pmf = projected(&args, &reward, &discount, &probs).to_vec::<f32>().unwrap();
    for pmf in pmf.chunks(51) {
        let total: f32 = pmf.iter().sum();
        assert!((total - 1.0).abs() < 1e-5, "{total}");
    }
}

/// Equation 7 of the paper for one distribution: all pairs of atoms are compared.
fn project_all_pairs(reward: f64, discount: f64, probs: &[f32], args: &Args) -> Vec<f64> {
    let delta_z = (args.v_max - args.v_min) / (args.n_atoms - 1) as f64;
    let mut pmf = vec![0.0; args.n_atoms];
    for (i, prob) in probs.iter().enumerate() {
        let atom = reward + discount * (args.v_min + delta_z * i as f64);
        let b = (atom.clamp(args.v_min, args.v_max) - args.v_min) / delta_z;
        for (j, sum) in pmf.iter_mut().enumerate() {
            *sum += f64::from(*prob) * (1.0 - (b - j as f64).abs()).max(0.0);
        }
    }
    pmf
}

#[test]
fn gathering_the_nearest_atoms_equals_comparing_all_pairs() {
    let args: Args = support(101, -100.0, 100.0, 0.3);
    let batch = 64;
    let number = |i: usize, of: usize| ((i * 7919) % of) as f32 / of as f32;
    let rewards: Vec<f32> = (0..batch).map(|i| 240.0 * number(i, 61) - 120.0).collect();
    let discount = |i: usize| if i.is_multiple_of(5) { 0.0 } else { 0.3 + 0.7 * number(i, 53) };
    let discounts: Vec<f32> = (0..batch).map(discount).collect();
    let mut probs: Vec<f32> = (0..batch * 101).map(|i| number(i, 97)).collect();
    for probs in probs.chunks_mut(101) {
        let total: f32 = probs.iter().sum();
        probs.iter_mut().for_each(|prob| *prob /= total);
    }
    let array = |x: &[f32]| Array::new([batch], x).unwrap();
    let found = Array::new([batch, 101], &probs).unwrap();
    let found = projected(&args, &array(&rewards), &array(&discounts), &found);
    let found = found.to_vec::<f32>().unwrap();
    for (i, (found, probs)) in found.chunks(101).zip(probs.chunks(101)).enumerate() {
        let [reward, discount] = [rewards[i], discounts[i]].map(f64::from);
        let expected = project_all_pairs(reward, discount, probs, &args);
        for (j, (a, b)) in found.iter().zip(expected).enumerate() {
            assert!((f64::from(*a) - b).abs() < 1e-5, "[{i}, {j}] is {a}, expected {b}");
        }
    }
}

#[test]
fn td_loss_equals_jax() {
    let case = Case::of("c51");
    let args = support(5, -2.0, 2.0, 0.9);
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
        value_and_grad(|q: QNetwork<Tensor>| td_loss(&q, &target, &batch, &args))(q)
    });
    let ((loss, metrics), grads) = run.call(((q, target), batch)).unwrap();
    case.close("loss", &loss);
    case.close("loss", &metrics.loss);
    case.close("q_values", &metrics.q_values);
    case.close("grad_w", &grads.layers.layers[0].w);
    case.close("grad_b", grads.layers.layers[0].b.as_ref().unwrap());
}

#[test]
fn invalid_settings_are_refused() {
    let error = |more: &[&str]| refused::<Args>(SMALL, more);
    assert_eq!(error(&["--n-atoms=1"]), "--n-atoms 1: must be a whole number from 2 to 1024");
    assert_eq!(error(&["--v-max=-200"]), "--v-max -200: must be above --v-min -100");
    assert_eq!(
        error(&["--v-min=NaN"]),
        "--v-min is not finite: must be a number from -1e15 to 1e15"
    );
    assert_eq!(
        error(&["--train-frequency=7"]),
        "--target-network-frequency 100: must be a multiple of --train-frequency 7"
    );
    let env_error = error(&["--env-id=Pendulum-v1"]);
    assert!(env_error.contains("c51 chooses among discrete actions"), "{env_error}");
}
