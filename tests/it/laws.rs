//! The six laws, for every operation:
//!
//! 1. the inferred type is the evaluated type;
//! 2. `jvp` is the central difference along one direction;
//! 3. `<ct, J v> = <J^T ct, v>`;
//! 4. `vmap` is a loop, for every choice of what is mapped;
//! 5. compiled, operation by operation, and interpreted, the results are the same;
//! 6. derivatives of `vmap` are `vmap` of derivatives where examples take different branches.
//!
//! For smooth operations laws 2 and 3 hold for the derivative itself as well. Laws 1 to 4 are held
//! to in `f64` by the interpreter; law 5 runs every function met on the way, in `f64` and `f32`.

mod branches;

use std::collections::BTreeSet;
use std::rc::Rc;

use podracer::trace::eval::eval;
use podracer::trace::graph::simplify;
use podracer::trace::op::{
    ArgOp, BinaryOp, CompareOp, FftKind, Op, ReduceOp, ScatterKind, UnaryOp,
};
use podracer::{Array, DType, Literal, Program, Tensor, TensorType};
use podracer::{eager, jit, jvp, make_program, vjp, vmap};

pub use self::branches::{Enclosing, branches};
use crate::cases::{self, Case, Func, Smooth};
use crate::quickly;
use crate::recipes::values::{same, stacked};

/// The examples of a batch.
pub const LANES: usize = 3;

/// A function met while the laws were checked, with what the interpreter makes of it.
struct Met {
    label: String,
    f: Func,
    inputs: Vec<Literal>,
    outputs: Vec<Literal>,
    tolerance: f64,
    /// Whether it is compiled in a short run too.
    first: bool,
}

/// What breaks the laws, collected so that one run shows all of it.
#[derive(Default)]
struct Report {
    faults: Vec<String>,
    met: Vec<Met>,
    /// What is met now is to be compiled in a short run too.
    first: bool,
}

impl Report {
    fn fault(&mut self, label: &str, text: impl std::fmt::Display) {
        self.faults.push(format!("{label}: {text}"));
    }

    fn same(&mut self, label: &str, found: &[Literal], expected: &[Literal], tolerance: f64) {
        if let Err(difference) = same(found, expected, tolerance) {
            self.fault(label, difference);
        }
    }

    /// Runs `f` in the interpreter, and keeps it for law 5.
    fn run(&mut self, label: &str, f: &Func, inputs: &[Literal]) -> Option<Vec<Literal>> {
        self.run_within(label, f, inputs, 0.0)
    }

    fn run_within(
        &mut self,
        label: &str,
        f: &Func,
        inputs: &[Literal],
        tolerance: f64,
    ) -> Option<Vec<Literal>> {
        let program = match program(f, inputs) {
            Ok(program) => program,
            Err(error) => {
                self.fault(label, error);
                return None;
            }
        };
        if let Err(fault) = podracer::trace::check::verify(&program) {
            self.fault(label, format!("verify: {fault}"));
            return None;
        }
        let outputs = match eval(&program, inputs) {
            Ok(outputs) => outputs,
            Err(error) => {
                self.fault(label, error);
                return None;
            }
        };
        // What goes to the compiler is simplified first.
        match eval(&simplify(program.clone()), inputs) {
            Ok(simplified) => self.same(&format!("{label} simplified"), &simplified, &outputs, 0.0),
            Err(error) => self.fault(label, error),
        }
        if let Err(difference) = reads_back(&program) {
            self.fault(label, difference);
        }
        // Law 1.
        let evaluated: Vec<TensorType> = outputs.iter().map(|y| y.ty().clone()).collect();
        let inferred: Vec<TensorType> = program.output_types().cloned().collect();
        if evaluated != inferred {
            self.fault(label, format!("inferred {inferred:?}, evaluated {evaluated:?}"));
        }
        self.met.push(Met {
            label: label.into(),
            f: f.clone(),
            inputs: inputs.to_vec(),
            outputs: outputs.clone(),
            tolerance,
            first: self.first,
        });
        Some(outputs)
    }
}

