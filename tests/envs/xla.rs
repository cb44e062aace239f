//! The env pool inside compiled code.

use podracer::envs::{
    Action, Autoreset, Batch, Env, EnvPool, EnvRng, EnvSpec, EnvStep, Handle, ObsMut, PoolOptions,
    StepOutcome, XlaPool, make,
};
use podracer::error::{Error, Result};
use podracer::trace::control::{ScanOptions, scan, scan_with};
use podracer::{Array, DType, Jit, Tensor, eager, interpret, jit, vmap};
use pretty_assertions::assert_eq;

const TURNS: usize = 40;

fn options(num_envs: usize) -> PoolOptions {
    PoolOptions { num_envs, seed: 7, max_episode_steps: Some(25), ..Default::default() }
}

fn cartpole(options: PoolOptions) -> EnvPool {
    EnvPool::make("CartPole-v1", options).unwrap()
}

/// Actions of each turn, in which episodes end in different turns.
fn actions(num_envs: usize) -> Vec<i32> {
    (0..TURNS * num_envs).map(|i| i32::from(i % 3 == 0 || i % 7 == i % num_envs)).collect()
}

type Rollout = (Handle<Tensor>, Tensor);

/// All that the turns of a rollout said, as the host's pool says it.
fn compare(steps: &EnvStep<Array>, batches: &[Batch]) {
    fn all<T: Clone>(batches: &[Batch], get: impl Fn(&Batch) -> &[T]) -> Vec<T> {
        batches.iter().flat_map(|batch| get(batch).to_vec()).collect()
    }
    assert_eq!(steps.obs.to_vec::<f32>().unwrap(), all(batches, |b| b.obs::<f32>()));
    assert_eq!(steps.reward.to_vec::<f32>().unwrap(), all(batches, |b| b.reward()));
    assert_eq!(steps.terminated.to_vec::<bool>().unwrap(), all(batches, |b| b.terminated()));
    assert_eq!(steps.truncated.to_vec::<bool>().unwrap(), all(batches, |b| b.truncated()));
    assert_eq!(steps.first.to_vec::<bool>().unwrap(), all(batches, |b| b.first()));
    assert_eq!(steps.life_lost.to_vec::<bool>().unwrap(), all(batches, |b| b.life_lost()));
    assert_eq!(steps.env_id.to_vec::<i32>().unwrap(), all(batches, |b| b.env_id()));
    assert_eq!(steps.elapsed_steps.to_vec::<i32>().unwrap(), all(batches, |b| b.elapsed_steps()));
    assert_eq!(steps.finished.to_vec::<bool>().unwrap(), all(batches, |b| b.finished()));
    let returns = steps.episodic_return.to_vec::<f32>().unwrap();
    assert_eq!(returns, all(batches, |b| b.episodic_return()));
    let lengths = steps.episodic_length.to_vec::<i32>().unwrap();
    assert_eq!(lengths, all(batches, |b| b.episodic_length()));
    if let Some(final_obs) = &steps.final_obs {
        let expected: Vec<f32> = batches
            .iter()
            .flat_map(|batch| {
                (0..batch.len()).flat_map(|row| batch.final_obs(row).unwrap_or(&[0.0; 4]).to_vec())
            })
            .collect();
        assert_eq!(final_obs.to_vec::<f32>().unwrap(), expected);
    }
}

/// What the host's pool says to the same actions.
fn on_the_host(mut pool: EnvPool, actions: &[i32]) -> Vec<Batch> {
    pool.reset().unwrap();
    actions.chunks(pool.num_envs()).map(|actions| pool.step(actions).unwrap()).collect()
}

#[test]
fn a_rollout_in_a_scan_is_that_of_the_host_in_every_mode() {
    let batches = on_the_host(cartpole(options(5)), &actions(5));
    // The test would show nothing if no episode ended, or all in one way.
    let ended = |get: fn(&Batch) -> &[bool]| batches.iter().flat_map(get).any(|&end| end);
    assert!(ended(Batch::terminated) && ended(Batch::truncated) && ended(Batch::finished));
    for threads in [1, 2] {
        for mode in 0..3 {
            let pool = cartpole(PoolOptions { num_threads: threads, ..options(5) });
            let (handle, envs) = pool.xla().unwrap();
            let envs = envs.with_final_obs().unwrap();
            let rollout = |(handle, actions): Rollout| {
                let (handle, _) = envs.reset(handle);
                scan(|handle, actions| envs.step(handle, actions), handle, actions)
            };
            let rollout = match mode {
                0 => jit(rollout),
                1 => eager(rollout),
                _ => interpret(rollout),
            };
            let actions = Array::new([TURNS, 5], &actions(5)).unwrap();
            let (_, steps) = rollout.call((handle, actions)).unwrap();
            compare(&steps, &batches);
        }
    }
}

