//! Loops and branches.

use super::emitter::{Emitter, Slot, Values};
use super::mlir::{List, Results, Ty, Types, Value, predicate};
use crate::trace::op::{BinaryOp, CompareOp, CondOp, RematOp, ScanOp, WhileOp};
use crate::trace::program::Program;
use crate::trace::types::{DType, TensorType};

/// The operands of a scan by their roles.
struct ScanParts<'s, 'a, 't> {
    scan: &'a ScanOp,
    consts: &'s [Slot<'a>],
    xs: &'s [Slot<'a>],
    x_tys: &'s [&'t TensorType],
    y_tys: &'s [&'t TensorType],
}

impl<'a> Emitter<'a> {
    /// Emits the function in place. If it computes earlier values again, its operands go through a
    /// barrier all together: otherwise the compiler would merge the two computations, or compute
    /// too early the values that are needed late.
    pub(super) fn remat(
        &mut self,
        remat: &'a RematOp,
        inputs: &[Slot<'a>],
        tys: &[&TensorType],
    ) -> Vec<Slot<'a>> {
        let mut inputs = inputs.to_vec();
        let values: Vec<usize> =
            (0..inputs.len()).filter(|&i| matches!(inputs[i], Slot::Value(_))).collect();
        if remat.barrier && !values.is_empty() {
            let operands: Values = values.iter().map(|&i| self.value(&inputs[i])).collect();
            let types: Vec<&TensorType> = values.iter().map(|&i| tys[i]).collect();
            let results = self.begin(operands.len());
            let (operands, types) = (List(&operands), Types(&types));
            self.write(format_args!("stablehlo.optimization_barrier {operands} : {types}"));
            self.end();
            for (i, value) in values.into_iter().zip(results) {
                inputs[i] = Slot::Value(value);
            }
        }
        self.program(&remat.body, inputs)
    }

    pub(super) fn scan(
        &mut self,
        scan: &'a ScanOp,
        inputs: &[Slot<'a>],
        tys: &[&TensorType],
        results: &[&TensorType],
    ) -> Vec<Slot<'a>> {
        let (consts, rest) = inputs.split_at(scan.num_consts);
        let (carry, xs) = rest.split_at(scan.num_carry);
        let x_tys = &tys[scan.num_consts + scan.num_carry..];
        let y_tys = &results[scan.num_carry..];
        let parts = ScanParts { scan, consts, xs, x_tys, y_tys };
        let unroll = scan.unroll.clamp(1, scan.length.max(1));
        if scan.length / unroll <= 1 {
            self.scan_written_out(&parts, carry.to_vec())
        } else {
            self.scan_looped(&parts, carry, results, unroll)
        }
    }

