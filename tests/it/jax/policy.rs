//! A Flax model with its parameters as the policy of `podracer eval`
//! (`tests/fixtures/jax/flax/make.py`).

use std::path::{Path, PathBuf};

use podracer::rl::commands::eval::report;
use podracer::rl::policy::evaluation::Evaluation;
use podracer::rl::program_policy;
use podracer::{Array, Program, Tensor, jit, vmap};
use safetensors::SafeTensors;

const FOLDER: &str = "tests/fixtures/jax/flax";

fn evaluate(policy: PathBuf, env_id: &str) -> podracer::Result<String> {
    let mut evaluation = Evaluation::new(2);
    program_policy::play(&policy, env_id, &mut evaluation)?;
    Ok(report("policy", env_id, &evaluation))
}

#[test]
fn values_are_those_of_flax_and_the_pole_stands() {
    let network = Program::load(format!("{FOLDER}/policy.txt")).unwrap();
    let bytes = std::fs::read(format!("{FOLDER}/policy.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let read = |name: &str| -> Vec<f32> {
        let bytes = file.tensor(name).unwrap().data().to_vec();
        bytes.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect()
    };
    let batch = jit(|obs: Tensor| vmap(|obs: Tensor| network.call(obs)[0])(obs));
    let values = batch.call(Array::new([32, 4], &read("obs")).unwrap()).unwrap();
    for (x, y) in values.to_vec::<f32>().unwrap().iter().zip(read("values")) {
        assert!((x - y).abs() <= 1e-5 * y.abs().max(1.0), "{x} and {y}");
    }
    let result = evaluate(Path::new(FOLDER).join("policy.txt"), "CartPole-v1").unwrap();
    assert!(result.ends_with("2 episodes: 500.00 +- 0.00\n500.0 500.0\n"), "{result}");
}

#[test]
fn other_programs_are_no_policies() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.txt");
    let error = |text: &str| {
        std::fs::write(&file, text).unwrap();
        evaluate(file.clone(), "CartPole-v1").unwrap_err().to_string()
    };
    let found = error("{ lambda a:f32[3]. let\n in (a) }");
    assert!(
        found.contains(
            "it takes (f32[3]), and a policy for CartPole-v1 takes one observation, f32[4]"
        ),
        "{found}"
    );
    let found = error("{ lambda a:f32[4]. let\n in (a) }");
    assert!(
        found.contains(
            "it returns (f32[4]), and a policy for CartPole-v1 returns an action, i32[] or a value \
             for each, f32[2]"
        ),
        "{found}"
    );
    // An action that a key draws.
    let result = {
        std::fs::write(&file, "{ lambda a:f32[4] b:u32[2]. let\n in (1:i32[]) }").unwrap();
        evaluate(file.clone(), "CartPole-v1").unwrap()
    };
    assert!(result.contains("2 episodes: "), "{result}");
}
