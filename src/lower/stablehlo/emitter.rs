//! The text of one module as it grows: its lines, the names of its values, and its constants.
//!
//! The modules beside this one write the operations, one family each; [`stablehlo`](mod@super)
//! chooses the one that an equation needs.

use std::collections::{HashMap, HashSet};
use std::fmt::{self, Write};

use smallvec::SmallVec;

use super::mlir::{self, List, Locations, Ty, Types, Value};
use crate::error::Loc;
use crate::lower::options::LowerOptions;
use crate::trace::literal::{Literal, with_element};
use crate::trace::program::Program;
use crate::trace::types::{Shape, TensorType};

/// Meaning of a variable in the text.
#[derive(Clone)]
pub(super) enum Slot<'a> {
    /// A value defined above.
    Value(Value),
    /// A small constant: written in each region that uses it, at its first use there. A constant
    /// inside a loop is one that the compiler can fold.
    Constant(&'a Literal),
}

/// Writes one module.
pub(super) struct Emitter<'a> {
    pub(super) options: &'a LowerOptions,
    pub(super) out: String,
    pub(super) indent: usize,
    next_value: u32,
    next_argument: u32,
    /// Number of channels between partitions so far.
    pub(super) channels: usize,
    pub(super) locations: Locations,
    /// The number of the source line that the text being written belongs to.
    pub(super) at: Option<u32>,
    /// The constants written so far, per open region: of whole values, and of shards.
    scopes: Vec<[HashMap<Literal, Value>; 2]>,
    /// Values that each partition computes on its own.
    pub(super) shards: HashSet<Value>,
    /// Values that are computed from constants alone, outside of the shards.
    pub(super) folded: HashSet<Value>,
    /// True while an equation of shards is written.
    pub(super) in_shards: bool,
    /// Scalar bools that were converted to i32, by the result: a `cond` on one is an `if`.
    pub(super) predicates: HashMap<Value, Value>,
    /// Vectors 0, 1, 2, ... of i32: a scan over one takes its own counter.
    pub(super) iotas: HashSet<Value>,
    /// Shapes that need a threefry function.
    pub(super) threefry_shapes: Vec<Shape>,
    /// The functions that the Program calls: their numbers, and the argument that has them.
    pub(super) functions: Option<(Vec<i64>, Value)>,
}

/// The values of an equation's operands.
pub(super) type Values = SmallVec<[Value; 4]>;

