//! Podracer and JAX run each other's PPO update: `tests/interop/run`, or `cargo test --test interop`
//! with `PODRACER_PEER_PYTHON=.../bin/python`, a Python with jax, numpy, flatbuffers and onnxruntime.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

mod onnx;
#[path = "../peers/mod.rs"]
mod peers;
mod primitives;

use podracer::algos::ppo::{Agent, Args, Rollout, TrainState, update};
use podracer::export::Exported;
use podracer::optim::Adam;
use podracer::rl::Algorithm;
use podracer::trace::literal::Element;
use podracer::{Array, Key, Literal, Tensor, TensorType, jit, tree};

/// Arguments and results, leaf by leaf.
#[derive(serde::Serialize, serde::Deserialize)]
struct Values {
    r#in: Vec<Vec<f64>>,
    out: Vec<Vec<f64>>,
}

fn array(ty: &TensorType, values: &[f64]) -> Array {
    fn of<T: Element>(ty: &TensorType, values: &[f64]) -> Array {
        let one = |&x: &f64| {
            Literal::filled(TensorType::scalar(T::DTYPE), x).as_splat::<T>().expect("of this type")
        };
        let elements: Vec<T> = values.iter().map(one).collect();
        Array::from(Literal::new(ty.shape.clone(), &elements))
    }
    podracer::with_element!(ty.dtype, T => of::<T>(ty, values))
}

fn numbers(arrays: &[Array]) -> Vec<Vec<f64>> {
    arrays.iter().map(|array| array.to_literal().unwrap().to_f64_vec()).collect()
}

/// Runs an artifact on values and compares.
fn expect_values(exported: &Exported, values: &Values, what: &str) {
    let types = exported.in_types();
    assert_eq!(types.len(), values.r#in.len());
    let args: Vec<Array> = types.iter().zip(&values.r#in).map(|(ty, x)| array(ty, x)).collect();
    let results = numbers(&exported.call(&args).unwrap());
    assert_eq!(results.len(), values.out.len());
    let mut worst = 0.0f64;
    for (got, expected) in results.iter().flatten().zip(values.out.iter().flatten()) {
        worst = worst.max((got - expected).abs() / expected.abs().max(1.0));
    }
    println!("{what}: {} results, largest difference {worst:.1e}", results.len());
    assert!(worst <= 1e-5, "{what}: {worst}");
}

fn peer(python: &OsStr, command: &str, folder: &Path) {
    let status = Command::new(python)
        .arg("tests/interop/peer.py")
        .arg(command)
        .arg(folder)
        .env("JAX_PLATFORMS", "cpu")
        .status()
        .expect("PODRACER_PEER_PYTHON can be run");
    assert!(status.success(), "peer.py {command} failed");
}

/// Our PPO's whole update on a small rollout: the artifact, arguments and results.
fn ours() -> (Exported, Values) {
    let flags = "--num-envs 4 --num-steps 8 --num-minibatches 2 --update-epochs 2";
    let args = Args::from_flags(flags.split(' ')).unwrap();
    let init = jit(|key: Key<Tensor>| {
        let (key, agent_key) = key.split();
        let agent = Agent::init(agent_key, 4, 2);
        (TrainState { opt_state: Adam::default().init(&agent), agent }, key)
    });
    type Input<T> = (TrainState<T>, Rollout<T>, Key<T>, T);
    let learn = jit(|(train_state, rollout, key, learning_rate): Input<Tensor>| {
        update(train_state, rollout, key, learning_rate, &args)
    })
    .named("ppo_update");
    let wave = |shape: &[usize], step: f64| {
        let count = shape.iter().product::<usize>();
        let values: Vec<f32> = (0..count).map(|i| (i as f64 * step).sin() as f32).collect();
        Array::new(shape, &values).unwrap()
    };
    let actions: Vec<i32> = (0..32).map(|i| (i * i / 3) % 2).collect();
    // One episode ends, with the last step.
    let dones: Vec<f32> = (0..32).map(|i| if i == 29 { 1.0 } else { 0.0 }).collect();
    let arguments = || {
        let rollout = Rollout {
            obs: wave(&[8, 4, 4], 0.37),
            actions: Array::new([8, 4], &actions).unwrap(),
            rewards: wave(&[8, 4], 1.3),
            dones: Array::new([8, 4], &dones).unwrap(),
            next_obs: wave(&[4, 4], 0.7),
        };
        let (train_state, key) = init.call(Key::new(3)).unwrap();
        (train_state, rollout, key, Array::from(2.5e-4f32))
    };
    let exported = learn.export(&arguments()).unwrap();
    // An exported function takes its leaves in the order of its own paths.
    let texts = |paths: Vec<podracer::tree::leaf_path::LeafPath>, skip: usize| -> Vec<String> {
        paths.iter().map(|path| podracer::tree::leaf_path::path_text(&path[skip..])).collect()
    };
    let sorted = |ours: Vec<String>, leaves: Vec<Array>, theirs: Vec<String>| -> Vec<Vec<f64>> {
        let place = |path: &String| ours.iter().position(|own| own == path).expect("the same");
        numbers(&theirs.iter().map(|path| leaves[place(path)].clone()).collect::<Vec<_>>())
    };
    let before = arguments();
    let (paths, leaves) = (tree::paths::<Array, _>(&before), tree::leaves(&before));
    let ins = sorted(paths, leaves, texts(exported.in_tree().paths(), 1));
    let after = learn.call(before).unwrap();
    let (paths, leaves) = (tree::paths::<Array, _>(&after), tree::leaves(&after));
    let outs = sorted(paths, leaves, texts(exported.out_tree().paths(), 0));
    (exported, Values { r#in: ins, out: outs })
}

#[test]
fn each_runs_the_update_of_the_other() {
    let Some(python) = peers::python("PODRACER_PEER_PYTHON") else { return };
    let dir = tempfile::tempdir().unwrap();
    let read = |name: &str| Exported::load(dir.path().join(name)).unwrap();
    let (exported, values) = ours();
    expect_values(&exported, &values, "ours here");
    exported.save(dir.path().join("ours.jaxexport")).unwrap();
    let text = serde_json::to_string(&values).unwrap();
    std::fs::write(dir.path().join("ours.json"), text).unwrap();
    peer(&python, "check", dir.path());
    // JAX has written ours as bytecode of the portable dialect.
    expect_values(&read("bytecode.jaxexport"), &values, "ours by way of JAX");
    peer(&python, "write", dir.path());
    let text = std::fs::read_to_string(dir.path().join("theirs.json")).unwrap();
    expect_values(&read("theirs.jaxexport"), &serde_json::from_str(&text).unwrap(), "JAX's here");
}
