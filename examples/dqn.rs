//! Trains DQN: `cargo run --release --example dqn`.

use std::process::ExitCode;

use podracer::algos::dqn;
use podracer::rl::flags;

fn main() -> ExitCode {
    flags::main(|args: &dqn::Args| {
        let summary = dqn::train(args)?;
        if args.json {
            println!("{summary}")
        } else {
            eprintln!("{}", summary.in_words())
        }
        Ok(())
    })
}