/// The handle that one run gives is the next one's; the pool goes on where it was.
#[test]
fn runs_follow_one_another() {
    let batches = on_the_host(cartpole(options(3)), &actions(3));
    let (handle, envs) = cartpole(options(3)).xla().unwrap();
    let reset = jit(|handle: Handle<Tensor>| envs.reset(handle).0);
    let step = jit(|(handle, actions): Rollout| envs.step(handle, actions));
    let mut handle = reset.call(handle).unwrap();
    let mut all = Vec::new();
    // Launched one after the other, and read when all are under way.
    for actions in actions(3).chunks(3) {
        let (next, steps) = step.call((handle, Array::from(actions.to_vec()))).unwrap();
        handle = next;
        all.push(steps);
    }
    for (steps, batch) in all.iter().zip(&batches) {
        compare(steps, std::slice::from_ref(batch));
    }
    let finished = envs.pool(0).take_finished();
    assert_eq!(finished.len(), batches.iter().flat_map(Batch::finished).filter(|&&x| x).count());
}

#[test]
fn batches_of_some_are_sent_and_received() {
    let options = PoolOptions { batch_size: 2, num_threads: 2, ..options(6) };
    let (handle, envs) = cartpole(options.clone()).xla().unwrap();
    let rollout = jit(|handle: Handle<Tensor>| {
        let handle = envs.async_reset(handle);
        let step = |handle, ()| {
            let (handle, step) = envs.recv(handle);
            let action = step.obs.index_axis(1, 2).gt(0.0).to(DType::I32);
            (envs.send(handle, action, step.env_id), step)
        };
        scan_with(step, handle, (), ScanOptions::length(TURNS))
    });
    let (_, steps) = rollout.call(handle).unwrap();

    let mut pool = cartpole(options);
    pool.async_reset().unwrap();
    let mut batches = Vec::new();
    for _ in 0..TURNS {
        let batch = pool.recv().unwrap();
        let actions: Vec<i32> =
            batch.obs::<f32>().chunks(4).map(|x| i32::from(x[2] > 0.0)).collect();
        pool.send(&actions, batch.env_id()).unwrap();
        batches.push(batch);
    }
    compare(&steps, &batches);
}

/// `vmap` over agents with three environments each is one pool of six.
#[test]
fn vmap_splits_the_rows() {
    let batches = on_the_host(cartpole(options(6)), &actions(6));
    for mode in 0..2 {
        let (handle, envs) = cartpole(options(6)).xla().unwrap();
        let run = |(handle, actions): Rollout| {
            let (handle, _) = envs.reset(handle);
            let pool = handle.into_data();
            let agent = |actions: Tensor| {
                let step = |handle, actions| envs.step(handle, actions);
                scan(step, Handle::from_data(pool), actions).1
            };
            vmap(agent)(actions)
        };
        let run = if mode == 0 { jit(run) } else { interpret(run) };
        // [agent, turn, environment]
        let by_turn = actions(6);
        let by_agent: Vec<i32> = (0..2)
            .flat_map(|agent| (0..TURNS).map(move |step| (agent, step)))
            .flat_map(|(agent, step)| by_turn[step * 6 + agent * 3..][..3].to_vec())
            .collect();
        let actions = Array::new([2, TURNS, 3], &by_agent).unwrap();
        let steps = run.call((handle, actions)).unwrap();
        let reward: Vec<f32> = (0..2)
            .flat_map(|agent| batches.iter().map(move |batch| (agent, batch)))
            .flat_map(|(agent, batch)| batch.reward()[agent * 3..][..3].to_vec())
            .collect();
        assert_eq!(steps.reward.to_vec::<f32>().unwrap(), reward);
        let obs: Vec<f32> = (0..2)
            .flat_map(|agent| batches.iter().map(move |batch| (agent, batch)))
            .flat_map(|(agent, batch)| batch.obs::<f32>()[agent * 12..][..12].to_vec())
            .collect();
        assert_eq!(steps.obs.to_vec::<f32>().unwrap(), obs);
    }
}

#[test]
fn continuous_actions_step_as_without_the_handle() {
    let pool = |threads| {
        let options = PoolOptions { num_envs: 2, num_threads: threads, ..Default::default() };
        EnvPool::make("Pendulum-v1", options).unwrap()
    };
    let (handle, envs) = pool(2).xla().unwrap();
    let f = jit(|(handle, actions): Rollout| {
        let (handle, _) = envs.reset(handle);
        envs.step(handle, actions).1
    });
    let steps = f.call((handle, Array::new([2, 1], &[0.5f32, -2.0]).unwrap())).unwrap();
    let mut host = pool(1);
    host.reset().unwrap();
    compare_obs(&steps, &host.step(&[0.5f32, -2.0]).unwrap());
}

fn compare_obs(steps: &EnvStep<Array>, batch: &Batch) {
    assert_eq!(steps.obs.to_vec::<f32>().unwrap(), batch.obs::<f32>());
    assert_eq!(steps.reward.to_vec::<f32>().unwrap(), batch.reward());
}

// ---- What is wrong ---------------------------------------------------------------------------

