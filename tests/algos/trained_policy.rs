//! Policies of saved models in programs that do not train.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use podracer::algos::{dqn, ppo, ppo_atari, ppo_continuous_action, registry};
use podracer::envs::{self, EnvPool, PoolOptions};
use podracer::rl::checkpoint::saved::SavedMetadata;
use podracer::rl::{Algorithm, Evaluation, TrainedPolicy};
use podracer::{Array, DType, Error, Key, Mode};

const ROLLOUTS: &[&str] = &["--num-envs=2", "--num-steps=16", "--num-minibatches=2"];
const SHORT: &[&str] =
    &["--total-timesteps=64", "--save-model", "--eval-episodes=0", "--mode=interpret"];

/// Trains for a few steps in the interpreter, and returns the file of the model.
fn trained<A: Algorithm>(runs: &Path, small: &[&str], more: &[&str]) -> PathBuf {
    let args: A = super::cases::args(runs, &[SHORT, small].concat(), more);
    args.train().unwrap().model_path.unwrap().into()
}

/// Folder with the model of `ppo` on CartPole-v1, which several tests read.
fn cartpole() -> &'static Path {
    static MODEL: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, model) = MODEL.get_or_init(|| {
        let runs = tempfile::tempdir().unwrap();
        let model = trained::<ppo::Args>(runs.path(), ROLLOUTS, &[]);
        (runs, model)
    });
    model.parent().unwrap()
}

fn observations(policy: &TrainedPolicy, batch_size: usize) -> Array {
    let space = &policy.spec().observation;
    let shape = [&[batch_size], &space.shape()[..]].concat();
    let count = shape.iter().product::<usize>();
    let values = (0..count).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0);
    match space.dtype() {
        DType::F32 => Array::new(shape, &values.collect::<Vec<_>>()).unwrap(),
        DType::Bool => Array::new(shape, &values.map(|x| x > 0.6).collect::<Vec<_>>()).unwrap(),
        other => panic!("{other}"),
    }
}

/// Compares the returns of an evaluation with those of the same episodes played by a loaded policy, and
/// the compiled actions with the interpreted ones.
fn acts_as_evaluated<A: Algorithm>(env_id: &str, small: &[&str]) -> TrainedPolicy {
    let runs = tempfile::tempdir().unwrap();
    let id = format!("--env-id={env_id}");
    let model = trained::<A>(runs.path(), small, &[&id]);
    let mut expected = Evaluation::new(2);
    registry::play(&model, &SavedMetadata::read(&model).unwrap(), &mut expected).unwrap();

    let policy = TrainedPolicy::load(&model).unwrap().with_mode(Mode::Interpret);
    assert_eq!((policy.algorithm(), policy.spec()), (A::NAME, &envs::spec(env_id).unwrap()));
    let options = PoolOptions { seed: 1 + (1 << 32), num_threads: 1, ..PoolOptions::default() };
    let mut played = Evaluation::new(2);
    let pool = EnvPool::make(env_id, options).unwrap();
    played.play(pool, |obs, key| policy.sample(&obs, key)).unwrap();
    assert_eq!(played.returns, expected.returns);
    assert!(!played.returns.is_empty());

    let saved = registry::policy(&model, &SavedMetadata::read(&model).unwrap()).unwrap();
    let obs = observations(&policy, 5);
    let greedy =
        saved.exported("policy", 5).unwrap().call(std::slice::from_ref(&obs)).unwrap().remove(0);
    let compiled = TrainedPolicy::load(&model).unwrap();
    for actions in [policy.act(&obs).unwrap(), compiled.act(&obs).unwrap()] {
        assert_eq!(actions.ty(), greedy.ty());
        let pairs = [&actions, &greedy].map(|x| x.to_literal().unwrap().to_f64_vec());
        for (found, expected) in pairs[0].iter().zip(&pairs[1]) {
            assert!((found - expected).abs() < 1e-5, "{found} {expected}");
        }
    }
    compiled
}

#[test]
fn discrete_policies_act_as_evaluated() {
    let policy = acts_as_evaluated::<ppo::Args>("CartPole-v1", ROLLOUTS);
    assert_eq!(policy.act(&observations(&policy, 3)).unwrap().ty().to_string(), "i32[3]");
    acts_as_evaluated::<dqn::Args>(
        "CartPole-v1",
        &["--total-timesteps=500", "--learning-starts=490"],
    );
}