/// Whether the text of a Program is all of it: each form reads back.
pub fn reads_back(program: &Program) -> Result<(), String> {
    let again = |text: &str| Program::parse(text).map_err(|error| format!("{error}\nin {text}"));
    let exact = program.to_text();
    if again(&exact)? != *program {
        return Err(format!("reads back as another Program:\n{exact}"));
    }
    let (short, lines) = (program.to_string(), program.text_with_lines());
    if !short.contains("...")
        && (again(&short)?.to_string(), again(&lines)?.to_string())
            != (short.clone(), short.clone())
    {
        return Err(format!("reads back as a Program that prints otherwise:\n{short}"));
    }
    Ok(())
}

/// The Program of `f` for such inputs.
fn program(f: &Func, inputs: &[Literal]) -> podracer::Result<Program> {
    let args: Vec<Array> = inputs.iter().cloned().map(Array::from).collect();
    let f: &dyn Fn(Vec<Tensor>) -> Vec<Tensor> = &|x| f(&x);
    make_program(f, &args)
}

fn is_float(x: &Literal) -> bool {
    x.ty().dtype.is_inexact()
}

/// `f` with other tensors in the places `at`.
fn with(x: &[Tensor], at: &[usize], others: &[Tensor]) -> Vec<Tensor> {
    let mut x = x.to_vec();
    for (&i, &other) in at.iter().zip(others) {
        x[i] = other;
    }
    x
}

fn floats_of(outputs: Vec<Tensor>) -> Vec<Tensor> {
    outputs.into_iter().filter(|y| y.dtype().is_inexact()).collect()
}

/// Takes `n` inputs and tangents for those at `at`; gives the tangents of the float results.
fn jvp_of(f: &Func, n: usize, at: &[usize]) -> Func {
    let (f, at) = (f.clone(), at.to_vec());
    Rc::new(move |args: &[Tensor]| {
        let (x, v) = args.split_at(n);
        let moved: Vec<Tensor> = at.iter().map(|&i| x[i]).collect();
        let inner = |m: Vec<Tensor>| floats_of(f(&with(x, &at, &m)));
        let inner: &dyn Fn(Vec<Tensor>) -> Vec<Tensor> = &inner;
        jvp(inner, moved, v.to_vec()).1
    })
}

/// Takes `n` inputs and cotangents of the float results; gives the cotangents of the inputs at
/// `at`.
fn vjp_of(f: &Func, n: usize, at: &[usize]) -> Func {
    let (f, at) = (f.clone(), at.to_vec());
    Rc::new(move |args: &[Tensor]| {
        let (x, ct) = args.split_at(n);
        let moved: Vec<Tensor> = at.iter().map(|&i| x[i]).collect();
        let inner = |m: Vec<Tensor>| floats_of(f(&with(x, &at, &m)));
        let inner: &dyn Fn(Vec<Tensor>) -> Vec<Tensor> = &inner;
        let (_, back) = vjp(inner, moved);
        back(ct.to_vec())
    })
}

/// `f` mapped over the first axis of the inputs at `at`.
fn vmap_of(f: &Func, at: &[usize]) -> Func {
    let (f, at) = (f.clone(), at.to_vec());
    Rc::new(move |x: &[Tensor]| {
        let moved: Vec<Tensor> = at.iter().map(|&i| x[i]).collect();
        let inner = |m: Vec<Tensor>| f(&with(x, &at, &m));
        let inner: &dyn Fn(Vec<Tensor>) -> Vec<Tensor> = &inner;
        vmap(inner)(moved)
    })
}

/// Numbers in -1..1 that look random.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 11) as f64) / (1u64 << 52) as f64 - 1.0
    }

    fn like(&mut self, x: &Literal) -> Literal {
        let values: Vec<f64> = x.to_f64_vec().iter().map(|_| self.next()).collect();
        cases::floats(x.ty().dtype, &x.ty().shape, &values)
    }
}

