//! Trains PPO on a pool of environments: `cargo run --release --example ppo_envpool_jit`.

use std::process::ExitCode;

use podracer::algos::ppo;
use podracer::rl::flags;

fn main() -> ExitCode {
    flags::main(|args: &ppo::Args| {
        let summary = ppo::train(args)?;
        if args.json {
            println!("{summary}")
        } else {
            eprintln!("{}", summary.in_words())
        };
        Ok(())
    })
}
