//! Saved models as bytes.

use std::path::Path;

use podracer::rl::{Summary, checkpoint};

/// The model that a run with `--save-model` left, as bytes by name.
pub fn model(summary: &Summary) -> Vec<(String, Vec<u8>)> {
    let file = format!("{}.safetensors", summary.exp_name);
    let saved = checkpoint::load(Path::new(&summary.run_dir).join(file)).unwrap();
    let types: Vec<_> = saved.entries().map(|e| (e.name.to_string(), e.ty.clone())).collect();
    let bytes = saved.expect(&types).unwrap();
    types.iter().zip(bytes).map(|((name, _), bytes)| (name.clone(), bytes.to_vec())).collect()
}
