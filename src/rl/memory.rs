//! Whether there is memory for what is about to be allocated.

use crate::trace::tensor::fail_op;

/// Ends the trace if `bytes` are more than this machine has free, where the system tells (Linux).
///
/// A buffer is zeros at first, of which a system may promise more than it has, and then the process
/// is killed hours later.
#[track_caller]
pub(super) fn expect_room(op: &str, what: &str, bytes: u128) {
    if let Some(free) = available()
        && bytes > free
    {
        let gb = |bytes: u128| bytes as f64 / 1e9;
        fail_op(
            op,
            format!(
                "{what} take {:.1} GB, and this machine has {:.1} GB free; give a smaller \
                 --buffer-size",
                gb(bytes),
                gb(free)
            ),
        );
    }
}

/// The bytes that can be allocated without swapping: `MemAvailable`.
fn available() -> Option<u128> {
    available_in(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn available_in(meminfo: &str) -> Option<u128> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u128 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
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
}
