//! Threads of a run: the actors, beside the learner on the caller's thread.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use super::queues::ActorLearnerQueues;
use crate::error::{Error, Result};

/// Runs `actor(0)`, `actor(1)`, ... each on a thread of its own, and `learner` on the caller's.
///
/// All actor threads have ended when it returns. If one fails or panics, the queues end the others'
/// waits, and its error is the result.
///
/// # Errors
/// Returns the first error of any thread.
pub fn run<P: Send, R: Send, T>(
    queues: &ActorLearnerQueues<P, R>,
    actors: usize,
    actor: impl Fn(usize) -> Result<()> + Sync,
    learner: impl FnOnce() -> Result<T>,
) -> Result<T> {
    thread::scope(|scope| {
        for index in 0..actors {
            let actor = &actor;
            let work = move || {
                let outcome = catch_unwind(AssertUnwindSafe(|| actor(index)));
                let failed = match outcome {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => named(error, index),
                    Err(panic) => {
                        Error::Env(format!("actor thread {index} panicked: {}", words(&*panic)))
                    }
                };
                queues.fail(failed);
            };
            let name = format!("actor {index}");
            if let Err(error) = thread::Builder::new().name(name).spawn_scoped(scope, work) {
                queues.fail(Error::Config(format!("cannot start actor thread {index}: {error}")));
            }
        }
        // The queues must be closed before the scope waits for the actors.
        let outcome = catch_unwind(AssertUnwindSafe(learner));
        queues.close();
        match outcome {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Adds the number of the actor to its error.
fn named(error: Error, actor: usize) -> Error {
    let of = |text: String| format!("actor thread {actor}: {text}");
    match error {
        Error::Env(text) => Error::Env(of(text)),
        Error::Callback(text) => Error::Callback(of(text)),
        Error::Pjrt { context, code, message } => {
            Error::Pjrt { context: of(context), code, message }
        }
        other => other,
    }
}

fn words(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (None, Some(text)) => text,
        (None, None) => "without a message",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_of_an_end_is_told() {
        let queues: ActorLearnerQueues<u32, u32> = ActorLearnerQueues::new(2);
        let actor = |index: usize| {
            if index == 1 {
                panic!("no such game");
            }
            // Waits until the queues are closed.
            assert_eq!(queues.take_params(index).0, None);
            Ok(())
        };
        let error =
            run(&queues, 2, actor, || queues.take_rollouts(&|| false)).unwrap_err().to_string();
        assert!(error.contains("actor thread 1 panicked: no such game"), "{error}");
    }

    #[test]
    fn an_end_in_the_learner_ends_the_actors() {
        let queues: ActorLearnerQueues<u32, u32> = ActorLearnerQueues::new(1);
        let actor = |index: usize| {
            while queues.take_params(index).0.is_some() {
                queues.put_rollout(index, 1);
            }
            Ok(())
        };
        let learner = || -> Result<()> {
            queues.put_params(0, 1)?;
            assert_eq!(queues.take_rollouts(&|| false)?.unwrap().0, [1]);
            Err(Error::Nan("the loss".into()))
        };
        let error = run(&queues, 1, actor, learner).unwrap_err().to_string();
        assert!(error.contains("the loss"), "{error}");
    }
}
