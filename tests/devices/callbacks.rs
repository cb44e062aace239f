//! Callbacks on several devices: once on each.

use std::sync::{Arc, Mutex, PoisonError};

use podracer::trace::control::scan;
use podracer::{
    Array, DType, Literal, Mode, Tensor, axis_index, debug_callback, effects_barrier, io_callback,
    pmap_with_mode, psum, shard, unshard,
};

use super::{count, devices, error};

/// The barrier tells of every run of the process: one test at a time.
static GATE: Mutex<()> = Mutex::new(());

#[test]
fn each_device_calls() {
    let _gate = GATE.lock().unwrap_or_else(PoisonError::into_inner);
    let devices = devices(4);
    for mode in [Mode::Jit, Mode::Eager, Mode::Interpret] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let step = pmap_with_mode(mode, "data", |axis, x: Tensor| {
            let (log, again) = (seen.clone(), seen.clone());
            // The same on all devices, and yet a call each.
            let one = x.sum(..) * 0.0 + psum(x.sum(..), axis);
            debug_callback(move |x: Literal| log.lock().unwrap().extend(x.to_f64_vec()), one);
            let step = move |index: Literal| {
                again.lock().unwrap().extend(index.to_f64_vec());
                Ok(index)
            };
            let index = axis_index(axis).to(DType::F32);
            let y = scan(
                |c: Tensor, x: Tensor| {
                    (c + io_callback(step.clone(), index.ty(), true, index * 100.0 + x), ())
                },
                one * 0.0,
                x,
            );
            y.0.reshape([1])
        });
        let y = step.call(shard(&count(&[8]), &devices).unwrap()).unwrap();
        let y = unshard(&y).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(y, [1.0, 205.0, 409.0, 613.0], "{mode}");
        effects_barrier().unwrap();
        let mut seen = std::mem::take(&mut *seen.lock().unwrap());
        // Each device's own calls are in order.
        for device in 0..4 {
            let own: Vec<f64> = seen
                .iter()
                .copied()
                .filter(|x| *x != 28.0 && (*x as usize) / 100 == device)
                .collect();
            let at = device as f64;
            assert_eq!(own, [102.0 * at, 102.0 * at + 1.0], "{mode}");
        }
        seen.retain(|x| *x == 28.0);
        assert_eq!(seen.len(), 4, "{mode}");
    }
}

#[test]
fn a_failure_on_one_device_is_reported() {
    let _gate = GATE.lock().unwrap_or_else(PoisonError::into_inner);
    let devices = devices(2);
    let step = pmap_with_mode(Mode::Jit, "data", |axis, x: Tensor| {
        let fails = |index: Literal| {
            if index.to_f64_vec() == [1.0] {
                return Err(podracer::Error::Argument("no luck here".into()));
            }
            Ok(Literal::from(1.0f32))
        };
        let one = podracer::TensorType::scalar(DType::F32);
        x * io_callback(fails, one, false, axis_index(axis))
    });
    let run = || unshard(&step.call(shard(&Array::from([1.0f32, 2.0]), &devices)?)?)?.to_literal();
    let text = error(run());
    assert!(text.contains("io_callback: the function failed: no luck here"), "{text}");
    let _ = effects_barrier();
}
