//! 1000 random steps of environments of gymnax, PGX and Brax, recorded by JAX
//! (`tests/fixtures/envs/jax`), beside the same steps here.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use podracer::envs::traced::{AutoReset, ProgramEnv, TracedEnv};
use podracer::trace::control::scan;
use podracer::{Array, Key, Tensor, jit, vmap};
use safetensors::{Dtype, SafeTensors};

use super::GYMNAX;

/// A recorded array, and its elements as `f64`.
struct Recorded {
    array: Array,
    elements: Vec<f64>,
}

/// Elements as JAX's own types.
fn recorded(view: &safetensors::tensor::TensorView<'_>) -> Recorded {
    fn of<T: bytemuck::Pod + podracer::trace::Element>(shape: &[usize], bytes: &[u8]) -> Array {
        let elements: Vec<T> =
            bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect();
        Array::new(shape, &elements).unwrap()
    }
    let (shape, bytes) = (view.shape(), view.data());
    let array = match view.dtype() {
        Dtype::F32 => of::<f32>(shape, bytes),
        Dtype::I32 => of::<i32>(shape, bytes),
        Dtype::U32 => of::<u32>(shape, bytes),
        Dtype::U8 => of::<u8>(shape, bytes),
        Dtype::I8 => of::<i8>(shape, bytes),
        Dtype::BOOL => {
            let elements: Vec<bool> = bytes.iter().map(|&byte| byte != 0).collect();
            Array::new(shape, &elements).unwrap()
        }
        other => panic!("no array of {other:?} is recorded"),
    };
    Recorded { elements: elements(&array), array }
}

fn elements(array: &Array) -> Vec<f64> {
    array.to_literal().unwrap().to_f64_vec()
}

/// Arrays of a file by name.
fn read(path: &str) -> BTreeMap<String, Recorded> {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    file.tensors().into_iter().map(|(name, view)| (name, recorded(&view))).collect()
}

/// Returns the largest difference, in units of the larger of 1 and the expected element.
fn difference(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let each =
        found.iter().zip(expected).map(|(x, y)| match x == y || (x.is_nan() && y.is_nan()) {
            true => 0.0,
            false => (x - y).abs() / y.abs().max(1.0),
        });
    each.fold(0.0, |a, b| if b > a || b.is_nan() { b } else { a })
}

/// Takes the recorded steps and compares observations, rewards and ends with those of JAX. Returns
/// the largest difference.
fn episodes_beside_recorded(folder: &str, game: &str, tolerance: f64) -> f64 {
    let recorded = read(&format!("{folder}/{game}.safetensors"));
    let env = AutoReset::new(ProgramEnv::load(format!("{folder}/{game}")).unwrap());
    let get = |name: &str| &recorded[name];
    let run = jit(|(first, keys, resets, actions): (Tensor, Tensor, Tensor, Tensor)| {
        let start = env.reset(Key::from_data(first));
        let step = |(episode, _): (_, Tensor), (key, reset, action): (Tensor, Tensor, Tensor)| {
            let start = env.env.reset(Key::from_data(reset));
            let next = env.step_or(episode, action, Key::from_data(key), start);
            let flags = (next.reward, next.terminated, next.truncated);
            ((next.episode, next.obs), (next.obs, flags))
        };
        (start.1, scan(step, start, (keys, resets, actions)).1)
    });
    let [first, keys, resets, actions] =
        ["first", "keys", "resets", "actions"].map(|name| get(name).array.clone());
    assert_eq!(actions.shape()[0], 1000);
    let (first, (obs, (rewards, terminated, truncated))) =
        run.call((first, keys, resets, actions)).unwrap();
    let mut all = elements(&first);
    all.extend(elements(&obs));
    let expected = match recorded.get("obs") {
        Some(obs) => obs.elements.clone(),
        // Boards of zeros and ones are recorded as bits.
        None => {
            let bits = |&byte: &f64| (0..8).map(move |i| f64::from(byte as u8 >> (7 - i) & 1));
            get("obs_bits").elements.iter().flat_map(bits).take(all.len()).collect()
        }
    };
    let far = |(x, y): (&f64, &f64)| (x - y).abs() > tolerance * y.abs().max(1.0);
    if let Some(i) = all.iter().zip(&expected).position(far) {
        let step = i / (all.len() / 1001);
        panic!("{game}: observation {step} has {} and not {}", all[i], expected[i]);
    }
    for (name, found) in [("terminated", terminated), ("truncated", truncated)] {
        assert_eq!(elements(&found), get(name).elements, "{game}: {name}");
    }
    let worst = difference(&elements(&rewards), &get("rewards").elements);
    assert!(worst <= tolerance, "{game}: rewards differ by {worst}");
    difference(&all, &expected).max(worst)
}

