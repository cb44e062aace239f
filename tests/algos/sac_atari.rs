//! SAC on images: its losses against JAX, small runs on boards and on a game, its bad settings.

use podracer::algos::sac_atari::{
    Args, Network, Temperature, actor_loss, alpha_loss, critic_loss, goal,
};
use podracer::distributions::Categorical;
use podracer::rl::Algorithm;
use podracer::rl::frames::SampledBatch;
use podracer::{Array, Tensor, interpret, value_and_grad};

use super::cases::{Case, args, model, one_seed_gives_one_run, refused};
use super::dqn_atari::{drawn, trunk};
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
fn the_losses_are_those_of_jax() {
    let case = Case::of("sac_atari");
    let net = |prefix: &str| Network {
        trunk: trunk(&case, prefix),
        head: case.dense(&format!("{prefix}w"), &format!("{prefix}b")),
    };
    type Pair<T> = [Network<T>; 2];
    type Nets<T> = (Network<T>, Pair<T>, Pair<T>, Temperature<T>);
    let run = interpret(|(nets, batch): (Nets<Tensor>, SampledBatch<Tensor>)| {
        let (actor, critics, targets, temperature) = nets;
        let alpha = temperature.log_alpha.exp();
        let goal = goal(&actor, &targets, alpha, &batch);
        let ((critic, told), critic_grads) =
            value_and_grad(|critics: Pair<Tensor>| critic_loss(&critics, &batch, goal))(
                critics.clone(),
            );
        let values = critics[0].apply(batch.obs).minimum(critics[1].apply(batch.obs));
        let ((lost, _), actor_grads) =
            value_and_grad(|actor: Network<Tensor>| actor_loss(&actor, values, alpha, batch.obs))(
                actor.clone(),
            );
        let policy = Categorical::new(actor.apply(batch.obs));
        let target = 0.89 * 2f64.ln();
        let tuned = value_and_grad(|temperature: Temperature<Tensor>| {
            alpha_loss(&temperature, &policy, target)
        })(temperature);
        let hidden = actor_grads.trunk.hidden.w.slice_axis(0, 0, 3);
        let critic = (critic, [told.qf1_values, told.qf2_values], critic_grads[0].head.w);
        (goal, critic, (lost, actor_grads.head.w, hidden), tuned)
    });
    let pair = |suffix: &str| ["one_", "two_"].map(|name| net(&format!("{name}{suffix}")));
    let temperature = Temperature { log_alpha: case.f32("log_alpha") };
    let nets: Nets<Array> = (net("actor_"), pair(""), pair("target_"), temperature);
    let (goal, critic, actor, (tuned, alpha_grad)) = run.call((nets, drawn(&case))).unwrap();
    case.close("goal", &goal);
    case.close("critic_loss", &critic.0);
    let values: Vec<f32> = critic.1.iter().map(|x| x.item().unwrap()).collect();
    case.close("q_values", &Array::new([2], &values).unwrap());
    case.close("grad_one_w", &critic.2);
    case.close("actor_loss", &actor.0);
    case.close("grad_actor_w", &actor.1);
    case.close("grad_actor_hidden", &actor.2);
    case.close("alpha_loss", &tuned);
    case.close("grad_alpha", &alpha_grad.log_alpha);
}

#[test]
fn one_seed_is_one_run() {
    let tags = one_seed_gives_one_run::<Args>(SMALL);
    for tag in [
        "charts/episodic_return",
        "eval/episodic_return",
        "losses/qf_loss",
        "losses/qf2_values",
        "losses/actor_loss",
        "losses/alpha",
        "losses/alpha_loss",
    ] {
        assert!(tags.iter().any(|t| t == tag), "{tag}: {tags:?}");
    }
}

/// The bytes of an array in a saved model.
fn of<'m>(model: &'m [(String, Vec<u8>)], name: &str) -> &'m [u8] {
    &model.iter().find(|(found, _)| found == name).unwrap_or_else(|| panic!("no {name}")).1
}

#[test]
fn the_temperature_is_learned_or_stays() {
    let runs = tempfile::tempdir().unwrap();
    let saved = ["--save-model", "--eval-episodes=0"];
    let run = |more: &[&str]| {
        let summary =
            args::<Args>(runs.path(), SMALL, &[&saved[..], more].concat()).train().unwrap();
        let told = scalars(&summary.run_dir);
        let alphas: Vec<f32> =
            told.iter().filter(|((tag, _), _)| tag == "losses/alpha").map(|(_, v)| v[0]).collect();
        (model(&summary), alphas)
    };
    let (learned, alphas) = run(&["--exp-name=a"]);
    assert!(alphas.windows(2).all(|pair| pair[0] != pair[1]) && alphas.len() > 2, "{alphas:?}");
    let (fixed, alphas) = run(&["--no-autotune", "--alpha=0.5", "--exp-name=b"]);
    assert!(alphas.iter().all(|alpha| (alpha - 0.5).abs() < 1e-6), "{alphas:?}");
    let actor = "$.networks.actor.head.w";
    assert_ne!(of(&learned, actor), of(&fixed, actor));
    // The last copy is of the last call, so the targets are the critics.
    let pair = ["$.networks.critics[1].head.w", "$.targets[1].head.w"];
    assert_eq!(of(&learned, pair[0]), of(&learned, pair[1]));
    let (slow, _) = run(&["--tau=0.5", "--exp-name=c"]);
    assert_ne!(of(&slow, pair[0]), of(&slow, pair[1]));
}

#[test]
fn games_are_played_on_frames() {
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
    for (net, count) in [("$.networks.actor.", 1), ("$.networks.critics", 2), ("$.targets", 2)] {
        let sizes: usize = model(&summary)
            .iter()
            .filter(|(name, _)| name.starts_with(net))
            .map(|(_, bytes)| bytes.len() / 4)
            .sum();
        // The Nature network, and six numbers.
        assert_eq!(sizes, count * (1_684_128 + 512 * 6 + 6), "{net}");
    }
}

#[test]
fn settings_that_cannot_be_are_told() {
    let told = |more: &[&str]| refused::<Args>(SMALL, more);
    assert_eq!(told(&["--tau=2"]), "--tau 2: must be a number from 0 to 1");
    assert_eq!(told(&["--alpha=0"]), "--alpha 0: must be a number from 1e-37 to 1e15");
    assert_eq!(
        told(&["--target-entropy-scale=1.5"]),
        "--target-entropy-scale 1.5: must be a number from 0 to 1"
    );
    assert_eq!(told(&["--q-lr=-1"]), "--q-lr -1: must be a number from 0 to 1e15");
    assert_eq!(
        told(&["--batch-size=0"]),
        "--batch-size 0: must be a whole number from 1 to 1048576"
    );
    assert_eq!(told(&["--buffer-size=11"]), "--buffer-size 11: must be 12 to 2147483647");
    assert_eq!(
        told(&["--update-frequency=3"]),
        "--target-network-frequency 100: must be a multiple of --update-frequency 3"
    );
    let text = told(&["--env-id=CartPole-v1"]);
    assert!(text.contains("sac_atari takes images u8[4, 84, 84]"), "{text}");
}
