//! The front door: values on devices, donation, signatures, and errors.

use podracer::trace::control::{cond, scan, while_loop};
use podracer::trace::ops::zeros;
use podracer::{
    Array, Axis, Sharded, Tensor, axis_index, device_put_sharded, jit, pmap, pmax, pmean, psum,
    replicate, shard, unreplicate, unshard, vmap_axis,
};

use super::{count, devices, error};

#[test]
fn sharded_arrays_come_back_equal() {
    let devices = devices(4);
    let tree = (count(&[8, 3]), vec![count(&[4])]);
    let there = shard(&tree, &devices).unwrap();
    assert_eq!(there.0.shape()[..], [2, 3]);
    assert_eq!(there.1[0].shards()[3].to_vec::<f32>().unwrap(), [3.0]);
    let back = unshard(&there).unwrap();
    assert_eq!(back.0.to_vec::<f32>().unwrap(), tree.0.to_vec::<f32>().unwrap());
    let copies = replicate(&tree, &devices).unwrap();
    assert!(copies.0.is_replicated());
    let one = unreplicate(&copies).unwrap();
    assert_eq!(one.1[0].to_vec::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0]);
    let parts = [count(&[2]), count(&[2])];
    let put = device_put_sharded(&parts, &devices[..2]).unwrap();
    assert_eq!(put.stack().unwrap().shape()[..], [2, 2]);
}

#[test]
fn state_stays_on_its_devices() {
    let devices = devices(4);
    let step = pmap("data", |axis, (state, x): (Tensor, Tensor)| {
        let state = state * 0.5 + pmean(x.sum(..), axis);
        (state, x)
    });
    let mut state = replicate(&Array::from(0.0f32), &devices).unwrap();
    let mut x = shard(&count(&[8]), &devices).unwrap();
    for _ in 0..20 {
        (state, x) = step.call((state, x)).unwrap();
        assert!(state.is_replicated() && !x.is_replicated());
    }
    // The fixed point of s = s / 2 + 7.
    let state = unreplicate(&state).unwrap().item::<f32>().unwrap();
    assert!((state - 14.0).abs() < 1e-4, "{state}");
}

#[test]
fn kept_arguments_keep_their_values() {
    let devices = devices(2);
    let double = pmap("data", |_, x: Tensor| x * 2.0);
    let x = shard(&count(&[4]), &devices).unwrap();
    let part = x.shards()[1].clone();
    let y = double.call(x).unwrap();
    assert_eq!(part.to_vec::<f32>().unwrap(), [2.0, 3.0]);
    let z = double.call(y.clone()).unwrap();
    assert_eq!(unshard(&y).unwrap().to_vec::<f32>().unwrap(), [0.0, 2.0, 4.0, 6.0]);
    assert_eq!(unshard(&z).unwrap().to_vec::<f32>().unwrap(), [0.0, 4.0, 8.0, 12.0]);
}

#[test]
fn some_of_the_devices() {
    devices(8);
    let f = pmap("data", |axis, x: Tensor| psum(x, axis));
    // One function, other devices at each call.
    for devices in [vec![5], vec![2, 7], vec![1, 2, 3]] {
        let n = devices.len();
        let y = f.call(shard(&count(&[n]), &devices).unwrap()).unwrap();
        assert_eq!(y.devices(), devices);
        let sum = unreplicate(&y).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(sum, [(n * (n - 1) / 2) as f32]);
    }
}

#[test]
fn a_second_signature_is_explained() {
    devices(8);
    let f = pmap("data", |axis, x: Tensor| psum(x, axis)).named("sum").assert_max_traces(3);
    let first = line!() + 1;
    f.call(shard(&count(&[4]), &[0, 1]).unwrap()).unwrap();
    assert_eq!(f.explain(), []);
    f.call(shard(&count(&[4]), &[2, 3]).unwrap()).unwrap();
    f.call(shard(&count(&[8]), &[0, 1]).unwrap()).unwrap();
    let file = file!();
    let head = |number: usize, call: u32| {
        format!(
            "sum: signature {number}, at the call in {file}:{call}:7, differs from that of the call \
             in {file}:{first}:7:\n  $: "
        )
    };
    let texts: Vec<String> = f.explain().iter().map(ToString::to_string).collect();
    let places = "divided over devices [0, 1] before, divided over devices [2, 3] now";
    assert_eq!(texts[0], head(2, first + 2) + places);
    assert_eq!(texts[1], head(3, first + 3) + "f32[2] before, f32[4] now (axis 0)");
    let text = error(f.call(shard(&count(&[6]), &[0, 1]).unwrap()));
    assert!(text.starts_with("more than 3 traces, which assert_max_traces(3) does not"), "{text}");
    // What was compiled goes on running.
    f.call(shard(&count(&[4]), &[2, 3]).unwrap()).unwrap();
}

#[test]
fn loops_with_exchanges() {
    let devices = devices(4);
    // Turns as many as the greatest part says, on all devices alike.
    let f = pmap("data", |axis, x: Tensor| {
        let most = pmax(x.max(..), axis);
        let (_, y) = while_loop(
            |(step_index, _): (Tensor, Tensor)| step_index.lt(most),
            |(step_index, y)| (step_index + 1.0, y + psum(step_index, axis)),
            (most * 0.0, x.sum(..)),
        );
        scan(|y, _: Tensor| (psum(y, axis), ()), y, zeros([2], podracer::DType::F32)).0
    });
    let f = f.named("steps");
    let y = f.call(shard(&count(&[4]), &devices).unwrap());
    // 0 + 4 + 8 more on each; then twice the sum over the devices.
    let y = y.unwrap().stack().unwrap().to_vec::<f32>().unwrap();
    assert_eq!(y, [216.0; 4]);
}

