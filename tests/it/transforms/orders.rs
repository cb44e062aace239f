//! The derivatives that are taken of each function: the same as in `record.py`.

use podracer::{Tensor, jvp, linearize, vjp};

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
