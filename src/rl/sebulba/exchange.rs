//! Collective operations of the processes of a run.

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::layout::World;
use crate::distributed::Mpi;
use crate::error::{Error, Result};
use crate::lower::pjrt::KeyValues;
use crate::rl::settings::shared_flags;
use crate::trace::axis::Axis;
use crate::trace::callback::{CallbackKind, HostFn, raw_callback};
use crate::{DType, Tensor, axis_index, psum};

/// Collective operations of the processes. All processes make the same calls in the same order;
/// each call returns when all have made it.
pub trait Exchange: Send + Sync {
    /// Returns the rank of this process and the number of processes.
    fn world(&self) -> World;

    /// Waits until all processes have reached this call.
    ///
    /// # Errors
    /// [`Error::Config`] with the ranks of those that have not reached it after `timeout`.
    fn barrier(&self, timeout: Duration) -> Result<()>;

    /// Replaces `numbers` with their elementwise sum over all processes, in `f32`.
    ///
    /// # Errors
    /// Returns errors of the underlying communication library.
    fn sum_f32(&self, numbers: &mut [f32]) -> Result<()>;

    /// Replaces `numbers` with their elementwise sum over all processes, in `i64`.
    ///
    /// # Errors
    /// Returns errors of the underlying communication library.
    fn sum_i64(&self, numbers: &mut [i64]) -> Result<()>;

    /// Replaces the `bytes` of every process with those of process 0.
    ///
    /// # Errors
    /// Returns errors of the underlying communication library.
    fn broadcast(&self, bytes: &mut Vec<u8>) -> Result<()>;

    /// Returns a key-value store shared by all processes, through which their GPU clients find each
    /// other.
    ///
    /// # Errors
    /// Returns errors of the underlying communication library.
    fn key_values(&self) -> Result<Arc<dyn KeyValues>>;

    /// Ends all processes, because this one cannot continue.
    fn abort(&self, cause: &Error) -> !;
}

impl Exchange for Mpi {
    fn world(&self) -> World {
        World { rank: self.rank(), size: self.size() }
    }

    fn barrier(&self, timeout: Duration) -> Result<()> {
        Mpi::barrier(self, timeout)
    }

    fn sum_f32(&self, numbers: &mut [f32]) -> Result<()> {
        Mpi::sum_f32(self, numbers)
    }

    fn sum_i64(&self, numbers: &mut [i64]) -> Result<()> {
        Mpi::sum_i64(self, numbers)
    }

    fn broadcast(&self, bytes: &mut Vec<u8>) -> Result<()> {
        Mpi::broadcast(self, bytes)
    }

    fn key_values(&self) -> Result<Arc<dyn KeyValues>> {
        Mpi::key_values(self)
    }

    fn abort(&self, cause: &Error) -> ! {
        Mpi::abort(self, cause)
    }
}

/// Checks that all processes have the same settings; if not, fails in all of them.
///
/// # Errors
/// [`Error::Config`] with the ranks of the processes that differ and, in a process that differs,
/// the flags.
pub(crate) fn ensure_same(exchange: &dyn Exchange, settings: &impl serde::Serialize) -> Result<()> {
    let world = exchange.world();
    let ours = serde_json::to_value(settings)
        .map_err(|error| Error::Config(format!("the settings of a run: {error}")))?;
    let mut first = ours.to_string().into_bytes();
    exchange.broadcast(&mut first)?;
    let first: Value = serde_json::from_slice(&first)
        .map_err(|error| Error::Config(format!("the settings of process 0: {error}")))?;
    let empty = Map::new();
    let (ours, first) = (ours.as_object().unwrap_or(&empty), first.as_object().unwrap_or(&empty));
    let differs = |name: &&String| {
        !shared_flags::differs_by_process(name) && ours.get(*name) != first.get(*name)
    };
    let flags: Vec<String> = ours
        .keys()
        .filter(differs)
        .map(|name| {
            let none = Value::Null;
            let (here, there) = (&ours[name], first.get(name).unwrap_or(&none));
            format!("--{} {here} (process 0 has {there})", name.replace('_', "-"))
        })
        .collect();
    let mut bad = vec![0i64; world.size];
    bad[world.rank] = i64::from(!flags.is_empty());
    exchange.sum_i64(&mut bad)?;
    let bad: Vec<usize> = (0..world.size).filter(|&rank| bad[rank] != 0).collect();
    if bad.is_empty() {
        return Ok(());
    }
    let differences = match flags.is_empty() {
        true => "see what they say".to_string(),
        false => format!("process {} has {}", world.rank, flags.join(", ")),
    };
    Err(Error::Config(format!(
        "the flags of process(es) {bad:?} are not those of process 0: {differences}"
    )))
}

