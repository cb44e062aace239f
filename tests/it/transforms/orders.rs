//! What is computed of each function: the same as in `record.py`.

use podracer::trace::control::map;
use podracer::{Tensor, jvp, linearize, vjp, vmap};

use crate::fixture::Kinds;

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

/// The checks that the fixture of a function asks for.
pub fn checked(kinds: &Kinds) -> impl Iterator<Item = &'static str> {
    CHECKS.iter().filter(|(_, kind)| kinds.contains_key(*kind)).map(|(name, _)| *name)
}

/// A function of a flat list of inputs, and its derivatives by those that are floats.
pub struct Orders<'f>(pub &'f dyn Fn(&[Tensor]) -> Vec<Tensor>);

fn floats(x: &[Tensor]) -> Vec<Tensor> {
    x.iter().copied().filter(|x| x.dtype().is_float()).collect()
}

impl Orders<'_> {
    /// The float results, with other floats among the inputs.
    fn of_floats(&self, x: &[Tensor], mut with: impl Iterator<Item = Tensor>) -> Vec<Tensor> {
        let with = |x: &Tensor| match x.dtype().is_float() {
            true => with.next().expect("one for each"),
            false => *x,
        };
        let x: Vec<Tensor> = x.iter().map(with).collect();
        floats(&(self.0)(&x))
    }

    pub fn tan(&self, x: &[Tensor], v: &[Tensor]) -> Vec<Tensor> {
        jvp(|with: Vec<Tensor>| self.of_floats(x, with.into_iter()), floats(x), v.to_vec()).1
    }

    pub fn push(&self, x: &[Tensor], v: &[Tensor]) -> Vec<Tensor> {
        let f = |with: Vec<Tensor>| self.of_floats(x, with.into_iter());
        linearize(f, floats(x)).1(v.to_vec())
    }

    pub fn grad_at(&self, x: &[Tensor], with: Vec<Tensor>, cts: &[Tensor]) -> Vec<Tensor> {
        let (_, pull) = vjp(|with: Vec<Tensor>| self.of_floats(x, with.into_iter()), with);
        pull(cts.to_vec())
    }

    pub fn grad(&self, x: &[Tensor], cts: &[Tensor]) -> Vec<Tensor> {
        self.grad_at(x, floats(x), cts)
    }

    pub fn fr(&self, x: &[Tensor], cts: &[Tensor], v: &[Tensor]) -> Vec<Tensor> {
        jvp(|with: Vec<Tensor>| self.grad_at(x, with, cts), floats(x), v.to_vec()).1
    }

    pub fn push_fr(&self, x: &[Tensor], cts: &[Tensor], v: &[Tensor]) -> Vec<Tensor> {
        linearize(|with: Vec<Tensor>| self.grad_at(x, with, cts), floats(x)).1(v.to_vec())
    }

    pub fn rr(&self, x: &[Tensor], cts: &[Tensor], v: &[Tensor]) -> Vec<Tensor> {
        vjp(|with: Vec<Tensor>| self.grad_at(x, with, cts), floats(x)).1(v.to_vec())
    }

    pub fn tt(&self, x: &[Tensor], v: &[Tensor]) -> Vec<Tensor> {
        let first = |with: Vec<Tensor>| {
            jvp(|with: Vec<Tensor>| self.of_floats(x, with.into_iter()), with, v.to_vec()).1
        };
        jvp(first, floats(x), v.to_vec()).1
    }
}

/// Every check that `kinds` asks for; `given` are the arrays of the kinds `super::GIVEN`.
pub fn checks(
    f: fn(&[Tensor]) -> Vec<Tensor>,
    kinds: &Kinds,
    given: &[Vec<Tensor>],
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
    checked(kinds).map(|check| (check.to_string(), found(check))).collect()
}
