//! CrossQ: updates of critics, actor and temperature against JAX and Flax, small runs, refused settings.

use podracer::algos::crossq_continuous_action::{
    Actor, Agent, AgentStats, Args, BatchStats, Network, OptState, QNetwork, TrainState,
    update_actor, update_alpha, update_critic,
};
use podracer::nn::{BatchRenorm, BatchRenormStats, BatchStats as Moments};
use podracer::optim::Adam;
use podracer::rl::Algorithm;
use podracer::rl::buffers::replay::Transition;
use podracer::rl::environments::bounds::Bounds;
use podracer::{Array, Tensor, interpret};

use super::cases::{Case, refused};

const SMALL: &[&str] = &[
    "--env-id=Pendulum-v1",
    "--total-timesteps=612",
    "--learning-starts=300",
    "--buffer-size=400",
    "--batch-size=16",
    "--n-neurons=32",
];

/// A network of the fixture with its statistics, before the 100,000 steps of its warm-up.
fn network(case: &Case, prefix: &str) -> (Network<Array>, BatchStats<Array>) {
    let named = |name: &str, i: usize| case.f32(&format!("{prefix}_{name}{i}"));
    let norm = |i: usize| BatchRenorm {
        scale: Some(named("scale", i)),
        bias: Some(named("bias", i)),
        momentum: 0.99,
        epsilon: 1e-3,
        r_max: 3.0,
        d_max: 5.0,
        warmup_steps: 100_000,
    };
    let layer = |i: usize| case.dense(&format!("{prefix}_w{i}"), &format!("{prefix}_b{i}"));
    let stats = |i: usize| BatchRenormStats {
        stats: Moments { mean: named("mean", i), var: named("var", i) },
        steps: Array::from(7i32),
    };
    let network =
        Network { norms: (0..3).map(norm).collect(), layers: (0..3).map(layer).collect() };
    (network, (0..3).map(stats).collect())
}

fn statistics_equal(case: &Case, prefix: &str, stats: &BatchStats<Array>, steps: i32) {
    for (i, layer) in stats.iter().enumerate() {
        case.close(&format!("{prefix}_mean{i}"), &layer.stats.mean);
        case.close(&format!("{prefix}_var{i}"), &layer.stats.var);
        assert_eq!(layer.steps.item::<i32>().unwrap(), steps);
    }
}

/// Two updates of the critics, then one of the actor and of the temperature.
#[test]
fn updates_equal_jax() {
    let case = Case::of("crossq");
    let flags = ["--gamma=0.9", "--q-lr=0.01", "--policy-lr=0.01"];
    let args = Args::from_flags(flags).unwrap();
    let (actor, actor_stats) = network(&case, "actor");
    let [(one, one_stats), (two, two_stats)] = ["one", "two"].map(|name| network(&case, name));
    let bounds = Bounds::new(&[-1.0, -1.0], &[1.0, 1.0]).unwrap();
    let agent = Agent {
        actor: Actor { layers: actor, bounds },
        qf: [QNetwork { layers: one }, QNetwork { layers: two }],
    };
    let stats = AgentStats { actor: actor_stats, qf: [one_stats, two_stats] };
    let batch = Transition {
        obs: case.f32("obs"),
        action: case.f32("action"),
        reward: case.f32("reward"),
        next_obs: case.f32("next_obs"),
        terminated: case.f32("terminated"),
    };
    let input = ((agent, stats), (batch, case.f32("noises"), case.f32("log_alpha")));
    type Networks = (Agent<Tensor>, AgentStats<Tensor>);
    type Data = (Transition<Tensor>, Tensor, Tensor);
    let run = interpret(|((agent, stats), (batch, noises, log_alpha)): (Networks, Data)| {
        let opt_state = OptState {
            actor: Adam::default().init(&agent.actor),
            qf: Adam::default().init(&agent.qf),
            log_alpha: Adam::default().init(&log_alpha),
        };
        let noise = |i: isize| noises.index_axis(0, i);
        let state = TrainState { agent, stats, log_alpha, opt_state };
        let (state, first) = update_critic(state, &batch, noise(0), &args);
        let (state, second) = update_critic(state, &batch, noise(1), &args);
        let (state, (actor_loss, log_prob)) = update_actor(state, &batch, noise(2), &args);
        let (state, alpha_loss) = update_alpha(state, log_prob, &args);
        let critics = [first.qf1_loss, first.qf2_loss, second.qf1_loss, second.qf2_loss];
        (state, critics, (actor_loss, alpha_loss))
    });
    let (state, critics, (actor_loss, alpha_loss)) = run.call(input).unwrap();
    let critics: Vec<f32> = critics.iter().map(|x| x.item::<f32>().unwrap()).collect();
    case.close("critic_losses", &Array::new([2, 2], &critics).unwrap());
    case.close("actor_loss", &actor_loss);
    case.close("alpha_loss", &alpha_loss);
    case.close("updated_log_alpha", &state.log_alpha);

    let [one, two] = state.agent.qf.each_ref().map(|q| &q.layers);
    case.close("updated_one_w0", &one.layers[0].w);
    case.close("updated_one_b0", one.layers[0].b.as_ref().unwrap());
    case.close("updated_one_w1", &one.layers[1].w);
    case.close("updated_one_scale0", one.norms[0].scale.as_ref().unwrap());
    case.close("updated_one_w2", &one.layers[2].w);
    case.close("updated_two_w0", &two.layers[0].w);
    case.close("updated_two_bias2", two.norms[2].bias.as_ref().unwrap());
    case.close("updated_two_b2", two.layers[2].b.as_ref().unwrap());
    let actor = &state.agent.actor.layers;
    case.close("updated_actor_w0", &actor.layers[0].w);
    case.close("updated_actor_w1", &actor.layers[1].w);
    case.close("updated_actor_w2", &actor.layers[2].w);
    case.close("updated_actor_b2", actor.layers[2].b.as_ref().unwrap());
    case.close("updated_actor_scale1", actor.norms[1].scale.as_ref().unwrap());
    statistics_equal(&case, "updated_one", &state.stats.qf[0], 9);
    statistics_equal(&case, "updated_actor", &state.stats.actor, 8);
}

#[test]
fn invalid_settings_are_refused() {
    let error = |more: &[&str]| refused::<Args>(SMALL, more);
    assert_eq!(error(&["--adam-b1=2"]), "--adam-b1 2: must be a number from 0 to 0.9999");
    let few = error(&["--total-timesteps=50"]);
    assert_eq!(few, "--total-timesteps 50: must be at least 102, the timesteps of one call");
    let env_error = error(&["--env-id=CartPole-v1"]);
    assert!(env_error.contains("crossq_continuous_action"), "{env_error}");
}
