//! Agents of several seeds, shared by devices.

use std::path::Path;

use podracer::algos::ppo_anakin::Args;
use podracer::rl::{Algorithm, checkpoint};

use super::devices;

#[test]
fn on_however_many_devices_they_learn_the_same() {
    devices(4);
    let runs = tempfile::tempdir().unwrap();
    let model = |devices: &str, axis: &str| {
        let runs = runs.path().to_str().unwrap();
        let small = ["--total-timesteps=96", "--num-envs=2", "--num-steps=16"];
        let flags = [
            "--num-minibatches=2",
            "--num-seeds=4",
            "--seed-axis",
            axis,
            "--num-devices",
            devices,
            "--runs-dir",
            runs,
            "--save-model",
            "--json",
        ];
        let args = Args::from_flags(small.iter().chain(&flags).copied()).unwrap();
        let summary = args.train().unwrap();
        assert_eq!(summary.num_devices.to_string(), devices);
        let file = Path::new(&summary.run_dir).join("ppo_anakin.safetensors");
        let model = checkpoint::load(file).unwrap();
        model.entries().map(|entry| entry.data.to_vec()).collect::<Vec<_>>()
    };
    let one = model("1", "map");
    assert!(model("2", "map") == one);
    assert!(model("4", "map") == one);
    assert_eq!(model("2", "vmap").len(), one.len());
}
