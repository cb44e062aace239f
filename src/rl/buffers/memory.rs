//! Estimates of the memory that a run needs, compared with the memory of the machine.

use serde_json::{Map, Value};

use crate::envs::{self, ObsKind, Space};
use crate::error::{Error, Result};
use crate::trace::tensor::fail_op;

/// Ends the trace if `bytes` are more than the free memory of this machine, where the system
/// reports it (Linux).
///
/// A new buffer is all zeros, for which a system may promise more memory than it has; the process
/// would then be killed hours later.
#[track_caller]
pub(in crate::rl) fn expect_room(op: &str, what: &str, bytes: u128) {
    if let Some(free) = available()
        && bytes > free
    {
        fail_op(op, format!("{what} take {}; give a smaller --buffer-size", compared(bytes, free)));
    }
}

/// Checks that rollouts, replay buffer and batches with these settings fit into the free memory of
/// this machine, before any of it is allocated.
///
/// The estimate is a lower bound: it counts only observations, and one frame of each stack.
///
/// # Errors
/// [`Error::Config`] that names the flags.
pub(in crate::rl) fn ensure_room(env_id: &str, settings: &Map<String, Value>) -> Result<()> {
    let Some(free) = available() else { return Ok(()) };
    // An environment that cannot be made is reported when it is made.
    let Ok(spec) = envs::spec(env_id) else { return Ok(()) };
    for (flags, bytes) in estimates(settings, observation_bytes(&spec.observation)) {
        if bytes > free {
            let given = flags.iter().map(|(flag, count)| format!("--{flag} {count}"));
            return Err(Error::Config(format!(
                "{}: with {env_id} they take {}; give smaller numbers",
                given.collect::<Vec<_>>().join(" "),
                compared(bytes, free)
            )));
        }
    }
    Ok(())
}

/// Checks that `bytes` fit into the free memory of this machine; `flags` are the words that decide
/// the number.
///
/// # Errors
/// [`Error::Config`] that begins with the flags.
pub(crate) fn ensure_free(flags: &str, bytes: u128) -> Result<()> {
    match available() {
        Some(free) if bytes > free => Err(Error::Config(format!(
            "{flags}: they take {}; give smaller numbers",
            compared(bytes, free)
        ))),
        _ => Ok(()),
    }
}

/// Returns the bytes of one observation and of the part of it that a buffer of frames stores.
fn observation_bytes(space: &Space) -> (u128, u128) {
    let shape = space.shape();
    let whole = shape.iter().map(|&dim| dim as u128).product::<u128>();
    let whole = whole * space.dtype().size() as u128;
    match ObsKind::of(space) {
        Some(ObsKind::Image) => (whole, whole / shape[0].max(1) as u128),
        _ => (whole, whole),
    }
}

type Flags = Vec<(&'static str, u128)>;

/// Returns, for each large allocation, the flags that decide its size and its bytes.
fn estimates(settings: &Map<String, Value>, (obs, frame): (u128, u128)) -> Vec<(Flags, u128)> {
    let given = |names: &[&'static str]| -> Option<Flags> {
        let value = |name: &str| settings.get(&name.replace('-', "_"))?.as_u64();
        names.iter().map(|name| Some((*name, value(name)?.into()))).collect()
    };
    let sizes = |names: &[&'static str], bytes: u128| {
        given(names).map(|flags: Flags| {
            let total = flags.iter().fold(bytes, |total, (_, n)| total.saturating_mul(*n));
            (flags, total)
        })
    };
    [
        sizes(&["num-envs", "num-steps"], obs),
        sizes(&["num-envs", "num-steps", "n-iteration"], obs),
        sizes(&["local-num-envs", "num-actor-threads", "num-steps"], obs),
        sizes(&["update-epochs", "num-envs", "num-steps"], size_of::<i32>() as u128),
        sizes(&["buffer-size"], frame),
        sizes(&["batch-size"], obs),
        // The projection of a distribution onto the atoms is a matrix for each sample.
        sizes(&["batch-size", "n-atoms", "n-atoms"], size_of::<f32>() as u128),
        // The quantile loss compares all pairs of quantiles.
        sizes(&["batch-size", "n-quantiles", "n-quantiles"], size_of::<f32>() as u128),
        sizes(
            &["batch-size", "num-tau-samples", "num-tau-prime-samples"],
            size_of::<f32>() as u128,
        ),
        sizes(
            &["batch-size", "num-tau-samples", "quantile-embedding-dim"],
            size_of::<f32>() as u128,
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn compared(bytes: u128, free: u128) -> String {
    let gb = |bytes: u128| bytes as f64 / 1e9;
    format!("{:.1} GB, and this machine has {:.1} GB free", gb(bytes), gb(free))
}

/// Returns the bytes that can be allocated without swapping: `MemAvailable`, or less where the
/// process has a limit.
fn available() -> Option<u128> {
    let free = available_in(&std::fs::read_to_string("/proc/meminfo").ok()?)?;
    Some(limit().map_or(free, |limit| free.min(limit)))
}

fn available_in(meminfo: &str) -> Option<u128> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u128 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Returns the maximum address space of this process, as `ulimit -v` sets it.
fn limit() -> Option<u128> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_free_memory_is_read() {
        let meminfo = "MemTotal:       24000000 kB\nMemAvailable:    1000 kB\nBuffers: 1 kB\n";
        assert_eq!(available_in(meminfo), Some(1_024_000));
        assert_eq!(available_in("MemTotal: 1 kB\n"), None);
        if cfg!(target_os = "linux") {
            assert!(available().unwrap() > 1 << 20);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn settings_that_take_too_much_are_refused() {
        let of = |json: &str| ensure_room("CartPole-v1", &serde_json::from_str(json).unwrap());
        of(r#"{"num_envs": 4, "num_steps": 128, "num_seeds": 2, "learning_rate": 1}"#).unwrap();
        // Agents that are trained one after another have no rollout at the same time.
        of(r#"{"num_envs": 1024, "num_steps": 1024, "num_seeds": 65536}"#).unwrap();
        // 2^50 observations of 16 bytes.
        let error = of(r#"{"num_envs": 1048576, "num_steps": 1073741824}"#).unwrap_err();
        let error = error.to_string();
        let message = "--num-envs 1048576 --num-steps 1073741824: with CartPole-v1 they take \
                    18014398.5 GB, and this machine has ";
        assert!(error.starts_with(message), "{error}");
        let all = r#"{"num_envs": 18446744073709551615, "num_steps": 18446744073709551615}"#;
        assert!(of(all).is_err());
    }
}
