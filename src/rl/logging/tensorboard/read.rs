//! Reader of event files.

use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use prost::Message;

use super::wire::{EventProto, SummaryValue, What, masked_crc};
use crate::error::{Error, Result};
use crate::rl::files;

/// One entry of an event file.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Seconds since the Unix epoch.
    pub wall_time: f64,
    /// Global step.
    pub step: u64,
    /// Logged value.
    pub value: Value,
}

/// Content of an [`Event`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// Format of the file: its first event.
    FileVersion(String),
    /// A scalar.
    Scalar {
        /// Tag, as in `charts/SPS`.
        tag: String,
        /// Value.
        value: f32,
    },
    /// A text.
    Text {
        /// Tag, which ends in `/text_summary`.
        tag: String,
        /// Content.
        text: String,
    },
}

/// Returns the events of a file, in order. A summary of several values gives one event each; values
/// other than scalars and texts are left out.
///
/// An incomplete last record, as a killed run leaves it, is left out.
///
/// # Errors
/// [`Error::Io`] if the file cannot be read; [`Error::File`] if a record within it is damaged.
pub fn read_events(path: impl AsRef<Path>) -> Result<Vec<Event>> {
    let path = path.as_ref();
    let bytes = files::read(path)?;
    let mut events = Vec::new();
    let mut rest = &bytes[..];
    loop {
        let at = bytes.len() - rest.len();
        let damaged = || {
            let path = path.display();
            Error::File(format!("{path} is damaged: the record at byte {at} is not an event"))
        };
        let Some(length) = checked(&mut rest, 8).ok_or_else(damaged)? else { break };
        let length = length.try_into().map(u64::from_le_bytes).expect("eight bytes");
        let length = usize::try_from(length).map_err(|_| damaged())?;
        let Some(record) = checked(&mut rest, length).ok_or_else(damaged)? else { break };
        push_events(record, &mut events).ok_or_else(damaged)?;
    }
    Ok(events)
}

/// Returns the length of the whole records within the first `length` bytes of a file, `None` if something
/// other than a record or a part of one follows. The contents of the records are not read.
pub(super) fn whole_records(file: impl Read + Seek, length: u64) -> io::Result<Option<u64>> {
    let mut file = BufReader::new(file);
    let length = file.seek(SeekFrom::End(0))?.min(length);
    file.rewind()?;
    let mut at = 0u64;
    while at < length {
        let mut head = [0; 12];
        match file.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            read => read?,
        }
        let (record, checksum) = head.split_at(8);
        if checksum != masked_crc(record).to_le_bytes() {
            return Ok(None);
        }
        // The record and its checksum of four bytes.
        let rest = u64::from_le_bytes(record.try_into().expect("eight bytes")).checked_add(4);
        let end = rest.and_then(|rest| at.checked_add(12)?.checked_add(rest));
        let (Some(end), Some(Ok(skip))) = (end, rest.map(i64::try_from)) else { return Ok(None) };
        if end > length {
            break;
        }
        file.seek_relative(skip)?;
        at = end;
    }
    Ok(Some(at))
}

/// Takes the next `length` bytes, which are followed by their checksum. Returns `Some(None)` if the
/// file ends before that, `None` if the checksum differs.
fn checked<'a>(rest: &mut &'a [u8], length: usize) -> Option<Option<&'a [u8]>> {
    let Some(end) = length.checked_add(4).filter(|end| *end <= rest.len()) else {
        return Some(None);
    };
    let (data, checksum) = rest.split_off(..end)?.split_at(length);
    (checksum == masked_crc(data).to_le_bytes()).then_some(Some(data))
}

/// Appends the events of an `Event` message; returns `None` if it is malformed.
fn push_events(record: &[u8], events: &mut Vec<Event>) -> Option<()> {
    let EventProto { wall_time, step, what } = EventProto::decode(record).ok()?;
    let values = match what {
        None => vec![],
        Some(What::FileVersion(version)) => vec![Value::FileVersion(text(&version))],
        Some(What::Summary(summary)) => {
            summary.value.into_iter().filter_map(summary_value).collect()
        }
    };
    let step = step as u64;
    events.extend(values.into_iter().map(|value| Event { wall_time, step, value }));
    Some(())
}

/// Returns the content of a value if its kind is supported.
fn summary_value(value: SummaryValue) -> Option<Value> {
    let tag = text(&value.tag);
    if let Some(value) = value.simple_value {
        return Some(Value::Scalar { tag, value });
    }
    let string = value.tensor?.string_val.into_iter().next()?;
    Some(Value::Text { tag, text: text(&string) })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
