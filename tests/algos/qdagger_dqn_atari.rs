//! QDagger: its loss compared with JAX, a small run with a small teacher, invalid settings.

use std::path::Path;

use podracer::algos::qdagger_dqn_atari::{Args, QNetwork, Teacher, qdagger_loss};
use podracer::algos::{dqn, dqn_atari};
use podracer::envs::ObsKind;
use podracer::nn::{ImageEncoder, ImpalaCnn};
use podracer::rl::Algorithm;
use podracer::rl::buffers::frames::SampledBatch;
use podracer::trace::ops::constant;
use podracer::{Array, Tensor, interpret, value_and_grad};

use super::cases::{Case, args, refused};
use super::dqn_atari::{sampled_batch, trunk};
use super::models::model;
use super::scalars;

const SMALL: &[&str] = &[
    "--env-id=MinAtar/SpaceInvaders-v1",
    "--total-timesteps=400",
    "--learning-starts=200",
    "--target-network-frequency=100",
    "--buffer-size=250",
    "--batch-size=8",
];
const OFFLINE: &[&str] =
    &["--teacher-steps=200", "--offline-steps=50", "--teacher-eval-episodes=2"];

fn net(case: &Case, prefix: &str) -> QNetwork<Array> {
    let dense = |name: &str| case.dense(&format!("{prefix}{name}w"), &format!("{prefix}{name}b"));
    QNetwork {
        trunk: ImageEncoder::Impala(ImpalaCnn {
            sequences: Vec::new(),
            hidden: vec![dense("hidden_")],
        }),
        head: dense(""),
        obs_kind: ObsKind::Board,
    }
}

#[test]
fn qdagger_loss_equals_jax() {
    let case = Case::of("qdagger");
    let args = Args::from_flags(["--temperature=2"]).unwrap();
    let teacher =
        Teacher { trunk: trunk(&case, "teacher_"), head: case.dense("teacher_w", "teacher_b") };
    type Inputs = (QNetwork<Tensor>, QNetwork<Tensor>, Teacher<Tensor>, SampledBatch<Tensor>);
    let run = interpret(|(q, target, teacher, batch): Inputs| {
        let teacher_q_values = teacher.apply(batch.obs);
        let coefficient = constant(0.7f32);
        value_and_grad(|q: QNetwork<Tensor>| {
            qdagger_loss(&q, &target, teacher_q_values, &batch, coefficient, &args)
        })(q)
    });
    let inputs = (net(&case, ""), net(&case, "target_"), teacher, sampled_batch(&case));
    let ((loss, metrics), grads) = run.call(inputs).unwrap();
    case.close("loss", &loss);
    case.close("td_loss", &metrics.td_loss);
    case.close("distill_loss", &metrics.distill_loss);
    case.close("q_values", &metrics.q_values);
    case.close("grad_w", &grads.head.w);
}

#[test]
fn a_student_learns_from_a_saved_teacher() {
    let runs = tempfile::tempdir().unwrap();
    let saved = ["--save-model", "--eval-episodes=1"];
    let teacher: dqn_atari::Args = args(runs.path(), SMALL, &saved);
    let teacher = teacher.train().unwrap();
    let path = format!("{}/dqn_atari.safetensors", teacher.run_dir);
    let teacher = ["--teacher-model", &path];
    let run = |more: &[&str]| {
        let flags = [&saved[..], OFFLINE, &teacher, more].concat();
        let summary = args::<Args>(runs.path(), SMALL, &flags).train().unwrap();
        assert_eq!(summary.global_step, 400);
        summary
    };
    let (first, again) = (run(&[]), run(&[]));
    assert!(model(&first) == model(&again), "the models differ");
    let events = scalars(&first.run_dir);
    assert_eq!(events, scalars(&again.run_dir));
    for tag in [
        "charts/teacher/avg_episodic_return",
        "charts/offline/loss",
        "charts/offline/distill_loss",
        "charts/distill_coeff",
        "charts/epsilon",
        "losses/distill_loss",
        "eval/episodic_return",
    ] {
        assert!(events.keys().any(|(found, _)| found == tag), "no {tag}");
    }
    let parity = scalars(&run(&["--parity"]).run_dir);
    let first_loss = |events: &std::collections::BTreeMap<(String, u64), Vec<f32>>| {
        let steps = events.keys().filter(|(tag, _)| tag == "losses/td_loss").map(|(_, step)| *step);
        steps.min().unwrap()
    };
    assert!(first_loss(&parity) < first_loss(&events));

    // Other files are refused as teachers.
    let error = |path: &str, more: &[&str]| {
        let flags = [OFFLINE, &["--teacher-model", path], more].concat();
        args::<Args>(runs.path(), SMALL, &flags).train().unwrap_err().to_string()
    };
    let text = error(&path, &["--env-id=MinAtar/Breakout-v1"]);
    assert!(text.contains("it was trained on MinAtar/SpaceInvaders-v1"), "{text}");
    let student = Path::new(&first.run_dir).join("qdagger_dqn_atari.safetensors");
    let text = error(student.to_str().unwrap(), &[]);
    assert!(text.contains("was saved by qdagger_dqn_atari, and this is dqn_atari"), "{text}");
    let vector = args::<dqn::Args>(
        runs.path(),
        &["--total-timesteps=500", "--save-model", "--eval-episodes=1"],
        &[],
    );
    let vector = Path::new(&vector.train().unwrap().run_dir).join("dqn.safetensors");
    let text = error(vector.to_str().unwrap(), &[]);
    assert!(text.contains("was saved by dqn, and this is dqn_atari"), "{text}");
}

#[test]
fn invalid_settings_are_refused() {
    let error = |more: &[&str]| refused::<Args>(SMALL, &[OFFLINE, more].concat());
    assert!(error(&[]).contains("--teacher-model: name the saved model of a dqn_atari run"));
    assert_eq!(error(&["--temperature=0"]), "--temperature 0: must be a number from 1e-37 to 1e15");
    assert_eq!(
        error(&["--offline-steps=5"]),
        "--offline-steps 5: must be at least 25, the gradient steps of one call of the program"
    );
    assert_eq!(
        error(&["--teacher-eval-episodes=0"]),
        "--teacher-eval-episodes 0: must be a whole number from 1 to 1000000"
    );
}