#[test]
fn continuous_policies_act_as_evaluated() {
    let policy = acts_as_evaluated::<ppo_continuous_action::Args>("Pendulum-v1", ROLLOUTS);
    let far = Array::new([1, 3], &[1e9f32, -1e9, 1e9]).unwrap();
    let action = policy.act(&far).unwrap().to_vec::<f32>().unwrap();
    assert!(action.len() == 1 && action[0].abs() <= 2.0, "{action:?}");
}

#[test]
fn observations_of_f64_are_rounded() {
    let runs = tempfile::tempdir().unwrap();
    let id = "--env-id=InvertedPendulum-v4";
    let model = trained::<ppo_continuous_action::Args>(runs.path(), ROLLOUTS, &[id]);
    let policy = TrainedPolicy::load(&model).unwrap().with_mode(Mode::Interpret);
    assert_eq!(policy.spec().observation.dtype(), DType::F64);
    let values = [0.1, -0.2, 0.3, 0.7];
    let wide = policy.act(&Array::new([1, 4], &values).unwrap()).unwrap();
    let narrow = policy.act(&Array::new([1, 4], &values.map(|x| x as f32)).unwrap()).unwrap();
    assert_eq!(wide.to_vec::<f32>().unwrap(), narrow.to_vec::<f32>().unwrap());
}

/// A model from somebody else does not choose how this process makes an environment.
#[test]
fn options_of_a_model_do_not_become_those_of_the_process() {
    let good = fs::read(cartpole().join("ppo.safetensors")).unwrap();
    let id = "gymnasium:Other-v0";
    let kwargs = "\\\"env_kwargs\\\": \\\"{\\\\\\\"a\\\\\\\": 1}\\\"";
    let changed = with_header(&good, "\\\"env_kwargs\\\": null", kwargs);
    let changed = with_header(&changed, "CartPole-v1", id);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ppo.safetensors");
    fs::write(&file, changed).unwrap();
    let policy = TrainedPolicy::load(&file).unwrap();
    assert_eq!(
        (&policy.spec().id[..], policy.spec().action.to_string()),
        (id, "Discrete(2)".into())
    );
    assert!(envs::gymnasium_options(id).kwargs.is_empty());
}

#[test]
fn image_policies_act_as_evaluated() {
    acts_as_evaluated::<ppo_atari::Args>("MinAtar/Breakout-v1", ROLLOUTS);
}

#[test]
fn a_call_after_compile_compiles_nothing() {
    let policy = TrainedPolicy::load_as::<ppo::Args>(cartpole()).unwrap();
    assert_eq!(policy.stats().traces, 0);
    policy.compile(4).unwrap();
    let compiled = policy.stats().traces;
    assert_eq!(compiled, 2);
    let obs = observations(&policy, 4);
    let expected = policy.act(&obs).unwrap().to_vec::<i32>().unwrap();
    thread::scope(|scope| {
        let act = || policy.act(&obs).unwrap().to_vec::<i32>().unwrap();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(act)).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), expected);
        }
    });
    policy.sample(&obs, Key::new(3)).unwrap();
    assert_eq!(policy.stats().traces, compiled);
    policy.act(&observations(&policy, 5)).unwrap();
    assert_eq!(policy.stats().traces, compiled + 1);
}

#[test]
fn no_environment_is_made() {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    envs::register("Counted-v0", || {
        MADE.fetch_add(1, Ordering::Relaxed);
        envs::make("CartPole-v1")
    })
    .unwrap();
    let runs = tempfile::tempdir().unwrap();
    let model = trained::<ppo::Args>(runs.path(), ROLLOUTS, &["--env-id=Counted-v0"]);
    let made = MADE.load(Ordering::Relaxed);
    let policy = TrainedPolicy::load(&model).unwrap().with_mode(Mode::Interpret);
    policy.act(&observations(&policy, 1)).unwrap();
    assert_eq!(MADE.load(Ordering::Relaxed), made);
}

