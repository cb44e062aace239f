//! Key-value store of all processes, by which their GPU clients find each other. A value is sent to
//! every process when it is put.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::abi::{ANY_SOURCE, Library};
use super::{MAX_TIMEOUT, POLL_INTERVAL};
use crate::error::{Error, Result};
use crate::lower::pjrt::KeyValues;

/// Tag of the messages with a key and its value.
const PUT: c_int = 2;

/// Key-value store of this process. It outlives the run of the process, as clients of GPUs do;
/// after the run, its calls are errors.
pub(super) struct Store {
    library: &'static Library,
    /// Ranks of the other processes.
    others: Vec<usize>,
    values: Mutex<Values>,
    /// Signals that a value has come, or that none will.
    changed: Condvar,
    /// True once this process has ended its run. A lock, so that MPI does not end during a call.
    ended: RwLock<bool>,
}

#[derive(Default)]
struct Values {
    known: HashMap<String, Vec<u8>>,
    /// Reason why no more values will come.
    over: Option<String>,
}

impl Store {
    /// Creates the store of process `rank` of `size`, and the thread that receives values.
    pub fn start(
        library: &'static Library,
        (rank, size): (usize, usize),
    ) -> (Arc<Store>, JoinHandle<()>) {
        let store = Arc::new(Store {
            library,
            others: (0..size).filter(|&other| other != rank).collect(),
            values: Mutex::default(),
            changed: Condvar::new(),
            ended: RwLock::new(false),
        });
        let receives = store.clone();
        (store, thread::spawn(move || receives.receive_all()))
    }

    /// Ends the store. When it returns, no thread is in a call of MPI for it.
    pub fn end(&self) {
        *self.ended.write().unwrap_or_else(PoisonError::into_inner) = true;
        self.values().over.get_or_insert_with(|| "this process has ended its run".into());
        self.changed.notify_all();
    }

    fn values(&self) -> MutexGuard<'_, Values> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn receive_all(&self) {
        loop {
            let received = {
                let ended = self.ended.read().unwrap_or_else(PoisonError::into_inner);
                if *ended {
                    return;
                }
                self.receive()
            };
            match received {
                Ok(true) => {}
                Ok(false) => thread::sleep(POLL_INTERVAL),
                Err(error) => {
                    self.values().over.get_or_insert(error.to_string());
                    self.changed.notify_all();
                    return;
                }
            }
        }
    }

    /// Receives one value, if one has arrived.
    fn receive(&self) -> Result<bool> {
        let Some(message) = self.library.probe(ANY_SOURCE, PUT)? else { return Ok(false) };
        let bytes = self.library.receive(message, PUT)?;
        let (key, value) = decode(&bytes).ok_or_else(|| {
            Error::Config(format!("--distributed: process {} sends no value", message.source))
        })?;
        self.values().known.insert(key, value);
        self.changed.notify_all();
        Ok(true)
    }
}

impl KeyValues for Store {
    fn get(&self, key: &str, timeout: Duration) -> Result<Option<Vec<u8>>> {
        let deadline = Instant::now() + timeout.min(MAX_TIMEOUT);
        let mut values = self.values();
        loop {
            if let Some(over) = &values.over {
                return Err(Error::Config(format!("--distributed: {over}")));
            }
            if let Some(value) = values.known.get(key) {
                return Ok(Some(value.clone()));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let waited = self.changed.wait_timeout(values, left);
            values = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<()> {
        let ended = self.ended.read().unwrap_or_else(PoisonError::into_inner);
        if *ended {
            let problem = "--distributed: this process has ended its run";
            return Err(Error::Config(problem.into()));
        }
        let message = encode(key, value);
        for &other in &self.others {
            self.library.send(&message, other, PUT)?;
        }
        self.values().known.insert(key.to_string(), value.to_vec());
        self.changed.notify_all();
        Ok(())
    }
}

/// Returns the message of a key and its value: the key's length, the key, the value.
fn encode(key: &str, value: &[u8]) -> Vec<u8> {
    [&(key.len() as u64).to_le_bytes()[..], key.as_bytes(), value].concat()
}

fn decode(message: &[u8]) -> Option<(String, Vec<u8>)> {
    let (length, rest) = message.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let (key, value) = rest.split_at_checked(length)?;
    Some((String::from_utf8(key.to_vec()).ok()?, value.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_keys_and_values() {
        let message = encode("topology/1", b"two devices");
        let expected = ("topology/1".to_string(), b"two devices".to_vec());
        assert_eq!(decode(&message), Some(expected));
        assert_eq!(decode(&encode("", b"")), Some((String::new(), Vec::new())));
        for cut in 0..8 + "topology/1".len() {
            assert_eq!(decode(&message[..cut]), None, "{cut}");
        }
        assert_eq!(decode(&[255; 20]), None);
    }
}
