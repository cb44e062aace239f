//! The standard ABI of MPI 5.0 (MPI: A Message-Passing Interface Standard, version 5.0, chapter
//! "Application Binary Interface" and appendix A.1), by which any library of that ABI can be loaded
//! at run time.
//!
//! A handle is a pointer whose value is a constant of the standard. Every function returns
//! `MPI_SUCCESS`, 0, or an error code.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;
use std::path::Path;

use crate::error::{Error, Result};

/// `MPI_Comm`, `MPI_Datatype`, `MPI_Op` and `MPI_Errhandler`: incomplete types of the standard.
type Handle = *mut c_void;

/// Returns a predefined handle. The standard defines their values below the first page of memory, so
/// that they are never addresses.
const fn handle(value: usize) -> Handle {
    std::ptr::without_provenance_mut(value)
}

const OP_SUM: usize = 0x21;
const COMM_WORLD: usize = 0x101;
const ERRORS_RETURN: usize = 0x143;
const BYTE: usize = 0x247;
const FLOAT: usize = 0x210;
const INT64_T: usize = 0x258;
/// `MPI_IN_PLACE`: the result replaces the numbers that are sent.
const IN_PLACE: usize = 1;

/// `MPI_ANY_SOURCE`.
pub(super) const ANY_SOURCE: c_int = -1;
/// `MPI_THREAD_SERIALIZED`: any thread may call, one at a time.
pub(super) const THREAD_SERIALIZED: c_int = 2048;
/// `MPI_THREAD_MULTIPLE`: any threads may call at once.
pub(super) const THREAD_MULTIPLE: c_int = 4096;
/// `MPI_MAX_ERROR_STRING` and `MPI_MAX_PROCESSOR_NAME`, of which the first is the larger.
const MAX_TEXT: usize = 512;

/// `MPI_Status`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Status {
    source: c_int,
    tag: c_int,
    error: c_int,
    internal: [c_int; 5],
}

/// Message that has arrived and was not received yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Arrived {
    /// Rank of the sender.
    pub source: c_int,
    /// Number of bytes.
    pub bytes: c_int,
}

/// Declares the functions that are used, with the types of the standard's C bindings, and loads
/// them.
macro_rules! functions {
    ($($name:ident = $symbol:literal ($($of:ty),*);)*) => {
        struct Functions {
            $($name: unsafe extern "C" fn($($of),*) -> c_int,)*
        }

        impl Functions {
            fn of(library: &libloading::Library) -> std::result::Result<Functions, libloading::Error> {
                // SAFETY: the types are those of the standard's C bindings. The library is never
                // unloaded.
                Ok(unsafe { Functions { $($name: *library.get(concat!($symbol, "\0"))?,)* } })
            }
        }
    };
}

