//! Why a function was compiled again, and limits on it.

use podracer::jit::Difference;
use podracer::{Array, DType, Tensor, Tree, eager, jit};

fn zeros(shape: &[usize]) -> Array {
    Array::zeros(shape, DType::F32)
}

#[derive(Tree, Clone)]
struct Net<T> {
    w: T,
    b: Option<T>,
    power: u32,
}

fn apply((net, x): (Net<Tensor>, Tensor)) -> Tensor {
    let y = x.matmul(net.w);
    let y = net.b.map_or(y, |b| y + b);
    (0..net.power).fold(y, |y, _| y * y)
}

fn net(b: bool, power: u32) -> Net<Array> {
    Net { w: zeros(&[4, 2]), b: b.then(|| zeros(&[2])), power }
}

#[test]
fn a_second_signature_is_explained() {
    let f = jit(apply).named("apply");
    let first = line!() + 1;
    f.call((net(true, 1), zeros(&[3, 4]))).unwrap();
    f.call((net(true, 1), zeros(&[3, 4]))).unwrap();
    assert_eq!(f.explain(), []);
    let second = line!() + 1;
    f.call((net(true, 1), zeros(&[5, 4]))).unwrap();
    f.call((net(false, 1), zeros(&[5, 4]))).unwrap();
    f.call((net(false, 2), zeros(&[5, 4]))).unwrap();
    f.call((net(true, 1), Array::zeros([3, 4], DType::F64))).unwrap_err();
    let texts: Vec<String> = f.explain().iter().map(ToString::to_string).collect();
    let file = file!();
    let head = |number: usize, call: u32, before: u32| {
        format!(
            "apply: signature {number}, at the call in {file}:{call}:7, differs from that of the \
             call in {file}:{before}:7:"
        )
    };
    assert_eq!(
        texts[0],
        head(2, second, first) + "\n  $[1]: f32[3,4] before, f32[5,4] now (axis 0)"
    );
    assert_eq!(texts[1], head(3, second + 1, second) + "\n  $[0].b: is not there any more");
    assert_eq!(
        texts[2],
        head(4, second + 2, second + 1)
            + "\n  the leaves are the same; a static field, an enum's variant or the default precision \
               around the call differs"
    );
    assert_eq!(
        texts[3],
        head(5, second + 3, first) + "\n  $[1]: f32[3,4] before, f64[3,4] now (another dtype)"
    );
    assert_eq!(f.explain()[1].differences, [Difference::Removed("$[0].b".into())]);
}

#[test]
fn many_differences_are_counted() {
    let f = jit(|xs: Vec<Tensor>| xs[0]);
    f.call((0..12).map(|_| zeros(&[2])).collect()).unwrap();
    f.call((0..12).map(|_| zeros(&[2, 1])).collect()).unwrap();
    let text = f.explain()[0].to_string();
    assert!(text.contains("\n  $[7]: f32[2] before, f32[2,1] now (another rank)\n  and 4 more"));
    assert!(!text.contains("$[8]"), "{text}");
}

#[test]
fn one_trace_too_many_is_an_error() {
    let f = jit(|x: Tensor| x + 1.0).named("step").assert_max_traces(1);
    let first = line!() + 1;
    f.call(zeros(&[2])).unwrap();
    let error = f.call(zeros(&[3])).unwrap_err().to_string();
    let (file, second) = (file!(), first + 1);
    assert_eq!(
        error,
        format!(
            "more than 1 traces, which assert_max_traces(1) does not allow\nstep: signature 2, at \
             the call in {file}:{second}:19, differs from that of the call in {file}:{first}:7:\n  \
             $: f32[2] before, f32[3] now (axis 0)"
        )
    );
    // What is compiled still runs, and is not traced again.
    f.call(zeros(&[2])).unwrap();
    assert_eq!(f.stats().traces, 1);
    let never = jit(|x: Tensor| x).assert_max_traces(0);
    let error = never.call(zeros(&[2])).unwrap_err().to_string();
    assert!(error.contains("program: the call in ") && error.ends_with(" would be the first"));
    // Eager functions are traced at every call anyway.
    let often = eager(|x: Tensor| x + 1.0).assert_max_traces(1);
    often.call(zeros(&[2])).unwrap();
    often.call(zeros(&[3])).unwrap();
}

#[test]
fn a_report_names_each_compiled_signature() {
    let f = jit(|(x, w): (Tensor, Tensor)| (x.matmul(w)).tanh().sum(..)).named("layer");
    let analysis = f.lower(&(zeros(&[32, 64]), zeros(&[64, 16]))).unwrap().compile().unwrap();
    let report = analysis.to_string();
    for part in ["layer: 3 equations\n  traced in ", "\n  lowered in ", "\n  compiled in ", " ms ("]
    {
        assert!(report.contains(part), "{part} in\n{report}");
    }
    assert!(report.contains("\n  arguments           12.00 KiB"), "{report}");
    assert!(report.contains("\n  operations          "), "{report}");
    let times = analysis.times();
    assert!(times.trace > 0.0 && times.lower > 0.0 && times.compile > 0.0);
    let hlo = analysis.optimized_hlo_text().unwrap();
    assert!(hlo.starts_with("HloModule layer\n"), "{hlo}");
    for part in ["\nENTRY %", "f32[32,64] parameter(0)", "  ROOT %", "tanh(%", "explain.rs:"] {
        assert!(hlo.contains(part), "{part} in\n{hlo}");
    }
}

#[test]
fn the_environment_turns_explanations_on() {
    let run = |explain: &str| {
        let test = "explain::a_second_signature_is_explained";
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env("PODRACER_EXPLAIN", explain)
            .output()
            .unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(run("1").contains("podracer: apply: signature 2, at the call in "));
    assert!(!run("0").contains("podracer: apply"));
}

#[test]
fn signatures_beyond_the_capacity_are_dropped_and_come_back() {
    let f = jit(|x: Tensor| x + 1.0).named("f").cache_capacity(2).assert_max_traces(3);
    let call = |n: usize| f.call(zeros(&[n])).unwrap().to_vec::<f32>().unwrap();
    for n in [1, 2, 1, 3] {
        assert_eq!(call(n), vec![1.0; n]);
    }
    assert_eq!(f.stats().traces, 3);
    // The signature of 1 was used after that of 2, so it is still there.
    call(1);
    assert_eq!(f.stats().traces, 3);
    assert_eq!(call(2), [1.0, 1.0]);
    assert_eq!(f.stats().traces, 4);
    let explanations = f.explain();
    let last = explanations.last().unwrap();
    assert_eq!((last.signature, &last.differences[..]), (2, &[Difference::Evicted][..]));
    let text = last.to_string();
    assert!(text.ends_with("there are more signatures than cache_capacity"), "{text}");
    // A signature that comes back is not one more.
    let error = f.call(zeros(&[4])).unwrap_err().to_string();
    assert!(error.contains("more than 3 traces"), "{error}");
}

#[test]
fn only_the_latest_signatures_stay() {
    let f = jit(|x: Tensor| x * 2.0).cache_capacity(4);
    for n in 1..40 {
        assert_eq!(f.call(zeros(&[n])).unwrap().to_vec::<f32>().unwrap().len(), n);
    }
    assert_eq!(f.stats().traces, 39);
    // All but the latest four are gone.
    for n in (36..40).rev() {
        f.call(zeros(&[n])).unwrap();
    }
    assert_eq!(f.stats().traces, 39);
    f.call(zeros(&[35])).unwrap();
    assert_eq!(f.stats().traces, 40);
}
