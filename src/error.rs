//! The one error type of the library, and the format of errors inside traced code.
//!
//! Every message states what was wrong, what was expected, and what to do. An error inside a trace
//! also gives the location: the user's line, the line that made the offending operand, and the
//! transformations around it.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::panic::{self, AssertUnwindSafe, Location};
use std::path::PathBuf;

/// A line of the user's source.
pub type Loc = &'static Location<'static>;

/// Result of every fallible function of the library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong, by the module in which it did.
///
/// `{}` and `{:?}` both give the readable text, so that `fn main() -> podracer::Result<()>` and
/// `unwrap` print it. `{:#?}` gives the variant and its fields.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation inside traced code that cannot be typed, or a tensor outside its trace.
    #[error(transparent)]
    Trace(#[from] Box<TraceError>),
    /// Arguments that do not match the expectation of a function.
    #[error("{0}")]
    Argument(String),
    /// A file whose content is damaged, of another kind or version, or of another model than
    /// expected.
    #[error("{0}")]
    File(String),
    /// The compiler or runtime behind PJRT refused something; `code` is its status number.
    #[error("{context}: {message} (PJRT status {code})")]
    Pjrt {
        /// Operation that failed.
        context: String,
        /// The status code, numbered as absl's.
        code: i32,
        /// The runtime's own words.
        message: String,
    },
    /// A native part (plugin, library, asset) that is missing, unreadable or damaged.
    #[error("{problem}\n  help: {help}")]
    Native {
        /// Description of the problem.
        problem: String,
        /// Description of the remedy.
        help: String,
    },
    /// An environment failed or was asked for something that it does not have.
    #[error("{0}")]
    Env(String),
    /// A setting outside its range or at odds with another.
    #[error("{0}")]
    Config(String),
    /// A function of the user's that a compiled program called: it failed, returned a result of the
    /// wrong type or structure, or made a call that is not allowed in a callback.
    #[error("{0}")]
    Callback(String),
    /// A value that is not finite where `check_nans` looks for them.
    #[error("{0}")]
    Nan(String),
    /// A file or folder that could not be read or written.
    #[error("{action} {path}: {source}", path = path.display())]
    Io {
        /// Operation that failed, as in "cannot write".
        action: String,
        /// Path of the file or folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl Error {
    /// An I/O error with its path: `map_err(Error::io("cannot write", path))`.
    pub fn io(
        action: impl Into<String>,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Error {
        move |source| Error::Io { action: action.into(), path: path.into(), source }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return fmt::Display::fmt(self, f);
        }
        match self {
            Error::Trace(error) => f.debug_tuple("Trace").field(error).finish(),
            Error::Argument(text) => f.debug_tuple("Argument").field(text).finish(),
            Error::File(text) => f.debug_tuple("File").field(text).finish(),
            Error::Pjrt { context, code, message } => f
                .debug_struct("Pjrt")
                .field("context", context)
                .field("code", code)
                .field("message", message)
                .finish(),
            Error::Native { problem, help } => {
                f.debug_struct("Native").field("problem", problem).field("help", help).finish()
            }
            Error::Env(text) => f.debug_tuple("Env").field(text).finish(),
            Error::Config(text) => f.debug_tuple("Config").field(text).finish(),
            Error::Callback(text) => f.debug_tuple("Callback").field(text).finish(),
            Error::Nan(text) => f.debug_tuple("Nan").field(text).finish(),
            Error::Io { action, path, source } => f
                .debug_struct("Io")
                .field("action", action)
                .field("path", path)
                .field("source", source)
                .finish(),
        }
    }
}

/// Origin of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The result of an operation, as in `transpose`.
    Op(String),
    /// An argument of a traced function, or a slice or an element of one.
    Argument {
        /// Index of the leaf, in the order of [`Tree`](crate::Tree).
        leaf: usize,
        /// Number of leaves of all arguments.
        leaves: usize,
        /// Path of the leaf, as in `argument[1].w`; `None` if it is not known.
        path: Option<String>,
    },
    /// A trace that has ended.
    EndedTrace,
}

/// Origin of an operand of a failed operation.
#[derive(Debug, Clone)]
pub struct OperandNote {
    /// Name of the operand in the message, as in `rhs`.
    pub name: String,
    /// The line that made it.
    pub at: Loc,
    /// The operation that made it.
    pub origin: Origin,
}

impl fmt::Display for OperandNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OperandNote { name, at, origin } = self;
        match origin {
            Origin::Op(op) => write!(f, "{name} is the result of {op} at {at}"),
            Origin::Argument { leaves: ..=1, .. } => {
                write!(f, "{name} is the argument of the function traced at {at}")
            }
            Origin::Argument { path: Some(path), .. } => {
                write!(f, "{name} is {path} of the function traced at {at}")
            }
            Origin::Argument { leaf, path: None, .. } => {
                write!(f, "{name} is leaf {leaf} of the arguments of the function traced at {at}")
            }
            Origin::EndedTrace => write!(f, "{name} was made at {at}, in a trace that has ended"),
        }
    }
}

/// An error inside traced code.
///
/// Its text is the same everywhere:
/// ```text
/// matmul: contracting axes must have equal sizes: lhs f32[128,64] axis 1 (64), rhs f32[128,10] axis 0 (128)
///   --> src/algos/ppo.rs:88:17   in value_and_grad (src/algos/ppo.rs:131:9), in jit (src/algos/ppo.rs:204:16)
///   rhs is the result of transpose at src/nn.rs:40:9
/// ```
#[derive(Clone)]
pub struct TraceError {
    /// The operation.
    pub op: String,
    /// Description of the problem, both types included.
    pub problem: String,
    /// The user's line.
    pub at: Loc,
    /// Lines that made the operands.
    pub operands: Vec<OperandNote>,
    /// The enclosing transformations, innermost first.
    pub frames: Vec<(String, Loc)>,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.op, self.problem)?;
        write!(f, "  --> {}", self.at)?;
        for (i, (name, at)) in self.frames.iter().enumerate() {
            write!(f, "{} in {name} ({at})", if i == 0 { "  " } else { "," })?;
        }
        for operand in &self.operands {
            write!(f, "\n  {operand}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return fmt::Display::fmt(self, f);
        }
        f.debug_struct("TraceError")
            .field("op", &self.op)
            .field("problem", &self.problem)
            .field("at", &self.at)
            .field("operands", &self.operands)
            .field("frames", &self.frames)
            .finish()
    }
}

impl std::error::Error for TraceError {}

thread_local! {
    /// Calls of [`catch`] under way.
    static BOUNDARIES: Cell<usize> = const { Cell::new(0) };
}

/// Ends the trace with an error. The boundary of the trace returns it as `Err`; outside of every
/// boundary the error is a panic, which prints it.
pub(crate) fn fail(error: TraceError) -> ! {
    if BOUNDARIES.get() == 0 || cfg!(panic = "abort") {
        panic!("{error}");
    }
    // Not a panic: no hook runs, nothing is printed, and `catch` below takes the payload.
    panic::resume_unwind(Box::new(error))
}

/// Runs `f` as the outermost boundary of a trace: an error inside comes back as `Err`.
pub(crate) fn catch<R>(f: impl FnOnce() -> R) -> Result<R, Box<TraceError>> {
    BOUNDARIES.set(BOUNDARIES.get() + 1);
    let result = panic::catch_unwind(AssertUnwindSafe(f));
    BOUNDARIES.set(BOUNDARIES.get() - 1);
    result.map_err(|payload: Box<dyn Any + Send>| match payload.downcast::<TraceError>() {
        Ok(error) => error,
        Err(other) => panic::resume_unwind(other),
    })
}