fn shifted(x: &Literal, v: &Literal, h: f64) -> Literal {
    let values: Vec<f64> =
        x.to_f64_vec().iter().zip(v.to_f64_vec()).map(|(x, v)| x + h * v).collect();
    cases::floats(x.ty().dtype, &x.ty().shape, &values)
}

/// The sum of the products of elements, of complex numbers the real part of it.
fn inner(a: &[Literal], b: &[Literal]) -> (f64, f64) {
    let (mut sum, mut size) = (0.0, 0.0);
    for (a, b) in a.iter().zip(b) {
        let complex = a.ty().dtype.is_complex();
        for (i, (a, b)) in a.to_f64_vec().into_iter().zip(b.to_f64_vec()).enumerate() {
            sum += if complex && i % 2 == 1 { -a * b } else { a * b };
            size += (a * b).abs();
        }
    }
    (sum, size)
}

/// Laws 2 and 3 for `f` at `x`, and for its derivative if `order` is more than 1.
fn derivatives(report: &mut Report, label: &str, f: &Func, x: &[Literal], case: &Case, order: u8) {
    let at: Vec<usize> = (0..x.len()).filter(|&i| is_float(&x[i])).collect();
    let mut noise = Noise(label.len() as u64 * 77 + 5);
    let v: Vec<Literal> = at.iter().map(|&i| noise.like(&x[i])).collect();

    // Law 2.
    let push = jvp_of(f, x.len(), &at);
    let args: Vec<Literal> = x.iter().chain(&v).cloned().collect();
    let Some(jv) = report.run(&format!("{label} jvp"), &push, &args) else { return };
    let floats: Func = {
        let f = f.clone();
        Rc::new(move |x: &[Tensor]| floats_of(f(x)))
    };
    let Ok(program) = program(&floats, x) else { return };
    let h = 1e-5;
    let moved = |h: f64| -> Vec<Literal> {
        let mut x = x.to_vec();
        for (&i, v) in at.iter().zip(&v) {
            x[i] = shifted(&x[i], v, h);
        }
        eval(&program, &x).expect("the same types as before")
    };
    let (above, below) = (moved(h), moved(-h));
    let difference: Vec<Literal> = above
        .iter()
        .zip(&below)
        .map(|(a, b)| {
            let (a_values, b_values) = (a.to_f64_vec(), b.to_f64_vec());
            let d: Vec<f64> =
                a_values.iter().zip(b_values).map(|(a, b)| (a - b) / (2.0 * h)).collect();
            cases::floats(a.ty().dtype, &a.ty().shape, &d)
        })
        .collect();
    report.same(&format!("{label} jvp = difference"), &jv, &difference, 1e-6);
    if case.smooth == Smooth::Forward {
        return;
    }

    // Law 3.
    let ct: Vec<Literal> = jv.iter().map(|y| noise.like(y)).collect();
    let pull = vjp_of(f, x.len(), &at);
    let args: Vec<Literal> = x.iter().chain(&ct).cloned().collect();
    let Some(back) = report.run(&format!("{label} vjp"), &pull, &args) else { return };
    let ((forwards, size), (backwards, _)) = (inner(&ct, &jv), inner(&back, &v));
    let near = (forwards - backwards).abs() <= 1e-9 * size.max(1.0);
    if !near {
        report.fault(
            &format!("{label} transpose"),
            format!("<ct, J v> = {forwards}, <J^T ct, v> = {backwards}"),
        );
    }
    if order > 1 {
        report.first = false;
        derivatives(report, &format!("{label} vjp:"), &pull, &args, case, order - 1);
    }
}

/// Slice `lane` of the inputs at `at`; the others as they are.
pub fn lane(x: &[Literal], at: &[usize], lane: usize) -> Vec<Literal> {
    let mut x = x.to_vec();
    for &i in at {
        let ty = TensorType::new(x[i].ty().dtype, x[i].ty().shape.without_axis(0));
        let bytes = x[i].bytes();
        let slice = &(*bytes).as_ref()[lane * ty.bytes()..][..ty.bytes()];
        x[i] = Literal::from_bytes(ty, podracer::trace::literal::AlignedBytes::copy_of(slice));
    }
    x
}

