//! Laws of the function cache that `jit`, `pmap` and `sharded_jit` share: one behavior for all three.

use podracer::jit::{Difference, Recompile, Stats};
use podracer::{Array, DType, Result, Tensor, TensorType, jit, pmap, shard, sharded_jit};

use crate::{count, devices};

/// One of the three kinds of function, called with `n` rows of zeros for each device.
struct Function {
    kind: &'static str,
    call: Box<dyn Fn(usize) -> Result<()>>,
    explain: Box<dyn Fn() -> Vec<Recompile>>,
    stats: Box<dyn Fn() -> Stats>,
}

macro_rules! function {
    ($kind:literal, $function:expr, $argument:expr) => {{
        let function = std::rc::Rc::new($function);
        let argument = $argument;
        let (for_explain, for_stats) = (function.clone(), function.clone());
        assert_eq!(function.name(), "f");
        Function {
            kind: $kind,
            call: Box::new(move |n| function.call(argument(n)).map(drop)),
            explain: Box::new(move || for_explain.explain()),
            stats: Box::new(move || for_stats.stats()),
        }
    }};
}

/// Functions that keep two signatures compiled and may be traced for three.
fn functions() -> [Function; 3] {
    let two = devices(2);
    let zeros = |n: usize| Array::zeros([n], DType::F32);
    let sharded = move |n: usize| shard(&zeros(2 * n), &two).unwrap();
    let plain = jit(|x: Tensor| x + 1.0).named("f").cache_capacity(2).assert_max_traces(3);
    let mapped =
        pmap("data", |_, x: Tensor| x + 1.0).named("f").cache_capacity(2).assert_max_traces(3);
    let meshed = sharded_jit(|x: Tensor| x + 1.0).named("f").cache_capacity(2).assert_max_traces(3);
    [
        function!("jit", plain, zeros),
        function!("pmap", mapped, sharded.clone()),
        function!("sharded_jit", meshed, sharded),
    ]
}

fn rows(before: usize, now: usize) -> Vec<Difference> {
    let ty = |n: usize| TensorType::new(DType::F32, [n]);
    vec![Difference::Type { path: "$".into(), before: ty(before), now: ty(now) }]
}

#[test]
fn recompiles_are_explained_and_evicted_alike() {
    for Function { kind, call, explain, stats } in functions() {
        let traces_after = |n: usize| {
            call(n).unwrap_or_else(|error| panic!("{kind}: {error}"));
            stats().traces
        };
        // The call of 3 rows evicts the signature of 2 rows, which was used before that of 1 row.
        assert_eq!([1, 2, 1, 3, 1].map(traces_after), [1, 2, 2, 3, 3], "{kind}");
        // It comes back in the place of the signature of 3 rows.
        assert_eq!([2, 1, 2].map(traces_after), [4, 4, 4], "{kind}");
        let found: Vec<(usize, Vec<Difference>)> =
            explain().into_iter().map(|why| (why.signature, why.differences)).collect();
        let expected = [(2, rows(1, 2)), (3, rows(2, 3)), (2, vec![Difference::Evicted])];
        assert_eq!(found, expected, "{kind}");
        // A fourth signature is refused; the refused call counts as no trace.
        let error = call(4).unwrap_err().to_string();
        let refusal =
            "more than 3 traces, which assert_max_traces(3) does not allow\nf: signature 4,";
        assert!(error.starts_with(refusal), "{kind}: {error}");
        assert_eq!(traces_after(1), 4, "{kind}");
    }
}

#[test]
fn statistics_have_each_stage() {
    for Function { kind, call, stats, .. } in functions() {
        assert_eq!(stats(), Stats::default(), "{kind}");
        call(1).unwrap();
        let Stats { traces, trace_seconds, compile_seconds, .. } = stats();
        assert_eq!(traces, 1, "{kind}");
        assert!(trace_seconds > 0.0 && compile_seconds > 0.0, "{kind}: {:?}", stats());
        assert_eq!(stats().seconds(), trace_seconds + compile_seconds);
    }
}

#[test]
fn an_argument_that_is_refused_is_no_signature() {
    devices(4);
    let apart = || {
        let two = |devices: &[usize]| shard(&count(&[2]), devices).unwrap();
        (two(&[0, 1]), two(&[2, 3]))
    };
    let together = || {
        let both = shard(&count(&[2]), &[0, 1]).unwrap();
        (both.clone(), both)
    };
    let add = |(a, b): (Tensor, Tensor)| a + b;
    let mapped = pmap("data", move |_, args| add(args)).assert_max_traces(1);
    let meshed = sharded_jit(add).assert_max_traces(1);
    let error = |result: Result<_>| result.map(drop).unwrap_err().to_string();
    for text in [error(mapped.call(apart())), error(meshed.call(apart()))] {
        assert!(text.contains("$[1] is on devices [2, 3]"), "{text}");
    }
    mapped.call(together()).unwrap();
    meshed.call(together()).unwrap();
    assert_eq!((mapped.explain(), meshed.explain()), (vec![], vec![]));
}
