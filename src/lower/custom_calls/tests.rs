//! Calls whose tensors are on a device; memory of the host stands in for a device's.

use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr;

use super::abi::{Api, Attributes, EXECUTE, ErrorDestroyArgs, Frame, List, RawBuffer, StreamArgs};
use super::staged::{Copies, Cuda, call_on_host};
use super::{Call, KernelError};

const F32: i32 = 11;
const STREAM: usize = 0x5eed;

/// Copies at once, and logs its calls; fails where the test asks for it.
#[derive(Default)]
struct Notes {
    log: RefCell<Vec<String>>,
    fails_at: Option<&'static str>,
}

impl Notes {
    fn note(&self, what: &str, bytes: usize, stream: *mut c_void) -> Result<(), String> {
        assert_eq!(stream as usize, STREAM, "all goes to the program's own stream");
        self.log.borrow_mut().push(format!("{what} {bytes}"));
        match self.fails_at == Some(what) {
            true => Err(format!("{what} failed")),
            false => Ok(()),
        }
    }
}

impl Copies for Notes {
    unsafe fn to_host(
        &self,
        into: &mut [u8],
        from: *const c_void,
        stream: *mut c_void,
    ) -> Result<(), String> {
        // SAFETY: this "device" has its memory here.
        unsafe { ptr::copy_nonoverlapping(from.cast(), into.as_mut_ptr(), into.len()) };
        self.note("to host", into.len(), stream)
    }

    unsafe fn to_device(
        &self,
        into: *mut c_void,
        from: &[u8],
        stream: *mut c_void,
    ) -> Result<(), String> {
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), into.cast(), from.len()) };
        self.note("to device", from.len(), stream)
    }

    unsafe fn wait(&self, stream: *mut c_void) -> Result<(), String> {
        self.note("wait", 0, stream)
    }
}

unsafe extern "C" fn stream_get(args: *mut StreamArgs) -> *mut c_void {
    // SAFETY: the arguments are complete.
    unsafe { (*args).stream = STREAM as *mut c_void };
    ptr::null_mut()
}

/// The runtime has none, and reports that by an error object.
unsafe extern "C" fn no_stream(_: *mut StreamArgs) -> *mut c_void {
    Box::into_raw(Box::new(7u64)).cast()
}

unsafe extern "C" fn error_destroy(args: *mut ErrorDestroyArgs) {
    // SAFETY: the error is that of `no_stream`.
    drop(unsafe { Box::from_raw((*args).error.cast::<u64>()) });
}

fn api(stream_get: unsafe extern "C" fn(*mut StreamArgs) -> *mut c_void) -> Api {
    Api {
        struct_size: size_of::<Api>(),
        extension_start: ptr::null(),
        version: [0; 3],
        internal: ptr::null(),
        error_create: None,
        error_get_message: ptr::null(),
        error_destroy: Some(error_destroy),
        handler_register: ptr::null(),
        stream_get: Some(stream_get),
    }
}

fn buffer(data: &mut [f32], dims: &[i64]) -> RawBuffer {
    RawBuffer {
        struct_size: size_of::<RawBuffer>(),
        extension_start: ptr::null(),
        dtype: F32,
        data: data.as_mut_ptr().cast(),
        rank: dims.len() as i64,
        dims: dims.as_ptr(),
    }
}

fn list(items: &[*const RawBuffer]) -> List {
    List {
        struct_size: size_of::<List>(),
        extension_start: ptr::null(),
        size: items.len() as i64,
        types: ptr::null(),
        items: items.as_ptr(),
    }
}

/// The frame of a call without attributes.
fn frame(api: &Api, operands: &[*const RawBuffer], results: &[*const RawBuffer]) -> Frame {
    Frame {
        struct_size: size_of::<Frame>(),
        extension_start: ptr::null(),
        api,
        context: ptr::null(),
        stage: EXECUTE,
        args: list(operands),
        rets: list(results),
        attributes: Attributes {
            struct_size: size_of::<Attributes>(),
            extension_start: ptr::null(),
            size: 0,
            kinds: ptr::null(),
            names: ptr::null(),
            values: ptr::null(),
        },
    }
}

#[test]
fn a_result_in_an_operands_memory_is_refused() {
    let (mut x, mut other) = ([1.0f32, 2.0, 3.0, 4.0], [0.0f32; 2]);
    let start = x.as_mut_ptr();
    let at = |offset: usize| RawBuffer {
        // SAFETY: all offsets are within `x`.
        data: unsafe { start.add(offset) }.cast(),
        ..buffer(&mut [], &[2])
    };
    for (offset, overlaps) in [(0, true), (1, true), (2, false)] {
        let operands = [at(0)];
        let results = [at(offset), buffer(&mut other, &[2])];
        let (operands, results) =
            (operands.each_ref().map(ptr::from_ref), results.each_ref().map(ptr::from_ref));
        let api = api(stream_get);
        let frame = frame(&api, &operands, &results);
        // SAFETY: the frame is alive.
        let mut call = unsafe { Call::new(&frame) };
        assert_eq!(call.result::<f32>(1).unwrap().len(), 2);
        assert_eq!(call.operand::<f32>(0).unwrap().data, [1.0, 2.0]);
        match overlaps {
            true => {
                let error = call.result::<f32>(0).unwrap_err();
                assert!(error.contains("result 0 has the memory of operand 0"), "{error}");
            }
            false => assert_eq!(call.result::<f32>(0).unwrap().len(), 2),
        }
        // A copy of the operand leaves its memory free; then it is the result's.
        // SAFETY: the frame is alive.
        let mut call = unsafe { Call::new(&frame) };
        assert_eq!(call.operand_to_vec::<f32>(0).unwrap(), (&[2][..], vec![1.0, 2.0]));
        assert_eq!(call.result::<f32>(0).unwrap().len(), 2);
        match overlaps {
            true => {
                let error = call.operand::<f32>(0).unwrap_err();
                assert!(error.contains("operand 0 has the memory of result 0"), "{error}");
            }
            false => assert_eq!(call.operand::<f32>(0).unwrap().data, [1.0, 2.0]),
        }
    }
}

