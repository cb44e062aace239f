//! The compiler in a process of its own, for modules that others wrote.
//!
//! A module that breaks an assumption of XLA or MLIR ends their process: by a failed check, by a C++
//! exception that no C interface can carry, or by an access to other memory. So a module from a file
//! is first compiled by a child, which ends instead, and run there once on zeros, because some sizes are
//! looked at only then; the executable that it sends is loaded here.
//!
//! The child is this program itself, started anew under the name [`NAME`]. A function in the table of
//! those that run before `main` (`begin`) recognizes the name, compiles, and leaves: `main` is never
//! reached. A program whose executable file does not contain this library, because it loaded it as
//! part of a shared library, has no such child, and gets an error instead.

use std::process::Output;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::jit::{ensure_memory, module_options};
use crate::lower::custom_calls::lapack;
use crate::lower::pjrt::{Buffer, Client, CompileOptions, Executable};
use crate::lower::stablehlo::{ConvLibrary, Platform};
use crate::runtime::{Runtime, RuntimeOptions};
use crate::trace::types::{DType, TensorType};

/// First argument of the child: its name in lists of processes.
const NAME: &str = "podracer: compiler of exported functions";

/// Kinds of the child's answers, by their first byte: an error, an executable, and the news that the
/// module compiles on a platform whose executables cannot be sent.
const FAILED: u8 = 0;
const EXECUTABLE: u8 = 1;
const COMPILES: u8 = 2;

/// Processor time after which the system ends a child.
const MAX_SECONDS: u64 = 1800;

/// Time that the run on zeros gets. One that takes longer, or has no end, says nothing.
const TRIAL: Duration = Duration::from_secs(10);

/// Bytes of the child's last words that a message shows.
const MAX_SHOWN: usize = 300;

/// Compiles a module that may end its compiler's process. Returns the executable, and the code that it
/// was loaded from.
///
/// # Errors
/// [`Error::Argument`] with the compiler's message, or with its last words; [`Error::Config`] if no
/// child can be started.
pub(super) fn compile(
    module: &[u8],
    types: &[TensorType],
    calls_functions: bool,
    client: &Client,
    options: &CompileOptions,
) -> Result<(Executable, Option<Vec<u8>>)> {
    let request = [types_text(types).as_bytes(), b"\n", module].concat();
    let answer = imp::ask(&request, calls_functions, Runtime::get()?)?;
    let failed = |text: String| Err(Error::Argument(text));
    match answer.stdout.split_first() {
        Some((&EXECUTABLE, code)) if answer.status.success() => {
            // SAFETY: this program serialized the code, in a process that loaded it, too, for the
            // same plugin and machine.
            let executable = unsafe { client.deserialize(code) }?;
            Ok((executable, Some(code.to_vec())))
        }
        Some((&COMPILES, _)) if answer.status.success() => {
            Ok((client.compile(module, options)?, None))
        }
        Some((&FAILED, text)) if answer.status.success() => {
            failed(String::from_utf8_lossy(text).into_owned())
        }
        _ => failed(format!(
            "the module is damaged, or not meant for this compiler, which it ended ({}); if you \
             trust its author like code: Exported::trusted",
            last_words(&answer)
        )),
    }
}

/// The end of a child, with the line of its output that has the reason.
fn last_words(answer: &Output) -> String {
    let text = String::from_utf8_lossy(&answer.stderr);
    let reason = ["Check failed", "what():", "terminate called", "ssertion", "LLVM ERROR", "rror:"];
    let line = reason.iter().find_map(|part| text.lines().find(|line| line.contains(part)));
    let line = line.or_else(|| text.lines().find(|line| !line.trim().is_empty())).unwrap_or("");
    let line: String = line.trim().chars().filter(|c| !c.is_control()).take(MAX_SHOWN).collect();
    match line.is_empty() {
        true => answer.status.to_string(),
        false => format!("{}: {line}", answer.status),
    }
}

