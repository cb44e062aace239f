//! Trains TD3: `cargo run --release --example td3_continuous_action`.

use std::process::ExitCode;

use podracer::algos::td3_continuous_action;
use podracer::rl::flags;

fn main() -> ExitCode {
    flags::main(|args: &td3_continuous_action::Args| {
        let summary = td3_continuous_action::train(args)?;
        if args.json {
            println!("{summary}")
        } else {
            eprintln!("{}", summary.in_words())
        }
        Ok(())
    })
}
