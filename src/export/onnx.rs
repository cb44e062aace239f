//! ONNX: a Program as a graph of ONNX's operators, for inference elsewhere.
//!
//! The graph has the operators of one version of the default set. Operations without a counterpart
//! are refused by name, with the user's line.
//!
//! Inputs may have one axis of any size, the batch. The Program is traced with the size
//! [`SYMBOLIC_BATCH`] in its place, a prime that no other size is a multiple of: a size that it
//! divides is a multiple of the batch.

mod linear;
mod ops;
mod proto;

use prost::Message;

use self::proto::{
    AttributeProto, DimProto, GraphProto, IR_VERSION, ModelProto, NodeProto, OPSET, OperatorSetId,
    ShapeProto, StringStringEntry, TensorProto, TensorTypeProto, TypeProto, ValueInfo, data_type,
};
use crate::error::{Error, Loc, Result};
use crate::trace::literal::Literal;
use crate::trace::program::{Equation, Program, Var};
use crate::trace::types::{DType, Shape, TensorType};

/// Size that stands for that of the batch in a Program for [`onnx`].
pub const SYMBOLIC_BATCH: usize = 1_000_003;
/// Name of the batch's size in the file.
const BATCH: &str = "batch";
/// Largest message of Protocol Buffers, in bytes.
const MAX_BYTES: usize = i32::MAX as usize;

/// The bytes of an ONNX file whose graph `name` computes `program`, with these names for its inputs
/// and outputs. An axis of size [`SYMBOLIC_BATCH`] may have any size when the graph is run. `metadata`
/// are the names and texts of the file's `metadata_props`.
///
/// # Errors
/// [`Error::Argument`] for an operation that has no counterpart in ONNX, with the user's line; if
/// there are not as many names as inputs and outputs; and if the file would exceed 2 GiB.
pub fn onnx(
    program: &Program,
    name: &str,
    inputs: &[&str],
    outputs: &[&str],
    metadata: &[(&str, String)],
) -> Result<Vec<u8>> {
    if inputs.len() != program.inputs.len() || outputs.len() != program.outputs.len() {
        return Err(Error::Argument(format!(
            "{name} has {} inputs and {} outputs, and {} and {} names were given",
            program.inputs.len(),
            program.outputs.len(),
            inputs.len(),
            outputs.len()
        )));
    }
    if let Some(ty) = program.types.iter().find(|ty| ty.dtype.is_narrow()) {
        let problem = format!("opset {OPSET} has no {}", ty.dtype);
        return Err(Error::Argument(format!("{name} cannot be written as ONNX: {problem}")));
    }
    let mut emitter = Emitter::new(program, name);
    emitter.graph.name = name.into();
    for (&var, &input) in program.inputs.iter().zip(inputs) {
        emitter.input(var, input);
    }
    for equation in &program.equations {
        emitter.at = Some(equation.at);
        emitter.equation(equation)?;
    }
    emitter.at = None;
    for (&var, &output) in program.outputs.iter().zip(outputs) {
        emitter.output(var, output)?;
    }
    let model = ModelProto {
        ir_version: IR_VERSION,
        producer_name: env!("CARGO_PKG_NAME").into(),
        producer_version: env!("CARGO_PKG_VERSION").into(),
        graph: Some(emitter.graph),
        opset_import: vec![OperatorSetId { domain: String::new(), version: OPSET }],
        metadata_props: metadata
            .iter()
            .map(|(key, value)| StringStringEntry { key: key.to_string(), value: value.clone() })
            .collect(),
    };
    if model.encoded_len() > MAX_BYTES {
        let problem = format!("{} bytes exceed the 2 GiB of a file", model.encoded_len());
        return Err(Error::Argument(format!("{name} cannot be written as ONNX: {problem}")));
    }
    Ok(model.encode_to_vec())
}

/// A value of the graph: its name and its shape there. Axes along which all elements are equal may
/// have the size 1, since ONNX's elementwise operators repeat them.
#[derive(Debug, Clone)]
struct Value {
    name: String,
    shape: Shape,
}

/// Size of an axis in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Size {
    /// The same in every run.
    Fixed(usize),
    /// A multiple of the batch's size.
    Batch(usize),
}

