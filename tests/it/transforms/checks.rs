//! What is computed of each function, and what it is held to.

use podracer::trace::control::map;
use podracer::{Tensor, vmap};

use super::orders::Orders;
use crate::fixture::Kinds;

/// The kinds of arrays that a function is called on.
pub const GIVEN: [&str; 4] = ["in", "ct", "v", "b"];

/// What is computed, under its name; the tree of a compiled function's results.
pub type Checks<T> = std::collections::BTreeMap<String, Vec<T>>;

/// Names of checks, and the kind of the fixture that each is held to.
pub const CHECKS: [(&str, &str); 11] = [
    ("values", "out"),
    ("jvp", "tan"),
    ("linearize", "tan"),
    ("vjp", "grad"),
    ("jvp of vjp", "fr"),
    ("linearize of vjp", "fr"),
    ("vjp of vjp", "rr"),
    ("jvp of jvp", "tt"),
    ("vmap", "batch"),
    ("map", "batch"),
    ("vmap of the first", "part"),
];

/// The kind that a check is held to.
pub fn kind_of(check: &str) -> &'static str {
    CHECKS.iter().find(|(name, _)| *name == check).expect("a check of the list").1
}

/// The checks that the fixture of a function asks for. A compilation takes long: of compiled
/// functions there are those that hold the lowering of all that the others are made of.
pub fn checked(kinds: &Kinds, compiled: bool) -> impl Iterator<Item = &'static str> {
    let held =
        move |check: &str| !compiled || ["values", "vjp", "jvp of jvp", "vmap"].contains(&check);
    let asked = CHECKS.iter().filter(|(_, kind)| kinds.contains_key(*kind));
    asked.map(|(check, _)| *check).filter(move |check| held(check))
}

/// Every check that `kinds` asks for; `given` are the arrays of the kinds `GIVEN`.
pub fn checks(
    f: fn(&[Tensor]) -> Vec<Tensor>,
    kinds: &Kinds,
    given: &[Vec<Tensor>],
    compiled: bool,
) -> Checks<Tensor> {
    let [x, cts, v, b] = given else { panic!("four kinds are given") };
    let has = |kind: &str| kinds.contains_key(kind);
    let orders = Orders(&f);
    let first = |x: &[Tensor]| {
        let mut found = f(x);
        if has("grad") {
            found.extend(orders.grad(x, cts));
        } else if has("tan") {
            found.extend(orders.tan(x, v));
        }
        found
    };
    let both = |x: Vec<Tensor>| {
        let mut found = first(&x);
        if has("grad") {
            found.extend(orders.fr(&x, cts, v));
        }
        found
    };
    let of_first = |first_input: Tensor| {
        let x: Vec<Tensor> = [first_input].into_iter().chain(x[1..].iter().copied()).collect();
        first(&x)
    };
    let found = |check: &str| match check {
        "values" => f(x),
        "jvp" => orders.tan(x, v),
        "linearize" => orders.push(x, v),
        "vjp" => orders.grad(x, cts),
        "jvp of vjp" => orders.fr(x, cts, v),
        "linearize of vjp" => orders.push_fr(x, cts, v),
        "vjp of vjp" => orders.rr(x, cts, v),
        "jvp of jvp" => orders.tt(x, v),
        "vmap" => vmap(both)(b.clone()),
        "map" => map(both, b.clone()),
        "vmap of the first" => vmap(of_first)(b[0]),
        other => panic!("no check {other}"),
    };
    checked(kinds, compiled).map(|check| (check.to_string(), found(check))).collect()
}
