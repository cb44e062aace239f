//! A PJRT call as a C program would make it.

use std::ptr;

use podracer::lower::pjrt::{Buffer, Executable, ffi};

/// A raw launch as C would write it: prepared structs, then launch, wait, destroy.
pub struct Raw<'a> {
    functions: &'a ffi::Functions,
    executable: *mut ffi::LoadedExecutable,
    args: Vec<*mut ffi::Buffer>,
    outputs: Vec<*mut ffi::Buffer>,
}

impl<'a> Raw<'a> {
    /// A launch of a program on these arguments.
    pub fn new(executable: &'a Executable, args: &[Buffer]) -> Raw<'a> {
        Raw {
            functions: executable.client().plugin().functions(),
            executable: executable.raw(),
            args: args.iter().map(Buffer::raw).collect(),
            outputs: vec![ptr::null_mut(); executable.outputs().len()],
        }
    }

    /// Launches, waits for the first result, destroys the results.
    pub fn call(&mut self) {
        let argument_list = self.args.as_ptr();
        let output_list = self.outputs.as_mut_ptr();
        let mut options = ffi::ExecuteOptions::zeroed();
        let mut call = ffi::LoadedExecutableExecuteArgs::zeroed();
        call.executable = self.executable;
        call.options = &mut options;
        call.argument_lists = &argument_list;
        call.num_devices = 1;
        call.num_args = self.args.len();
        call.output_lists = &output_list;
        // SAFETY: all handles are live; the lists have the program's lengths.
        unsafe {
            assert!((self.functions.loaded_executable_execute)(&mut call).is_null());
            let mut ready = ffi::BufferReadyEventArgs::zeroed();
            ready.buffer = self.outputs[0];
            assert!((self.functions.buffer_ready_event)(&mut ready).is_null());
            let mut wait = ffi::EventAwaitArgs::zeroed();
            wait.event = ready.event;
            assert!((self.functions.event_await)(&mut wait).is_null());
            let mut done = ffi::EventDestroyArgs::zeroed();
            done.event = ready.event;
            (self.functions.event_destroy)(&mut done);
            for &buffer in &self.outputs {
                let mut gone = ffi::BufferArgs::zeroed();
                gone.buffer = buffer;
                (self.functions.buffer_destroy)(&mut gone);
            }
        }
    }
}
