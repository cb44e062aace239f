//! Trains PPO on environments that are part of the compiled program: `cargo run --release --example ppo_anakin`.

use std::process::ExitCode;

use podracer::algos::ppo_anakin;
use podracer::rl::flags;

fn main() -> ExitCode {
    flags::main(|args: &ppo_anakin::Args| {
        let summary = ppo_anakin::train(args)?;
        if args.json {
            println!("{summary}")
        } else {
            eprintln!("{}", summary.in_words())
        };
        Ok(())
    })
}
