//! Writer of TensorBoard event files.
//!
//! A file is a sequence of TFRecords, each with one `Event` message. Whole records are written at
//! once, so that a killed run leaves a readable file that lacks at most the last seconds. The part of
//! a record that a failed write left is removed.

mod read;
mod wire;

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use read::{Event, Value, read_events};

use crate::error::{Error, Result};
use crate::output;
use crate::rl::files::{self, is_at};
use crate::rl::logging::track::Tracker;
use prost::Message;
use wire::{
    Dim, EventProto, PluginData, Summary, SummaryMetadata, SummaryValue, TensorProto,
    TensorShapeProto, What, push_record,
};

/// First event of a file, as TensorBoard expects it.
const FILE_VERSION: &str = "brain.Event:2";
/// Maximum time that events are buffered.
const FLUSH_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of bytes of events that are buffered.
const FLUSH_BYTES: usize = 1 << 16;

/// Writer of an event file.
///
/// Events are buffered and written every few seconds, by [`flush`](EventWriter::flush), by
/// [`close`](EventWriter::close) and on drop. The first write error is returned once; later events
/// are silently dropped. With `--on-write-error continue` the error is printed instead of returned,
/// the events that could not be written are lost, and later ones are written once that is possible.
#[derive(Debug)]
pub struct EventWriter {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
    flushed: Instant,
    /// True once a write error was reported.
    failed: bool,
    /// True once the file was removed, replaced or cut.
    is_gone: bool,
    /// If true, errors are printed instead of returned.
    ignores_errors: bool,
    /// Length of the records that the file has.
    length: u64,
    /// True if other bytes may follow them: part of a record after a failed write, or the events
    /// after the checkpoint of a resumed run. They are removed before anything else is written.
    has_tail: bool,
    /// Run in Weights & Biases, which gets the same numbers.
    tracker: Option<Tracker>,
}

