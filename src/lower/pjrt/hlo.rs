//! Optimized HLO as text for people: the few fields of the protocol buffer messages of XLA's
//! `hlo.proto` and `xla_data.proto` that describe the program's operations.

use std::collections::HashMap;
use std::fmt::Write;

use prost::Message;

use crate::error::{Error, Result};

#[derive(Clone, PartialEq, Message)]
struct HloModuleProtoWithConfig {
    #[prost(message, optional, tag = "1")]
    hlo_module: Option<HloModuleProto>,
}

#[derive(Clone, PartialEq, Message)]
struct HloModuleProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "3")]
    computations: Vec<HloComputationProto>,
    #[prost(int64, tag = "6")]
    entry_computation_id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct HloComputationProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    instructions: Vec<HloInstructionProto>,
    #[prost(int64, tag = "5")]
    id: i64,
    #[prost(int64, tag = "6")]
    root_id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct HloInstructionProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    opcode: String,
    #[prost(message, optional, tag = "3")]
    shape: Option<ShapeProto>,
    #[prost(message, optional, tag = "7")]
    metadata: Option<OpMetadata>,
    #[prost(int64, tag = "9")]
    parameter_number: i64,
    #[prost(string, tag = "11")]
    fusion_kind: String,
    #[prost(int64, repeated, tag = "14")]
    dimensions: Vec<i64>,
    #[prost(string, tag = "28")]
    custom_call_target: String,
    #[prost(int64, tag = "35")]
    id: i64,
    #[prost(int64, repeated, tag = "36")]
    operand_ids: Vec<i64>,
    #[prost(int64, repeated, tag = "38")]
    called_computation_ids: Vec<i64>,
    #[prost(string, tag = "63")]
    comparison_direction: String,
}

#[derive(Clone, PartialEq, Message)]
struct ShapeProto {
    #[prost(uint64, tag = "2")]
    element_type: u64,
    #[prost(int64, repeated, tag = "3")]
    dimensions: Vec<i64>,
    #[prost(message, repeated, tag = "4")]
    tuple_shapes: Vec<ShapeProto>,
}

#[derive(Clone, PartialEq, Message)]
struct OpMetadata {
    #[prost(string, tag = "3")]
    source_file: String,
    #[prost(int64, tag = "4")]
    source_line: i64,
}

/// XLA's names of its element types, by number.
const ELEMENTS: [(u64, &str); 16] = [
    (1, "pred"),
    (2, "s8"),
    (3, "s16"),
    (4, "s32"),
    (5, "s64"),
    (6, "u8"),
    (7, "u16"),
    (8, "u32"),
    (9, "u64"),
    (10, "f16"),
    (11, "f32"),
    (12, "f64"),
    (15, "c64"),
    (16, "bf16"),
    (17, "token"),
    (18, "c128"),
];

fn comma_separated(numbers: &[i64]) -> String {
    numbers.iter().map(i64::to_string).collect::<Vec<_>>().join(",")
}

/// `f32[8,4]`, `(f32[], s32[2])`.
fn shape(message: &ShapeProto) -> String {
    const TUPLE: u64 = 13;
    if message.element_type == TUPLE {
        let parts: Vec<String> = message.tuple_shapes.iter().map(shape).collect();
        return format!("({})", parts.join(", "));
    }
    let name = match ELEMENTS.iter().find(|(number, _)| *number == message.element_type) {
        Some((_, name)) => (*name).to_string(),
        None => format!("type{}", message.element_type),
    };
    format!("{name}[{}]", comma_separated(&message.dimensions))
}

/// The module as text.
///
/// # Errors
/// If `format` is another one than `hlo` or `hlo_with_config`, or the message cannot be read.
pub fn text(format: &str, bytes: &[u8]) -> Result<String> {
    let module = match format {
        "hlo" => HloModuleProto::decode(bytes).ok(),
        "hlo_with_config" => {
            HloModuleProtoWithConfig::decode(bytes).ok().and_then(|outer| outer.hlo_module)
        }
        _ => None,
    };
    module.as_ref().and_then(text_of).ok_or_else(|| {
        Error::Argument(format!(
            "the optimized program, {} bytes of format {format:?}, cannot be shown as text; \
             optimized_hlo gives the bytes",
            bytes.len()
        ))
    })
}