/// Checks that all processes begin at the same timestep; if not, fails in all of them. With `--resume`
/// each reads a checkpoint, which may be another one on another machine.
///
/// # Errors
/// [`Error::Config`] with the timestep of each process.
pub(super) fn ensure_same_step(exchange: &dyn Exchange, step: u64) -> Result<()> {
    let world = exchange.world();
    let mut steps = vec![0i64; world.size];
    steps[world.rank] = step as i64;
    exchange.sum_i64(&mut steps)?;
    match steps.iter().all(|other| *other == steps[0]) {
        true => Ok(()),
        false => Err(Error::Config(format!(
            "--resume: all processes need the checkpoint of process 0, and those that they have are \
             of the timesteps {steps:?}"
        ))),
    }
}

/// Sums over processes inside compiled programs.
///
/// All learner devices of a process hold the same numbers, which are already summed over the
/// devices. The first device sends them; the sums it receives are then passed to the other devices.
pub struct Across {
    exchange: Arc<dyn Exchange>,
}

impl std::fmt::Debug for Across {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Across").field(&self.exchange.world()).finish()
    }
}

impl Across {
    /// Creates the sums over the processes of `exchange`.
    pub fn new(exchange: Arc<dyn Exchange>) -> Arc<Across> {
        Arc::new(Across { exchange })
    }

    /// Returns the sum over all processes of `numbers`, `f32[n]` or `i64[n]`, which are equal on
    /// every device of `axis`. The calls are made in program order.
    #[track_caller]
    pub fn sum(self: &Arc<Self>, numbers: Tensor, axis: Axis) -> Tensor {
        let here = self.clone();
        let sum =
            HostFn::new("sum over processes", Location::caller(), move |operands, results| {
                let (device, numbers, into) = (&operands[0], &operands[1], &mut results[0]);
                if read::<u32>(device.bytes) != [0] {
                    into.bytes.fill(0);
                    return Ok(());
                }
                here.sum_bytes(numbers.ty.dtype, numbers.bytes, into.bytes)
            });
        let index = axis_index(axis).to(DType::U32);
        let operands = [index, numbers];
        let sums = raw_callback(sum, CallbackKind::io(true), vec![numbers.ty()], &operands)[0];
        // The other devices add zeros.
        psum(sums, axis)
    }

    fn sum_bytes(&self, dtype: DType, bytes: &[u8], into: &mut [u8]) -> Result<()> {
        match dtype {
            DType::F32 => {
                let mut numbers: Vec<f32> = read(bytes);
                self.exchange.sum_f32(&mut numbers)?;
                into.copy_from_slice(bytemuck::cast_slice(&numbers));
            }
            DType::I64 => {
                let mut numbers: Vec<i64> = read(bytes);
                self.exchange.sum_i64(&mut numbers)?;
                into.copy_from_slice(bytemuck::cast_slice(&numbers));
            }
            other => {
                let problem = format!("sums over processes are of f32 or i64, not {other}");
                return Err(Error::Argument(problem));
            }
        }
        Ok(())
    }
}

