//! Sums over two processes beside mpi4py's `Allreduce` on the same MPICH.
//!
//! `cargo bench --bench allreduce`; with `PODRACER_PEER_PYTHON=.../bin/python`, a Python with mpi4py and
//! numpy, rounds alternate with `benches/peers/mpi4py_allreduce.py`. Median microseconds a sum.

use std::process::Command;
use std::time::{Duration, Instant};

use podracer::distributed::Mpi;
use podracer::error::{Error, Result};
use podracer::native::Settings;

/// Numbers of a small network, of PPO's network of images, and of a larger one.
const SIZES: [usize; 3] = [1_000, 100_000, 1_700_000];
const ROUNDS: usize = 5;
const SUMS: usize = 50;

fn main() -> Result<()> {
    if std::env::var_os("PMI_RANK").is_some() { process() } else { launch() }
}

/// Times the sums as one of the processes.
fn process() -> Result<()> {
    let mpi = Mpi::join(Duration::from_secs(60))?;
    for size in SIZES {
        let mut floats = vec![1.0f32; size];
        let mut whole = vec![1i64; size];
        let f32s = median(|| mpi.sum_f32(&mut floats))?;
        let i64s = median(|| mpi.sum_i64(&mut whole))?;
        if mpi.rank() == 0 {
            println!("podracer  {size:>9} numbers  f32 {f32s:>9.1} us  i64 {i64s:>9.1} us");
        }
    }
    Ok(())
}

fn median(mut sum: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::with_capacity(SUMS);
    for _ in 0..SUMS {
        let start = Instant::now();
        sum()?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[SUMS / 2])
}

/// Starts the processes of each round, and of the peer if there is one.
fn launch() -> Result<()> {
    let settings = Settings { mpi: None, ..Settings::from_env()? };
    let (mpiexec, library) = (settings.locate_mpiexec()?, settings.locate_mpi()?);
    let folder = library.parent().expect("a file is in a folder");
    let this = std::env::current_exe().map_err(Error::io("cannot find", "this program"))?;
    let peer = std::env::var_os("PODRACER_PEER_PYTHON");
    let run = |command: &mut Command| -> Result<()> {
        let status = command.status().map_err(Error::io("cannot run", &mpiexec))?;
        if status.success() { Ok(()) } else { Err(Error::Config(format!("mpiexec: {status}"))) }
    };
    for _ in 0..ROUNDS {
        run(Command::new(&mpiexec).args(["-n", "2"]).arg(&this).env("PODRACER_MPI", &library))?;
        if let Some(python) = &peer {
            let mut command = Command::new(&mpiexec);
            command.args(["-n", "2"]).arg(python).arg("benches/peers/mpi4py_allreduce.py");
            // mpi4py has a build for MPICH's own ABI; the wheel has its library beside ours.
            run(command.env("MPI4PY_MPIABI", "mpich").env("LD_LIBRARY_PATH", folder))?;
        }
    }
    Ok(())
}