fn size(n: usize) -> Size {
    match n {
        0 => Size::Fixed(0),
        n if n.is_multiple_of(SYMBOLIC_BATCH) => Size::Batch(n / SYMBOLIC_BATCH),
        n => Size::Fixed(n),
    }
}

fn is_batch(n: usize) -> bool {
    matches!(size(n), Size::Batch(_))
}

/// Writer of a graph.
struct Emitter<'a> {
    program: &'a Program,
    function: &'a str,
    graph: GraphProto,
    /// Value of each variable, once it is defined.
    values: Vec<Option<Value>>,
    /// Number of names given so far.
    names: usize,
    /// Name of the vector with the size of the batch, once it is used.
    batch: Option<String>,
    /// Line of the equation that is written.
    at: Option<Loc>,
}

impl<'a> Emitter<'a> {
    fn new(program: &'a Program, function: &'a str) -> Emitter<'a> {
        Emitter {
            program,
            function,
            graph: GraphProto::default(),
            values: vec![None; program.types.len()],
            names: 0,
            batch: None,
            at: None,
        }
    }

    /// Returns the error for an operation that cannot be written.
    fn refused(&self, problem: impl std::fmt::Display) -> Error {
        let place = self.at.map_or(String::new(), |at| format!("\n  --> {at}"));
        Error::Argument(format!("{} cannot be written as ONNX: {problem}{place}", self.function))
    }

    fn new_name(&mut self) -> String {
        self.names += 1;
        format!("v{}", self.names)
    }

    fn input(&mut self, var: Var, name: &str) {
        let ty = self.program.ty(var).clone();
        self.graph.input.push(value_info(name, &ty));
        self.values[var.index()] = Some(Value { name: name.into(), shape: ty.shape });
    }

    fn output(&mut self, var: Var, name: &str) -> Result<()> {
        let value = self.exact(var)?;
        self.graph.output.push(value_info(name, self.program.ty(var)));
        self.node_named("Identity", &[&value], vec![], name.into());
        Ok(())
    }

    /// Adds a node with one result, and returns the result's name.
    fn node(&mut self, op: &str, inputs: &[&str], attributes: Vec<AttributeProto>) -> String {
        let name = self.new_name();
        self.node_named(op, inputs, attributes, name.clone());
        name
    }

    fn node_named(
        &mut self,
        op: &str,
        inputs: &[&str],
        attribute: Vec<AttributeProto>,
        name: String,
    ) {
        self.graph.node.push(NodeProto {
            input: inputs.iter().map(|&input| input.into()).collect(),
            output: vec![name.clone()],
            name,
            op_type: op.into(),
            attribute,
        });
    }

    /// Adds a constant, and returns its name.
    fn constant(&mut self, dims: Vec<i64>, dtype: DType, raw_data: Vec<u8>) -> String {
        let name = self.new_name();
        let data_type = data_type(dtype);
        self.graph.initializer.push(TensorProto { dims, data_type, name: name.clone(), raw_data });
        name
    }

    /// Adds a vector of `i64`, and returns its name.
    fn vector(&mut self, values: &[i64]) -> String {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(vec![values.len() as i64], DType::I64, bytes)
    }

    /// Adds a number of a float type that broadcasts with every shape, and returns its name.
    fn number(&mut self, value: f64, dtype: DType) -> String {
        let literal = Literal::filled(TensorType::scalar(dtype), value);
        self.constant(vec![], dtype, literal.element_bytes(0).to_vec())
    }

    fn value(&self, var: Var) -> Value {
        self.values[var.index()].clone().expect("variables are defined before they are used")
    }

    fn define(&mut self, equation: &Equation, name: String, shape: Shape) {
        self.values[equation.outputs[0].index()] = Some(Value { name, shape });
    }

    /// Defines the result of an equation that has its whole shape in the graph.
    fn define_exact(&mut self, equation: &Equation, name: String) {
        let shape = self.program.ty(equation.outputs[0]).shape.clone();
        self.define(equation, name, shape);
    }

    /// Returns the name of a variable's value in its whole shape.
    fn exact(&mut self, var: Var) -> Result<String> {
        let value = self.value(var);
        let shape = &self.program.ty(var).shape;
        if value.shape == *shape {
            return Ok(value.name);
        }
        let sizes = self.shape_vector(shape)?;
        let name = self.node("Expand", &[&value.name, &sizes], vec![]);
        self.values[var.index()] = Some(Value { name: name.clone(), shape: shape.clone() });
        Ok(name)
    }

    /// Returns the name of a vector with these sizes.
    fn shape_vector(&mut self, shape: &[usize]) -> Result<String> {
        if !shape.iter().any(|&n| is_batch(n)) {
            let sizes: Vec<i64> = shape.iter().map(|&n| n as i64).collect();
            return Ok(self.vector(&sizes));
        }
        let mut parts = Vec::new();
        for &n in shape {
            parts.push(match size(n) {
                Size::Fixed(n) => self.vector(&[n as i64]),
                Size::Batch(times) => self.batch_size(times)?,
            });
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        Ok(self.node("Concat", &parts, vec![AttributeProto::int("axis", 0)]))
    }

    /// Returns the name of a vector with `times` the size of the batch.
    fn batch_size(&mut self, times: usize) -> Result<String> {
        if is_batch(times) {
            return Err(self.refused("a size grows with the square of the batch's"));
        }
        if self.batch.is_none() {
            let inputs = self.program.inputs.iter().map(|&var| (var, &self.program.ty(var).shape));
            let axis = inputs.into_iter().find_map(|(var, shape)| {
                Some((var, shape.iter().position(|&n| n == SYMBOLIC_BATCH)? as i64))
            });
            let (var, axis) = axis.ok_or_else(|| self.refused("no input has the batch's axis"))?;
            let input = self.value(var).name;
            let range = [AttributeProto::int("start", axis), AttributeProto::int("end", axis + 1)];
            self.batch = Some(self.node("Shape", &[&input], range.to_vec()));
        }
        let batch = self.batch.clone().expect("just made");
        if times == 1 {
            return Ok(batch);
        }
        let times = self.vector(&[times as i64]);
        Ok(self.node("Mul", &[&batch, &times], vec![]))
    }

    /// Reshapes a value, and returns the result's name.
    fn reshaped(&mut self, value: &Value, shape: &Shape) -> Result<String> {
        if value.shape == *shape {
            return Ok(value.name.clone());
        }
        // The size of one axis follows from the others.
        let fits = shape.iter().filter(|&&n| is_batch(n)).count() == 1 && !shape.contains(&0);
        let sizes = if fits {
            let one = |&n: &usize| if is_batch(n) { -1 } else { n as i64 };
            let sizes: Vec<i64> = shape.iter().map(one).collect();
            self.vector(&sizes)
        } else {
            self.shape_vector(shape)?
        };
        // A size of 0 is one, and not that of the operand.
        let attributes = vec![AttributeProto::int("allowzero", 1)];
        Ok(self.node("Reshape", &[&value.name, &sizes], attributes))
    }

    /// Transposes a value, and returns the result's name.
    fn transposed(&mut self, name: String, permutation: &[usize]) -> String {
        if permutation.iter().enumerate().all(|(i, &axis)| i == axis) {
            return name;
        }
        let permutation = permutation.iter().map(|&axis| axis as i64).collect();
        self.node("Transpose", &[&name], vec![AttributeProto::ints("perm", permutation)])
    }

    /// Converts a value to an element type, and returns the result's name.
    fn cast(&mut self, name: &str, dtype: DType) -> String {
        let to = AttributeProto::int("to", i64::from(data_type(dtype)));
        self.node("Cast", &[name], vec![to])
    }
}

fn value_info(name: &str, ty: &TensorType) -> ValueInfo {
    let dim = |&n: &usize| match size(n) {
        Size::Fixed(n) => DimProto { dim_value: Some(n as i64), dim_param: None },
        Size::Batch(1) => DimProto { dim_value: None, dim_param: Some(BATCH.into()) },
        Size::Batch(times) => {
            DimProto { dim_value: None, dim_param: Some(format!("{BATCH}*{times}")) }
        }
    };
    let shape = ShapeProto { dim: ty.shape.iter().map(dim).collect() };
    let tensor = TensorTypeProto { elem_type: data_type(ty.dtype), shape: Some(shape) };
    ValueInfo { name: name.into(), r#type: Some(TypeProto { tensor_type: Some(tensor) }) }
}