/// Takes each recorded step from the state of JAX and compares rewards, ends and all leaves of the
/// next state, the observation among them. Returns the largest difference, and that of JAX's `scan`
/// from its `vmap`, which is only rounding.
fn steps_beside_recorded(folder: &str, game: &str) -> (f64, f64) {
    let recorded = read(&format!("{folder}/{game}.safetensors"));
    let env = ProgramEnv::load(format!("{folder}/{game}")).unwrap();
    let leaves = |prefix: &str| -> Vec<&Recorded> {
        (0..).map_while(|i| recorded.get(&format!("{prefix}{i}"))).collect()
    };
    let arrays = |leaves: &[&Recorded]| leaves.iter().map(|leaf| leaf.array.clone()).collect();
    let (before, after) = (leaves("state"), leaves("next"));
    assert!(!before.is_empty() && before.len() == after.len(), "{game}: states are recorded");
    let run = jit(|all: (Vec<Tensor>, Tensor, Tensor)| {
        let step = |(state, key, action): (Vec<Tensor>, Tensor, Tensor)| {
            let next = env.step(state, action, Key::from_data(key));
            (next.state, next.reward, next.terminated)
        };
        vmap(step)(all)
    });
    let (keys, actions) = (recorded["keys"].array.clone(), recorded["actions"].array.clone());
    assert_eq!(actions.shape()[0], 1000);
    let (states, rewards, terminated) = run.call((arrays(&before), keys, actions)).unwrap();
    assert_eq!(elements(&terminated), recorded["terminated"].elements, "{game}: terminated");
    let pairs = states.iter().zip(after).chain([(&rewards, &recorded["rewards"])]);
    let each = pairs.map(|(found, expected)| difference(&elements(found), &expected.elements));
    let worst = each.fold(0.0, |a, b| if b > a || b.is_nan() { b } else { a });
    (worst, recorded["own_difference"].elements[0])
}

#[test]
fn steps_of_cartpole_are_those_of_gymnax() {
    episodes_beside_recorded(GYMNAX, "cartpole", 1e-5);
}

#[test]
fn steps_of_breakout_are_those_of_gymnax() {
    episodes_beside_recorded(GYMNAX, "breakout", 0.0);
}

/// Ids, with the tolerance of whole episodes.
const EPISODES: [(&str, f64); 13] = [
    ("gymnax:Acrobot-v1", 1e-3),
    ("gymnax:Asterix-MinAtar", 0.0),
    ("gymnax:Breakout-MinAtar", 0.0),
    ("gymnax:CartPole-v1", 1e-5),
    ("gymnax:Catch-bsuite", 0.0),
    ("gymnax:FourRooms-misc", 0.0),
    ("gymnax:Freeway-MinAtar", 0.0),
    ("gymnax:Pendulum-v1", 1e-4),
    ("gymnax:SpaceInvaders-MinAtar", 0.0),
    ("pgx:chess", 0.0),
    ("pgx:connect_four", 0.0),
    ("pgx:go_9x9", 0.0),
    ("pgx:tic_tac_toe", 0.0),
];

/// Ids whose small differences grow.
const STEPS: [&str; 6] = [
    "brax:ant/generalized",
    "brax:ant/positional",
    "brax:ant/spring",
    "brax:halfcheetah/generalized",
    "brax:halfcheetah/positional",
    "brax:halfcheetah/spring",
];

/// Exports and records the environments whose ids contain `JAX_ENVS_CASE`, and compares. With
/// `JAX_ENVS_FOLDER` the files of the last time are used.
#[test]
#[ignore = "PODRACER_JAX_ENVS_PYTHON names a Python with gymnax, PGX and Brax"]
fn steps_of_all_environments_are_those_of_jax() {
    let kept = std::env::var_os("JAX_ENVS_FOLDER").map(std::path::PathBuf::from);
    let new = tempfile::tempdir().unwrap();
    let folder = kept.as_deref().unwrap_or(new.path());
    let only = std::env::var("JAX_ENVS_CASE").unwrap_or_default();
    let file = |id: &str| id.replace([':', '/'], "_");
    let episodes = EPISODES.into_iter().filter(|(id, _)| id.contains(&only));
    let steps = STEPS.into_iter().filter(|id| id.contains(&only));
    let is_absent = |id: &&str| !folder.join(format!("{}.safetensors", file(id))).exists();
    let ids = episodes.clone().map(|(id, _)| id).chain(steps.clone());
    let absent: Vec<&str> = ids.filter(is_absent).collect();
    if !absent.is_empty() {
        let python = std::env::var_os("PODRACER_JAX_ENVS_PYTHON")
            .expect("PODRACER_JAX_ENVS_PYTHON names a Python with gymnax, PGX and Brax");
        let script = Path::new(GYMNAX).join("record.py");
        let status = Command::new(python).arg(script).arg(folder).args(&absent).status().unwrap();
        assert!(status.success(), "the environments are exported and recorded");
    }
    let folder = folder.to_str().unwrap();
    for (id, tolerance) in episodes {
        let worst = episodes_beside_recorded(folder, &file(id), tolerance);
        println!("{id}: episodes differ by {worst:.1e} at most");
    }
    for id in steps {
        let (worst, own) = steps_beside_recorded(folder, &file(id));
        println!(
            "{id}: states after a step differ by {worst:.1e} at most, in JAX alone by {own:.1e}"
        );
        assert!(worst <= 4.0 * own, "{id}");
    }
}