impl EventWriter {
    /// Creates a new event file in the folder `dir`, which is created if necessary.
    ///
    /// # Errors
    /// [`Error::Io`] if the folder or the file cannot be written.
    pub fn create(dir: impl AsRef<Path>) -> Result<EventWriter> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let dir = dir.as_ref();
        fs::create_dir_all(dir).map_err(Error::io("cannot create", dir))?;
        let (unix, host, pid) = (unix_seconds() as u64, host(), process::id());
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = dir.join(format!("events.out.tfevents.{unix:010}.{host}.{pid}.{count}"));
        let file = File::create_new(&path).map_err(Error::io("cannot create", &path))?;
        let mut writer = EventWriter::new(file, path, 0);
        writer.push(0, What::FileVersion(FILE_VERSION.into()))?;
        // The empty run is visible at once, and a full disk is detected.
        writer.flush()?;
        Ok(writer)
    }

    /// Continues the event file at `path` after its first `length` bytes. The bytes after them are
    /// removed by [`written`](EventWriter::written) or before the first event is written, so that a
    /// failed resumption leaves the file unchanged. If another program has removed the file or cut
    /// it, a warning is printed, and the whole records that are left are continued.
    ///
    /// # Errors
    /// [`Error::Io`] if the file is a symbolic link or no regular file, has no end of a record at
    /// `length`, has something other than records, or cannot be written.
    pub(crate) fn reopen(path: PathBuf, length: u64) -> Result<EventWriter> {
        let open = || -> std::io::Result<(File, u64, u64)> {
            let mut file = files::open_or_create(&path)?;
            let found = file.metadata()?.len();
            match read::whole_records(&mut file, length)? {
                Some(whole) if whole > 0 && whole == length => return Ok((file, found, whole)),
                Some(whole) if found < length => return Ok((file, found, whole)),
                _ => {}
            }
            let problem = format!("no event ends at byte {length}, where the checkpoint was");
            Err(std::io::Error::other(problem))
        };
        let (file, found, whole) = open().map_err(Error::io("cannot go on with", &path))?;
        let mut writer = EventWriter::new(file, path, whole);
        writer.has_tail = true;
        if whole < length {
            output::stderr_line(format_args!(
                "warning: another program has cut {}: it has {found} bytes of the {length} that were \
                 written; training continues without the events that it lacks",
                writer.path.display()
            ));
        }
        if whole == 0 {
            writer.push(0, What::FileVersion(FILE_VERSION.into()))?;
        }
        Ok(writer)
    }

    /// Writes the buffered events to the disk and returns the length of the file in bytes, which a
    /// checkpoint names: the file must not be shorter after a loss of power.
    ///
    /// # Errors
    /// [`Error::Io`] if they cannot be written.
    pub fn written(&mut self) -> Result<u64> {
        self.flush()?;
        if self.is_gone {
            return Ok(self.length);
        }
        let removed = self.remove_tail();
        let synced = removed.and_then(|()| self.file.sync_data());
        synced.map_err(Error::io("cannot write", &self.path))?;
        Ok(self.length)
    }

    fn new(file: File, path: PathBuf, length: u64) -> EventWriter {
        let (buffer, flushed) = (Vec::new(), Instant::now());
        EventWriter {
            path,
            file,
            buffer,
            flushed,
            failed: false,
            is_gone: false,
            ignores_errors: false,
            length,
            has_tail: false,
            tracker: None,
        }
    }

    /// Makes the writer print the first failure as a warning instead of returning it.
    pub(crate) fn ignore_errors(&mut self) {
        self.ignores_errors = true;
    }

    /// Makes `tracker` get all numbers that are logged from now on.
    pub(in crate::rl) fn track(&mut self, tracker: Tracker) {
        self.tracker = Some(tracker);
    }

    /// Returns the run in Weights & Biases.
    pub(in crate::rl) fn tracker(&self) -> Option<&Tracker> {
        self.tracker.as_ref()
    }

    /// Ends the run in Weights & Biases, after all data are sent.
    pub(in crate::rl) fn finish_tracking(&mut self, exit_code: i32) {
        self.tracker.take().into_iter().for_each(|tracker| tracker.finish(exit_code));
    }

    /// Returns true once events could not be written.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Returns true if events are dropped.
    fn is_closed(&self) -> bool {
        self.is_gone || (self.failed && !self.ignores_errors)
    }

    /// Reports the first error.
    fn fail(&mut self, source: std::io::Error) -> Result<()> {
        if std::mem::replace(&mut self.failed, true) {
            return Ok(());
        }
        let error = Error::io("cannot write", &self.path)(source);
        if !self.ignores_errors {
            return Err(error);
        }
        output::stderr_line(format_args!("{}", continues(&error)));
        Ok(())
    }

    /// Removes the bytes after the records.
    fn remove_tail(&mut self) -> std::io::Result<()> {
        if self.has_tail {
            self.file.set_len(self.length)?;
            self.file.seek(SeekFrom::Start(self.length))?;
            self.has_tail = false;
        }
        Ok(())
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Logs a number. The file stores it as `f32`.
    ///
    /// # Errors
    /// [`Error::Io`] if buffered events cannot be written.
    pub fn scalar(&mut self, tag: &str, value: f64, step: u64) -> Result<()> {
        self.scalars(&[(tag, value)], step)
    }

    /// Logs several numbers of one step.
    ///
    /// # Errors
    /// [`Error::Io`] if buffered events cannot be written.
    pub fn scalars(&mut self, values: &[(&str, f64)], step: u64) -> Result<()> {
        if let Some(tracker) = &self.tracker {
            tracker.scalars(values, step);
        }
        let scalar = |(tag, value): &(&str, f64)| SummaryValue {
            tag: (*tag).into(),
            simple_value: Some(*value as f32),
            ..SummaryValue::default()
        };
        self.push(step, What::Summary(Summary { value: values.iter().map(scalar).collect() }))
    }

    /// Logs a text, which TensorBoard displays as markdown under `tag`.
    ///
    /// # Errors
    /// [`Error::Io`] if buffered events cannot be written.
    pub fn text(&mut self, tag: &str, text: &str, step: u64) -> Result<()> {
        // The tag, the plugin and the tensor string[1] are those of PyTorch's SummaryWriter.
        let shape = TensorShapeProto { dim: vec![Dim { size: 1 }] };
        let tensor =
            TensorProto { dtype: 7, tensor_shape: Some(shape), string_val: vec![text.into()] };
        let value = SummaryValue {
            tag: format!("{tag}/text_summary").into(),
            tensor: Some(tensor),
            metadata: Some(SummaryMetadata {
                plugin_data: Some(PluginData { plugin_name: "text".into() }),
            }),
            ..SummaryValue::default()
        };
        self.push(step, What::Summary(Summary { value: vec![value] }))
    }

    /// Writes the buffered events.
    ///
    /// # Errors
    /// [`Error::Io`] if they cannot be written.
    pub fn flush(&mut self) -> Result<()> {
        self.flushed = Instant::now();
        if self.is_closed() {
            return Ok(());
        }
        // A reopened file is not changed until there is something to write.
        if self.buffer.is_empty() {
            return self.check_present();
        }
        // Bytes after a cut would begin with a hole.
        self.check_present()?;
        if self.is_closed() {
            return Ok(());
        }
        let written = self.remove_tail().and_then(|()| self.file.write_all(&self.buffer));
        let count = self.buffer.len() as u64;
        self.buffer.clear();
        match written {
            Ok(()) => {
                self.length += count;
                self.check_present()
            }
            Err(source) => {
                self.has_tail = true;
                // A failure here is met again before the next write.
                let _ = self.remove_tail();
                self.fail(source)
            }
        }
    }

    /// Checks that the file was not removed, replaced or cut, in which case later events would be lost.
    /// Like any write error, this one is returned once.
    ///
    /// # Errors
    /// [`Error::Io`] if another program has removed, replaced or cut the file.
    pub(crate) fn check_present(&mut self) -> Result<()> {
        if self.is_closed() {
            return Ok(());
        }
        let length = self.file.metadata().map_or(self.length, |file| file.len());
        let problem = if !is_at(&self.file, &self.path) {
            "it was removed or replaced while the run wrote it".to_string()
        } else if length < self.length {
            let written = self.length;
            format!("another program cut it to {length} of {written} bytes while the run wrote it")
        } else {
            return Ok(());
        };
        self.is_gone = true;
        self.fail(std::io::Error::new(std::io::ErrorKind::NotFound, problem))
    }

    /// Writes the buffered events and closes the file.
    ///
    /// # Errors
    /// [`Error::Io`] if they cannot be written.
    pub fn close(mut self) -> Result<()> {
        self.flush()
    }

    fn push(&mut self, step: u64, what: What) -> Result<()> {
        if self.is_closed() {
            return Ok(());
        }
        let event = EventProto { wall_time: unix_seconds(), step: step as i64, what: Some(what) };
        push_record(&mut self.buffer, &event.encode_to_vec());
        if self.buffer.len() < FLUSH_BYTES && self.flushed.elapsed() < FLUSH_INTERVAL {
            return Ok(());
        }
        self.flush()
    }
}