/// Types of arguments as a line: `f32 2 3;i32`.
fn types_text(types: &[TensorType]) -> String {
    let text = |ty: &TensorType| {
        let sizes = ty.shape.iter().map(|size| format!(" {size}"));
        sizes.fold(ty.dtype.to_string(), |text, size| text + &size)
    };
    types.iter().map(text).collect::<Vec<_>>().join(";")
}

/// The types in a line of [`types_text`].
fn parse_types(line: &str) -> Option<Vec<TensorType>> {
    let ty = |text: &str| {
        let (name, sizes) = text.split_once(' ').unwrap_or((text, ""));
        let dtype = DType::ALL.into_iter().find(|dtype| dtype.name() == name)?;
        let sizes = sizes.split_whitespace().map(|size| size.parse().ok());
        Some(TensorType::new(dtype, sizes.collect::<Option<Vec<usize>>>()?))
    };
    line.split(';').filter(|text| !text.is_empty()).map(ty).collect()
}

/// Compiles the module of a request in this process, the child. Returns its answer.
fn answer(request: &[u8], platform: &str, devices: &str, calls_functions: bool) -> (u8, Vec<u8>) {
    let compile = || -> Result<(u8, Vec<u8>)> {
        let end = request.iter().position(|&byte| byte == b'\n').unwrap_or(0);
        let types = std::str::from_utf8(&request[..end]).ok().and_then(parse_types);
        let module = request.get(end + 1..).unwrap_or_default();
        let options = RuntimeOptions {
            platform: Platform::named(platform),
            cpu_devices: devices.parse().unwrap_or(1),
            conv: Some(ConvLibrary::Xla),
        };
        let runtime = Runtime::start(options)?;
        if calls_functions && runtime.platform.is_host() {
            lapack::provide(runtime.client.plugin())?;
        }
        let executable = runtime.client.compile(module, &module_options(runtime))?;
        let Ok(code) = executable.serialize() else { return Ok((COMPILES, Vec::new())) };
        // Loading it must not end the parent either.
        // SAFETY: the code was made above.
        let executable = unsafe { runtime.client.deserialize(&code) }?;
        if ensure_memory(&executable).is_ok() {
            let (done, wait) = channel();
            std::thread::spawn(move || {
                // An error is found again by the parent's run.
                let _ = run_on_zeros(&runtime.client, &executable, &types.unwrap_or_default());
                let _ = done.send(());
            });
            let _ = wait.recv_timeout(TRIAL);
        }
        Ok((EXECUTABLE, code))
    };
    compile().unwrap_or_else(|error| (FAILED, error.to_string().into_bytes()))
}

fn run_on_zeros(client: &Client, executable: &Executable, types: &[TensorType]) -> Result<()> {
    let zeros = |ty: &TensorType| client.buffer_from_host(&vec![0; ty.bytes()], ty, 0);
    let arguments = types.iter().map(zeros).collect::<Result<Vec<Buffer>>>()?;
    let mut results = Vec::new();
    executable.execute(&arguments, &[], &mut results)?;
    results.iter().try_for_each(Buffer::wait)
}