functions! {
    abi_version = "MPI_Abi_get_version" (*mut c_int, *mut c_int);
    initialized = "MPI_Initialized" (*mut c_int);
    init_thread = "MPI_Init_thread" (*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
    finalize = "MPI_Finalize" ();
    abort = "MPI_Abort" (Handle, c_int);
    comm_rank = "MPI_Comm_rank" (Handle, *mut c_int);
    comm_size = "MPI_Comm_size" (Handle, *mut c_int);
    set_errhandler = "MPI_Comm_set_errhandler" (Handle, Handle);
    error_string = "MPI_Error_string" (c_int, *mut c_char, *mut c_int);
    processor_name = "MPI_Get_processor_name" (*mut c_char, *mut c_int);
    bcast = "MPI_Bcast" (*mut c_void, c_int, Handle, c_int, Handle);
    allreduce = "MPI_Allreduce" (*const c_void, *mut c_void, c_int, Handle, Handle, Handle);
    alltoallv = "MPI_Alltoallv"
        (*const c_void, *const c_int, *const c_int, Handle,
         *mut c_void, *const c_int, *const c_int, Handle, Handle);
    allgatherv = "MPI_Allgatherv"
        (*const c_void, c_int, Handle, *mut c_void, *const c_int, *const c_int, Handle, Handle);
    send = "MPI_Send" (*const c_void, c_int, Handle, c_int, c_int, Handle);
    recv = "MPI_Recv" (*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Status);
    iprobe = "MPI_Iprobe" (c_int, c_int, Handle, *mut c_int, *mut Status);
    get_count = "MPI_Get_count" (*const Status, Handle, *mut c_int);
}

/// Consecutive parts of some numbers, one for each process.
#[derive(Clone)]
pub(super) struct Parts {
    counts: Vec<c_int>,
    starts: Vec<c_int>,
    /// Rank of this process.
    rank: usize,
}

impl Parts {
    /// Divides `len` numbers among `size` processes, of which this one is `rank`; the last parts may
    /// be shorter.
    pub fn of(len: usize, size: usize, rank: usize) -> Result<Parts> {
        let part = len.div_ceil(size);
        let starts = (0..size).map(|p| (p * part).min(len));
        let counts = starts.clone().map(|start| part.min(len - start));
        Ok(Parts {
            counts: counts.map(count).collect::<Result<_>>()?,
            starts: starts.map(count).collect::<Result<_>>()?,
            rank,
        })
    }

    /// `size` parts of equal length.
    fn equal(part: usize, size: usize, rank: usize) -> Result<Parts> {
        let starts = (0..size).map(|p| count(p * part)).collect::<Result<_>>()?;
        Ok(Parts { counts: vec![count(part)?; size], starts, rank })
    }

    /// End of the last part.
    fn end(&self) -> usize {
        let ends = self.starts.iter().zip(&self.counts).map(|(&start, &count)| start + count);
        ends.max().unwrap_or(0) as usize
    }

    /// Range of this process's part.
    pub fn own(&self) -> Range<usize> {
        let start = self.starts[self.rank] as usize;
        start..start + self.counts[self.rank] as usize
    }
}

/// Loaded MPI library. It stays loaded until the process ends, as it may have threads of its own.
pub(super) struct Library {
    functions: Functions,
}

fn native(problem: String) -> Error {
    let help = "PODRACER_MPI names a library with the standard ABI of MPI 5.0 (libmpi_abi.so.1); \
                without it, `podracer fetch mpi` installs one";
    Error::Native { problem, help: help.into() }
}

fn open(path: &Path) -> std::result::Result<libloading::Library, libloading::Error> {
    // SAFETY: loading runs the library's initializers. The file is the pinned one, by its checksum,
    // or one that the user or the cluster chose.
    unsafe { libloading::Library::new(path) }
}

/// Converts a count to C's type.
fn count(numbers: usize) -> Result<c_int> {
    c_int::try_from(numbers)
        .map_err(|_| Error::Config(format!("--distributed: {numbers} numbers in one MPI call")))
}

impl Library {
    /// Loads the library at `path`.
    ///
    /// # Errors
    /// [`Error::Native`] if there is none, or if it has another ABI.
    pub fn load(path: &Path) -> Result<Library> {
        let library = open(path)
            .map_err(|error| native(format!("{} cannot be loaded: {error}", path.display())))?;
        Library::of(library, path)
    }

    /// Loads the library with this file name from the folders of the system's loader. Returns
    /// `None` if there is none.
    pub fn of_system(name: &Path) -> Option<Result<Library>> {
        Some(Library::of(open(name).ok()?, name))
    }

    fn of(library: libloading::Library, path: &Path) -> Result<Library> {
        let shown = path.display();
        let functions = Functions::of(&library).map_err(|error| {
            native(format!("{shown} is no MPI library of the standard ABI: {error}"))
        })?;
        std::mem::forget(library);
        let library = Library { functions };
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two places for numbers; this function may be called before MPI is initialized.
        library.check("MPI_Abi_get_version", unsafe {
            (library.functions.abi_version)(&raw mut major, &raw mut minor)
        })?;
        if major != 1 {
            return Err(native(format!(
                "{shown} has version {major}.{minor} of the MPI ABI, not 1"
            )));
        }
        Ok(library)
    }

    /// Converts the error code of a function to an error with MPI's text.
    fn check(&self, function: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let text = text(|into, length| {
            // SAFETY: a buffer of at least `MPI_MAX_ERROR_STRING` bytes. May be called at any time.
            unsafe { (self.functions.error_string)(code, into, length) }
        });
        Err(Error::Config(format!("--distributed: {function}: {text}")))
    }

    /// Starts MPI, and returns the level of thread support. Errors of later calls are returned
    /// instead of ending the process.
    pub fn init(&self, threads: c_int) -> Result<c_int> {
        let (mut already, mut provided) = (0, 0);
        // SAFETY: a place for a flag; may be called at any time.
        self.check("MPI_Initialized", unsafe { (self.functions.initialized)(&raw mut already) })?;
        if already != 0 {
            return Err(Error::Config("--distributed: MPI is joined once in a process".into()));
        }
        let none = std::ptr::null_mut();
        // SAFETY: MPI is not initialized yet; arguments of the command line are optional.
        self.check("MPI_Init_thread", unsafe {
            (self.functions.init_thread)(none, none.cast(), threads, &raw mut provided)
        })?;
        // SAFETY: MPI is initialized; the handles are predefined.
        self.check("MPI_Comm_set_errhandler", unsafe {
            (self.functions.set_errhandler)(handle(COMM_WORLD), handle(ERRORS_RETURN))
        })?;
        Ok(provided)
    }

    /// Ends MPI. No other call may follow.
    pub fn finalize(&self) -> Result<()> {
        // SAFETY: MPI is initialized, and the owner calls this once, after all other calls.
        self.check("MPI_Finalize", unsafe { (self.functions.finalize)() })
    }

    /// Ends all processes.
    pub fn abort(&self, code: c_int) {
        // SAFETY: MPI is initialized; any thread may call this.
        unsafe { (self.functions.abort)(handle(COMM_WORLD), code) };
    }

    /// Returns the rank of this process and the number of processes.
    pub fn rank_and_size(&self) -> Result<(usize, usize)> {
        let (mut rank, mut size) = (0, 0);
        let world = handle(COMM_WORLD);
        // SAFETY: MPI is initialized; a place for a number.
        self.check("MPI_Comm_rank", unsafe { (self.functions.comm_rank)(world, &raw mut rank) })?;
        // SAFETY: as above.
        self.check("MPI_Comm_size", unsafe { (self.functions.comm_size)(world, &raw mut size) })?;
        Ok((rank as usize, size as usize))
    }

    /// Returns the name of this machine.
    pub fn machine(&self) -> String {
        text(|into, length| {
            // SAFETY: MPI is initialized; a buffer of at least `MPI_MAX_PROCESSOR_NAME` bytes.
            unsafe { (self.functions.processor_name)(into, length) }
        })
    }

    /// Replaces the bytes by those of process 0, which are as many.
    pub fn broadcast(&self, bytes: &mut [u8]) -> Result<()> {
        let size = count(bytes.len())?;
        // SAFETY: MPI is initialized; as many bytes as are named.
        self.check("MPI_Bcast", unsafe {
            let (byte, world) = (handle(BYTE), handle(COMM_WORLD));
            (self.functions.bcast)(bytes.as_mut_ptr().cast(), size, byte, 0, world)
        })
    }

    /// Replaces the numbers by their sums over all processes; overflow wraps around.
    pub fn sum(&self, numbers: &mut [i64]) -> Result<()> {
        let size = count(numbers.len())?;
        // SAFETY: MPI is initialized; as many numbers as are named.
        self.check("MPI_Allreduce", unsafe {
            let (kind, op, world) = (handle(INT64_T), handle(OP_SUM), handle(COMM_WORLD));
            let into = numbers.as_mut_ptr().cast();
            (self.functions.allreduce)(handle(IN_PLACE), into, size, kind, op, world)
        })
    }

    /// Sends part `p` of `numbers` to process `p`, and receives the parts of the other processes for
    /// this one into `received`, at the place of their ranks among parts of this length.
    pub fn exchange_parts(
        &self,
        numbers: &[f32],
        parts: &Parts,
        received: &mut [f32],
    ) -> Result<()> {
        let (rank, own) = (parts.rank, parts.own().len());
        let mut sent = parts.clone();
        sent.counts[rank] = 0;
        let mut from_each = Parts::equal(own, parts.counts.len(), rank)?;
        from_each.counts[rank] = 0;
        assert!(sent.end() <= numbers.len() && from_each.end() <= received.len());
        // SAFETY: MPI is initialized; both buffers have the parts that are named, as checked above,
        // one for each process.
        self.check("MPI_Alltoallv", unsafe {
            (self.functions.alltoallv)(
                numbers.as_ptr().cast(),
                sent.counts.as_ptr(),
                sent.starts.as_ptr(),
                handle(FLOAT),
                received.as_mut_ptr().cast(),
                from_each.counts.as_ptr(),
                from_each.starts.as_ptr(),
                handle(FLOAT),
                handle(COMM_WORLD),
            )
        })
    }

    /// Replaces the parts of the other processes in `numbers` with theirs.
    pub fn gather(&self, numbers: &mut [f32], parts: &Parts) -> Result<()> {
        assert!(parts.end() <= numbers.len());
        // SAFETY: MPI is initialized; the buffer has the parts that are named, as checked above, one
        // for each process.
        self.check("MPI_Allgatherv", unsafe {
            (self.functions.allgatherv)(
                handle(IN_PLACE),
                0,
                handle(FLOAT),
                numbers.as_mut_ptr().cast(),
                parts.counts.as_ptr(),
                parts.starts.as_ptr(),
                handle(FLOAT),
                handle(COMM_WORLD),
            )
        })
    }

    /// Sends a message.
    pub fn send(&self, bytes: &[u8], to: usize, tag: c_int) -> Result<()> {
        let size = count(bytes.len())?;
        // SAFETY: MPI is initialized; as many bytes as are named.
        self.check("MPI_Send", unsafe {
            let (from, byte, world) = (bytes.as_ptr().cast(), handle(BYTE), handle(COMM_WORLD));
            (self.functions.send)(from, size, byte, to as c_int, tag, world)
        })
    }

    /// Returns the next message with this tag that has arrived from `source`, if any. It is not
    /// received yet.
    pub fn probe(&self, source: c_int, tag: c_int) -> Result<Option<Arrived>> {
        let (mut found, mut status) = (0, Status::default());
        // SAFETY: MPI is initialized; places for a flag and a status.
        self.check("MPI_Iprobe", unsafe {
            (self.functions.iprobe)(
                source,
                tag,
                handle(COMM_WORLD),
                &raw mut found,
                &raw mut status,
            )
        })?;
        if found == 0 {
            return Ok(None);
        }
        let mut bytes = 0;
        // SAFETY: the status is that of a message; a place for a number.
        self.check("MPI_Get_count", unsafe {
            (self.functions.get_count)(&raw const status, handle(BYTE), &raw mut bytes)
        })?;
        Ok(Some(Arrived { source: status.source, bytes }))
    }

    /// Receives a message that has arrived. One thread alone receives messages of a tag.
    pub fn receive(&self, message: Arrived, tag: c_int) -> Result<Vec<u8>> {
        let mut bytes = vec![0u8; message.bytes as usize];
        let mut status = Status::default();
        // SAFETY: MPI is initialized; as many bytes as are named, and a place for a status.
        self.check("MPI_Recv", unsafe {
            let (into, byte, world) = (bytes.as_mut_ptr().cast(), handle(BYTE), handle(COMM_WORLD));
            let (size, source) = (message.bytes, message.source);
            (self.functions.recv)(into, size, byte, source, tag, world, &raw mut status)
        })?;
        Ok(bytes)
    }
}

/// Returns the text that `write` writes into a buffer; empty if it fails.
fn text(write: impl FnOnce(*mut c_char, *mut c_int) -> c_int) -> String {
    // Longer than any text, and zero behind it.
    let (mut buffer, mut length) = ([0u8; MAX_TEXT + 1], 0);
    match write(buffer.as_mut_ptr().cast(), &raw mut length) {
        0 => CStr::from_bytes_until_nul(&buffer).unwrap_or_default().to_string_lossy().into_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::Settings;

    #[test]
    fn the_pinned_library_has_the_standard_abi() {
        let library = Library::load(&Settings::from_env().unwrap().locate_mpi().unwrap()).unwrap();
        // Predefined error classes have a text before MPI is initialized.
        let error = library.check("MPI_Comm_rank", 5).unwrap_err().to_string();
        assert!(error.starts_with("--distributed: MPI_Comm_rank: "), "{error}");
        assert!(error.len() > "--distributed: MPI_Comm_rank: ".len(), "{error}");
        assert_eq!(size_of::<Status>(), 32);
    }

    #[test]
    fn what_is_no_mpi_library_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("libmpi_abi.so.1");
        std::fs::write(&file, "no library").unwrap();
        let error = Library::load(&file).err().unwrap().to_string();
        assert!(error.contains("libmpi_abi.so.1 cannot be loaded: "), "{error}");
        // The C library is a library, of something else.
        let error = Library::load(Path::new("libc.so.6")).err().unwrap().to_string();
        assert!(error.contains("libc.so.6 is no MPI library of the standard ABI: "), "{error}");
        assert!(error.contains("podracer fetch mpi"), "{error}");
    }
}