/// Law 4: `f` mapped over the inputs at `at` is a loop over `f`.
fn mapped(report: &mut Report, label: &str, f: &Func, lanes: &[Vec<Literal>], at: &[usize]) {
    let mut x = lanes[0].clone();
    for &i in at {
        x[i] = stacked(&lanes.iter().map(|lane| &lane[i]).collect::<Vec<_>>());
    }
    let label = format!("{label} vmap{at:?}");
    let tolerance = 1e-12;
    let Some(together) = report.run(&label, &vmap_of(f, at), &x) else { return };
    let mut alone: Vec<Vec<Literal>> = Vec::new();
    for i in 0..lanes.len() {
        let x = lane(&x, at, i);
        let Ok(program) = program(f, &x) else { return };
        alone.push(eval(&program, &x).expect("typed for these inputs"));
    }
    let looped: Vec<Literal> = (0..together.len())
        .map(|o| stacked(&alone.iter().map(|outputs| &outputs[o]).collect::<Vec<_>>()))
        .collect();
    report.same(&label, &together, &looped, tolerance);
}

/// Every non-empty choice of up to four inputs; of more inputs, all, each alone, and all but each.
fn choices(n: usize) -> Vec<Vec<usize>> {
    if n <= 3 {
        return (1..1usize << n)
            .map(|mask| (0..n).filter(|i| mask >> i & 1 == 1).collect())
            .collect();
    }
    let all: Vec<usize> = (0..n).collect();
    let mut choices = vec![all.clone()];
    for i in 0..n {
        choices.push(vec![i]);
        choices.push(all.iter().copied().filter(|&j| j != i).collect());
    }
    choices
}

fn check_case(report: &mut Report, case: &Case) {
    let f = &case.f;
    let name = &case.name;
    report.first = true;
    if let Some(first) = case.dtypes.first().filter(|d| d.size() >= 8 || case.smooth == Smooth::No)
    {
        let x = case.inputs(*first, 0);
        if report.run_within(name, f, &x, case.tolerance).is_none() {
            return;
        }
        let leaf = name.split('/').next().expect("split gives one part at least");
        let leaves = program(f, &x).map(|p| leaves_of(&p)).unwrap_or_default();
        if !leaves.contains(leaf) {
            report.fault(name, format!("holds no {leaf}, only {leaves:?}"));
        }
        if case.vmap {
            let lanes: Vec<Vec<Literal>> =
                (0..LANES).map(|seed| case.inputs(*first, seed as u64)).collect();
            for at in choices(x.len()) {
                report.first = at.len() == x.len();
                mapped(report, name, f, &lanes, &at);
            }
            report.first = true;
        }
        if case.smooth != Smooth::No {
            let order = if case.smooth == Smooth::Twice { 2 } else { 1 };
            derivatives(report, name, f, &x, case, order);
            if case.vmap {
                report.first = false;
                if case.smooth != Smooth::Forward {
                    nested(report, case, *first);
                }
                by_branches(report, case, *first);
            }
            report.first = true;
        }
    }
    for &dtype in case.dtypes.iter().skip(1) {
        let x = case.inputs(dtype, 1);
        let label = format!("{name} {dtype}");
        let Some(y) = report.run_within(&label, f, &x, case.tolerance) else { return };
        if matches!(case.smooth, Smooth::Once | Smooth::Twice)
            && matches!(dtype, DType::F32 | DType::C64)
        {
            let at: Vec<usize> = (0..x.len()).filter(|&i| is_float(&x[i])).collect();
            let mut noise = Noise(9);
            let ct: Vec<Literal> =
                y.iter().filter(|y| is_float(y)).map(|y| noise.like(y)).collect();
            let args: Vec<Literal> = x.iter().chain(&ct).cloned().collect();
            report.run_within(
                &format!("{label} vjp"),
                &vjp_of(f, x.len(), &at),
                &args,
                case.tolerance,
            );
        }
    }
}

