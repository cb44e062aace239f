//! Loops and branches, with bodies from recipes.

use std::sync::Arc;

use podracer::trace::Var;
use podracer::trace::op::{BinaryOp, CompareOp, CondOp, Op, ScanOp, WhileOp};
use podracer::{DType, Literal, Program, TensorType};

use crate::recipes::cook::{Cook, Info};
use crate::recipes::recipe::{Salt, Step};

/// What every carried float stays within.
const CARRY: f64 = 2.0;

impl Cook {
    pub(super) fn control(&mut self, step: &Step, salt: &mut Salt, depth: usize) -> Option<()> {
        match step.kind % 5 {
            0 | 1 => self.scan(step, salt, depth),
            2 => self.while_loop(step, salt, depth),
            _ => self.cond(step, salt, depth),
        }
    }

    /// What can be an operand of control flow.
    fn operand(&self, choice: u8) -> Option<Var> {
        self.pick(choice, |c, var| !c.dtype(var).is_float() || c.is_finite(var))
    }

    /// A first carry: floats within `CARRY`.
    fn carry(&mut self, choice: u8) -> Option<Var> {
        let x = self.operand(choice)?;
        if self.dtype(x).is_float() { self.small(x, CARRY) } else { Some(x) }
    }

    fn carried(&self, var: Var, error: f64) -> Info {
        let dtype = self.dtype(var);
        match dtype.is_float() {
            true => Info::rounded(-CARRY, CARRY, error),
            false => Info::of(dtype),
        }
    }

    /// The body of a loop: takes constants, carry and others; gives carry and, if asked for, others.
    /// A carry whose error is not `errors`' gives another body.
    fn body(
        &self,
        step: &Step,
        depth: usize,
        inputs: &[(TensorType, Info)],
        carry: std::ops::Range<usize>,
        outputs: usize,
    ) -> Option<(Program, Vec<Info>)> {
        let mut body = Cook::new(self.sizes, self.smooth);
        let vars: Vec<Var> =
            inputs.iter().map(|(ty, info)| body.input(ty.clone(), *info)).collect();
        body.steps(&step.body, depth + 1);
        let mut results = Vec::new();
        for (i, at) in carry.enumerate() {
            let ty = &inputs[at].0;
            let next = body.pick_type(step.picks[i % 4].wrapping_mul(3), ty).unwrap_or(vars[at]);
            results.push(if ty.dtype.is_float() { body.small(next, CARRY)? } else { next });
        }
        results.extend(body.sinks(outputs).into_iter().take(outputs));
        let infos = results.iter().map(|&var| body.info(var)).collect();
        body.program.outputs = results;
        Some((body.program, infos))
    }

    fn scan(&mut self, step: &Step, salt: &mut Salt, depth: usize) -> Option<()> {
        let p = step.picks;
        let (consts, carries) = (salt.below(3), salt.below(3));
        let mut operands = Vec::new();
        for &choice in &p[..consts] {
            operands.push(self.operand(choice)?);
        }
        for &choice in &p[1..1 + carries] {
            operands.push(self.carry(choice)?);
        }
        let stack = self.pick(p[3], |c, var| {
            c.program.ty(var).rank() > 0 && (!c.dtype(var).is_float() || c.is_finite(var))
        });
        let length = stack.map_or(salt.below(4), |stack| self.shape(stack)[0]);
        if length > 8 {
            return None;
        }
        let fixed = operands.len();
        operands.extend(stack);
        if let Some(stack) = stack {
            let shape = self.shape(stack);
            let same = |c: &Cook, var: Var| {
                let other = c.program.ty(var);
                var != stack
                    && other.rank() > 0
                    && other.shape[0] == shape[0]
                    && (!other.dtype.is_float() || c.is_finite(var))
            };
            operands.extend(self.pick(p[2], same).filter(|_| salt.once_in(2)));
        }
        let outputs = salt.below(3);
        let mut errors: Vec<f64> =
            (0..carries).map(|i| self.info(operands[consts + i]).error).collect();
        let mut made = None;
        for _ in 0..length.max(1) {
            let inputs: Vec<(TensorType, Info)> = operands
                .iter()
                .enumerate()
                .map(|(i, &var)| match i {
                    i if i < consts => (self.ty(var), self.info(var)),
                    i if i < fixed => (self.ty(var), self.carried(var, errors[i - consts])),
                    _ => {
                        let ty = self.ty(var);
                        let slice = TensorType::new(ty.dtype, ty.shape.without_axis(0));
                        (slice, self.info(var))
                    }
                })
                .collect();
            let (body, infos) = self.body(step, depth, &inputs, consts..fixed, outputs)?;
            for (error, info) in errors.iter_mut().zip(&infos) {
                *error = error.max(info.error);
            }
            made = Some((body, infos));
        }
        let (body, infos) = made?;
        let infos: Vec<Info> = infos
            .iter()
            .enumerate()
            .map(|(i, &info)| match operands.get(consts + i) {
                Some(&first) if i < carries => self.info(first).or(self.carried(first, errors[i])),
                _ => info,
            })
            .collect();
        let scan = ScanOp {
            body: Arc::new(body),
            num_consts: consts,
            num_carry: carries,
            length,
            reverse: salt.once_in(2),
            unroll: if salt.once_in(3) { 1 + salt.below(3) } else { 1 },
        };
        self.ops(Op::Scan(scan), &operands, &infos).map(drop)
    }

