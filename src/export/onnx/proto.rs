//! Messages of `onnx.proto`, with the fields that are used here.

use prost::Message;

use crate::trace::types::DType;

/// Version of the file format: the one of ONNX 1.12, which knows the operators of [`OPSET`].
pub const IR_VERSION: i64 = 8;
/// Version of the operators.
pub const OPSET: i64 = 17;

/// A file.
#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    #[prost(int64, tag = "1")]
    pub ir_version: i64,
    #[prost(string, tag = "2")]
    pub producer_name: String,
    #[prost(string, tag = "3")]
    pub producer_version: String,
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetId>,
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<StringStringEntry>,
}

/// A text with its name.
#[derive(Clone, PartialEq, Message)]
pub struct StringStringEntry {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

/// Version of a set of operators; the default set has an empty domain.
#[derive(Clone, PartialEq, Message)]
pub struct OperatorSetId {
    #[prost(string, required, tag = "1")]
    pub domain: String,
    #[prost(int64, tag = "2")]
    pub version: i64,
}

/// Nodes in the order of execution, the constants and the types of inputs and outputs.
#[derive(Clone, PartialEq, Message)]
pub struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfo>,
}

/// An operator applied to named values.
#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    #[prost(string, tag = "3")]
    pub name: String,
    #[prost(string, tag = "4")]
    pub op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
}

/// A parameter of an operator.
#[derive(Clone, PartialEq, Message)]
pub struct AttributeProto {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(int64, optional, tag = "3")]
    pub i: Option<i64>,
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub ints: Vec<i64>,
    /// Kind of parameter: 2 is an integer, 7 a list of integers.
    #[prost(int32, tag = "20")]
    pub kind: i32,
}

impl AttributeProto {
    /// Creates an integer parameter.
    pub fn int(name: &str, value: i64) -> AttributeProto {
        AttributeProto { name: name.into(), i: Some(value), ints: vec![], kind: 2 }
    }

    /// Creates a parameter that is a list of integers.
    pub fn ints(name: &str, values: Vec<i64>) -> AttributeProto {
        AttributeProto { name: name.into(), i: None, ints: values, kind: 7 }
    }
}

/// A constant.
#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    #[prost(string, tag = "8")]
    pub name: String,
    /// Elements in row-major order, little-endian.
    #[prost(bytes, tag = "9")]
    pub raw_data: Vec<u8>,
}

/// Name and type of an input or an output.
#[derive(Clone, PartialEq, Message)]
pub struct ValueInfo {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
}

/// A type; only tensors are used.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProto {
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorTypeProto>,
}

/// Element type and shape of a tensor.
#[derive(Clone, PartialEq, Message)]
pub struct TensorTypeProto {
    #[prost(int32, tag = "1")]
    pub elem_type: i32,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<ShapeProto>,
}

/// Sizes of the axes.
#[derive(Clone, PartialEq, Message)]
pub struct ShapeProto {
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<DimProto>,
}

/// Size of an axis: a number or a name.
#[derive(Clone, PartialEq, Message)]
pub struct DimProto {
    #[prost(int64, optional, tag = "1")]
    pub dim_value: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub dim_param: Option<String>,
}

/// Returns the number of an element type.
pub fn data_type(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => 1,
        DType::U8 => 2,
        DType::I8 => 3,
        DType::U16 => 4,
        DType::I16 => 5,
        DType::I32 => 6,
        DType::I64 => 7,
        DType::Bool => 9,
        DType::F16 => 10,
        DType::F64 => 11,
        DType::U32 => 12,
        DType::U64 => 13,
        DType::C64 => 14,
        DType::C128 => 15,
        DType::BF16 => 16,
        DType::F8E4M3FN => 17,
        DType::F8E5M2 => 19,
        DType::U4 => 21,
        DType::I4 => 22,
    }
}
