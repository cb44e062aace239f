//! QDagger: its loss against JAX, a small run with a small teacher, its bad settings.

use std::path::Path;

use podracer::algos::qdagger_dqn_atari::{Args, QNetwork, Teacher, loss};
use podracer::algos::{dqn, dqn_atari};
use podracer::nn::ImpalaCnn;
use podracer::rl::Algorithm;
use podracer::rl::frames::SampledBatch;
use podracer::rl::images::Images;
use podracer::trace::ops::constant;
use podracer::{Array, Tensor, interpret, value_and_grad};

use super::cases::{Case, args, model, refused};
use super::dqn_atari::{drawn, trunk};
use super::scalars;

const SMALL: &[&str] = &[
    "--env-id=MinAtar/SpaceInvaders-v1",
    "--total-timesteps=400",
    "--learning-starts=200",
    "--target-network-frequency=100",
    "--buffer-size=250",
    "--batch-size=8",
];
const TAUGHT: &[&str] = &["--teacher-steps=200", "--offline-steps=50", "--teacher-eval-episodes=2"];

fn net(case: &Case, prefix: &str) -> QNetwork<Array> {
    let dense = |name: &str| case.dense(&format!("{prefix}{name}w"), &format!("{prefix}{name}b"));
    QNetwork {
        trunk: ImpalaCnn { sequences: Vec::new(), hidden: vec![dense("hidden_")] },
        head: dense(""),
        images: Images::MinAtar { channels: 1 },
    }
}

#[test]
fn the_loss_is_that_of_jax() {
    let case = Case::of("qdagger");
    let teacher =
        Teacher { trunk: trunk(&case, "teacher_"), head: case.dense("teacher_w", "teacher_b") };
    type Inputs = (QNetwork<Tensor>, QNetwork<Tensor>, Teacher<Tensor>, SampledBatch<Tensor>);
    let run = interpret(|(q, target, teacher, batch): Inputs| {
        let taught = teacher.apply(batch.obs);
        let coefficient = constant(0.7f32);
        value_and_grad(|q: QNetwork<Tensor>| loss(&q, &target, taught, &batch, coefficient, 2.0))(q)
    });
    let inputs = (net(&case, ""), net(&case, "target_"), teacher, drawn(&case));
    let ((value, metrics), grads) = run.call(inputs).unwrap();
    case.close("loss", &value);
    case.close("td_loss", &metrics.td_loss);
    case.close("distill_loss", &metrics.distill_loss);
    case.close("q_values", &metrics.q_values);
    case.close("grad_w", &grads.head.w);
}

#[test]
fn a_student_learns_from_a_saved_teacher() {
    let runs = tempfile::tempdir().unwrap();
    let saved = ["--save-model", "--eval-episodes=1"];
    let taught: dqn_atari::Args = args(runs.path(), SMALL, &saved);
    let taught = taught.train().unwrap();
    let path = format!("{}/dqn_atari.safetensors", taught.run_dir);
    let teacher = ["--teacher-model", &path];
    let run = |more: &[&str]| {
        let flags = [&saved[..], TAUGHT, &teacher, more].concat();
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

    // Other files are no teachers.
    let told = |path: &str, more: &[&str]| {
        let flags = [TAUGHT, &["--teacher-model", path], more].concat();
        args::<Args>(runs.path(), SMALL, &flags).train().unwrap_err().to_string()
    };
    let text = told(&path, &["--env-id=MinAtar/Breakout-v1"]);
    assert!(text.contains("it was trained on MinAtar/SpaceInvaders-v1"), "{text}");
    let student = Path::new(&first.run_dir).join("qdagger_dqn_atari.safetensors");
    let text = told(student.to_str().unwrap(), &[]);
    assert!(text.contains("was saved by qdagger_dqn_atari, and this is dqn_atari"), "{text}");
    let vector = args::<dqn::Args>(
        runs.path(),
        &["--total-timesteps=500", "--save-model", "--eval-episodes=1"],
        &[],
    );
    let vector = Path::new(&vector.train().unwrap().run_dir).join("dqn.safetensors");
    let text = told(vector.to_str().unwrap(), &[]);
    assert!(text.contains("was saved by dqn, and this is dqn_atari"), "{text}");
}

#[test]
fn settings_that_cannot_be_are_told() {
    let told = |more: &[&str]| refused::<Args>(SMALL, &[TAUGHT, more].concat());
    assert!(told(&[]).contains("--teacher-model: name the saved model of a dqn_atari run"));
    assert_eq!(told(&["--temperature=0"]), "--temperature 0: must be a number from 1e-37 to 1e15");
    assert_eq!(
        told(&["--offline-steps=5"]),
        "--offline-steps 5: must be at least 25, the gradient steps of one call of the program"
    );
    assert_eq!(
        told(&["--teacher-eval-episodes=0"]),
        "--teacher-eval-episodes 0: must be a whole number from 1 to 1000000"
    );
}