#[test]
fn observations_of_another_shape_or_type_are_errors() {
    let policy = TrainedPolicy::load(cartpole()).unwrap().with_mode(Mode::Interpret);
    for (wrong, part) in [
        (Array::zeros([4], DType::F32), "f32[4]\n  help: a single observation is a batch of 1"),
        (Array::zeros([2, 5], DType::F32), "these are f32[2,5]"),
        (Array::zeros([0, 4], DType::F32), "these are f32[0,4]"),
        (Array::zeros([2, 4], DType::F64), "these are f64[2,4]"),
        (Array::zeros([2, 4], DType::U8), "these are u8[2,4]"),
        (Array::from(1.0f32), "these are f32[]"),
    ] {
        let error = policy.act(&wrong).unwrap_err().to_string();
        assert!(error.contains("the policy of ppo for CartPole-v1 takes observations f32[B,4]"));
        assert!(error.contains(part), "{error}");
    }
    let shown = format!("{policy:?}");
    assert_eq!(shown, "TrainedPolicy(ppo for CartPole-v1, f32[B,4] to Discrete(2))");
}

fn refusal(run: &Path) -> String {
    let error = TrainedPolicy::load(run).unwrap_err();
    assert!(matches!(error, Error::File(_) | Error::Io { .. }), "{error:#?}");
    error.to_string()
}

/// Replaces a text in the header of a model; the length stays.
fn with_header(model: &[u8], from: &str, to: &str) -> Vec<u8> {
    let length = u64::from_le_bytes(model[..8].try_into().unwrap()) as usize;
    let header = str::from_utf8(&model[8..8 + length]).unwrap();
    assert!(header.contains(from), "{from} is not in {header}");
    let header = header.replacen(from, to, 1);
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), &model[8 + model_header(model)..]].concat()
}

fn model_header(model: &[u8]) -> usize {
    u64::from_le_bytes(model[..8].try_into().unwrap()) as usize
}

#[test]
fn files_that_are_not_models_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    assert!(refusal(folder.path()).contains("has no model"));
    assert!(refusal(&folder.path().join("none")).contains("cannot read"));
    let good = fs::read(cartpole().join("ppo.safetensors")).unwrap();
    let file = folder.path().join("ppo.safetensors");
    for length in [0, 7, 8, 100, model_header(&good), good.len() - 1] {
        fs::write(&file, &good[..length]).unwrap();
        refusal(&file);
    }
    for (from, to, part) in [
        ("\\\"env_spec\\\"", "\\\"other\\\"", "an older version saved it"),
        ("\\\"n\\\": 2", "\\\"n\\\": 0", "it has nothing to choose from"),
        ("\\\"n\\\": 2", "\\\"n\\\": 3", "expected f32[64,3]"),
        ("\\\"n\\\": 2", "\\\"n\\\": -2", "ppo.safetensors"),
        ("\\\"float32\\\"", "\\\"float9\\\"", "a space has elements float9"),
        ("\\\"shape\\\": [\\n        4", "\\\"shape\\\": [\\n        5", "4 bounds for 5 elements"),
        (
            "\\\"shape\\\": [\\n        4",
            "\\\"shape\\\": [\\n        9223372036854775807, 9223372036854775807",
            "is too large",
        ),
        ("\\\"algorithm\\\": \\\"ppo\\\"", "\\\"algorithm\\\": \\\"mine\\\"", "saved by mine"),
    ] {
        fs::write(&file, with_header(&good, from, to)).unwrap();
        let error = refusal(&file);
        assert!(error.contains(part), "{from} {to}: {error}");
    }
}

#[test]
fn policies_are_shared_by_threads() {
    fn check<T: Send + Sync>() {}
    check::<TrainedPolicy>();
}

#[test]
fn a_model_of_another_program_names_that_program() {
    let model = cartpole().join("ppo.safetensors");
    let mut metadata = SavedMetadata::read(&model).unwrap();
    metadata.algorithm = "count".into();
    let played = registry::play(&model, &metadata, &mut Evaluation::new(1)).unwrap_err();
    let exported = registry::policy(&model, &metadata).map(drop).unwrap_err();
    for (error, command) in [(played, "eval"), (exported, "export")] {
        assert!(error.to_string().contains(&format!("`PROGRAM {command} --run ")), "{error}");
    }
    // An environment that another program registers is not known here.
    let mut metadata = SavedMetadata::read(&model).unwrap();
    metadata.settings.insert("env_id".into(), "Mine-v0".into());
    let error = registry::play(&model, &metadata, &mut Evaluation::new(1)).unwrap_err().to_string();
    assert!(error.contains("unknown environment \"Mine-v0\""), "{error}");
    assert!(error.contains("known to that program alone"), "{error}");
}
