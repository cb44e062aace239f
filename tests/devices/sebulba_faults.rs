//! What goes wrong in the middle of a run of actors and learners.

use std::sync::atomic::{AtomicUsize, Ordering};

use podracer::algos::cleanba_ppo;
use podracer::envs::{self, Action, Env, EnvRng, EnvSpec, ObsMut, StepOutcome};
use podracer::{Error, Result};

use super::error;
use super::sebulba::run;

/// CartPole until step 3,000 of all of them together.
struct Faulty {
    game: Box<dyn Env>,
    fault: fn() -> Result<StepOutcome>,
}

static STEPS: AtomicUsize = AtomicUsize::new(0);
static ALIVE: AtomicUsize = AtomicUsize::new(0);

impl Faulty {
    fn make(fault: fn() -> Result<StepOutcome>) -> Result<Box<dyn Env>> {
        ALIVE.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(Faulty { game: envs::make("CartPole-v1")?, fault }))
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Env for Faulty {
    fn spec(&self) -> EnvSpec {
        EnvSpec { id: "Faulty-v0".into(), ..self.game.spec() }
    }

    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        self.game.reset(rng, obs)
    }

    fn step(
        &mut self,
        action: Action<'_>,
        rng: &mut EnvRng,
        obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        if STEPS.fetch_add(1, Ordering::Relaxed) == 3000 {
            return (self.fault)();
        }
        self.game.step(action, rng, obs)
    }
}

#[test]
fn an_environment_that_falls_over_ends_the_run() {
    envs::register("Panics-v0", || Faulty::make(|| panic!("the cat is on the cart"))).unwrap();
    let fails = || Faulty::make(|| Err(Error::Env("the pole is broken".into())));
    envs::register("Fails-v0", fails).unwrap();
    let runs = tempfile::tempdir().unwrap();
    for (env, words) in [
        ("--env-id=Panics-v0", "panicked: the cat is on the cart"),
        ("--env-id=Fails-v0", "failed: the pole is broken"),
    ] {
        STEPS.store(0, Ordering::Relaxed);
        // No end of its own: three actors, of which one falls over in its third rollout.
        let flags = [
            env,
            "--num-actor-threads=3",
            "--local-num-envs=4",
            "--num-steps=128",
            "--total-timesteps=1000000000",
        ];
        let layout = "--actor-device-ids 0 --learner-device-ids 1 2";
        let message = error(run::<cleanba_ppo::Args>(runs.path(), layout, &flags));
        assert!(message.starts_with("actor thread "), "{message}");
        assert!(message.contains("Faulty-v0: env ") && message.contains(words), "{message}");
        assert_eq!(ALIVE.load(Ordering::Relaxed), 0, "environments outlive the run");
    }
}

/// Files may have a few kilobytes, as if there was no room for more.
#[cfg(unix)]
#[test]
fn a_full_disk_while_logging_ends_the_run_or_not_as_chosen() {
    use std::process::Command;

    for (choice, continues) in [("stop", false), ("continue", true)] {
        let runs = tempfile::tempdir().unwrap();
        let output = Command::new("sh")
            .args(["-c", "ulimit -f 32; exec \"$0\" \"$@\""])
            .arg(env!("CARGO_BIN_EXE_podracer"))
            .args(["train", "cleanba_ppo", "--env-id=CartPole-v1", "--log-frequency=1"])
            .args(["--local-num-envs=12", "--num-actor-threads=1", "--num-steps=16"])
            .args(["--learner-device-ids=1,2", "--total-timesteps=57600"])
            .arg(format!("--runs-dir={}", runs.path().display()))
            .args(["--on-write-error", choice])
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), continues, "{message}");
        assert!(message.contains("cannot write") && message.contains("tfevents"), "{message}");
        // It is no terminal.
        assert!(!message.contains('\x1b'), "{message}");
        // Said once.
        let lines = message.lines().filter(|line| line.contains("tfevents"));
        assert_eq!(lines.count(), 1, "{message}");
        assert_eq!(
            message.contains("training continues without what cannot be"),
            continues,
            "{message}"
        );
        let result = String::from_utf8_lossy(&output.stdout);
        assert_eq!(result.contains("57600 steps in"), continues, "{result}");
    }
}