/// The gradient of a batch is the batch of gradients, taken either way round.
fn nested(report: &mut Report, case: &Case, dtype: DType) {
    let lanes: Vec<Vec<Literal>> = (0..LANES).map(|seed| case.inputs(dtype, seed as u64)).collect();
    let (n, f) = (lanes[0].len(), &case.f);
    let at: Vec<usize> = (0..n).filter(|&i| is_float(&lanes[0][i])).collect();
    let Ok(outputs) = program(f, &lanes[0]).and_then(|p| eval(&p, &lanes[0])) else { return };
    let outputs: Vec<&Literal> = outputs.iter().filter(|y| is_float(y)).collect();
    let mut noise = Noise(31);
    let with_cts: Vec<Vec<Literal>> = lanes
        .iter()
        .map(|x| x.iter().cloned().chain(outputs.iter().map(|y| noise.like(y))).collect())
        .collect();
    let pull = vjp_of(f, n, &at);
    let all: Vec<usize> = (0..n + outputs.len()).collect();
    mapped(report, &format!("{} vjp", case.name), &pull, &with_cts, &all);

    let everything: Vec<usize> = (0..n).collect();
    let batch: Vec<Literal> = (0..n + outputs.len())
        .map(|i| stacked(&with_cts.iter().map(|x| &x[i]).collect::<Vec<_>>()))
        .collect();
    let label = format!("{} vjp of vmap", case.name);
    let outside = vjp_of(&vmap_of(f, &everything), n, &at);
    let inside = vmap_of(&pull, &all);
    let (Some(a), Ok(b)) = (
        report.run(&label, &outside, &batch),
        program(&inside, &batch).and_then(|p| eval(&p, &batch)),
    ) else {
        return;
    };
    report.same(&label, &a, &b, 1e-11);
}

/// Law 6, inside of nothing, and first derivatives inside of one thing. Of the functions that it is
/// about, some are held to all of it, and compiled in a short run too if all inputs are mapped.
fn by_branches(report: &mut Report, case: &Case, dtype: DType) {
    const COMPILED: &[&str] =
        &["log", "dot", "conv", "gather", "scan", "cond", "checkpoint", "custom_jvp", "custom_vjp"];
    let lanes: Vec<Vec<Literal>> = (0..LANES).map(|seed| case.inputs(dtype, seed as u64)).collect();
    let compiled = COMPILED.contains(&case.name.as_str());
    for (i, at) in choices(lanes[0].len()).into_iter().enumerate() {
        let all = Enclosing::ALL;
        let one = all[(case.name.len() + i) % all.len()];
        for by in all.into_iter().filter(|&by| compiled || by == Enclosing::Nothing || by == one) {
            let label = format!("{} branches", case.name);
            let smooth = match case.smooth {
                Smooth::Twice if !compiled && by != Enclosing::Nothing => Smooth::Once,
                smooth => smooth,
            };
            match branches(&case.f, by, &lanes, &at, smooth) {
                Err(fault) => report.fault(&label, fault),
                Ok(derivatives) if compiled && at.len() == lanes[0].len() => {
                    for (i, (derivative, args)) in derivatives.iter().enumerate() {
                        report.first = by == Enclosing::Nothing || i + 1 == derivatives.len();
                        report.run(&format!("{label} {by:?} {i}"), derivative, args);
                    }
                    report.first = false;
                }
                Ok(_) => {}
            }
        }
    }
}

/// Law 5. Many functions are compiled as one: a compilation costs more than what is in it.
///
/// Second derivatives and batches of some operands only are lowered no differently than what they
/// are made of. There are many of them; they are compiled when `PODRACER_LAWS=all` asks for it.
fn compiled(report: &mut Report) {
    let mut met = std::mem::take(&mut report.met);
    if std::env::var_os("PODRACER_LAWS").is_none_or(|value| value != "all") {
        met.retain(|m| m.first);
    }
    for chunk in met.chunks(60) {
        if let Err(error) = compare_compiled(chunk, &mut |label, text| report.fault(label, text)) {
            for one in chunk {
                let alone = std::slice::from_ref(one);
                if let Err(error) =
                    compare_compiled(alone, &mut |label, text| report.fault(label, text))
                {
                    report.fault(&one.label, error);
                }
            }
            report.fault("together", error);
        }
    }
}