impl<'a> Emitter<'a> {
    pub(super) fn new(program: &Program, options: &'a LowerOptions) -> Emitter<'a> {
        Emitter {
            options,
            out: String::with_capacity(1024 + 160 * program.size()),
            indent: 1,
            next_value: 0,
            next_argument: 0,
            channels: 0,
            locations: Locations::default(),
            at: None,
            scopes: vec![Default::default()],
            shards: HashSet::new(),
            folded: HashSet::new(),
            in_shards: false,
            predicates: HashMap::new(),
            iotas: HashSet::new(),
            threefry_shapes: Vec::new(),
            functions: None,
        }
    }

    // Lines.

    /// Sets the source line of the text that follows.
    pub(super) fn locate(&mut self, at: Loc) {
        if self.options.locations {
            self.at = Some(self.locations.number(at));
        }
    }

    /// Writes text.
    pub(super) fn write(&mut self, text: fmt::Arguments<'_>) {
        self.out.write_fmt(text).expect("writing to a String does not fail");
    }

    /// Starts a line.
    pub(super) fn margin(&mut self) {
        for _ in 0..self.indent {
            self.out.push_str("  ");
        }
    }

    /// Ends a line with its location.
    pub(super) fn end(&mut self) {
        match self.at {
            Some(number) => self.write(format_args!(" loc(#loc{number})\n")),
            None => self.out.push('\n'),
        }
    }

    /// Writes an operation of one result on a line of its own.
    pub(super) fn op(&mut self, text: fmt::Arguments<'_>) -> Value {
        let value = self.begin(1)[0];
        self.write(text);
        self.end();
        value
    }

    /// Starts the line of an operation of `count` results, up to and with the `=`.
    pub(super) fn begin(&mut self, count: usize) -> Values {
        let id = self.next_value;
        self.next_value += 1;
        self.margin();
        match count {
            0 => {}
            1 => self.write(format_args!("%{id} = ")),
            _ => self.write(format_args!("%{id}:{count} = ")),
        }
        (0..count).map(|part| Value::part(id, part, count)).collect()
    }

    /// A new name for a parameter of a region.
    pub(super) fn new_argument(&mut self) -> Value {
        let id = self.next_argument;
        self.next_argument += 1;
        Value::argument(id)
    }

    /// Opens a region: lines are indented by one more step, constants are the region's own.
    pub(super) fn open(&mut self) {
        self.indent += 1;
        self.scopes.push(Default::default());
    }

    /// Closes the region opened last.
    pub(super) fn close(&mut self) {
        self.indent -= 1;
        self.scopes.pop();
    }

    /// Ends a function or region.
    pub(super) fn terminator(&mut self, name: &str, slots: &[Slot<'a>], types: &[&TensorType]) {
        let values: Values = slots.iter().map(|slot| self.value(slot)).collect();
        self.margin();
        self.out.push_str(name);
        if !values.is_empty() {
            self.write(format_args!(" {} : {}", List(&values), Types(types)));
        }
        self.end();
    }

    // Values.

    /// The value of a slot in the region that is open.
    pub(super) fn value(&mut self, slot: &Slot<'a>) -> Value {
        match slot {
            Slot::Value(value) => *value,
            Slot::Constant(literal) => self.constant(literal),
        }
    }

    /// A constant, written once in each region.
    pub(super) fn constant(&mut self, literal: &Literal) -> Value {
        // A constant of shards and one of whole values are not the same: the partitioner keeps apart
        // what each partition computes on its own. Two equal constants would become one.
        let kind = usize::from(self.in_shards);
        let found = match literal.is_splat() {
            true => self.scopes.last().and_then(|scope| scope[kind].get(literal)),
            // A long list of elements should not be written twice: any enclosing region will do.
            false => self.scopes.iter().rev().find_map(|scope| scope[kind].get(literal)),
        };
        if let Some(&value) = found {
            return value;
        }
        let ty = literal.ty();
        let value = match literal.is_splat() {
            // The compiler keeps a `dense<x>` of many elements as that many elements; it handles a
            // broadcast well.
            true if ty.rank() > 0 && ty.numel() > 0 => {
                let scalar = self.constant(&scalar_of(literal));
                self.op(format_args!(
                    "stablehlo.broadcast_in_dim {scalar}, dims = [] : ({}) -> {}",
                    Ty(&TensorType::scalar(ty.dtype)),
                    Ty(ty)
                ))
            }
            _ if self.in_shards && self.scopes.len() == 1 => {
                self.in_shards = false;
                let whole = self.constant(literal);
                self.in_shards = true;
                self.shard_of_copied(whole, ty)
            }
            _ => {
                let value = self.begin(1)[0];
                self.out.push_str("stablehlo.constant ");
                mlir::dense(&mut self.out, literal);
                self.write(format_args!(" : {}", Ty(ty)));
                self.end();
                value
            }
        };
        let scope = self.scopes.last_mut().expect("a region is open");
        scope[kind].insert(literal.clone(), value);
        value
    }

    /// The scalar i32 constant `x`, which is at most `i32::MAX`.
    pub(super) fn index(&mut self, x: usize) -> Value {
        self.constant(&Literal::scalar(i32::try_from(x).expect("an index of type i32")))
    }
}

/// The element of a splat as a scalar.
fn scalar_of(literal: &Literal) -> Literal {
    with_element!(literal.ty().dtype, T => {
        Literal::scalar(literal.as_splat::<T>().expect("called with splats"))
    })
}