/// Copies the numbers out of their bytes, whatever the alignment of these.
fn read<T: bytemuck::Pod>(bytes: &[u8]) -> Vec<T> {
    let mut numbers = vec![T::zeroed(); bytes.len() / size_of::<T>()];
    bytemuck::cast_slice_mut(&mut numbers).copy_from_slice(bytes);
    numbers
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, Mutex};
    use std::thread;

    use super::*;

    /// Running sums, the bytes broadcast by the first process, and the barrier of both.
    type Shared = (Mutex<Vec<i64>>, Mutex<Vec<u8>>, Barrier);

    /// Two processes, simulated by two threads.
    struct Pair {
        rank: usize,
        shared: Arc<Shared>,
    }

    fn pair() -> [Pair; 2] {
        let shared = Arc::new((Mutex::default(), Mutex::default(), Barrier::new(2)));
        [0, 1].map(|rank| Pair { rank, shared: shared.clone() })
    }

    impl Exchange for Pair {
        fn world(&self) -> World {
            World { rank: self.rank, size: 2 }
        }

        fn barrier(&self, _: Duration) -> Result<()> {
            self.shared.2.wait();
            Ok(())
        }

        fn sum_f32(&self, numbers: &mut [f32]) -> Result<()> {
            let mut whole: Vec<i64> = numbers.iter().map(|&x| x as i64).collect();
            self.sum_i64(&mut whole)?;
            numbers.iter_mut().zip(whole).for_each(|(x, sum)| *x = sum as f32);
            Ok(())
        }

        fn sum_i64(&self, numbers: &mut [i64]) -> Result<()> {
            let (sums, _, barrier) = &*self.shared;
            {
                let mut sums = sums.lock().unwrap();
                sums.resize(numbers.len(), 0);
                sums.iter_mut().zip(&*numbers).for_each(|(sum, x)| *sum += x);
            }
            barrier.wait();
            numbers.copy_from_slice(&sums.lock().unwrap());
            barrier.wait();
            if self.rank == 0 {
                sums.lock().unwrap().clear();
            }
            barrier.wait();
            Ok(())
        }

        fn broadcast(&self, bytes: &mut Vec<u8>) -> Result<()> {
            let (_, first, barrier) = &*self.shared;
            if self.rank == 0 {
                first.lock().unwrap().clone_from(bytes);
            }
            barrier.wait();
            bytes.clone_from(&first.lock().unwrap());
            barrier.wait();
            Ok(())
        }

        fn key_values(&self) -> Result<Arc<dyn KeyValues>> {
            unreachable!("not asked for here")
        }

        fn abort(&self, cause: &Error) -> ! {
            panic!("{cause}")
        }
    }

    #[test]
    fn settings_that_differ_are_told_everywhere() {
        let settings = |seed: u64, json: bool| serde_json::json!({ "seed": seed, "env_id": "Pong-v5", "json": json });
        let run = |other: u64| -> Vec<Result<()>> {
            let pair = pair();
            thread::scope(|scope| {
                let message = pair.iter().map(|process| {
                    let first = process.rank == 0;
                    let settings = settings(if first { 1 } else { other }, first);
                    scope.spawn(move || ensure_same(process, &settings))
                });
                message.collect::<Vec<_>>().into_iter().map(|t| t.join().unwrap()).collect()
            })
        };
        assert!(run(1).iter().all(Result::is_ok));
        let message: Vec<String> =
            run(2).into_iter().map(|message| message.unwrap_err().to_string()).collect();
        assert!(message[0].contains("process(es) [1]"), "{}", message[0]);
        assert!(message[1].contains("--seed 2 (process 0 has 1)"), "{}", message[1]);
        assert!(!message[1].contains("json"), "{}", message[1]);
    }

    #[test]
    fn checkpoints_that_differ_are_refused_everywhere() {
        let run = |other: u64| -> Vec<Result<()>> {
            let pair = pair();
            thread::scope(|scope| {
                let check = pair.iter().map(|process| {
                    let step = if process.rank == 0 { 320 } else { other };
                    scope.spawn(move || ensure_same_step(process, step))
                });
                check.collect::<Vec<_>>().into_iter().map(|t| t.join().unwrap()).collect()
            })
        };
        assert!(run(320).iter().all(Result::is_ok));
        for outcome in run(0) {
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains("of the timesteps [320, 0]"), "{error}");
        }
    }

    #[test]
    fn numbers_are_added_by_their_type() {
        let processes = pair().map(|process| Across::new(Arc::new(process)));
        let sums = thread::scope(|scope| {
            let sums = processes.iter().enumerate().map(|(rank, process)| {
                scope.spawn(move || {
                    let mut into = [0; 16];
                    let whole = [1i64 << 40, 10 * rank as i64];
                    process.sum_bytes(DType::I64, bytemuck::cast_slice(&whole), &mut into).unwrap();
                    let floats = [rank as f32 + 1.0];
                    let bytes = bytemuck::cast_slice(&floats);
                    let mut sum = [0; 4];
                    process.sum_bytes(DType::F32, bytes, &mut sum).unwrap();
                    (read::<i64>(&into), read::<f32>(&sum))
                })
            });
            sums.collect::<Vec<_>>().into_iter().map(|sum| sum.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(sums, [(vec![1 << 41, 10], vec![3.0]), (vec![1 << 41, 10], vec![3.0])]);
        let error = processes[0].sum_bytes(DType::U8, &[1], &mut [0]).unwrap_err().to_string();
        assert!(error.contains("not u8"), "{error}");
    }
}