/// The module as text; `None` if it refers to an operation or a computation that it does not have.
fn text_of(module: &HloModuleProto) -> Option<String> {
    let mut text = format!("HloModule {}\n", module.name);
    let names: HashMap<i64, &str> =
        module.computations.iter().map(|c| (c.id, c.name.as_str())).collect();
    for computation in &module.computations {
        let mark = if computation.id == module.entry_computation_id { "ENTRY " } else { "" };
        let _ = writeln!(text, "\n{mark}%{} {{", computation.name);
        let instructions = &computation.instructions;
        let by_id: HashMap<i64, &str> =
            instructions.iter().map(|i| (i.id, i.name.as_str())).collect();
        for instruction in instructions {
            let lead = if instruction.id == computation.root_id { "  ROOT " } else { "  " };
            text.push_str(lead);
            line(&mut text, instruction, &by_id, &names)?;
        }
        text.push_str("}\n");
    }
    Some(text)
}

/// `%name = f32[4] add(%a, %b), calls=%c  // src/x.rs:3`.
fn line(
    text: &mut String,
    instruction: &HloInstructionProto,
    by_id: &HashMap<i64, &str>,
    computations: &HashMap<i64, &str>,
) -> Option<()> {
    let HloInstructionProto { name, opcode, .. } = instruction;
    let ty = shape(instruction.shape.as_ref()?);
    let mut operands = Vec::new();
    for id in &instruction.operand_ids {
        operands.push(format!("%{}", by_id.get(id)?));
    }
    if opcode == "parameter" {
        operands.push(instruction.parameter_number.to_string());
    }
    let _ = write!(text, "%{name} = {ty} {opcode}({})", operands.join(", "));
    if !instruction.dimensions.is_empty() {
        let _ = write!(text, ", dimensions={{{}}}", comma_separated(&instruction.dimensions));
    }
    for (value, label) in [
        (&instruction.custom_call_target, "target"),
        (&instruction.comparison_direction, "direction"),
        (&instruction.fusion_kind, "kind"),
    ] {
        if !value.is_empty() {
            let _ = write!(text, ", {label}={value}");
        }
    }
    for id in &instruction.called_computation_ids {
        let _ = write!(text, ", calls=%{}", computations.get(id)?);
    }
    if let Some(metadata) = instruction.metadata.as_ref().filter(|m| !m.source_file.is_empty()) {
        let _ = write!(text, "  // {}:{}", metadata.source_file, metadata.source_line);
    }
    text.push('\n');
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A recorded module: a computation `add`, and `main`, whose reduction calls it.
    const MODULE: &str = "0a740a016d12046d61696e1a090a03616464280930001a5c0a046d61696e121b0a0178120970\
         6172616d657465721a06100b1a020402480198020512330a017912067265647563651a0a100d\
         2202100b220210013a081a04612e7273200c72020001e2010174980206a2020105b00209280a\
         3006300a";

    fn bytes_of(hex: &str) -> Vec<u8> {
        let digits = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(digits).collect()
    }

    #[test]
    fn a_module_is_shown_by_its_operations() {
        let bytes = bytes_of(MODULE);
        let expected = "HloModule m\n\n%add {\n}\n\nENTRY %main {\n  %x = f32[4,2] parameter(1)\n  \
                        ROOT %y = (f32[], pred[]) reduce(%x), dimensions={0,1}, target=t, calls=%add  \
                        // a.rs:12\n}\n";
        assert_eq!(text("hlo_with_config", &bytes).unwrap(), expected);
        assert_eq!(text("hlo", &bytes[2..]).unwrap(), expected);
    }

    /// A module cut short or with any byte changed is shown or refused.
    #[test]
    fn no_damage_makes_the_reader_panic() {
        let whole = bytes_of(MODULE);
        for length in 1..whole.len() {
            assert!(text("hlo_with_config", &whole[..length]).is_err(), "{length}");
        }
        for at in 0..whole.len() {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                let _ = text("hlo_with_config", &damaged);
            }
        }
    }

    #[test]
    fn what_is_no_module_is_an_error() {
        for (format, bytes) in [("hlo", &[0x0a, 200][..]), ("hlo", &[7]), ("mlir", b"module")] {
            let error = text(format, bytes).unwrap_err().to_string();
            assert!(error.contains("cannot be shown as text"), "{error}");
        }
    }
}