impl Drop for EventWriter {
    fn drop(&mut self) {
        if let Err(error) = self.flush() {
            output::stderr_line(format_args!("podracer: warning: {error}"));
        }
    }
}

/// Returns the warning for a write error that does not end the run.
pub(in crate::rl) fn continues(error: &Error) -> String {
    format!(
        "warning: {error}; training continues without what cannot be written (--on-write-error \
         continue)"
    )
}

/// Returns seconds since the Unix epoch.
pub(in crate::rl) fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// Returns the machine's name, reduced to characters that file names may contain.
pub(in crate::rl) fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .or_else(|| std::env::var("COMPUTERNAME").ok())
        .unwrap_or_default();
    let allowed = |c: &char| c.is_ascii_alphanumeric() || "-_.".contains(*c);
    let name: String = name.trim().chars().filter(allowed).collect();
    if name.is_empty() { "localhost".to_string() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scalar(tag: &str, value: f32) -> Value {
        Value::Scalar { tag: tag.to_string(), value }
    }

    #[test]
    fn events_come_back_even_from_a_truncated_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(dir.path().join("a/b")).unwrap();
        writer.text("hyperparameters", "|param|value|", 0).unwrap();
        writer.scalar("charts/SPS", 1234.0, 128).unwrap();
        writer.scalars(&[("losses/entropy", 0.5), ("losses/value_loss", f64::NAN)], 256).unwrap();
        let path = writer.path().to_path_buf();
        writer.close().unwrap();

        let events = read_events(&path).unwrap();
        assert_eq!(events[0].value, Value::FileVersion("brain.Event:2".to_string()));
        let tag = "hyperparameters/text_summary".to_string();
        assert_eq!(events[1].value, Value::Text { tag, text: "|param|value|".to_string() });
        assert_eq!((events[2].step, &events[2].value), (128, &scalar("charts/SPS", 1234.0)));
        assert_eq!((events[3].step, &events[3].value), (256, &scalar("losses/entropy", 0.5)));
        assert!(matches!(events[4].value, Value::Scalar { value, .. } if value.is_nan()));
        assert!((unix_seconds() - events[2].wall_time).abs() < 60.0);

        let bytes = fs::read(&path).unwrap();
        for cut in [1, 20, 60] {
            fs::write(&path, &bytes[..bytes.len() - cut]).unwrap();
            assert_eq!(read_events(&path).unwrap(), events[..3], "{cut} bytes less");
        }
        let mut damaged = bytes.clone();
        damaged[40] ^= 1;
        fs::write(&path, damaged).unwrap();
        let error = read_events(&path).unwrap_err().to_string();
        assert!(error.contains("is damaged: the record at byte "), "{error}");
    }

    #[test]
    fn records_are_the_recorded_ones() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(dir.path()).unwrap();
        writer.text("h", "text", 0).unwrap();
        writer.scalars(&[("a/b", 0.5), ("", 0.0)], 300).unwrap();
        writer.flush().unwrap();
        let bytes = fs::read(writer.path()).unwrap();
        let (mut rest, mut records) = (&bytes[..], Vec::new());
        while let Some((length, after)) = rest.split_first_chunk::<8>() {
            // Two checksums of four bytes; a record begins with the field of the wall time.
            let length = u64::from_le_bytes(*length) as usize;
            let record = &after[4..4 + length];
            assert_eq!(record[0], 9);
            records.push(record[9..].iter().map(|x| format!("{x:02x}")).collect::<String>());
            rest = &after[length + 8..];
        }
        let expected = [
            "10001a0d627261696e2e4576656e743a32",
            "10002a2c0a2a0a0e682f746578745f73756d6d617279420e080712041202080142047465\
             78744a080a060a0474657874",
            "10ac022a150a0a0a03612f62150000003f0a070a001500000000",
        ];
        assert_eq!(records, expected);
    }

    /// Records with right checksums around damaged messages are read or refused.
    #[test]
    fn no_damage_makes_the_reader_panic() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events");
        let mut whole = EventWriter::create(dir.path()).unwrap();
        whole.buffer.clear();
        whole.text("h", "text", 1).unwrap();
        let record = whole.buffer[12..whole.buffer.len() - 4].to_vec();
        let read = |record: &[u8]| {
            let mut bytes = Vec::new();
            push_record(&mut bytes, record);
            fs::write(&path, bytes).unwrap();
            read_events(&path)
        };
        assert_eq!(read(&record).unwrap().len(), 1);
        for length in 12..record.len() {
            assert!(read(&record[..length]).is_err(), "{length}");
        }
        for at in 0..record.len() {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut damaged = record.clone();
                damaged[at] = byte;
                let _ = read(&damaged);
            }
        }
    }

    #[test]
    fn files_of_one_folder_have_different_names() {
        let dir = tempfile::tempdir().unwrap();
        let first = EventWriter::create(dir.path()).unwrap();
        let second = EventWriter::create(dir.path()).unwrap();
        assert_ne!(first.path(), second.path());
        let name = first.path().file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("events.out.tfevents."), "{name}");
        assert_eq!(name.split('.').rev().nth(1).unwrap(), process::id().to_string());
    }

    #[test]
    fn events_do_not_wait_long() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(dir.path()).unwrap();
        writer.scalar("charts/SPS", 1.0, 1).unwrap();
        assert_eq!(read_events(writer.path()).unwrap().len(), 1);
        writer.flushed = Instant::now().checked_sub(FLUSH_INTERVAL).unwrap();
        writer.scalar("charts/SPS", 2.0, 2).unwrap();
        assert_eq!(read_events(writer.path()).unwrap().len(), 3);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_failed_write_is_reported_once() {
        let path = PathBuf::from("/dev/full");
        let mut writer = EventWriter::new(File::create(&path).unwrap(), path, 0);
        writer.scalar("charts/SPS", 1.0, 1).unwrap();
        let error = writer.flush().unwrap_err().to_string();
        assert!(error.starts_with("cannot write /dev/full: "), "{error}");
        writer.scalar("charts/SPS", 1.0, 2).unwrap();
        writer.close().unwrap();
    }

    /// A disk that is full for some time, within a record.
    #[test]
    fn a_failed_write_leaves_no_part_of_a_record() {
        for continues in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let mut writer = EventWriter::create(dir.path()).unwrap();
            let path = writer.path().to_path_buf();
            if continues {
                writer.ignore_errors();
            }
            writer.scalar("charts/SPS", 1.0, 1).unwrap();
            writer.flush().unwrap();
            let whole = std::mem::replace(&mut writer.file, File::open(&path).unwrap());
            writer.scalar("charts/SPS", 2.0, 2).unwrap();
            assert_eq!(writer.flush().is_ok(), continues, "a file that is open for reading only");
            assert!(writer.has_failed());
            let mut bytes = fs::read(&path).unwrap();
            bytes.extend([7; 9]);
            fs::write(&path, bytes).unwrap();
            writer.file = whole;
            // The position is after the part of the record, as after a failed write.
            writer.file.seek(SeekFrom::End(0)).unwrap();
            let length = writer.written().unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), length, "a checkpoint names the end");
            writer.scalar("charts/SPS", 3.0, 3).unwrap();
            writer.close().unwrap();
            let steps: Vec<u64> = read_events(&path).unwrap().iter().map(|x| x.step).collect();
            assert_eq!(steps, if continues { vec![0, 1, 3] } else { vec![0, 1] });
            // The run is resumed there.
            EventWriter::reopen(path, length).unwrap();
        }
    }

    #[test]
    fn a_removed_file_is_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(dir.path()).unwrap();
        writer.check_present().unwrap();
        fs::remove_file(writer.path()).unwrap();
        let error = writer.check_present().unwrap_err().to_string();
        assert!(error.contains("it was removed or replaced"), "{error}");
        writer.check_present().unwrap();
        writer.flush().unwrap();
        let mut writer = EventWriter::create(dir.path()).unwrap();
        fs::remove_file(writer.path()).unwrap();
        fs::write(writer.path(), "another file").unwrap();
        assert!(writer.flush().is_err());
    }

    #[test]
    fn a_cut_file_is_reported_once_and_continued_later() {
        for cut in [0, 1, 30, 31] {
            let dir = tempfile::tempdir().unwrap();
            let mut writer = EventWriter::create(dir.path()).unwrap();
            let path = writer.path().to_path_buf();
            for step in 1..=3 {
                writer.scalar("charts/SPS", 1.0, step).unwrap();
            }
            let length = writer.written().unwrap();
            let whole = fs::read(&path).unwrap();
            fs::write(&path, &whole[..whole.len() * cut / 31]).unwrap();
            writer.scalar("charts/SPS", 1.0, 4).unwrap();
            let outcome = writer.flush();
            if cut == 31 {
                outcome.unwrap();
                continue;
            }
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains("another program cut it to "), "{error}");
            writer.scalar("charts/SPS", 1.0, 5).unwrap();
            // A checkpoint of a run that continues without the file.
            assert_eq!(writer.written().unwrap(), length);
            writer.close().unwrap();
            if cut == 0 {
                fs::remove_file(&path).unwrap();
            }

            let mut writer = EventWriter::reopen(path.clone(), length).unwrap();
            writer.scalar("charts/SPS", 1.0, 6).unwrap();
            writer.close().unwrap();
            let steps: Vec<u64> = read_events(&path).unwrap().iter().map(|x| x.step).collect();
            // The version of the file, and the records that were left.
            let left: &[u64] = if cut == 30 { &[0, 1, 2, 6] } else { &[0, 6] };
            assert_eq!(steps, left, "{cut}");
        }
    }

    #[test]
    fn an_unwritable_folder_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("runs");
        fs::write(&file, "a file, not a folder").unwrap();
        let error = EventWriter::create(file.join("run")).unwrap_err().to_string();
        assert!(error.starts_with("cannot create ") && error.contains("runs"), "{error}");
    }
}