fn compare_compiled(met: &[Met], fault: &mut dyn FnMut(&str, String)) -> podracer::Result<()> {
    let args: Vec<Vec<Array>> =
        met.iter().map(|m| m.inputs.iter().cloned().map(Array::from).collect()).collect();
    let together = |x: Vec<Vec<Tensor>>| -> Vec<Vec<Tensor>> {
        met.iter().zip(&x).map(|(m, x)| (m.f)(x)).collect()
    };
    let together: &dyn Fn(Vec<Vec<Tensor>>) -> Vec<Vec<Tensor>> = &together;
    let results = quickly(jit(together)).call(args)?;
    for (m, results) in met.iter().zip(results) {
        let found: Vec<Literal> =
            results.iter().map(Array::to_literal).collect::<podracer::Result<_>>()?;
        if let Err(difference) = same(&found, &m.outputs, tolerance(m)) {
            fault(&format!("{} compiled", m.label), difference);
        }
    }
    Ok(())
}

/// What rounding allows, by the narrowest float type there.
fn tolerance(m: &Met) -> f64 {
    let narrowest = m
        .inputs
        .iter()
        .chain(&m.outputs)
        .map(|x| match x.ty().dtype {
            DType::BF16 => 2e-2,
            DType::F16 => 3e-3,
            DType::F32 | DType::C64 => 2e-6,
            _ => 1e-11,
        })
        .fold(0.0, f64::max);
    narrowest * m.tolerance.max(1.0)
}

/// Law 5 once more: operation by operation.
fn one_by_one(report: &mut Report, case: &Case) {
    let Some(&dtype) = case.dtypes.last() else { return };
    let x = case.inputs(dtype, 2);
    let label = format!("{} {dtype} eager", case.name);
    let Ok(expected) = program(&case.f, &x).and_then(|p| eval(&p, &x)) else { return };
    let f: &dyn Fn(Vec<Tensor>) -> Vec<Tensor> = &|x| (case.f)(&x);
    let found = eager(f)
        .call(x.iter().cloned().map(Array::from).collect())
        .and_then(|y| y.iter().map(Array::to_literal).collect::<podracer::Result<Vec<Literal>>>());
    let m = Met {
        label: label.clone(),
        f: case.f.clone(),
        inputs: x,
        outputs: expected.clone(),
        tolerance: case.tolerance,
        first: true,
    };
    match found {
        Ok(found) => report.same(&label, &found, &expected, tolerance(&m)),
        Err(error) => report.fault(&label, error),
    }
}

/// Holds the cases to all laws.
fn hold(cases: &[Case]) {
    let mut report = Report::default();
    let only = std::env::var("LAW").unwrap_or_default();
    for case in cases.iter().filter(|case| case.name.contains(&only)) {
        check_case(&mut report, case);
        // An executable each costs a compilation each: not for every element type.
        if case.smooth != Smooth::No || !case.name.contains('/') {
            one_by_one(&mut report, case);
        }
    }
    let count = report.met.len();
    compiled(&mut report);
    println!("{} cases, {count} functions", cases.len());
    assert!(
        report.faults.is_empty(),
        "{} faults:\n{}",
        report.faults.len(),
        report.faults.join("\n")
    );
}

macro_rules! families {
    ($($family:ident),* $(,)?) => {
        $(
            #[test]
            fn $family() {
                hold(&cases::$family::cases());
            }
        )*

        fn all_cases() -> Vec<Case> {
            let mut all = Vec::new();
            $(all.extend(cases::$family::cases());)*
            all
        }
    };
}
families!(elementwise, shape, reduce, index, products, linalg, complex, control, custom, callbacks);