    /// Emits every iteration written out: no loop.
    fn scan_written_out(
        &mut self,
        parts: &ScanParts<'_, 'a, '_>,
        mut carry: Vec<Slot<'a>>,
    ) -> Vec<Slot<'a>> {
        let scan = parts.scan;
        let mut columns: Vec<Values> = vec![Values::new(); parts.y_tys.len()];
        for step in 0..scan.length {
            let row = if scan.reverse { scan.length - 1 - step } else { step };
            let x = self.fixed_rows(parts, row);
            let ys = self.scan_step(parts, &mut carry, x);
            for ((column, y), ty) in columns.iter_mut().zip(ys).zip(parts.y_tys) {
                let window = TensorType::new(ty.dtype, ty.shape.without_axis(0).with_axis(0, 1));
                let y = self.value(&y);
                column.push(self.as_row(y, &window));
            }
        }
        for (mut column, ty) in columns.into_iter().zip(parts.y_tys) {
            if scan.reverse {
                column.reverse();
            }
            let stack = if column.is_empty() {
                self.blank(ty.dtype, ty.shape.clone())
            } else {
                let window = TensorType::new(ty.dtype, ty.shape.without_axis(0).with_axis(0, 1));
                self.concat(&column, &vec![&window; column.len()], 0, ty)
            };
            carry.push(Slot::Value(stack));
        }
        carry
    }

    /// Emits a loop of `length / unroll` iterations of `unroll` rows, then the remaining rows.
    fn scan_looped(
        &mut self,
        parts: &ScanParts<'_, 'a, '_>,
        carry: &[Slot<'a>],
        results: &[&TensorType],
        unroll: usize,
    ) -> Vec<Slot<'a>> {
        let scan = parts.scan;
        let looped = scan.length / unroll * unroll;
        let counter_ty = TensorType::scalar(DType::I32);
        let mut initial: Values = Values::from_iter([self.index(0)]);
        for slot in carry {
            initial.push(self.value(slot));
        }
        for ty in parts.y_tys {
            initial.push(self.blank(ty.dtype, ty.shape.clone()));
        }
        let mut types = vec![&counter_ty];
        types.extend(results);
        let (values, arguments) = self.open_while(&initial, &types);
        let counter = arguments[0];
        let limit = self.index(looped);
        let more = self.compare(CompareOp::Lt, counter, limit, &counter_ty);
        self.begin_while_body(Slot::Value(more));
        let (carried, stacks) = arguments[1..].split_at(scan.num_carry);
        let mut carry: Vec<Slot<'a>> = carried.iter().map(|&v| Slot::Value(v)).collect();
        let mut stacks = stacks.to_vec();
        for step in 0..unroll {
            let row = self.scan_row(scan, counter, step);
            let x = parts.xs.iter().zip(parts.x_tys).map(|(slot, ty)| {
                let stack = self.value(slot);
                // A long loop over indices, fori_loop's for example, needs no memory for them.
                let is_row = self.iotas.contains(&stack);
                Slot::Value(if is_row { row } else { self.row(stack, ty, row) })
            });
            let x = x.collect();
            let ys = self.scan_step(parts, &mut carry, x);
            for ((stack, y), ty) in stacks.iter_mut().zip(ys).zip(parts.y_tys) {
                let y = self.value(&y);
                *stack = self.set_row(*stack, ty, y, row);
            }
        }
        let step = self.index(unroll);
        let next = self.binary(BinaryOp::Add, counter, step, &counter_ty);
        let mut last = vec![Slot::Value(next)];
        last.extend(carry);
        last.extend(stacks.into_iter().map(Slot::Value));
        self.close_while(&last, &types);

        let (carried, stacks) = values[1..].split_at(scan.num_carry);
        let mut carry: Vec<Slot<'a>> = carried.iter().map(|&v| Slot::Value(v)).collect();
        let mut stacks = stacks.to_vec();
        for step in looped..scan.length {
            let row = if scan.reverse { scan.length - 1 - step } else { step };
            let x = self.fixed_rows(parts, row);
            let ys = self.scan_step(parts, &mut carry, x);
            for ((stack, y), ty) in stacks.iter_mut().zip(ys).zip(parts.y_tys) {
                let (y, row) = (self.value(&y), self.index(row));
                *stack = self.set_row(*stack, ty, y, row);
            }
        }
        carry.extend(stacks.into_iter().map(Slot::Value));
        carry
    }

    /// The row of iteration `counter + step`.
    fn scan_row(&mut self, scan: &ScanOp, counter: Value, step: usize) -> Value {
        let ty = TensorType::scalar(DType::I32);
        if scan.reverse {
            let last = self.index(scan.length - 1 - step);
            self.binary(BinaryOp::Sub, last, counter, &ty)
        } else if step > 0 {
            let step = self.index(step);
            self.binary(BinaryOp::Add, counter, step, &ty)
        } else {
            counter
        }
    }

    fn fixed_rows(&mut self, parts: &ScanParts<'_, 'a, '_>, row: usize) -> Vec<Slot<'a>> {
        let mut rows = Vec::with_capacity(parts.xs.len());
        for (slot, ty) in parts.xs.iter().zip(parts.x_tys) {
            let stack = self.value(slot);
            rows.push(Slot::Value(self.fixed_row(stack, ty, row)));
        }
        rows
    }

    /// One iteration of a scan: replaces the carry, returns the outputs.
    fn scan_step(
        &mut self,
        parts: &ScanParts<'_, 'a, '_>,
        carry: &mut Vec<Slot<'a>>,
        x: Vec<Slot<'a>>,
    ) -> Vec<Slot<'a>> {
        let num_carry = carry.len();
        let arguments = parts.consts.iter().cloned().chain(carry.drain(..)).chain(x);
        let mut outputs = self.program(&parts.scan.body, arguments);
        let ys = outputs.split_off(num_carry);
        *carry = outputs;
        ys
    }

    pub(super) fn while_loop(
        &mut self,
        op: &'a WhileOp,
        inputs: &[Slot<'a>],
        tys: &[&TensorType],
    ) -> Vec<Slot<'a>> {
        let (cond_consts, rest) = inputs.split_at(op.num_cond_consts);
        let (body_consts, carry) = rest.split_at(op.num_body_consts);
        let types = &tys[op.num_cond_consts + op.num_body_consts..];
        let initial: Values = carry.iter().map(|slot| self.value(slot)).collect();
        let (values, arguments) = self.open_while(&initial, types);
        let carry = arguments.iter().map(|&argument| Slot::Value(argument));
        let mut more = self.program(&op.cond, cond_consts.iter().cloned().chain(carry.clone()));
        self.begin_while_body(more.remove(0));
        let next = self.program(&op.body, body_consts.iter().cloned().chain(carry));
        self.close_while(&next, types);
        values.into_iter().map(Slot::Value).collect()
    }

    /// Writes a `while` up to its condition; gives its results, and its state inside.
    pub(super) fn open_while(
        &mut self,
        initial: &[Value],
        types: &[&TensorType],
    ) -> (Values, Values) {
        let results = self.begin(initial.len());
        self.out.push_str("stablehlo.while(");
        let mut arguments = Values::new();
        for (i, value) in initial.iter().enumerate() {
            let argument = self.new_argument();
            let comma = if i > 0 { ", " } else { "" };
            self.write(format_args!("{comma}{argument} = {value}"));
            arguments.push(argument);
        }
        self.write(format_args!(") : {}\n", super::mlir::Types(types)));
        self.margin();
        self.out.push_str("cond {\n");
        self.open();
        (results, arguments)
    }

    /// From the condition of a `while` to its body.
    pub(super) fn begin_while_body(&mut self, more: Slot<'a>) {
        let ty = predicate(&TensorType::scalar(DType::Bool));
        self.terminator("stablehlo.return", &[more], &[&ty]);
        self.close();
        self.margin();
        self.out.push_str("} do {\n");
        self.open();
    }

    /// Ends a `while`.
    pub(super) fn close_while(&mut self, next: &[Slot<'a>], types: &[&TensorType]) {
        self.terminator("stablehlo.return", next, types);
        self.close();
        self.margin();
        self.out.push('}');
        self.end();
    }

    pub(super) fn cond(
        &mut self,
        op: &'a CondOp,
        inputs: &[Slot<'a>],
        results: &[&TensorType],
    ) -> Vec<Slot<'a>> {
        let (index, operands) = inputs.split_first().expect("an index comes first");
        let last = op.branches.len() - 1;
        let known = match index {
            Slot::Constant(literal) => literal.splat_value(),
            Slot::Value(_) => None,
        };
        if results.is_empty() {
            // There are no results, and branches do nothing else.
            return Vec::new();
        }
        if last == 0 || known.is_some() {
            let chosen = (known.unwrap_or(0.0).max(0.0) as usize).min(last);
            return self.program(&op.branches[chosen], operands.iter().cloned());
        }
        let index = self.value(index);
        let ty = TensorType::scalar(DType::I32);
        if let [no, yes] = &op.branches[..] {
            let chosen = match self.predicates.get(&index) {
                Some(&predicate) => predicate,
                None => {
                    let zero = self.index(0);
                    self.compare(CompareOp::Gt, index, zero, &ty)
                }
            };
            return self.regions(
                "stablehlo.if",
                chosen,
                DType::Bool,
                &[yes, no],
                operands,
                results,
            );
        }
        // An index outside the range would mean the last branch.
        let (low, high) = (self.index(0), self.index(last));
        let index = self.op(format_args!("stablehlo.clamp {low}, {index}, {high} : {}", Ty(&ty)));
        let branches: Vec<&'a Program> = op.branches.iter().map(|branch| &**branch).collect();
        self.regions("stablehlo.case", index, DType::I32, &branches, operands, results)
    }

    fn regions(
        &mut self,
        name: &str,
        chooser: Value,
        chooser_dtype: DType,
        branches: &[&'a Program],
        operands: &[Slot<'a>],
        results: &[&TensorType],
    ) -> Vec<Slot<'a>> {
        let values = self.begin(results.len());
        self.write(format_args!("\"{name}\"({chooser}) ({{\n"));
        for (i, branch) in branches.iter().enumerate() {
            if i > 0 {
                self.margin();
                self.out.push_str("}, {\n");
            }
            self.open();
            let outputs = self.program(branch, operands.iter().cloned());
            self.terminator("stablehlo.return", &outputs, results);
            self.close();
        }
        self.margin();
        let ty = TensorType::scalar(chooser_dtype);
        self.write(format_args!("}}) : ({}) -> {}", Ty(&ty), Results(results)));
        self.end();
        values.into_iter().map(Slot::Value).collect()
    }
}