#[test]
fn a_result_that_may_differ_is_not_unreplicated() {
    let devices = devices(2);
    let f = pmap("data", |axis, x: Tensor| (x + axis_index(axis).to(x.dtype()), psum(x, axis)));
    let y = f.call(replicate(&Array::from(1.0f32), &devices).unwrap()).unwrap();
    assert!(!y.0.is_replicated() && y.1.is_replicated());
    let text = error(unreplicate(&y));
    assert!(text.starts_with("unreplicate: $[0] may differ between devices"), "{text}");
}

#[test]
fn counts_that_do_not_divide() {
    let devices = devices(4);
    let text = error(shard(&(count(&[4]), count(&[10, 2])), &devices));
    assert_eq!(
        text,
        "shard: the first axis of $[1] f32[10,2] has size 10, which 4 devices do not divide evenly; \
         the nearest sizes that they do are 8 and 12"
    );
    let text = error(shard(&Array::from(1.0f32), &devices));
    assert_eq!(text, "shard: $ is f32[] and has no axis to divide; replicate it instead");
    let f = pmap("data", |axis, x: Tensor| podracer::psum_scatter_tiled(x, axis, 0));
    let line = line!() - 1;
    let text = error(f.call(shard(&count(&[12]), &devices).unwrap()));
    assert!(text.contains("axis 0 of f32[3] has size 3, which 4 members do not divide"), "{text}");
    assert!(text.contains(&format!("pmap.rs:{line}")), "{text}");
}

#[test]
fn devices_that_do_not_exist() {
    devices(8);
    let text = error(replicate(&count(&[2]), &[0, 8]));
    assert_eq!(
        text,
        "device 8 does not exist: the runtime has 8 device(s), numbered from 0. On CPU start it \
         with more: Runtime::start(RuntimeOptions::with_cpu_devices(9)), or the flag --num-devices 9"
    );
    assert_eq!(error(replicate(&count(&[2]), &[1, 1])), "device 1 stands twice in [1, 1]");
    assert_eq!(error(replicate(&count(&[2]), &[])), "the list of devices is empty");
}

#[test]
fn leaves_on_different_devices() {
    devices(8);
    let f = pmap("data", |_, (x, y): (Tensor, Tensor)| x + y).named("sum");
    let args = (shard(&count(&[2]), &[0, 1]).unwrap(), shard(&count(&[2]), &[2, 3]).unwrap());
    assert_eq!(
        error(f.call(args)),
        "sum: $[1] is on devices [2, 3], and the function runs on [0, 1]; put it there with \
         replicate or shard"
    );
    let parts = [count(&[2]), count(&[3])];
    assert_eq!(
        error(Sharded::from_shards(&parts, &[0, 1])),
        "the parts must be of one type: part 0 is f32[2], part 1 is f32[3]"
    );
}

#[test]
fn an_axis_out_of_scope() {
    let devices = devices(2);
    let kept = std::cell::Cell::new(None);
    let first = pmap("data", |axis: Axis, x: Tensor| {
        kept.set(Some(axis));
        psum(x, axis)
    });
    let x = || shard(&count(&[2]), &devices).unwrap();
    first.call(x()).unwrap();
    let axis = kept.get().unwrap();
    let second = pmap("other", |_, x: Tensor| psum(x, axis));
    let line = line!() - 1;
    let text = error(second.call(x()));
    assert!(text.starts_with("psum: axis `data` is not in scope here"), "{text}");
    assert!(text.contains(&format!("pmap.rs:{line}")), "{text}");
    let text = error(podracer::jit(|x: Tensor| psum(x, axis)).call(count(&[2])));
    assert!(text.starts_with("psum: axis `data` is not in scope here"), "{text}");
}

#[test]
fn a_collective_that_some_never_reach() {
    let devices = devices(2);
    let x = || shard(&count(&[2]), &devices).unwrap();
    let expect = |text: String, what: &str, line: u32| {
        let start = format!("psum: inside a {what} whose predicate differs between the members");
        assert!(text.starts_with(&start), "{text}");
        assert!(text.contains(&format!("pmap.rs:{line}")), "{text}");
    };
    let branch = |axis, x: Tensor| {
        let first = axis_index(axis).eq(0);
        cond(first, |x| psum(x, axis), |x| x, x)
    };
    let line = line!() - 2;
    expect(error(pmap("data", branch).call(x())), "cond", line);
    // The same along a batch.
    let batch = podracer::jit(move |x: Tensor| vmap_axis("i", branch)(x));
    expect(error(batch.call(count(&[2]))), "cond", line);
    let num_steps =
        |axis, x: Tensor| while_loop(|x: Tensor| x.sum(..).lt(3.0), |x| x + psum(x, axis), x);
    let line = line!() - 1;
    expect(error(pmap("data", num_steps).call(x())), "while_loop", line);
    // With a predicate that all share it runs.
    let shared = |axis, x: Tensor| cond(psum(x.sum(..), axis).gt(0.0), |x| psum(x, axis), |x| x, x);
    let y = pmap("data", shared).call(x()).unwrap();
    assert_eq!(y.stack().unwrap().to_vec::<f32>().unwrap(), [1.0, 1.0]);
}

#[test]
fn a_compiled_function_runs_on_the_chosen_device() {
    devices(8);
    let double = jit(|x: Tensor| x * 2.0).on(3);
    // From the host, and from the device on which its results are.
    let y = double.call(Array::from([1.0f32, 2.0])).unwrap();
    assert_eq!(double.call(y).unwrap().to_vec::<f32>().unwrap(), [4.0, 8.0]);
    let nowhere = error(jit(|x: Tensor| x * 2.0).on(8).call(Array::from(1.0f32)));
    assert!(nowhere.contains("device 8 does not exist: the runtime has 8 device(s)"), "{nowhere}");
}
