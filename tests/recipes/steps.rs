//! What a step of a recipe adds to a Program: elementwise operations, reductions, sorting, random
//! bits. The other families have files of their own.

mod control;
mod fourier;
mod index;
mod products;
mod shape;

use podracer::trace::Var;
use podracer::trace::op::{ArgOp, Axes, BinaryOp, CompareOp, Fact, Op, ReduceOp, UnaryOp};
use podracer::{DType, Literal, TensorType};

use super::binary::binary;
use super::cook::{Cook, Info, epsilon, smallest_normal};
use super::recipe::{Salt, Step};
use super::unary::{Operand, unary};

impl Cook {
    /// Adds what `step` stands for; nothing if it does not fit.
    pub fn step(&mut self, step: &Step, depth: usize) -> Option<()> {
        let mut salt = Salt(step.salt as u64);
        if !step.body.is_empty() && depth < 2 {
            return self.control(step, &mut salt, depth);
        }
        let p = step.picks;
        match step.kind % 35 {
            0..5 => self.unary(p, &mut salt),
            5..10 => self.pair(p, &mut salt),
            10 => self.compare(p, &mut salt),
            11 => self.select(p),
            12 => self.clamp(p),
            13 | 14 => self.convert(p, &mut salt),
            15 => self.bitcast(p),
            16..20 => self.shape_step(p, &mut salt),
            20 => self.iota(&mut salt),
            21..24 => self.index_step(p, &mut salt),
            24 | 25 => self.dot(p),
            26 => self.conv(p, &mut salt),
            27 | 28 => self.reduce(p, &mut salt),
            29 => self.arg_reduce(p, &mut salt),
            30 => self.sort(p, &mut salt),
            31 | 32 => self.sides_of_zero(p, &mut salt),
            33 => self.fourier(p, &mut salt),
            _ => self.threefry(p),
        }
    }

    fn unary(&mut self, p: [u8; 4], salt: &mut Salt) -> Option<()> {
        let op = UnaryOp::ALL[p[1] as usize % UnaryOp::ALL.len()];
        let any = self.pick(p[0], |_, _| true)?;
        if !self.dtype(any).is_float() {
            let info = Info::of(self.dtype(any));
            return self.op(Op::Unary(op), &[any], info).map(drop);
        }
        if self.smooth && (op == UnaryOp::Abs || op.is(Fact::Flat)) {
            return None;
        }
        if !self.smooth && salt.once_in(20) {
            return self.moved(Op::StopGradient, &[any]).map(drop);
        }
        let i = self.info(any);
        match op {
            // These take anything that is exact, NaN and infinities as well.
            UnaryOp::Neg | UnaryOp::Abs => self.signed(op, any).map(drop),
            UnaryOp::Sign if i.exact => self.signed(op, any).map(drop),
            UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round if i.exact => {
                let info = Info { low: i.low - 1.0, high: i.high + 1.0, bits: false, ..i };
                self.op(Op::Unary(op), &[any], info).map(drop)
            }
            UnaryOp::IsFinite if i.exact || self.is_finite(any) => {
                self.op(Op::Unary(op), &[any], Info::of(DType::Bool)).map(drop)
            }
            _ => self.function(op, any).map(drop),
        }
    }

    /// The negative, the absolute value, or (of exact numbers) the sign.
    fn signed(&mut self, op: UnaryOp, x: Var) -> Option<Var> {
        let i = self.info(x);
        let info = match op {
            UnaryOp::Neg => Info { low: -i.high, high: -i.low, ..i },
            UnaryOp::Abs => Info { low: 0.0, high: i.size(), ..i },
            _ if self.is_finite(x) => Info { low: -1.0, high: 1.0, bits: false, ..i },
            _ => i,
        };
        self.op(Op::Unary(op), &[x], info)
    }

    /// Parts of the derivatives of absolute values: nested absolute values and signs, compared
    /// with zero, and a choice between two numbers by the outcome.
    fn sides_of_zero(&mut self, p: [u8; 4], salt: &mut Salt) -> Option<()> {
        let fits = |c: &Cook, var: Var| c.dtype(var).is_float() && c.info(var).exact && !c.smooth;
        let x = self.pick(p[0], fits)?;
        let mut y = x;
        for _ in 0..1 + salt.below(3) {
            let ops = [UnaryOp::Abs, UnaryOp::Abs, UnaryOp::Neg, UnaryOp::Sign];
            y = self.signed(ops[salt.below(4)], y)?;
        }
        let zero = self.filled(self.ty(x), if salt.once_in(2) { 0.0 } else { -0.0 });
        let operands = if salt.once_in(2) { [y, zero] } else { [zero, y] };
        let op = CompareOp::ALL[p[1] as usize % 6];
        let which = self.op(Op::Compare(op), &operands, Info::of(DType::Bool))?;
        let negative = self.signed(UnaryOp::Neg, x)?;
        let info = self.info(x).or(self.info(negative));
        self.op(Op::Select, &[which, x, negative], info).map(drop)
    }

