//! Answers requests with a trained policy: loads the model of a run, compiles it before the first
//! request, and answers from several threads that share it. Prints requests per second and the median and
//! the 99th percentile of the latency.
//!
//! ```text
//! cargo run --release --example policy_service -- --run runs/CartPole-v1__ppo__1__1795252538
//! ```

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use podracer::algos::ppo;
use podracer::rl::{Algorithm, TrainedPolicy};
use podracer::{Array, Error, Mode, Result};

/// Answers requests with a trained policy and measures the latency
#[derive(Parser)]
struct Args {
    /// Folder of a run with a saved model; without it, PPO trains on CartPole-v1 first
    #[arg(long)]
    run: Option<PathBuf>,
    /// Threads that answer requests
    #[arg(long, default_value = "4")]
    threads: usize,
    /// Requests of each thread
    #[arg(long, default_value = "5000")]
    requests: usize,
}

/// Trains PPO for some thousand steps and returns the run's folder.
fn train() -> Result<PathBuf> {
    let flags = ["--total-timesteps=10000", "--save-model", "--eval-episodes=0", "--json"];
    let args = ppo::Args::from_flags(flags).map_err(|error| Error::Config(error.to_string()))?;
    Ok(args.train()?.run_dir.into())
}

/// Answers `requests` requests for actions, one after the other, and returns their latencies.
fn answer(policy: &TrainedPolicy, observations: &Array, requests: usize) -> Result<Vec<Duration>> {
    let request = |_| {
        let start = Instant::now();
        let actions = policy.act(observations)?;
        actions.to_literal()?; // waits for the actions and copies them to the host
        Ok(start.elapsed())
    };
    (0..requests).map(request).collect()
}

/// Answers the requests of all threads and prints a row of the table.
fn measure(policy: &TrainedPolicy, mode: Mode, batch_size: usize, args: &Args) -> Result<()> {
    policy.compile(batch_size)?;
    let space = &policy.spec().observation;
    let shape = [&[batch_size], &space.shape()[..]].concat();
    let observations = Array::zeros(shape, space.dtype());
    let compilations = policy.stats().traces;

    let start = Instant::now();
    let latencies = thread::scope(|scope| {
        let answer = || answer(policy, &observations, args.requests);
        let threads: Vec<_> = (0..args.threads).map(|_| scope.spawn(answer)).collect();
        let answers = threads.into_iter().map(|thread| thread.join().expect("no thread panics"));
        answers.collect::<Result<Vec<_>>>()
    })?;
    let seconds = start.elapsed().as_secs_f64();
    if mode == Mode::Jit {
        assert_eq!(policy.stats().traces, compilations, "no request compiles");
    }
    let mut latencies = latencies.concat();
    latencies.sort();
    let micros = |percent: usize| latencies[latencies.len() * percent / 100].as_secs_f64() * 1e6;
    let rate = latencies.len() as f64 / seconds;
    let mode = mode.to_string();
    println!("{mode:<10} {batch_size:>5} {rate:>11.0} {:>8.0} {:>8.0}", micros(50), micros(99));
    Ok(())
}

fn service(args: &Args) -> Result<()> {
    let run = args.run.clone().map_or_else(train, Ok)?;
    println!("{:?}, {} threads", TrainedPolicy::load(&run)?, args.threads);
    println!("{:<10} {:>5} {:>11} {:>8} {:>8}", "mode", "batch", "requests/s", "p50 us", "p99 us");
    for mode in [Mode::Jit, Mode::Interpret] {
        let policy = TrainedPolicy::load(&run)?.with_mode(mode);
        for batch_size in [1, 64] {
            measure(&policy, mode, batch_size, args)?;
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    match service(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
