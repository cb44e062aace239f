//! Training on CartPole as one program, against plain jax in PureJaxRL's shape.
//!
//! usage: PODRACER_PEER_PYTHON=.. cargo bench --bench anakin [-- NUM_SEEDS[xNUM_ENVS]..]
//!
//! Microseconds per update of an agent: 128 steps of each of its environments, 4 without `xNUM_ENVS`, and
//! 16 gradient steps. Both sides train on from where they are, alternately.

use std::time::Instant;

use podracer::algos::ppo_anakin::{Args, init_runner, train_iterations};
use podracer::error::Result;
use podracer::rl::Algorithm;
use podracer::rl::anakin::{AnakinEnv, TrainFn, start_runtime};
use podracer::runtime::{Runtime, RuntimeOptions};
use podracer::{Key, Tensor, jit, vmap};

#[path = "peer/mod.rs"]
mod peer;

use peer::{Peer, Row, processor_seconds};

/// Updates in one launch, as many as the peer's.
fn launch(seeds: usize, num_envs: usize) -> u64 {
    match seeds * num_envs {
        ..=4 => 64,
        5..=32 => 16,
        _ => 4,
    }
}

fn main() -> Result<()> {
    // Cargo passes --bench along.
    let asked: Vec<(usize, usize)> = std::env::args()
        .skip(1)
        .filter_map(|x| {
            let (seeds, num_envs) = x.split_once('x').unwrap_or((&x, "4"));
            seeds.parse().ok().zip(num_envs.parse().ok())
        })
        .collect();
    let asked = if asked.is_empty() { vec![(1, 4), (8, 4), (64, 4)] } else { asked };
    // As many as the runs with several seeds take.
    let cpu_devices = std::thread::available_parallelism().map_or(1, |n| n.get());
    Runtime::start(RuntimeOptions::with_cpu_devices(cpu_devices))?;
    let mut peer = Peer::start("purejaxrl_cartpole.py");
    Row::header();
    for (seeds, num_envs) in asked {
        // As many updates as the peer's learning rate falls over.
        let timesteps = 976 * 128 * num_envs;
        let values = [seeds, num_envs, timesteps].map(|value| value.to_string());
        let [seeds_text, num_envs_text, timesteps] = values.each_ref().map(String::as_str);
        let args = ["--num-seeds", seeds_text, "--num-envs", num_envs_text];
        let args = args.into_iter().chain(["--total-timesteps", timesteps]);
        let args = Args::from_flags(args).expect("known flags");
        let env = AnakinEnv::new(&args)?;
        let (updates, alone) = (launch(seeds, num_envs), seeds == 1);
        let init = jit(|key: Key<Tensor>| {
            let init = |key| init_runner(&env, key, &args);
            if alone { init(key) } else { vmap(init)(key.split_batch(seeds)) }
        });
        let devices = start_runtime(&args.agents, &args.run)?;
        let run = TrainFn::new(&args, &env, updates, devices, train_iterations);
        let mut state = init.call(Key::new(30))?;
        let name = format!("{seeds} seeds of {num_envs} environments");
        let mut wall = Row::new(format!("{name}, us"));
        let mut processor = Row::new(format!("{name}, us of processor time"));
        let each = 1e6 / (seeds as u64 * updates) as f64;
        for step in 0..11 {
            let (start, used) = (Instant::now(), processor_seconds());
            let (next_state, report) = run.call(state)?;
            report.metrics.explained_variance.wait()?;
            if step > 0 {
                wall.ours(start.elapsed().as_secs_f64() * each);
                processor.ours((processor_seconds() - used) * each);
                wall.peer(&mut peer, &format!("{seeds}x{num_envs}"));
                processor.peer(&mut peer, "processor");
            }
            state = next_state;
        }
        wall.print();
        processor.print();
    }
    Ok(())
}