#[test]
fn results_that_share_memory_are_lent_once() {
    let mut memory = [0.0f32; 6];
    let start = memory.as_mut_ptr();
    // First element and number of elements of two results, and whether they share some.
    let cases = [((0, 2), (0, 2), true), ((0, 4), (2, 1), true), ((2, 1), (0, 4), true)];
    let apart = [((0, 2), (2, 2), false), ((2, 2), (0, 2), false), ((0, 2), (1, 0), false)];
    for (one, other, overlaps) in cases.into_iter().chain(apart) {
        let dims = [[one.1], [other.1]];
        let at = |(offset, _): (usize, i64), dims: &[i64; 1]| RawBuffer {
            // SAFETY: all offsets are within the memory.
            data: unsafe { start.add(offset) }.cast(),
            ..buffer(&mut [], dims)
        };
        let results = [at(one, &dims[0]), at(other, &dims[1])];
        let results = results.each_ref().map(ptr::from_ref);
        let api = api(stream_get);
        let frame = frame(&api, &[], &results);
        for (first, second) in [(0, 1), (1, 0)] {
            // SAFETY: the frame is alive.
            let mut call = unsafe { Call::new(&frame) };
            call.result::<f32>(first).unwrap();
            match overlaps {
                true => {
                    let error = call.raw_result(second).unwrap_err();
                    let expected = format!("result {second} has the memory of result {first}");
                    assert!(error.contains(&expected), "{error}");
                    assert!(call.write(second, &[0.0f32; 4]).is_err());
                }
                false => drop(call.raw_result(second).unwrap()),
            }
        }
    }
}

/// Adds the first two operands by a kernel on the host; the third is empty. Gives the result as the
/// device has it.
fn add_on_the_host(api: &Api, copies: &dyn Copies) -> Result<Vec<f32>, KernelError> {
    let (mut x, mut y, mut none, mut sum) = ([1.0, 2.0, 3.0], [10.0, 20.0, 30.0], [], [0.0; 3]);
    let on_device: [*const f32; 2] = [x.as_ptr(), sum.as_ptr()];
    let operands = [buffer(&mut x, &[3]), buffer(&mut y, &[3]), buffer(&mut none, &[2, 0])];
    let results = [buffer(&mut sum, &[3])];
    let (operands, results) =
        (operands.each_ref().map(ptr::from_ref), results.each_ref().map(ptr::from_ref));
    let frame = frame(api, &operands, &results);
    let kernel = |frame: *const Frame| {
        // SAFETY: the frame is alive.
        let mut call = unsafe { Call::new(frame) };
        let (x, y) = (call.operand::<f32>(0)?, call.operand::<f32>(1)?);
        assert_eq!(call.operand::<f32>(2)?.dims, [2, 0]);
        assert_ne!(x.data.as_ptr(), on_device[0], "the kernel reads a copy");
        let sum = call.result::<f32>(0)?;
        assert_ne!(sum.as_ptr(), on_device[1], "the kernel writes a copy");
        for ((sum, x), y) in sum.iter_mut().zip(x.data).zip(y.data) {
            *sum = x + y;
        }
        Ok(())
    };
    // SAFETY: the frame is complete, and its "device" memory is what `Notes` copies.
    unsafe { call_on_host(&frame, copies, kernel) }?;
    Ok(sum.to_vec())
}

#[test]
fn tensors_on_a_device_are_copied_there_and_back() {
    let copies = Notes::default();
    let sum = add_on_the_host(&api(stream_get), &copies).unwrap();
    assert_eq!(sum, [11.0, 22.0, 33.0]);
    // The copies are over before the kernel reads, and before the memory they read is gone.
    let expected = ["to host 12", "to host 12", "wait 0", "to device 12", "wait 0"];
    assert_eq!(*copies.log.borrow(), expected);
}

#[test]
fn copies_that_fail_are_waited_for_and_told() {
    for fails_at in ["to host", "to device"] {
        let copies = Notes { fails_at: Some(fails_at), ..Notes::default() };
        let error = add_on_the_host(&api(stream_get), &copies).unwrap_err();
        assert_eq!(error.message, format!("{fails_at} failed"));
        assert_eq!(copies.log.borrow().last().unwrap(), "wait 0");
    }
}

#[test]
fn a_call_without_a_stream_is_refused() {
    let error = add_on_the_host(&api(no_stream), &Notes::default()).unwrap_err();
    assert!(error.message.contains("no stream for this call"), "{}", error.message);
    let short = Api { struct_size: 48, ..api(stream_get) };
    let error = add_on_the_host(&short, &Notes::default()).unwrap_err();
    assert!(error.message.contains("tells no stream"), "{}", error.message);
}

#[test]
fn a_machine_without_a_driver_says_so() {
    // If a driver is installed, it is found.
    if let Err(error) = Cuda::get() {
        assert!(error.contains("NVIDIA's driver cannot be used"), "{error}");
        assert!(error.contains("libcuda.so.1"), "{error}");
    }
}