fn error<A, B, F>(f: &Jit<A, B, F>, argument: A::With<Array>) -> String
where
    A: podracer::tree::Tree<Tensor>,
    B: podracer::tree::Tree<Tensor>,
    F: Fn(A) -> B,
    B::With<Array>: podracer::tree::Tree<Array>,
{
    let called = f.call(argument).and_then(|results| {
        podracer::tree::leaves::<Array, _>(&results).iter().try_for_each(Array::wait)
    });
    called.unwrap_err().to_string()
}

fn stepper(envs: &XlaPool) -> Jit<Rollout, Tensor, impl Fn(Rollout) -> Tensor> {
    jit(|(handle, actions): Rollout| {
        let (handle, _) = envs.reset(handle);
        envs.step(handle, actions).1.obs
    })
}

#[test]
fn an_action_out_of_range_is_the_calls_error() {
    let (handle, envs) = cartpole(options(2)).xla().unwrap();
    let message = error(&stepper(&envs), (handle, Array::from([1i32, 2])));
    assert!(message.contains("CartPole-v1: env 1: its action is 2, expected 0 to 1"), "{message}");
    assert!(message.contains("envs/xla.rs"), "{message}");
}

#[test]
fn actions_of_the_wrong_kind_end_the_trace() {
    let (handle, envs) = cartpole(options(4)).xla().unwrap();
    let number = || Handle::from_data(Array::from(0i32));
    let message = error(&stepper(&envs), (handle, Array::from([1.0f32; 4])));
    assert!(
        message.contains("the actions are f32[4], expected i32 with a first axis"),
        "{message}"
    );
    assert!(message.contains("envs/xla.rs"), "{message}");
    let message = error(&stepper(&envs), (number(), Array::zeros([4, 1], DType::I32)));
    assert!(message.contains("the actions are i32[4,1]"), "{message}");
    let message = error(&stepper(&envs), (number(), Array::zeros([3], DType::I32)));
    assert!(
        message.contains("actions for 3 environments do not make up a batch of 4"),
        "{message}"
    );
    // Half of a batch divides it, and without a vmap there is no other half.
    let message = error(&stepper(&envs), (number(), Array::zeros([2], DType::I32)));
    assert!(message.contains("4 environments"), "{message}");
}

#[test]
fn a_step_before_the_reset_is_the_calls_error() {
    let (handle, envs) = cartpole(options(2)).xla().unwrap();
    let f = jit(|(handle, actions): Rollout| envs.step(handle, actions).1.obs);
    let message = error(&f, (handle, Array::from([1i32, 1])));
    assert!(message.contains("env 0 has not been reset"), "{message}");
}

#[test]
fn a_handle_of_no_pool_is_the_calls_error() {
    let (_, envs) = cartpole(options(2)).xla().unwrap();
    let handle = Handle::from_data(Array::from(3i32));
    let message = error(&stepper(&envs), (handle, Array::from([1i32, 1])));
    assert!(message.contains("the handle names pool 3, and there are 1"), "{message}");
}

#[test]
fn a_panicking_environment_is_the_calls_error() {
    struct Broken(Box<dyn Env>);
    impl Env for Broken {
        fn spec(&self) -> EnvSpec {
            self.0.spec()
        }
        fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
            self.0.reset(rng, obs)
        }
        fn step(&mut self, _: Action<'_>, _: &mut EnvRng, _: ObsMut<'_>) -> Result<StepOutcome> {
            panic!("the cart is gone");
        }
    }
    for threads in [1, 2] {
        let factory = |i: usize| -> Result<Box<dyn Env>> {
            let env = make("CartPole-v1")?;
            Ok(if i == 1 { Box::new(Broken(env)) } else { env })
        };
        let options = PoolOptions { num_threads: threads, ..options(2) };
        let (handle, envs) = EnvPool::custom(factory, options).unwrap().xla().unwrap();
        let step = stepper(&envs);
        let message = error(&step, (handle, Array::from([1i32, 1])));
        assert!(message.contains("CartPole-v1: env 1 panicked: the cart is gone"), "{message}");
        // The pool has ended, and says so again.
        let number = Handle::from_data(Array::from(0i32));
        let message = error(&step, (number, Array::from([1i32, 1])));
        assert!(message.contains("the pool ended there; make a new one"), "{message}");
    }
}

#[test]
fn options_that_make_no_sense() {
    let config = |outcome: Result<XlaPool>| match outcome {
        Err(Error::Config(message)) => message,
        other => panic!("{other:?}"),
    };
    let (_, envs) = cartpole(options(4)).xla().unwrap();
    assert_eq!(config(envs.split(3)), "4 rows do not divide into 3 equal shares");
    let next = PoolOptions { autoreset: Autoreset::NextStep, ..options(4) };
    let (_, next) = cartpole(next).xla().unwrap();
    assert!(config(next.with_final_obs()).contains("this pool's autoreset is NextStep"));
    assert!(config(XlaPool::new(vec![]).map(|(_, pool)| pool)).contains("at least one pool"));
    let mixed = XlaPool::new(vec![cartpole(options(4)), cartpole(options(2))]);
    assert!(config(mixed.map(|(_, pool)| pool)).contains("pool 1 (CartPole-v1, batches of 2"));
}