    /// A loop of 0 to 3 iterations; their number is a constant or a value of the Program.
    fn while_loop(&mut self, step: &Step, salt: &mut Salt, depth: usize) -> Option<()> {
        let p = step.picks;
        let scalar = TensorType::scalar(DType::I32);
        let three = self.constant(Literal::scalar(3i32));
        let num_steps = match self.pick_type(p[0], &scalar) {
            Some(num_steps) => {
                self.op(Op::Binary(BinaryOp::And), &[num_steps, three], Info::of(DType::I32))?
            }
            None => self.constant(Literal::scalar(salt.within(0, 3) as i32)),
        };
        let zero = self.constant(Literal::scalar(0i32));
        let constant = if salt.once_in(2) { self.operand(p[1]) } else { None };
        let carry = self.carry(p[2])?;
        let n = constant.iter().len();

        let mut cond = Cook::new(self.sizes, self.smooth);
        let until = cond.input(scalar.clone(), Info::of(DType::I32));
        let iteration = cond.input(scalar.clone(), Info::of(DType::I32));
        cond.input(self.ty(carry), self.carried(carry, 0.0));
        let less = Op::Compare(CompareOp::Lt);
        cond.program.outputs = vec![cond.op(less, &[iteration, until], Info::of(DType::Bool))?];

        let mut error = self.info(carry).error;
        let mut made = None;
        for _ in 0..3 {
            let mut inputs: Vec<(TensorType, Info)> =
                constant.iter().map(|&var| (self.ty(var), self.info(var))).collect();
            inputs.push((scalar.clone(), Info::of(DType::I32)));
            inputs.push((self.ty(carry), self.carried(carry, error)));
            let (mut body, infos) = self.body(step, depth, &inputs, n + 1..n + 2, 0)?;
            error = error.max(infos[0].error);
            // One iteration more.
            let (one, next) = (body.add_var(scalar.clone()), body.add_var(scalar.clone()));
            let at = std::panic::Location::caller();
            let constant = Op::Constant(Literal::scalar(1i32));
            let iteration = body.inputs[n];
            for (op, inputs, output) in
                [(constant, vec![], one), (Op::Binary(BinaryOp::Add), vec![iteration, one], next)]
            {
                body.equations.push(podracer::trace::Equation {
                    op,
                    inputs: inputs.into_iter().collect(),
                    outputs: [output].into_iter().collect(),
                    at,
                });
            }
            body.outputs.insert(0, next);
            made = Some(body);
        }
        let op = Op::While(WhileOp {
            cond: Arc::new(cond.program),
            num_cond_consts: 1,
            body: Arc::new(made?),
            num_body_consts: n,
        });
        let mut operands = vec![num_steps];
        operands.extend(constant);
        operands.extend([zero, carry]);
        let info = self.info(carry).or(self.carried(carry, error));
        self.ops(op, &operands, &[Info::of(DType::I32), info]).map(drop)
    }

    fn cond(&mut self, step: &Step, salt: &mut Salt, depth: usize) -> Option<()> {
        let p = step.picks;
        let index = match self.pick_type(p[0], &TensorType::scalar(DType::I32)) {
            Some(index) => index,
            None => self.constant(Literal::scalar(salt.within(-1, 3) as i32)),
        };
        let mut operands = vec![index];
        for &choice in &p[1..1 + 1 + salt.below(3)] {
            operands.push(self.operand(choice)?);
        }
        let branches = 1 + salt.below(3);
        let mut made: Vec<Arc<Program>> = Vec::new();
        let mut infos: Vec<Info> = Vec::new();
        let mut types: Vec<TensorType> = Vec::new();
        for i in 0..branches {
            let mut branch = Cook::new(self.sizes, self.smooth);
            for &var in &operands[1..] {
                branch.input(self.ty(var), self.info(var));
            }
            // Each branch does the steps in another order.
            let mut steps = step.body.clone();
            let n = steps.len();
            steps.rotate_left(i % n);
            branch.steps(&steps[..n - (i % 2).min(n - 1)], depth + 1);
            if i == 0 {
                branch.program.outputs = branch.sinks(3);
                types = branch.program.output_types().cloned().collect();
                infos = branch.program.outputs.iter().map(|&var| branch.info(var)).collect();
            } else {
                for (ty, info) in types.iter().zip(&mut infos) {
                    let var = match branch.pick_type(p[i], ty) {
                        Some(var) => var,
                        None => branch.noise(ty.clone(), salt),
                    };
                    *info = info.or(branch.info(var));
                    branch.program.outputs.push(var);
                }
            }
            made.push(Arc::new(branch.program));
        }
        self.ops(Op::Cond(CondOp { branches: made }), &operands, &infos).map(drop)
    }
}
