//! Gather and scatter.

use podracer::trace::op::{Axes, GatherDims, ScatterDims, ScatterKind};
use podracer::trace::ops::{IndexMode, gather, one_hot, scatter};
use podracer::{DType, Literal, Tensor};

use super::{Case, In, case, cases_of, int, x};

fn axes(axes: &[usize]) -> Axes {
    axes.into()
}

fn cube(x: Tensor) -> Tensor {
    x * x * x
}

struct Gather {
    name: &'static str,
    operand: &'static [usize],
    indices: &'static [usize],
    offset: &'static [usize],
    collapsed: &'static [usize],
    batching: &'static [usize],
    index_batching: &'static [usize],
    map: &'static [usize],
    sizes: &'static [usize],
}

/// Gathers, and the scatters that write where they read.
const GATHERS: &[Gather] = &[
    Gather {
        name: "rows",
        operand: &[4, 3],
        indices: &[5, 1],
        offset: &[1],
        collapsed: &[0],
        batching: &[],
        index_batching: &[],
        map: &[0],
        sizes: &[1, 3],
    },
    Gather {
        name: "columns first",
        operand: &[4, 3],
        indices: &[2, 1],
        offset: &[0],
        collapsed: &[1],
        batching: &[],
        index_batching: &[],
        map: &[1],
        sizes: &[4, 1],
    },
    Gather {
        name: "elements",
        operand: &[4, 3],
        indices: &[2, 2, 2],
        offset: &[],
        collapsed: &[0, 1],
        batching: &[],
        index_batching: &[],
        map: &[0, 1],
        sizes: &[1, 1],
    },
    Gather {
        name: "crossed map",
        operand: &[4, 3],
        indices: &[5, 2],
        offset: &[],
        collapsed: &[0, 1],
        batching: &[],
        index_batching: &[],
        map: &[1, 0],
        sizes: &[1, 1],
    },
    Gather {
        name: "windows",
        operand: &[5, 4],
        indices: &[3, 2],
        offset: &[1, 2],
        collapsed: &[],
        batching: &[],
        index_batching: &[],
        map: &[0, 1],
        sizes: &[2, 3],
    },
    Gather {
        name: "windows around",
        operand: &[5, 4],
        indices: &[3, 1],
        offset: &[0, 2],
        collapsed: &[],
        batching: &[],
        index_batching: &[],
        map: &[0],
        sizes: &[2, 4],
    },
    Gather {
        name: "batching",
        operand: &[2, 4, 3],
        indices: &[2, 3, 1],
        offset: &[2],
        collapsed: &[1],
        batching: &[0],
        index_batching: &[0],
        map: &[1],
        sizes: &[1, 1, 3],
    },
    Gather {
        name: "batching crossed",
        operand: &[4, 2, 3],
        indices: &[3, 2, 1],
        offset: &[],
        collapsed: &[0],
        batching: &[1, 2],
        index_batching: &[1, 0],
        map: &[0],
        sizes: &[1, 1, 1],
    },
    Gather {
        name: "one",
        operand: &[4, 3],
        indices: &[1],
        offset: &[0],
        collapsed: &[0],
        batching: &[],
        index_batching: &[],
        map: &[0],
        sizes: &[1, 3],
    },
    Gather {
        name: "no index",
        operand: &[2, 3],
        indices: &[2, 0],
        offset: &[1, 2],
        collapsed: &[],
        batching: &[],
        index_batching: &[],
        map: &[],
        sizes: &[2, 3],
    },
];

impl Gather {
    fn gather(&self) -> GatherDims {
        GatherDims {
            offset_dims: axes(self.offset),
            collapsed_slice_dims: axes(self.collapsed),
            operand_batching_dims: axes(self.batching),
            start_indices_batching_dims: axes(self.index_batching),
            start_index_map: axes(self.map),
            slice_sizes: self.sizes.into(),
        }
    }

    fn scatter(&self, kind: ScatterKind) -> ScatterDims {
        ScatterDims {
            kind,
            update_window_dims: axes(self.offset),
            inserted_window_dims: axes(self.collapsed),
            operand_batching_dims: axes(self.batching),
            scatter_indices_batching_dims: axes(self.index_batching),
            scatter_dims_to_operand_dims: axes(self.map),
        }
    }

