//! Steps that move windows at computed places.

use podracer::trace::Var;
use podracer::trace::op::{Axes, GatherDims, Op, ScatterDims, ScatterKind};
use podracer::{DType, Literal, Shape, TensorType};

use crate::recipes::cook::{Cook, Info};
use crate::recipes::recipe::Salt;

impl Cook {
    pub(super) fn index_step(&mut self, p: [u8; 4], salt: &mut Salt) -> Option<()> {
        let x = self.pick(p[0], |_, _| true)?;
        match p[1] % 5 {
            0 => self.dynamic_slice(x, p, salt),
            1 => self.dynamic_update_slice(x, p, salt),
            2 | 3 => self.gather(x, p, salt),
            _ => self.scatter(x, p, salt),
        }
        .map(drop)
    }

    /// A scalar i32, not always where it fits.
    fn start(&mut self, choice: u8, salt: &mut Salt) -> Var {
        match self.pick_type(choice, &TensorType::scalar(DType::I32)) {
            Some(start) if !salt.once_in(3) => start,
            _ => self.constant(Literal::scalar(salt.within(-2, 4) as i32)),
        }
    }

    fn window(&self, x: Var, salt: &mut Salt) -> Shape {
        self.shape(x).iter().map(|&n| n - salt.below(n + 1).min(salt.below(3))).collect()
    }

    fn dynamic_slice(&mut self, x: Var, p: [u8; 4], salt: &mut Salt) -> Option<Var> {
        let sizes = self.window(x, salt);
        let mut operands = vec![x];
        for i in 0..sizes.rank() {
            operands.push(self.start(p[2].wrapping_add(i as u8), salt));
        }
        let info = self.info(x);
        self.op(Op::DynamicSlice { sizes }, &operands, info)
    }

    fn dynamic_update_slice(&mut self, x: Var, p: [u8; 4], salt: &mut Salt) -> Option<Var> {
        let ty = self.ty(x);
        let fits = |c: &Cook, var: Var| {
            let other = c.program.ty(var);
            other.dtype == ty.dtype
                && other.rank() == ty.rank()
                && other.shape.iter().zip(ty.shape.iter()).all(|(a, b)| a <= b)
        };
        let update = match self.pick(p[2], |c, var| var != x && fits(c, var)) {
            Some(update) => update,
            None => {
                let sizes = self.window(x, salt);
                self.noise(TensorType::new(ty.dtype, sizes), salt)
            }
        };
        let mut operands = vec![x, update];
        for i in 0..ty.rank() {
            operands.push(self.start(p[3].wrapping_add(i as u8), salt));
        }
        let info = self.info(x).or(self.info(update));
        self.op(Op::DynamicUpdateSlice, &operands, info)
    }

    /// A gather from `x`, its indices, and the shape of its result: some axes are indexed, of some
    /// a window is taken; one axis may be paired with an axis of the indices.
    fn places(&mut self, x: Var, salt: &mut Salt) -> (GatherDims, Var, bool) {
        let shape = self.shape(x);
        let rank = shape.rank();
        let mut dims = GatherDims::default();
        let mut sizes = Vec::new();
        let mut windows = 0;
        let paired = (rank > 1 && salt.once_in(3)).then(|| salt.below(rank));
        let mut apart = true;
        for axis in 0..rank {
            if Some(axis) == paired {
                dims.operand_batching_dims.push(axis);
                dims.start_indices_batching_dims.push(0);
                sizes.push(1);
                continue;
            }
            let size = match salt.below(4) {
                0 => shape[axis],
                1 => {
                    dims.start_index_map.push(axis);
                    apart = false;
                    shape[axis] - salt.below(shape[axis] + 1).min(1)
                }
                _ => {
                    dims.start_index_map.push(axis);
                    if shape[axis] > 0 {
                        dims.collapsed_slice_dims.push(axis);
                    }
                    1.min(shape[axis])
                }
            };
            windows += !dims.collapsed_slice_dims.contains(&axis) as usize;
            sizes.push(size);
        }
        if dims.start_index_map.len() > 1 && salt.once_in(2) {
            dims.start_index_map.reverse();
        }
        dims.slice_sizes = Shape::from(sizes);
        let first = paired.map_or(1 + salt.below(3), |axis| shape[axis]);
        let batch = if salt.once_in(3) { vec![first, 2] } else { vec![first] };
        let result = batch.len() + windows;
        let at = salt.below(batch.len() + 1);
        dims.offset_dims = (0..result).filter(|i| (at..at + windows).contains(i)).collect();
        let k = dims.start_index_map.len();
        let n: usize = batch.iter().product();
        let indices: Vec<i32> = (0..n * k).map(|_| salt.within(-1, 4) as i32).collect();
        let distinct = |i: usize, j: usize| indices[i * k..][..k] != indices[j * k..][..k];
        apart &= k > 0 && (0..n).all(|i| (0..i).all(|j| distinct(i, j)));
        let mut shape = batch;
        shape.push(k);
        let indices = self.constant(Literal::new(shape, &indices));
        (dims, indices, apart)
    }

    fn gather(&mut self, x: Var, p: [u8; 4], salt: &mut Salt) -> Option<Var> {
        let (dims, indices, _) = self.places(x, salt);
        // Computed indices, if there are some of the type.
        let ty = self.ty(indices);
        let indices = self.pick_type(p[2], &ty).unwrap_or(indices);
        let info = self.info(x);
        self.op(Op::Gather(dims), &[x, indices], info)
    }

    fn scatter(&mut self, x: Var, p: [u8; 4], salt: &mut Salt) -> Option<Var> {
        let (dims, indices, apart) = self.places(x, salt);
        let types = [self.ty(x), self.ty(indices)];
        let gather = Op::Gather(dims.clone());
        let update =
            podracer::trace::check::infer(&gather, &[&types[0], &types[1]]).ok()?.remove(0);
        let updates = match self.pick_type(p[2], &update) {
            Some(updates) => updates,
            None => self.noise(update.clone(), salt),
        };
        // Where several updates meet, which one stays is not said.
        let kind = if apart && salt.once_in(2) {
            ScatterKind::Set
        } else if self.dtype(x).is_float() {
            ScatterKind::Add
        } else {
            // Exact for integers in any order.
            match (salt.once_in(2), salt.once_in(2)) {
                (true, true) => ScatterKind::Add,
                (true, false) => ScatterKind::Mul,
                (false, true) => ScatterKind::Max,
                (false, false) => ScatterKind::Min,
            }
        };
        let inserted: Axes = dims.collapsed_slice_dims;
        let scatter = Op::Scatter(ScatterDims {
            kind,
            update_window_dims: dims.offset_dims,
            inserted_window_dims: inserted,
            operand_batching_dims: dims.operand_batching_dims,
            scatter_indices_batching_dims: dims.start_indices_batching_dims,
            scatter_dims_to_operand_dims: dims.start_index_map,
        });
        let (a, b) = (self.info(x), self.info(updates));
        let operands = [x, indices, updates];
        if kind == ScatterKind::Set || !self.dtype(x).is_float() {
            let info = if kind == ScatterKind::Set { a.or(b) } else { Info::of(self.dtype(x)) };
            return self.op(scatter, &operands, info);
        }
        if !self.is_finite(x) || !self.is_finite(updates) {
            return None;
        }
        let n = update.numel() as f64;
        let most = a.size() + n * b.size();
        self.rounding(scatter, &operands, (-most, most), a.error + n * b.error, n)
    }
}
