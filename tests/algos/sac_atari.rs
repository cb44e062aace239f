//! SAC on images: losses compared with JAX, short runs on boards and frames, invalid settings.

use podracer::algos::sac_atari::{
    Actor, Agent, Args, QNetwork, actor_loss, alpha_loss, critic_loss, td_target,
};
use podracer::rl::Algorithm;
use podracer::rl::buffers::frames::SampledBatch;
use podracer::{Array, Tensor, interpret, value_and_grad};

use super::cases::{Case, args, refused};
use super::dqn_atari::{sampled_batch, trunk};
use super::models::model;
use super::scalars;

const SMALL: &[&str] = &[
    "--env-id=MinAtar/Breakout-v1",
    "--total-timesteps=600",
    "--learning-starts=200",
    "--target-network-frequency=100",
    "--buffer-size=250",
    "--batch-size=8",
];

#[test]
fn losses_equal_those_of_jax() {
    let case = Case::of("sac_atari");
    let head = |prefix: &str| case.dense(&format!("{prefix}w"), &format!("{prefix}b"));
    let q_network = |prefix: &str| QNetwork { trunk: trunk(&case, prefix), head: head(prefix) };
    type Critics<T> = [QNetwork<T>; 2];
    type Input<T> = (Agent<T>, Critics<T>, SampledBatch<T>, T);
    let run = interpret(|(agent, target, batch, log_alpha): Input<Tensor>| {
        let (Agent { actor, qf }, alpha) = (agent, log_alpha.exp());
        let td_target = td_target(&actor, &target, alpha, &batch);
        let loss = |qf: Critics<Tensor>| critic_loss(&qf, &batch, td_target);
        let ((critic_loss, metrics), critic_grads) = value_and_grad(loss)(qf.clone());
        let min_q_values = qf[0].apply(batch.obs).minimum(qf[1].apply(batch.obs));
        let loss = |actor: Actor<Tensor>| actor_loss(&actor, min_q_values, alpha, batch.obs);
        let ((actor_loss, _), actor_grads) = value_and_grad(loss)(actor.clone());
        let policy = actor.policy(batch.obs);
        let loss = |log_alpha: Tensor| alpha_loss(log_alpha, &policy, 0.89 * 2f64.ln());
        let tuned = value_and_grad(loss)(log_alpha);
        let hidden = actor_grads.trunk.dense[0].w.slice_axis(0, 0, 3);
        let q_values = [metrics.qf1_values, metrics.qf2_values];
        let critic = (critic_loss, q_values, critic_grads[0].head.w);
        (td_target, critic, (actor_loss, actor_grads.head.w, hidden), tuned)
    });
    let critics = |suffix: &str| ["one_", "two_"].map(|name| q_network(&format!("{name}{suffix}")));
    let actor = Actor { trunk: trunk(&case, "actor_"), head: head("actor_") };
    let agent = Agent { actor, qf: critics("") };
    let input = (agent, critics("target_"), sampled_batch(&case), case.f32("log_alpha"));
    let (td_target, critic, actor, (tuned, alpha_grad)) = run.call(input).unwrap();
    case.close("goal", &td_target);
    case.close("critic_loss", &critic.0);
    let values: Vec<f32> = critic.1.iter().map(|x| x.item().unwrap()).collect();
    case.close("q_values", &Array::new([2], &values).unwrap());
    case.close("grad_one_w", &critic.2);
    case.close("actor_loss", &actor.0);
    case.close("grad_actor_w", &actor.1);
    case.close("grad_actor_hidden", &actor.2);
    case.close("alpha_loss", &tuned);
    case.close("grad_alpha", &alpha_grad);
}

/// The bytes of an array in a saved model.
fn of<'m>(model: &'m [(String, Vec<u8>)], name: &str) -> &'m [u8] {
    &model.iter().find(|(found, _)| found == name).unwrap_or_else(|| panic!("no {name}")).1
}

#[test]
fn temperature_is_learned_only_with_autotune() {
    let runs = tempfile::tempdir().unwrap();
    let saved = ["--save-model", "--eval-episodes=0"];
    let run = |more: &[&str]| {
        let summary =
            args::<Args>(runs.path(), SMALL, &[&saved[..], more].concat()).train().unwrap();
        let logged = scalars(&summary.run_dir);
        let alphas: Vec<f32> = logged
            .iter()
            .filter(|((tag, _), _)| tag == "losses/alpha")
            .map(|(_, v)| v[0])
            .collect();
        (model(&summary), alphas)
    };
    let (learned, alphas) = run(&["--exp-name=a"]);
    assert!(alphas.windows(2).all(|pair| pair[0] != pair[1]) && alphas.len() > 2, "{alphas:?}");
    let (fixed, alphas) = run(&["--no-autotune", "--alpha=0.5", "--exp-name=b"]);
    assert!(alphas.iter().all(|alpha| (alpha - 0.5).abs() < 1e-6), "{alphas:?}");
    let actor = "$.agent.actor.head.w";
    assert_ne!(of(&learned, actor), of(&fixed, actor));
    // The target was last updated after the last gradient step, so it equals the critics.
    let pair = ["$.agent.qf[1].head.w", "$.target[1].head.w"];
    assert_eq!(of(&learned, pair[0]), of(&learned, pair[1]));
    let (slow, _) = run(&["--tau=0.5", "--exp-name=c"]);
    assert_ne!(of(&slow, pair[0]), of(&slow, pair[1]));
}

#[test]
fn trains_on_atari_frames() {
    let runs = tempfile::tempdir().unwrap();
    let more = [
        "--env-id=Pong-v5",
        "--num-envs=2",
        "--total-timesteps=48",
        "--target-network-frequency=16",
        "--learning-starts=16",
        "--batch-size=2",
        "--save-model",
        "--eval-episodes=0",
    ];
    let summary = args::<Args>(runs.path(), SMALL, &more).train().unwrap();
    assert_eq!(summary.global_step, 48);
    for (net, count) in [("$.agent.actor.", 1), ("$.agent.qf", 2), ("$.target", 2)] {
        let sizes: usize = model(&summary)
            .iter()
            .filter(|(name, _)| name.starts_with(net))
            .map(|(_, bytes)| bytes.len() / 4)
            .sum();
        // The Nature network, and an output layer of six units.
        assert_eq!(sizes, count * (1_684_128 + 512 * 6 + 6), "{net}");
    }
}

#[test]
fn invalid_settings_are_refused() {
    let error = |more: &[&str]| refused::<Args>(SMALL, more);
    assert_eq!(error(&["--tau=2"]), "--tau 2: must be a number from 0 to 1");
    assert_eq!(error(&["--alpha=0"]), "--alpha 0: must be a number from 1e-37 to 1e15");
    assert_eq!(
        error(&["--target-entropy-scale=1.5"]),
        "--target-entropy-scale 1.5: must be a number from 0 to 1"
    );
    assert_eq!(error(&["--q-lr=-1"]), "--q-lr -1: must be a number from 0 to 1e15");
    assert_eq!(
        error(&["--batch-size=0"]),
        "--batch-size 0: must be a whole number from 1 to 1048576"
    );
    assert_eq!(error(&["--buffer-size=11"]), "--buffer-size 11: must be 12 to 2147483647");
    assert_eq!(
        error(&["--update-frequency=3"]),
        "--target-network-frequency 100: must be a multiple of --update-frequency 3"
    );
    let text = error(&["--env-id=CartPole-v1"]);
    assert!(text.contains("sac_atari takes images u8[4, 84, 84]"), "{text}");
}
