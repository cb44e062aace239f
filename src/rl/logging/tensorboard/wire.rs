//! Encoding of event files: TFRecord framing with masked CRC-32C, and the messages of TensorBoard's
//! `event.proto`, `summary.proto` and `tensor.proto`, with the fields that are used here.

use prost::Message;

/// Returns the masked checksum that TFRecord stores: a CRC of data that contains CRCs would be
/// weak, so it is rotated and offset.
pub fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Appends `data` to `out` as one record.
pub fn push_record(out: &mut Vec<u8>, data: &[u8]) {
    let length = (data.len() as u64).to_le_bytes();
    out.extend(length);
    out.extend(masked_crc(&length).to_le_bytes());
    out.extend(data);
    out.extend(masked_crc(data).to_le_bytes());
}

/// Message of one record. Fields that are `required` here are written even if they are zero; texts
/// are bytes, because other programs may write some that are not UTF-8.
#[derive(Clone, PartialEq, Message)]
pub struct EventProto {
    #[prost(double, required, tag = "1")]
    pub wall_time: f64,
    #[prost(int64, required, tag = "2")]
    pub step: i64,
    #[prost(oneof = "What", tags = "3, 5")]
    pub what: Option<What>,
}

/// Content of an event.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum What {
    #[prost(bytes, tag = "3")]
    FileVersion(Vec<u8>),
    #[prost(message, tag = "5")]
    Summary(Summary),
}

/// Values of one step.
#[derive(Clone, PartialEq, Message)]
pub struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub value: Vec<SummaryValue>,
}

/// A scalar or a tensor, with its tag.
#[derive(Clone, PartialEq, Message)]
pub struct SummaryValue {
    #[prost(bytes, required, tag = "1")]
    pub tag: Vec<u8>,
    #[prost(float, optional, tag = "2")]
    pub simple_value: Option<f32>,
    #[prost(message, optional, tag = "8")]
    pub tensor: Option<TensorProto>,
    #[prost(message, optional, tag = "9")]
    pub metadata: Option<SummaryMetadata>,
}

/// Tensor of strings.
#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    #[prost(int32, tag = "1")]
    pub dtype: i32,
    #[prost(message, optional, tag = "2")]
    pub tensor_shape: Option<TensorShapeProto>,
    #[prost(bytes, repeated, tag = "8")]
    pub string_val: Vec<Vec<u8>>,
}

/// Shape of a tensor.
#[derive(Clone, PartialEq, Message)]
pub struct TensorShapeProto {
    #[prost(message, repeated, tag = "2")]
    pub dim: Vec<Dim>,
}

/// Size of one axis.
#[derive(Clone, PartialEq, Message)]
pub struct Dim {
    #[prost(int64, tag = "1")]
    pub size: i64,
}

/// Plugin that displays a value.
#[derive(Clone, PartialEq, Message)]
pub struct SummaryMetadata {
    #[prost(message, optional, tag = "1")]
    pub plugin_data: Option<PluginData>,
}

/// Name of a plugin.
#[derive(Clone, PartialEq, Message)]
pub struct PluginData {
    #[prost(bytes, tag = "1")]
    pub plugin_name: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_the_masked_crc_32c_of_its_length_and_of_its_data() {
        // The check value of the CRC catalogue, rotated by 15 bits and offset.
        assert_eq!(masked_crc(b"123456789"), 0xe306_9283_u32.rotate_right(15) + 0xa282_ead8);
        let mut record = Vec::new();
        push_record(&mut record, b"123456789");
        assert_eq!(record[..8], 9u64.to_le_bytes());
        assert_eq!(record[12..21], *b"123456789");
        assert_eq!(record[21..], masked_crc(b"123456789").to_le_bytes());
    }
}