macro_rules! leaves {
    ($($leaf:pat => $names:expr),* $(,)?) => {
        /// Names of the operations of every kind. There is no wildcard: a new operation does not
        /// compile until it stands here, and then wants a case.
        pub fn leaves() -> Vec<&'static str> {
            let _every_operation_is_here: fn(&Op) = |op| match op { $($leaf => (),)* };
            [$(&$names[..]),*].concat()
        }
    };
}
leaves!(
    Op::Unary(_) => UnaryOp::ALL.map(UnaryOp::name),
    Op::Binary(_) => BinaryOp::ALL.map(BinaryOp::name),
    Op::Compare(_) => CompareOp::ALL.map(CompareOp::name),
    Op::Reduce { .. } => ReduceOp::ALL.map(ReduceOp::name),
    Op::ArgReduce { .. } => ArgOp::ALL.map(ArgOp::name),
    Op::Scatter(_) => ScatterKind::ALL.map(ScatterKind::name),
    Op::Constant(_) => ["constant"],
    Op::Iota { .. } => ["iota"],
    Op::Select => ["select"],
    Op::Clamp => ["clamp"],
    Op::Convert { .. } => ["convert"],
    Op::Bitcast { .. } => ["bitcast"],
    Op::Broadcast { .. } => ["broadcast"],
    Op::Reshape { .. } => ["reshape"],
    Op::Transpose { .. } => ["transpose"],
    Op::Reverse { .. } => ["reverse"],
    Op::Concat { .. } => ["concat"],
    Op::Pad { .. } => ["pad"],
    Op::Slice { .. } => ["slice"],
    Op::DynamicSlice { .. } => ["dynamic_slice"],
    Op::DynamicUpdateSlice => ["dynamic_update_slice"],
    Op::Gather(_) => ["gather"],
    Op::Dot(_) => ["dot"],
    Op::Conv(_) => ["conv"],
    Op::Fft(_) => FftKind::ALL.map(FftKind::name),
    Op::Cholesky => ["cholesky"],
    Op::TriangularSolve(_) => ["triangular_solve"],
    Op::Sort { .. } => ["sort"],
    Op::Threefry => ["threefry2x32"],
    Op::Collective(_) => ["collective"],
    Op::Sharding(_) => ["sharding"],
    Op::Name(_) => ["name"],
    Op::CustomJvp(_) => ["custom_jvp"],
    Op::CustomVjp(_) => ["custom_vjp"],
    Op::CustomLin(_) => ["custom_lin"],
    Op::Remat(_) => ["checkpoint"],
    Op::StopGradient => ["stop_gradient"],
    Op::Callback(_) => ["pure_callback", "io_callback", "debug_callback"],
    Op::Scan(_) => ["scan"],
    Op::While(_) => ["while"],
    Op::Cond(_) => ["cond"],
);

/// The name of an operation's leaf.
fn leaf(op: &Op) -> &'static str {
    match op {
        Op::Collective(_) => "collective",
        Op::Sharding(_) => "sharding",
        op => op.name(),
    }
}

/// The leaves of the operations in a Program, those inside control flow included.
pub fn leaves_of(program: &Program) -> BTreeSet<&'static str> {
    let inside = |op: &Op| -> Vec<&'static str> { op.subprograms().flat_map(leaves_of).collect() };
    program.equations.iter().flat_map(|e| [vec![leaf(&e.op)], inside(&e.op)].concat()).collect()
}

#[test]
fn every_operation_has_a_case() {
    let named: BTreeSet<String> = all_cases()
        .iter()
        .map(|case| case.name.split('/').next().expect("a first part").to_string())
        .collect();
    // Collectives need an axis with members: tests/devices/collectives.rs holds them to the laws.
    // Divisions need a mesh: tests/devices/sharding.rs compares them with JAX.
    // What is left of a custom_vjp has no value; its transpose is in the gradients of custom_vjp.
    let elsewhere = |leaf: &str| ["collective", "sharding", "custom_lin"].contains(&leaf);
    let missing: Vec<&str> =
        leaves().into_iter().filter(|leaf| !named.contains(*leaf) && !elsewhere(leaf)).collect();
    assert!(missing.is_empty(), "operations without a case: {missing:?}");
}