#[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
mod imp {
    use std::ffi::{CStr, c_char, c_int};
    use std::fs;
    use std::io::{Read, Write};
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Output, Stdio};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::{MAX_SECONDS, NAME, answer};
    use crate::error::Result;
    use crate::output::child::tail;
    use crate::runtime::Runtime;

    /// This program's file, whatever is at its path by now.
    const EXECUTABLE_FILE: &str = "/proc/self/exe";

    /// True once [`begin`] has run.
    static BEGUN: AtomicBool = AtomicBool::new(false);

    /// The entry in the table of functions that run before `main`.
    #[used]
    #[unsafe(link_section = ".init_array")]
    static BEGIN: extern "C" fn(c_int, *const *const c_char) = begin;

    /// Runs before `main`, in the child instead of it.
    extern "C" fn begin(count: c_int, arguments: *const *const c_char) {
        BEGUN.store(true, Ordering::Relaxed);
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: glibc passes the program's arguments to the functions of this table: as many texts
        // as `count` says.
        let argument = |i: usize| unsafe {
            (i < count).then(|| CStr::from_ptr(*arguments.add(i)).to_str().unwrap_or_default())
        };
        if argument(0) == Some(NAME) {
            let [platform, devices, calls] = [1, 2, 3].map(|i| argument(i).unwrap_or_default());
            let served = std::panic::catch_unwind(|| serve(platform, devices, calls == "calls"));
            let code = i32::from(!matches!(served, Ok(Ok(()))));
            // SAFETY: the call ends the process, at once: what waits for its end is of a `main` that
            // did not begin.
            unsafe { libc::_exit(code) }
        }
    }

    /// Reads a request from standard input and writes the answer to standard output.
    fn serve(platform: &str, devices: &str, calls_functions: bool) -> std::io::Result<()> {
        let limit = |resource, soft: u64| {
            let limit = libc::rlimit { rlim_cur: soft, rlim_max: soft };
            // SAFETY: the struct is read during the call.
            unsafe { libc::setrlimit(resource, &limit) };
        };
        // A crash is expected here, and leaves no file; where memory is short, this process ends first.
        limit(libc::RLIMIT_CORE, 0);
        limit(libc::RLIMIT_CPU, MAX_SECONDS);
        let _ = fs::write("/proc/self/oom_score_adj", "1000");
        let mut request = Vec::new();
        std::io::stdin().lock().read_to_end(&mut request)?;
        let (kind, bytes) = answer(&request, platform, devices, calls_functions);
        let mut out = std::io::stdout().lock();
        out.write_all(&[kind])?;
        out.write_all(&bytes)?;
        out.flush()
    }

    /// Fails unless starting this program's file again leads to [`begin`]: it has run, and its code
    /// is a part of that file, not of a shared library.
    fn ensure_child() -> Result<()> {
        let own = fs::read_link(EXECUTABLE_FILE).ok();
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let address = begin as *const () as usize;
        let holds = |line: &str| {
            let (from, to) = line.split_once(' ')?.0.split_once('-')?;
            let range =
                usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?;
            let path = &line[line.find('/')?..];
            Some(range.contains(&address) && own.as_ref()?.to_str()? == path)
        };
        if BEGUN.load(Ordering::Relaxed) && maps.lines().any(|line| holds(line) == Some(true)) {
            return Ok(());
        }
        Err(super::no_child("this library is not part of the program's own file"))
    }

    /// Sends a request to a child and waits for its answer.
    pub(super) fn ask(request: &[u8], calls_functions: bool, runtime: &Runtime) -> Result<Output> {
        ensure_child()?;
        let failed = |error: std::io::Error| super::no_child(&error.to_string());
        let mut child = Command::new(EXECUTABLE_FILE)
            .arg0(NAME)
            .arg(runtime.platform.name())
            .arg(runtime.client.devices().len().to_string())
            .arg(if calls_functions { "calls" } else { "" })
            // It needs little of a GPU's memory, most of which this process may have taken.
            .env("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        if let Some(mut stdin) = child.stdin.take() {
            // A child that has ended says why.
            let _ = stdin.write_all(request);
        }
        let err = child.stderr.take().map(|stream| std::thread::spawn(move || tail(stream)));
        let mut output = child.wait_with_output().map_err(failed)?;
        output.stderr = err.and_then(|reader| reader.join().ok()).unwrap_or_default();
        Ok(output)
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu", not(miri))))]
mod imp {
    use std::process::Output;

    use crate::error::Result;
    use crate::runtime::Runtime;

    pub(super) fn ask(_: &[u8], _: bool, _: &Runtime) -> Result<Output> {
        Err(super::no_child("that needs Linux with glibc"))
    }
}

fn no_child(problem: &str) -> Error {
    Error::Config(format!(
        "an exported function from outside is compiled by a process of its own, and none can be \
         started ({problem}); if you trust its author like code, compile it here: Exported::trusted"
    ))
}
