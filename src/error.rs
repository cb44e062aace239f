//! The one error type of the library, and how errors inside traced code are told.
//!
//! Every message says what was wrong, what was expected, and what to do. An error inside a trace
//! also says where: the user's line, the line that made the offending operand, and the
//! transformations around it.

use std::fmt;
use std::panic::Location;
use std::path::PathBuf;

/// A line of the user's source.
pub type Loc = &'static Location<'static>;

/// What every fallible function of the library returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong, by the room in which it did.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation inside traced code that cannot be typed, or a tensor outside its trace.
    #[error(transparent)]
    Trace(#[from] Box<TraceError>),
    /// Arguments that do not fit what a compiled function, an importer or a checkpoint expects.
    #[error("{0}")]
    Argument(String),
    /// The compiler or runtime behind PJRT refused something; `code` is its status number.
    #[error("{context}: {message} (PJRT status {code})")]
    Pjrt {
        /// What we were doing.
        context: String,
        /// The status code, numbered as absl's.
        code: i32,
        /// The runtime's own words.
        message: String,
    },
    /// A native part (plugin, library, asset) that is missing, unreadable or not what it should be.
    #[error("{problem}\n  help: {help}")]
    Native {
        /// What is wrong.
        problem: String,
        /// What mends it.
        help: String,
    },
    /// An environment failed or was asked for something that it does not have.
    #[error("{0}")]
    Env(String),
    /// A setting outside its range or at odds with another.
    #[error("{0}")]
    Config(String),
    /// A function of the user's that a compiled program called: it failed, gave what it must not
    /// give, or did what cannot be done there.
    #[error("{0}")]
    Callback(String),
    /// A value that is not finite where `check_nans` looks for them.
    #[error("{0}")]
    Nan(String),
    /// A file or folder that could not be read or written.
    #[error("{action} {path}: {source}", path = path.display())]
    Io {
        /// What we were doing, as in "cannot write".
        action: String,
        /// Where.
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

/// Where an operand of a failed operation came from.
#[derive(Debug, Clone)]
pub struct OperandNote {
    /// How the operand is called in the message, as in `rhs`.
    pub name: String,
    /// The line that made it.
    pub at: Loc,
    /// The operation that made it, as in `transpose`, or `argument`.
    pub by: String,
}

/// An error inside traced code.
///
/// Its text is the same everywhere:
/// ```text
/// error: dot: contracted axes differ: lhs f32[128,64] axis 1 (64), rhs f32[128,10] axis 0 (128)
///   --> src/algos/ppo.rs:88:17   in value_and_grad (src/algos/ppo.rs:131:9), in jit (src/algos/ppo.rs:204:16)
///   rhs was made at src/nn.rs:40:9 by transpose
/// ```
#[derive(Debug, Clone)]
pub struct TraceError {
    /// The operation.
    pub op: String,
    /// What is wrong with it, both types included.
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
            write!(f, "\n  {} was made at {} by {}", operand.name, operand.at, operand.by)?;
        }
        Ok(())
    }
}

impl std::error::Error for TraceError {}
