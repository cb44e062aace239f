//! Optimised HLO as text for people: the few fields of the protocol buffer message that describe
//! the program's operations.

use std::fmt::Write;

use crate::error::{Error, Result};

/// A field's value.
#[derive(Clone, Copy)]
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message, by number, in order.
struct Message<'a>(Vec<(u64, Value<'a>)>);

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

impl<'a> Message<'a> {
    fn read(mut bytes: &'a [u8]) -> Option<Message<'a>> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes)?;
            let value = match tag & 7 {
                0 => Value::Number(varint(&mut bytes)?),
                1 => Value::Number(u64::from_le_bytes(take(&mut bytes, 8)?.try_into().ok()?)),
                2 => {
                    let length = usize::try_from(varint(&mut bytes)?).ok()?;
                    Value::Bytes(take(&mut bytes, length)?)
                }
                5 => {
                    let four = take(&mut bytes, 4)?.try_into().ok()?;
                    Value::Number(u64::from(u32::from_le_bytes(four)))
                }
                _ => return None,
            };
            fields.push((tag >> 3, value));
        }
        Some(Message(fields))
    }

    fn number(&self, field: u64) -> Option<u64> {
        self.0.iter().find_map(|&(number, value)| match value {
            Value::Number(x) if number == field => Some(x),
            _ => None,
        })
    }

    fn all(&self, field: u64) -> impl Iterator<Item = &'a [u8]> {
        self.0.iter().filter_map(move |&(number, value)| match value {
            Value::Bytes(x) if number == field => Some(x),
            _ => None,
        })
    }

    fn text(&self, field: u64) -> String {
        self.all(field).next().map(|x| String::from_utf8_lossy(x).into_owned()).unwrap_or_default()
    }

    /// A repeated number, packed or not.
    fn numbers(&self, field: u64) -> Option<Vec<u64>> {
        let mut list = Vec::new();
        for &(number, value) in &self.0 {
            match value {
                _ if number != field => {}
                Value::Number(x) => list.push(x),
                Value::Bytes(mut packed) => {
                    while !packed.is_empty() {
                        list.push(varint(&mut packed)?);
                    }
                }
            }
        }
        Some(list)
    }

    fn messages(&self, field: u64) -> Option<Vec<Message<'a>>> {
        self.all(field).map(Message::read).collect()
    }
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

/// `f32[8,4]`, `(f32[], s32[2])`. Numbers of fields are those of ShapeProto.
fn shape(message: &Message<'_>) -> Option<String> {
    const TUPLE: u64 = 13;
    let element = message.number(2).unwrap_or(0);
    if element == TUPLE {
        let parts: Option<Vec<String>> = message.messages(4)?.iter().map(shape).collect();
        return Some(format!("({})", parts?.join(", ")));
    }
    let name = match ELEMENTS.iter().find(|(number, _)| *number == element) {
        Some((_, name)) => (*name).to_string(),
        None => format!("type{element}"),
    };
    let dims: Vec<String> = message.numbers(3)?.iter().map(u64::to_string).collect();
    Some(format!("{name}[{}]", dims.join(",")))
}

/// The module as text.
///
/// # Errors
/// If `format` is another one than `hlo` or `hlo_with_config`, or the message cannot be read.
pub fn text(format: &str, bytes: &[u8]) -> Result<String> {
    let known = ["hlo", "hlo_with_config"].contains(&format);
    let text = if known { module(format == "hlo_with_config", bytes) } else { None };
    text.ok_or_else(|| {
        Error::Argument(format!(
            "the optimised program, {} bytes of format {format:?}, cannot be shown as text; \
             optimized_hlo gives the bytes",
            bytes.len()
        ))
    })
}

fn module(with_config: bool, bytes: &[u8]) -> Option<String> {
    let outer = Message::read(bytes)?;
    let module = if with_config { outer.messages(1)?.into_iter().next()? } else { outer };
    let mut text = format!("HloModule {}\n", module.text(1));
    let computations = module.messages(3)?;
    let entry = module.number(6);
    let names: Vec<(Option<u64>, String)> =
        computations.iter().map(|c| (c.number(5), c.text(1))).collect();
    for computation in &computations {
        let mark = if computation.number(5) == entry { "ENTRY " } else { "" };
        let _ = writeln!(text, "\n{mark}%{} {{", computation.text(1));
        let instructions = computation.messages(2)?;
        let root = computation.number(6);
        let by_id: std::collections::HashMap<Option<u64>, String> =
            instructions.iter().map(|i| (i.number(35), i.text(1))).collect();
        for instruction in &instructions {
            let lead = if instruction.number(35) == root { "  ROOT " } else { "  " };
            text.push_str(lead);
            line(&mut text, instruction, &by_id, &names)?;
        }
        text.push_str("}\n");
    }
    Some(text)
}

/// `%name = f32[4] add(%a, %b), calls=%c  // src/x.rs:3`. Numbers of fields are those of
/// HloInstructionProto.
fn line(
    text: &mut String,
    instruction: &Message<'_>,
    by_id: &std::collections::HashMap<Option<u64>, String>,
    computations: &[(Option<u64>, String)],
) -> Option<()> {
    let opcode = instruction.text(2);
    let ty = shape(&instruction.messages(3)?.into_iter().next()?)?;
    let mut operands = Vec::new();
    for id in instruction.numbers(36)? {
        operands.push(format!("%{}", by_id.get(&Some(id))?));
    }
    if opcode == "parameter" {
        operands.push(instruction.number(9).unwrap_or(0).to_string());
    }
    let _ = write!(text, "%{} = {ty} {opcode}({})", instruction.text(1), operands.join(", "));
    let dims = instruction.numbers(14)?;
    if !dims.is_empty() {
        let dims: Vec<String> = dims.iter().map(u64::to_string).collect();
        let _ = write!(text, ", dimensions={{{}}}", dims.join(","));
    }
    for (field, label) in [(28, "target"), (63, "direction"), (11, "kind")] {
        let value = instruction.text(field);
        if !value.is_empty() {
            let _ = write!(text, ", {label}={value}");
        }
    }
    for id in instruction.numbers(38)? {
        let called = computations.iter().find(|(other, _)| *other == Some(id));
        let _ = write!(text, ", calls=%{}", called?.1);
    }
    if let Some(metadata) = instruction.messages(7)?.into_iter().next() {
        let (file, line) = (metadata.text(3), metadata.number(4).unwrap_or(0));
        if !file.is_empty() {
            let _ = write!(text, "  // {file}:{line}");
        }
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