    /// A function of finite numbers, applied where it is tame.
    fn function(&mut self, op: UnaryOp, x: Var) -> Option<Var> {
        let step = unary(op).step?;
        let x = match step.operand {
            Operand::Small(most) => self.small(x, most)?,
            Operand::Positive => self.positive(x)?,
            Operand::AboveOne => {
                let x = self.positive(x)?;
                let one = self.filled(self.ty(x), 1.0);
                self.binary(BinaryOp::Add, x, one)?
            }
        };
        let i = self.info(x);
        let (low, high, slope) = (step.bounds)(i);
        let own = (step.rounding)(self.dtype(x), i);
        if self.smooth && own > 1e6 {
            return None;
        }
        self.rounding(Op::Unary(op), &[x], (low, high), slope * i.error, own)
    }

    /// Another operand of the type of `x`: another variable, or a constant.
    fn partner(&mut self, choice: u8, x: Var, salt: &mut Salt) -> Var {
        let ty = self.ty(x);
        match self.pick_type(choice, &ty) {
            Some(y) if !choice.is_multiple_of(5) || y != x => y,
            _ => self.noise(ty, salt),
        }
    }

    fn pair(&mut self, p: [u8; 4], salt: &mut Salt) -> Option<()> {
        let op = BinaryOp::ALL[p[2] as usize % BinaryOp::ALL.len()];
        let x = self.pick(p[0], |_, _| true)?;
        let y = self.partner(p[1], x, salt);
        let dtype = self.dtype(x);
        if !dtype.is_float() {
            return self.op(Op::Binary(op), &[x, y], Info::of(dtype)).map(drop);
        }
        let row = binary(op);
        let fits = row.takes_special || self.is_finite(x) && self.is_finite(y);
        fits.then(|| (row.step)(self, x, y)).flatten().map(drop)
    }

    fn compare(&mut self, p: [u8; 4], salt: &mut Salt) -> Option<()> {
        let x = self.pick(p[0], |c, var| c.info(var).exact)?;
        let ty = self.ty(x);
        let y = match self.pick(p[1], |c, var| c.info(var).exact && c.ty(var) == ty && var != x) {
            Some(y) => y,
            None => self.noise(ty, salt),
        };
        let op = CompareOp::ALL[p[2] as usize % 6];
        self.op(Op::Compare(op), &[x, y], Info::of(DType::Bool)).map(drop)
    }

    fn select(&mut self, p: [u8; 4]) -> Option<()> {
        let fits = |c: &Cook, var: Var| c.dtype(var) == DType::Bool && c.info(var).exact;
        let which = self.pick(p[0], fits)?;
        let shape = self.shape(which);
        let x = self.pick(p[1], |c, var| c.shape(var) == shape && var != which)?;
        let ty = self.ty(x);
        let y = self.pick_type(p[2], &ty)?;
        let info = self.info(x).or(self.info(y));
        self.op(Op::Select, &[which, x, y], info).map(drop)
    }

    fn clamp(&mut self, p: [u8; 4]) -> Option<()> {
        let x = self.pick(p[0], |c, var| c.dtype(var) != DType::Bool)?;
        let ty = self.ty(x);
        let (low, high) = (self.pick_type(p[1], &ty)?, self.pick_type(p[2], &ty)?);
        let info = self.info(x).or(self.info(low)).or(self.info(high));
        let info = Info { bits: info.bits && !ty.dtype.is_float(), ..info };
        if self.smooth && ty.dtype.is_float() {
            return None;
        }
        self.op(Op::Clamp, &[low, x, high], info).map(drop)
    }

    fn convert(&mut self, p: [u8; 4], salt: &mut Salt) -> Option<()> {
        let x = self.pick(p[0], |_, _| true)?;
        let (from, info) = (self.dtype(x), self.info(x));
        // Half of the time to what most operations take.
        let to = match salt.once_in(2) {
            true => [DType::F32, DType::I32, DType::F64, DType::U32][p[1] as usize % 4],
            false => DType::ALL[p[1] as usize % 13],
        };
        if self.smooth && (from.is_float() || to.is_float() && to != DType::F64) {
            return None;
        }
        let info = match (from.is_float(), to.is_float()) {
            (_, false) if !info.exact => return None,
            (_, false) => Info::of(to),
            // Large integers become infinite.
            (false, true) if to == DType::F16 && info.size() > 6e4 => {
                Info { bits: false, ..Info::exact(f64::NEG_INFINITY, f64::INFINITY) }
            }
            (false, true) => info,
            (true, true) => {
                let rounded = epsilon(to) > epsilon(from) && !info.exact;
                let own = if rounded { epsilon(to) * info.size() } else { 0.0 };
                Info { error: info.error + own, bits: false, ..info }
            }
        };
        self.op(Op::Convert { dtype: to }, &[x], info).map(drop)
    }

