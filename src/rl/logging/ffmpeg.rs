//! MP4 files by the program ffmpeg, which Gymnasium's `RecordVideo` uses as well.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use super::python::read_errors;
use crate::envs::default_python;
use crate::error::{Error, Result};
use crate::native::answer_of;
use crate::rl::files;

/// Environment variable that names the program, or is `off`.
const VARIABLE: &str = "PODRACER_FFMPEG";

/// Prints the path of the program that the package `imageio-ffmpeg` holds. CleanRL's requirements
/// install this package.
const FIND_IN_PYTHON: &str = "import imageio_ffmpeg; print(imageio_ffmpeg.get_ffmpeg_exe())";

/// Returns ffmpeg: that of the environment variable `PODRACER_FFMPEG`, the one on the path, or that
/// of the package `imageio-ffmpeg` of the Python in use. `None` if there is none, or with `off`.
pub(in crate::rl) fn program() -> Option<&'static Path> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = || match std::env::var_os(VARIABLE).filter(|named| !named.is_empty()) {
        Some(named) if named == "off" => None,
        Some(named) => Some(named.into()),
        None => Some("ffmpeg".into()).filter(|path: &PathBuf| runs(path)).or_else(of_python),
    };
    FOUND.get_or_init(found).as_deref()
}

/// Returns true if the program can be started and knows its version.
fn runs(program: &Path) -> bool {
    let mut command = Command::new(program);
    command.arg("-version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn of_python() -> Option<PathBuf> {
    let mut command = Command::new(default_python());
    // Without the modules in the working directory.
    command.env("PYTHONSAFEPATH", "1");
    let answer = answer_of(command.args(["-c", FIND_IN_PYTHON]))?;
    let path = PathBuf::from(answer.trim());
    runs(&path).then_some(path)
}

/// Video under way: a process of ffmpeg that reads frames from a pipe.
pub(super) struct Ffmpeg {
    path: PathBuf,
    child: Child,
    /// `None` once all frames are written.
    input: Option<ChildStdin>,
    /// Last line that the process wrote to its standard error.
    error: Arc<Mutex<String>>,
    errors: Option<JoinHandle<()>>,
}

impl Ffmpeg {
    /// Starts the process. The file is H.264 where `program` has its encoder, in the size of the
    /// frames, with an even number of rows and columns.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be created, [`Error::Env`] if the process cannot be started.
    pub(super) fn start(
        program: &Path,
        path: PathBuf,
        (width, height): (usize, usize),
        frames_per_second: u32,
    ) -> Result<Ffmpeg> {
        // Fails for a link; ffmpeg would follow it.
        files::create(&path).map_err(Error::io("cannot create", &path))?;
        let mut command = Command::new(program);
        command.args(["-loglevel", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24"]);
        command.args(["-s", &format!("{width}x{height}"), "-r", &frames_per_second.to_string()]);
        command.args(["-i", "pipe:0", "-an", "-threads", "1"]);
        command.args(["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p"]);
        command.args(["-movflags", "+faststart", "-f", "mp4"]);
        command.arg([OsString::from("file:"), path.clone().into_os_string()].join("".as_ref()));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        // Ctrl-C in a terminal goes to all processes of a group.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().map_err(|error| {
            Error::Env(format!("cannot run {}: {error}; see {VARIABLE}", program.display()))
        })?;
        let (input, err) = (child.stdin.take(), child.stderr.take());
        let error = Arc::new(Mutex::new(String::new()));
        let last = Arc::clone(&error);
        let errors = err.map(|err| std::thread::spawn(move || read_errors(err, &last)));
        Ok(Ffmpeg { path, child, input, error, errors })
    }

    /// Writes a frame, RGB bytes by rows.
    ///
    /// # Errors
    /// [`Error::Env`] with the process's own message if it has ended.
    pub(super) fn write(&mut self, pixels: &[u8]) -> Result<()> {
        match self.input.as_mut().map(|input| input.write_all(pixels)) {
            Some(Ok(())) => Ok(()),
            _ => Err(self.failure("it reads no more frames")),
        }
    }

    /// Completes the file and returns its path.
    ///
    /// # Errors
    /// [`Error::Env`] with the process's own message if it fails.
    pub(super) fn close(mut self) -> Result<PathBuf> {
        drop(self.input.take());
        match self.child.wait() {
            Ok(status) if status.success() => Ok(self.path.clone()),
            Ok(status) => Err(self.failure(&status.to_string())),
            Err(error) => Err(self.failure(&error.to_string())),
        }
    }

    /// Ends the process and returns an error with its last message, or with `otherwise`.
    fn failure(&mut self, otherwise: &str) -> Error {
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.errors.take().map(JoinHandle::join);
        let message = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        let message = if message.is_empty() { otherwise } else { message.as_str() };
        Error::Env(format!(
            "ffmpeg cannot write {}: {message}; {VARIABLE}=off writes GIFs",
            self.path.display()
        ))
    }
}

impl Drop for Ffmpeg {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ffmpeg of the tests' peers, or the one in use.
    fn ffmpeg() -> Option<PathBuf> {
        let peers = std::env::var_os("PODRACER_PEER_PYTHON");
        let found = peers.and_then(|python| {
            let output = Command::new(python).args(["-c", FIND_IN_PYTHON]).output().ok()?;
            let path = String::from_utf8(output.stdout).ok()?;
            Some(PathBuf::from(path.trim())).filter(|path| runs(path))
        });
        let required = std::env::var_os("PODRACER_REQUIRE_PEERS").is_some();
        let found = found.or_else(|| program().map(PathBuf::from));
        assert!(found.is_some() || !required, "PODRACER_PEER_PYTHON has no imageio-ffmpeg");
        if found.is_none() {
            eprintln!("skipped: there is no ffmpeg");
        }
        found
    }

    #[test]
    fn frames_are_read_back_from_the_file() {
        let Some(program) = ffmpeg() else { return };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("episode-0.mp4");
        let mut video = Ffmpeg::start(&program, path.clone(), (33, 20), 25).unwrap();
        for k in 0..30u8 {
            video.write(&[8 * k; 33 * 20 * 3]).unwrap();
        }
        assert_eq!(video.close().unwrap(), path);
        let mut command = Command::new(program);
        command.args(["-loglevel", "error", "-i"]).arg(path);
        let output = command.args(["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]).output().unwrap();
        assert_eq!(output.stdout.len(), 30 * 34 * 20 * 3);
        for (k, frame) in output.stdout.chunks(34 * 20 * 3).enumerate() {
            // The middle of the frame: the column that was added is black.
            let pixel = i32::from(frame[3 * (34 * 10 + 10)]);
            assert!((pixel - 8 * k as i32).abs() < 12, "frame {k}: {pixel}");
        }
    }

    #[test]
    fn failures_have_the_message_of_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("episode-0.mp4");
        let start = |program: &str| Ffmpeg::start(program.as_ref(), path.clone(), (2, 2), 25);
        let error = start("/no/such/ffmpeg").err().unwrap().to_string();
        assert!(error.contains("cannot run /no/such/ffmpeg"), "{error}");
        assert!(error.contains("see PODRACER_FFMPEG"), "{error}");
        let mut video = start("false").unwrap();
        let written = (0..100_000).try_for_each(|_| video.write(&[0; 12]));
        let error = written.unwrap_err().to_string();
        assert!(error.contains("ffmpeg cannot write"), "{error}");
        assert!(error.contains("PODRACER_FFMPEG=off writes GIFs"), "{error}");
        let Some(program) = ffmpeg() else { return };
        let video = Ffmpeg::start(&program, path.clone(), (0, 0), 25).unwrap();
        let error = video.close().unwrap_err().to_string();
        assert!(error.contains("Error opening input"), "the last line of ffmpeg: {error}");
    }
}