    /// The shape of what is gathered.
    fn result(&self) -> Vec<usize> {
        let mut batch = self.indices[..self.indices.len() - 1].iter();
        let gone = |axis: &usize| self.collapsed.contains(axis) || self.batching.contains(axis);
        let mut window = (0..self.operand.len()).filter(|a| !gone(a)).map(|a| self.sizes[a]);
        let rank = self.offset.len() + self.indices.len() - 1;
        (0..rank)
            .map(|axis| {
                if self.offset.contains(&axis) {
                    window.next().expect("a window axis")
                } else {
                    *batch.next().expect("a batch axis")
                }
            })
            .collect()
    }
}

/// All of them.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, g) in GATHERS.iter().enumerate() {
        let name = |leaf: &str| if i == 0 { leaf.into() } else { format!("{leaf}/{}", g.name) };
        // Some indices are outside.
        for (range, inside) in [((0, 2), true), ((-3, 6), false)] {
            let suffix = if inside { "" } else { " outside" };
            let suffix = if i == 0 && !inside { "/rows outside" } else { suffix };
            let indices = int(g.indices, range.0, range.1);
            let dims = g.gather();
            cases.push(case(name("gather") + suffix, &[x(g.operand), indices.clone()], move |x| {
                gather(cube(x[0]), x[1], dims.clone())
            }));
            let updates = x(&g.result());
            let dims = g.scatter(ScatterKind::Add);
            cases.push(case(
                name("scatter_add") + suffix,
                &[x(g.operand), indices.clone(), updates.clone()],
                move |x| scatter(cube(x[0]), x[1], cube(x[2]), dims.clone()),
            ));
            let dims = g.scatter(ScatterKind::Set);
            cases.push(case(
                name("scatter") + suffix,
                &[x(g.operand), indices, updates],
                move |x| scatter(cube(x[0]), x[1], cube(x[2]), dims.clone()),
            ));
        }
    }
    cases.extend([
        case("gather/take", &[x(&[4, 3]), int(&[2, 2], -3, 4)], |x| {
            where_finite(cube(x[0]).take(x[1], 0))
        }),
        case("gather/take clip", &[x(&[2, 4, 3]), int(&[2], -3, 9)], |x| {
            cube(x[0]).take_mode(x[1], 1, IndexMode::Clip)
        }),
        case("gather/take last", &[x(&[2, 4]), int(&[3], 0, 3)], |x| cube(x[0]).take(x[1], -1)),
        case("gather/take filled", &[x(&[4]), int(&[6], -7, 7)], |x| x[0].take(x[1], 0)).flat(),
        case("gather/take i32", &[int(&[4], -9, 9), int(&[6], -7, 7)], |x| x[0].take(x[1], 0))
            .flat(),
        case("gather/take u8 by u8", &[u8s(&[4]), u8s(&[6])], |x| x[0].take(x[1], 0)).flat(),
        case("gather/take bool", &[In::Bool(vec![4]), int(&[6], -7, 7)], |x| x[0].take(x[1], 0))
            .flat(),
        case("gather/along", &[x(&[3, 4]), int(&[3, 2], -4, 3)], |x| {
            cube(x[0]).take_along_axis(x[1], 1)
        }),
        case("gather/along first", &[x(&[3, 4]), int(&[2, 4], 0, 2)], |x| {
            cube(x[0]).take_along_axis(x[1], 0)
        }),
        case("gather/along filled", &[x(&[3, 4]), int(&[3, 2], -9, 9)], |x| {
            x[0].take_along_axis(x[1], 1)
        })
        .flat(),
        case("gather/at", &[x(&[3, 4]), int(&[5], 0, 2), int(&[5], 0, 3)], |x| {
            cube(x[0]).at(&[x[1], x[2]]).get()
        }),
        case("scatter/at", &[x(&[4, 2]), int(&[3], -4, 5), x(&[3, 2])], |x| {
            cube(x[0]).at(&[x[1]]).set(cube(x[2]))
        }),
        case("scatter/number", &[x(&[4, 2]), int(&[3], -4, 5)], |x| {
            cube(x[0]).at(&[x[1]]).set(2.0)
        }),
        case("scatter_add/at", &[x(&[4, 2]), int(&[5], -4, 5), x(&[2])], |x| {
            cube(x[0]).at(&[x[1]]).add(cube(x[2]))
        }),
        case("scatter_add/at both", &[x(&[4, 2]), int(&[2, 3], 0, 3), int(&[3], 0, 1)], |x| {
            x[0].at(&[x[1], x[2]]).add(x[0].sum(..))
        }),
        case("scatter_add/i32", &[int(&[4], -9, 9), int(&[6], -5, 5), int(&[6], 0, 9)], |x| {
            x[0].at(&[x[1]]).add(x[2])
        })
        .flat(),
        cases_of("scatter_add/u8 i64 index", &[u8s(&[4]), i64s(&[6])], |x| {
            vec![x[0].at(&[x[1]]).add(1), x[0].at(&[x[1]]).set(7)]
        })
        .flat(),
        case("scatter_mul/at", &[x(&[4, 2]), int(&[5], -4, 5)], |x| {
            cube(x[0]).at(&[x[1]]).multiply(-0.5)
        }),
        case("scatter_mul/i32", &[int(&[4], -9, 9), int(&[6], -5, 5), int(&[6], 0, 9)], |x| {
            x[0].at(&[x[1]]).multiply(x[2])
        })
        .flat(),
        case("scatter_max/at", &[x(&[4, 2]), int(&[5], -4, 5), x(&[5, 2])], |x| {
            x[0].sin().at(&[x[1]]).max(x[2].sin())
        }),
        case("scatter_min/at", &[x(&[4, 2]), int(&[5], -4, 5), x(&[5, 2])], |x| {
            x[0].sin().at(&[x[1]]).min(x[2].sin())
        }),
        case("scatter_max/i32", &[int(&[4], -9, 9), int(&[6], -5, 5), int(&[6], 0, 9)], |x| {
            x[0].at(&[x[1]]).max(x[2]).at(&[x[1]]).min(x[2] - 3)
        })
        .flat(),
        // A narrow type still counts past its range, and back from the end.
        case(
            "gather/i8 of many",
            &[x(&[200]), In::Value(Literal::new([3], &[-1i8, 5, 127]))],
            |x| cube(x[0]).take(x[1], 0),
        ),
        case(
            "gather/u64 past the end",
            &[x(&[4]), In::Value(Literal::new([3], &[2u64, 4, u64::MAX]))],
            |x| x[0].take(x[1], 0),
        )
        .flat(),
        case("eq/one_hot", &[int(&[5], -2, 6)], |x| one_hot(x[0], 4, DType::F32)).flat(),
        case("eq/one_hot u8", &[In::Value(Literal::new([2], &[5u8, 255]))], |x| {
            one_hot(x[0], 300, DType::F32).sum([0])
        })
        .flat(),
        case("gather/one of one", &[x(&[1, 1]), int(&[3, 1], -1, 1)], |x| {
            cube(x[0]).take_mode(x[1], 0, IndexMode::Clip)
        }),
        case(
            "gather/of ends",
            &[x(&[5]), In::Value(Literal::new([3], &[i32::MIN, i32::MAX, 2]))],
            |x| cube(x[0]).take_mode(x[1], 0, IndexMode::Clip),
        ),
        case(
            "scatter_add/of ends",
            &[x(&[5]), In::Value(Literal::new([3, 1], &[i32::MIN, i32::MAX, 2])), x(&[3])],
            |x| scatter(x[0], x[1], cube(x[2]), GATHER_ONE.scatter(ScatterKind::Add)),
        ),
    ]);
    cases
}

/// One element a place.
const GATHER_ONE: Gather = Gather {
    name: "element",
    operand: &[5],
    indices: &[3, 1],
    offset: &[],
    collapsed: &[0],
    batching: &[],
    index_batching: &[],
    map: &[0],
    sizes: &[1],
};

fn u8s(shape: &[usize]) -> In {
    In::Int(DType::U8, shape.to_vec(), 0, 6)
}

fn i64s(shape: &[usize]) -> In {
    In::Int(DType::I64, shape.to_vec(), -6, 6)
}

/// What was read outside is NaN, with which no difference can be compared.
fn where_finite(x: Tensor) -> Tensor {
    podracer::trace::ops::where_(x.is_finite(), x, podracer::trace::ops::zeros_like(x))
}