    fn bitcast(&mut self, p: [u8; 4]) -> Option<()> {
        let x = self.pick(p[0], |c, var| c.info(var).bits && c.dtype(var) != DType::Bool)?;
        let from = self.dtype(x);
        let last = self.shape(x).last().copied();
        let fits = |to: &&DType| {
            let parts = to.size() / from.size();
            **to != from
                && **to != DType::Bool
                && !to.is_complex()
                && !to.is_narrow()
                && (parts <= 1 || last == Some(parts))
        };
        let to: Vec<&DType> = DType::ALL.iter().filter(fits).collect();
        let to = **to.get(p[1] as usize % to.len().max(1))?;
        // Any float may come of an integer: it can be moved, and read as an integer again.
        let info = match to.is_float() {
            true if self.smooth => return None,
            true => {
                // One of them may be denormal, and so zero once something is computed of it.
                let info = Info { exact: false, error: smallest_normal(to), ..self.info(x) };
                Info { low: f64::NEG_INFINITY, high: f64::INFINITY, ..info }
            }
            false => Info::of(to),
        };
        self.op(Op::Bitcast { dtype: to }, &[x], info).map(drop)
    }

    fn iota(&mut self, salt: &mut Salt) -> Option<()> {
        let rank = 1 + salt.below(2);
        let shape: Vec<usize> = (0..rank).map(|_| self.sizes[salt.below(3)] as usize).collect();
        let dtype = match salt.once_in(2) {
            true => DType::I32,
            false => DType::ALL[1 + salt.below(12)],
        };
        let dtype = if self.smooth && dtype.is_float() { DType::F64 } else { dtype };
        let ty = TensorType::new(dtype, shape);
        let axis = salt.below(rank);
        self.op(Op::Iota { ty, axis }, &[], Info::exact(0.0, 8.0)).map(drop)
    }

    /// Some of the axes of `x`.
    fn some_axes(&self, x: Var, salt: &mut Salt) -> Axes {
        (0..self.shape(x).rank()).filter(|_| !salt.once_in(3)).collect()
    }

    fn reduce(&mut self, p: [u8; 4], salt: &mut Salt) -> Option<()> {
        let x = self.pick(p[0], |c, var| c.program.ty(var).rank() > 0)?;
        let axes = self.some_axes(x, salt);
        let op = ReduceOp::ALL[p[1] as usize % 6];
        let (dtype, info) = (self.dtype(x), self.info(x));
        let n = axes.iter().map(|&axis| self.shape(x)[axis]).product::<usize>() as f64;
        let op_of = |op| Op::Reduce { op, axes: axes.clone() };
        if !dtype.is_float() {
            return self.op(op_of(op), &[x], Info::of(dtype)).map(drop);
        }
        let made = match op {
            ReduceOp::Max | ReduceOp::Min if !self.smooth => {
                let ends = match n == 0.0 {
                    true => Info::exact(f64::NEG_INFINITY, f64::INFINITY),
                    false => Info { bits: false, ..info },
                };
                self.op(op_of(op), &[x], ends)
            }
            ReduceOp::Prod => {
                let most = info.size().max(1.0).powf(n);
                let error = n * info.size().max(1.0).powf(n - 1.0) * info.error;
                self.is_finite(x).then_some(())?;
                self.rounding(op_of(op), &[x], (-most, most), error, n)
            }
            _ => {
                self.is_finite(x).then_some(())?;
                let range = (n * info.low.min(0.0), n * info.high.max(0.0));
                self.rounding(op_of(ReduceOp::Sum), &[x], range, n * info.error, n)
            }
        };
        made.map(drop)
    }

    fn arg_reduce(&mut self, p: [u8; 4], salt: &mut Salt) -> Option<()> {
        let x = self.pick(p[0], |c, var| c.info(var).exact && c.program.ty(var).rank() > 0)?;
        let axis = salt.below(self.shape(x).rank());
        let op = if salt.once_in(2) { ArgOp::Max } else { ArgOp::Min };
        self.op(Op::ArgReduce { op, axis }, &[x], Info::exact(0.0, 8.0)).map(drop)
    }

    fn sort(&mut self, p: [u8; 4], salt: &mut Salt) -> Option<()> {
        let key = self.pick(p[0], |c, var| {
            let float = c.dtype(var).is_float();
            c.info(var).exact && c.program.ty(var).rank() > 0 && !(c.smooth && float)
        })?;
        let shape = self.shape(key);
        let mut operands = vec![key];
        for &choice in &p[1..1 + salt.below(3)] {
            operands.extend(self.pick(choice, |c, var| c.shape(var) == shape));
        }
        let axis = salt.below(shape.rank());
        // Zeros of either sign are equal, and stay in their order.
        let infos: Vec<Info> = operands.iter().map(|&var| self.info(var)).collect();
        self.ops(Op::Sort { axis }, &operands, &infos).map(drop)
    }

    fn threefry(&mut self, p: [u8; 4]) -> Option<()> {
        let x = self.pick(p[0], |c, var| c.dtype(var) == DType::U32);
        let x = match x {
            Some(x) => x,
            None => {
                let shape = [self.sizes[0] as usize];
                self.constant(Literal::splat(shape, 7u32))
            }
        };
        let ty = self.ty(x);
        let mut operands = vec![x];
        for &choice in &p[1..] {
            operands.push(self.pick_type(choice, &ty)?);
        }
        let info = Info::of(DType::U32);
        self.ops(Op::Threefry, &operands, &[info, info]).map(drop)
    }
}
