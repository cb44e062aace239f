//! Programs as objects: how they print, what the checker refuses, what the graph passes do.
//!
//! Printed Programs stand in `tests/programs`; `UPDATE_GOLDEN=1` writes them anew. They show what a
//! transformation makes of a function, equation by equation.

use std::sync::Arc;

use indoc::indoc;
use podracer::algos::ppo;
use podracer::optim::Adam;
use podracer::rl::Algorithm;
use podracer::trace::check::verify;
use podracer::trace::control::{cond, scan, while_loop};
use podracer::trace::eval::eval;
use podracer::trace::graph;
use podracer::trace::op::{BinaryOp, Op, Rule, UnaryOp};
use podracer::trace::ops::{ConvOptions, Padding, conv2d};
use podracer::{
    Array, DType, Key, Literal, Program, Tensor, custom_jvp, grad, interpret, jvp, make_program,
    vmap,
};
use pretty_assertions::assert_eq;

use crate::build::{Build, f32s, i32s};

type Example = (&'static str, fn(&[Tensor]) -> Vec<Tensor>, Vec<Array>);

fn recurrence(w: Tensor, h: Tensor, xs: Tensor) -> Tensor {
    scan(|h: Tensor, x: Tensor| ((h * w + x).tanh(), ()), h, xs).0
}

fn examples() -> Vec<Example> {
    let zeros = |shape: &[usize]| Array::zeros(shape, DType::F32);
    vec![
        (
            "loss",
            |x| vec![(x[0].matmul(x[1]).tanh() - x[2]).square().mean(..)],
            vec![zeros(&[4, 3]), zeros(&[3, 2]), zeros(&[4, 2])],
        ),
        (
            "loss_grad",
            |x| vec![grad(|w: Tensor| (x[0].matmul(w).tanh() - x[2]).square().mean(..))(x[1])],
            vec![zeros(&[4, 3]), zeros(&[3, 2]), zeros(&[4, 2])],
        ),
        (
            "loss_vmap_grad",
            |x| {
                let loss = |w: Tensor, row: Tensor| row.matmul(w).tanh().sum(..);
                vec![vmap(|row: Tensor| grad(|w: Tensor| loss(w, row))(x[1]))(x[0])]
            },
            vec![zeros(&[4, 3]), zeros(&[3, 2])],
        ),
        (
            "scan_jvp",
            |x| {
                let f = |w: Tensor| recurrence(w, x[1], x[2]);
                vec![jvp(f, x[0], x[0]).1]
            },
            vec![zeros(&[2]), zeros(&[2]), zeros(&[5, 2])],
        ),
        (
            "scan_grad",
            |x| vec![grad(|w: Tensor| recurrence(w, x[1], x[2]).sum(..))(x[0])],
            vec![zeros(&[2]), zeros(&[2]), zeros(&[5, 2])],
        ),
        (
            "while_vmap",
            |x| vec![vmap(|n: Tensor| while_loop(|n: Tensor| n.gt(0), |n| n - 3, n))(x[0])],
            vec![Array::zeros([4], DType::I32)],
        ),
        (
            "cond_grad",
            |x| {
                let f = |y: Tensor| cond(x[0], |y: Tensor| y.sin(), |y| y * y, y);
                vec![grad(f)(x[1])]
            },
            vec![Array::from(true), zeros(&[])],
        ),
        (
            "conv_grad",
            |x| {
                let options = ConvOptions { stride: 2, padding: Padding::Same };
                vec![grad(|w: Tensor| conv2d(x[0], w, &options).relu().sum(..))(x[1])]
            },
            vec![zeros(&[2, 5, 5, 1]), zeros(&[3, 3, 1, 2])],
        ),
        (
            "gather_grad",
            |x| {
                let chosen = |table: Tensor| table.at(&[x[1]]).get().square().sum(..);
                vec![grad(chosen)(x[0])]
            },
            vec![zeros(&[4, 2]), Array::zeros([3], DType::I32)],
        ),
    ]
}

fn program_of(f: fn(&[Tensor]) -> Vec<Tensor>, args: Vec<Array>) -> Program {
    let f: &dyn Fn(Vec<Tensor>) -> Vec<Tensor> = &|x| f(&x);
    make_program(f, &args).unwrap()
}

#[test]
fn programs_print_like_jaxprs() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    for (name, f, args) in examples() {
        let program = graph::simplify(program_of(f, args));
        assert_eq!(verify(&program), Ok(()), "{name}");
        let text = format!("{program}\n");
        let path = format!("tests/programs/{name}.txt");
        if update {
            std::fs::create_dir_all("tests/programs").unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(text, golden, "{path}; UPDATE_GOLDEN=1 writes it anew");
    }
    let files = std::fs::read_dir("tests/programs").unwrap().count();
    assert_eq!(files, examples().len(), "files in tests/programs, and examples");
}

#[test]
fn lines_of_the_source_can_be_shown() {
    let line = line!() + 1;
    let program = make_program(|x: Tensor| x.sin() * 2.0, &Array::from(1.0f32)).unwrap();
    let text = program.text_with_lines();
    assert!(text.contains(&format!("sin a    # tests/it/programs.rs:{line}:")), "{text}");
}

/// `(x + y) * x`, with variables a, b, c, d.
fn sound() -> Program {
    let mut build = Build::new();
    let (x, y) = (build.input(f32s([2])), build.input(f32s([2])));
    let sum = build.op(Op::Binary(BinaryOp::Add), &[x, y]);
    let product = build.op(Op::Binary(BinaryOp::Mul), &[sum, x]);
    build.finish(&[product])
}

#[test]
fn the_checker_finds_what_is_wrong() {
    let refused = |what: &str, spoil: &dyn Fn(&mut Program)| {
        let mut program = sound();
        assert_eq!(verify(&program), Ok(()));
        spoil(&mut program);
        let fault = verify(&program).expect_err(what);
        assert!(fault.contains(what), "{fault:?} does not say {what:?}");
    };
    refused("is used before it is defined", &|p| p.equations.swap(0, 1));
    refused("is defined twice", &|p| p.equations[1].outputs[0] = p.equations[0].outputs[0]);
    refused("is defined twice", &|p| p.equations[0].outputs[0] = p.inputs[0]);
    refused("input Var(0) stands twice", &|p| p.inputs[1] = p.inputs[0]);
    refused("equation 1 (mul): Var(3) is f32[3], not f32[2]", &|p| p.types[3] = f32s([3]));
    refused("takes 2 operand(s), got 1", &|p| p.equations[0].inputs.truncate(1));
    refused("equation 0 (add): element types differ", &|p| p.types[1] = i32s([2]));
    refused("output Var(2) is not defined", &|p| {
        p.equations.remove(0);
        p.equations.remove(0);
        p.outputs[0] = podracer::trace::Var(2);
    });
    refused("equation 0 (sin): 2 results", &|p| {
        p.equations[0].op = Op::Unary(UnaryOp::Sin);
        p.equations[0].inputs.pop();
        let extra = p.add_var(f32s([2]));
        p.equations[0].outputs.push(extra);
    });
}

#[test]
fn the_checker_looks_into_bodies() {
    let f: fn(&[Tensor]) -> Vec<Tensor> = |x| vec![recurrence(x[0], x[0], x[1])];
    let mut program =
        program_of(f, vec![Array::zeros([2], DType::F32), Array::zeros([3, 2], DType::F32)]);
    assert_eq!(verify(&program), Ok(()));
    let Some(Op::Scan(scan)) = program.equations.last_mut().map(|e| &mut e.op) else {
        panic!("a scan comes last")
    };
    let mut body = (*scan.body).clone();
    body.equations.swap(0, 1);
    scan.body = Arc::new(body);
    let fault = verify(&program).unwrap_err();
    assert!(fault.contains("(scan)") && fault.contains("before it is defined"), "{fault}");
}

#[test]
fn a_rule_that_calls_its_function_names_it() {
    fn grown(x: Tensor) -> Tensor {
        custom_jvp(|x: Tensor| x.exp(), |x, t: Tensor| (grown(x), t * 2.0))(x)
    }
    let program = make_program(grown, &Array::from(1.0f32)).unwrap();
    let text = program.to_string();
    assert_eq!(
        text,
        indoc! {"
            { lambda a:f32[]. let
                b:f32[] = custom_jvp[consts=0] a
                  call: { lambda a:f32[]. let
                      b:f32[] = exp a
                    in (b) }
                  jvp: { lambda a:f32[] b:f32[]. let
                      c:f32[] = custom_jvp[consts=0 enclosing=0] a
                        call: { lambda a:f32[]. let
                            b:f32[] = exp a
                          in (b) }
                      e:f32[] = mul b 2
                    in (c, e) }
              in (b) }"}
    );
    assert_eq!(Program::parse(&text).unwrap(), program);
    assert_eq!(verify(&program), Ok(()));
    let outside = Program::parse(&text.replace("enclosing=0", "enclosing=1")).unwrap();
    let outside = verify(&outside).unwrap_err();
    assert!(
        outside.contains("enclosing=1, and it stands in the derivatives of 1 fun"),
        "{outside}"
    );
    let mut other = program.clone();
    let Op::CustomJvp(custom) = &mut other.equations[0].op else { panic!("{text}") };
    let Rule::Own(rule) = &mut custom.jvp else { panic!("{text}") };
    let inside = &mut Arc::make_mut(rule).equations[0];
    let Op::CustomJvp(inside) = &mut inside.op else { panic!("{text}") };
    inside.num_consts = 1;
    let other = verify(&other).unwrap_err();
    assert!(other.contains("or with other constants"), "{other}");
}

#[test]
fn dead_code_goes_in_bodies_too() {
    let program = make_program(
        |x: Tensor| {
            let _unused = x.exp();
            scan(
                |h: Tensor, x: Tensor| {
                    let _unused = x.log();
                    (h + x, ())
                },
                x.sum(..),
                x,
            )
            .0
        },
        &Array::zeros([3], DType::F32),
    )
    .unwrap();
    let text = graph::eliminate_dead_code(program.clone()).to_string();
    assert!(program.to_string().contains("exp") && program.to_string().contains("log"));
    assert!(!text.contains("exp") && !text.contains("log"), "{text}");
    assert!(text.contains("add"), "{text}");
}

#[test]
fn equal_equations_become_one() {
    let program = make_program(
        |x: Tensor| (x.sin() + x.sin().stop_gradient()) * (x.cos() - x.sin()),
        &Array::zeros([3], DType::F32),
    )
    .unwrap();
    let simplified = graph::simplify(program.clone());
    let count =
        |p: &Program, name: &str| p.equations.iter().filter(|e| e.op.name() == name).count();
    assert_eq!((count(&program, "sin"), count(&simplified, "sin")), (3, 1));
    assert_eq!(count(&simplified, "cos"), 1);
    assert_eq!(count(&simplified, "stop_gradient"), 0);
    let x = [Literal::from([0.5f32, -1.0, 2.0])];
    assert_eq!(eval(&program, &x).unwrap(), eval(&simplified, &x).unwrap());
}

#[test]
fn constants_that_differ_in_sign_of_zero_stay_apart() {
    let program =
        make_program(|x: Tensor| (1.0 / (x * 0.0)) + (1.0 / (x * -0.0)), &Array::from(1.0f32));
    let simplified = graph::simplify(program.unwrap());
    let result = &eval(&simplified, &[Literal::from(1.0f32)]).unwrap()[0];
    // inf and -inf.
    assert!(result.to_vec::<f32>().unwrap()[0].is_nan());
}

#[test]
fn live_bytes_count_what_is_needed_later() {
    // a, b: 8 bytes each; c = a + b; d = c * a.
    assert_eq!(graph::live_bytes(&sound()), [24, 24]);
    let mut build = Build::new();
    let x = build.input(f32s([4]));
    let y = build.op(Op::Unary(UnaryOp::Sin), &[x]);
    let _unused = build.op(Op::Unary(UnaryOp::Cos), &[y]);
    let z = build.op(Op::Unary(UnaryOp::Exp), &[y]);
    assert_eq!(graph::live_bytes(&build.finish(&[z])), [32, 32, 32]);
}

#[test]
fn a_program_can_be_drawn() {
    let text = graph::dot(&sound());
    let nodes = text.lines().filter(|line| line.contains("[label=") && !line.contains("->"));
    assert_eq!(nodes.count(), 2 + 2 + 1, "{text}");
    assert_eq!(text.matches(" -> ").count(), 5, "{text}");
    let (_, f, args) = examples().remove(4);
    let loops = graph::dot(&graph::simplify(program_of(f, args)));
    assert_eq!(loops.matches("subgraph cluster").count(), 2, "{loops}");
    assert_eq!(loops.matches('{').count(), loops.matches('}').count());
}

/// Every value and body of a Program is in its picture, which is the same each time.
#[test]
fn pictures_have_every_value_and_body() {
    for (name, f, args) in examples() {
        let program = graph::simplify(program_of(f, args));
        let text = graph::dot(&program);
        assert_eq!(text, graph::dot(&program), "{name}: twice the same");
        fn programs(p: &Program) -> Vec<&Program> {
            let inside = p.equations.iter().flat_map(|e| e.op.subprograms().flat_map(programs));
            std::iter::once(p).chain(inside).collect()
        }
        let all = programs(&program);
        let nodes: usize =
            all.iter().map(|p| p.inputs.len() + p.equations.len() + p.outputs.len()).sum();
        let drawn = text.lines().filter(|line| line.contains("[label=") && !line.contains("->"));
        assert_eq!(drawn.count(), nodes, "{name}");
        assert_eq!(text.matches("subgraph cluster").count(), all.len() - 1, "{name}");
    }
    assert!(graph::dot(&Program::default()).ends_with("}\n"));
}

/// The Program of one update of PPO on CartPole.
fn ppo_update() -> Program {
    let args = ppo::Args::from_flags(["--num-envs", "4", "--num-steps", "128"]).unwrap();
    let f32s = |shape: &[usize]| Array::zeros(shape, DType::F32);
    let rollout = ppo::Rollout {
        obs: f32s(&[128, 4, 4]),
        actions: Array::zeros([128, 4], DType::I32),
        rewards: f32s(&[128, 4]),
        dones: f32s(&[128, 4]),
        next_obs: f32s(&[4, 4]),
    };
    let init = |key: Key<Tensor>| {
        let agent = ppo::Agent::init(key, 4, 2);
        ppo::TrainState { opt_state: Adam::default().init(&agent), agent }
    };
    let train_state = interpret(init).call(Key::new(1)).unwrap();
    let key = interpret(|key: Key<Tensor>| key).call(Key::new(2)).unwrap();
    type Input<T> = (ppo::TrainState<T>, ppo::Rollout<T>, Key<T>, T);
    let update = |(train_state, rollout, key, learning_rate): Input<Tensor>| {
        ppo::update(train_state, rollout, key, learning_rate, &args)
    };
    make_program(update, &(train_state, rollout, key, Array::from(1e-3f32))).unwrap()
}

#[test]
fn ppos_update_reads_back_and_can_be_drawn() {
    let program = graph::simplify(ppo_update());
    assert_eq!(crate::laws::reads_back(&program), Ok(()));
    let text = graph::dot(&program);
    assert!(text.matches("subgraph cluster").count() > 3, "{text}");
}
