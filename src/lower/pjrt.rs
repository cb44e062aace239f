//! A thin, safe binding of the PJRT C API: plugins, clients, buffers, executables.
//!
//! ```text
//! Plugin (one per file and process, never unloaded)
//!   Client (Arc; destroyed after everything that came from it)
//!     Executable   compile / deserialize, execute
//!     Buffer       data on one device
//!     Event        something that will have happened
//! ```
//!
//! Everything is `Send + Sync`: the runtime behind the API locks for itself. A [`Buffer`], an
//! [`Executable`] and an [`Event`] each hold their [`Client`], because destroying a client before
//! its buffers crashes some plugins. The plugin checks only the byte size of an argument, so the
//! caller of [`Executable::execute`] has to check element types and shapes.

mod buffer;
pub(crate) mod calls;
mod client;
mod compile;
mod executable;
mod failure;
pub mod ffi;
mod fork;
pub mod hlo;
mod in_flight;
mod key_value;
mod options;
mod plugin;

pub use buffer::{Buffer, Event, HostCopy, HostSemantics};
pub use calls::in_call;
pub use client::{Client, Device};
pub use executable::{Executable, MemoryStats};
pub(crate) use failure::CALLBACK;
pub use failure::Code;
pub use key_value::KeyValues;
pub use options::{CompileOptions, CreateOption, OptionValue};
pub use plugin::Plugin;
pub(in crate::lower) use plugin::dl_reason;
