//! Output of child processes, of which a bounded part is kept: a program that writes without end takes
//! no memory of this process.

use std::io::{self, BufRead, Read};
use std::process::{Command, Output, Stdio};
use std::thread;

/// Bytes of a stream that are kept: many times more than the last lines of an error.
const MAX_TAIL: usize = 1 << 18;

/// Bytes of a line that are kept.
pub const MAX_LINE: usize = 1 << 16;

/// The end of a text that grows by appending.
#[derive(Debug, Default)]
pub struct Tail(Vec<u8>);

impl Tail {
    /// Appends these bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        // Seldom, so that the bytes that stay are not moved each time.
        if self.0.len() > 2 * MAX_TAIL {
            self.0.drain(..self.0.len() - MAX_TAIL);
        }
    }

    /// Returns the last bytes, 256 KiB at most.
    pub fn into_bytes(mut self) -> Vec<u8> {
        self.0.drain(..self.0.len().saturating_sub(MAX_TAIL));
        self.0
    }
}

/// Reads a stream to its end, and returns its last bytes. Bytes that cannot be read are lost with the
/// process.
pub fn tail(mut stream: impl Read) -> Vec<u8> {
    let (mut tail, mut buffer) = (Tail::default(), [0; 1 << 12]);
    loop {
        match stream.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => return tail.into_bytes(),
            Ok(count) => tail.push(&buffer[..count]),
        }
    }
}

/// [`Command::output`] with the last bytes of either stream.
///
/// # Errors
/// Returns the system's error if the process cannot be started or waited for.
pub fn output_of(command: &mut Command) -> io::Result<Output> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let err = child.stderr.take().map(|stream| thread::spawn(move || tail(stream)));
    let stdout = child.stdout.take().map(tail).unwrap_or_default();
    let stderr = err.and_then(|reader| reader.join().ok()).unwrap_or_default();
    Ok(Output { status: child.wait()?, stdout, stderr })
}

/// Reads a line, of which `line` gets no more than [`MAX_LINE`] bytes. Returns the length of the line; 0
/// at the end.
///
/// # Errors
/// Returns the errors of the reader.
pub fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<usize> {
    line.clear();
    let mut length = 0;
    loop {
        let bytes = match reader.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            bytes => bytes?,
        };
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let count = end.map_or(bytes.len(), |end| end + 1);
        line.extend_from_slice(&bytes[..count.min(MAX_LINE - line.len())]);
        reader.consume(count);
        length += count;
        if count == 0 || end.is_some() {
            return Ok(length);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    #[test]
    fn a_line_without_end_takes_little_memory() {
        // 64 MiB without the end of a line.
        let long = io::repeat(b'x').take(1 << 26).chain(&b"\n\xff\nlast"[..]);
        let (mut reader, mut line) = (BufReader::new(long), Vec::new());
        let mut found = Vec::new();
        loop {
            let read = read_line(&mut reader, &mut line).unwrap();
            if read == 0 {
                break;
            }
            found.push((read, line.len()));
        }
        assert_eq!(found, [((1 << 26) + 1, MAX_LINE), (2, 2), (4, 4)]);
    }

    #[test]
    fn only_the_end_of_a_long_stream_is_kept() {
        let kept = tail(io::repeat(b'x').take(1 << 24).chain(&b"the reason"[..]));
        assert_eq!(kept.len(), MAX_TAIL);
        assert!(kept.ends_with(b"xthe reason"));
    }

    #[cfg(unix)]
    #[test]
    fn a_child_that_writes_much_to_both_streams_ends() {
        let script =
            "yes out | head -c 4000000; yes err | head -c 4000000 >&2; echo end >&2; exit 3";
        let output = output_of(Command::new("sh").args(["-c", script])).unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!([output.stdout.len(), output.stderr.len()], [MAX_TAIL; 2]);
        assert!(output.stderr.ends_with(b"end\n"));
    }
}
