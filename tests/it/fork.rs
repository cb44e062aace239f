//! Forks and other programs beside a live runtime.

use std::process::{Command, Stdio};

use podracer::trace::control::fori_loop;
use podracer::{Array, DType, Tensor, jit};

/// The fork happens in a process of its own, whose other threads are the runtime's alone: a lock that
/// another test holds at that moment would stay locked in the child.
#[test]
fn a_forked_process_gets_errors_and_its_parent_continues() {
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args(["--exact", "fork::child", "--ignored", "--nocapture", "--test-threads=1"]);
    let output = process.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
#[ignore = "run by a_forked_process_gets_errors_and_its_parent_continues"]
fn child() {
    let f = jit(|x: Tensor| (x * x).sum(..));
    let slow = jit(|x: Tensor| fori_loop(0, 300, |_, x: Tensor| x.matmul(x).tanh(), x));
    let x = Array::new([2], &[1.0f32, 2.0]).unwrap();
    assert_eq!(f.call(x.clone()).unwrap().item::<f32>().unwrap(), 5.0);
    let large = Array::zeros([256, 256], DType::F32);
    let in_flight = slow.call(large).unwrap();

    // SAFETY: the child touches what is copied with it only, and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        let error = f.call(x.clone()).map(drop).unwrap_err().to_string();
        let as_expected = error.contains("was forked from one that had started the runtime");
        if !as_expected {
            eprintln!("in the child: {error}");
        }
        // SAFETY: ends the process without its destructors.
        unsafe { libc::_exit(i32::from(!as_expected)) };
    }
    // Another program, while a compiled one runs here.
    assert!(Command::new("true").status().unwrap().success());
    let mut status = -1;
    // SAFETY: the child is ours, and the status a live integer.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status}");
    assert!(in_flight.to_vec::<f32>().unwrap().iter().all(|x| *x == 0.0));
    assert_eq!(f.call(x.clone()).unwrap().item::<f32>().unwrap(), 5.0);
}
