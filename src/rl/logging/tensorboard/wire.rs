//! Encoding of event files: TFRecord framing with masked CRC-32C, and the part of protobuf that
//! TensorBoard's `Event` messages need.

/// CRC-32C (Castagnoli) of each possible byte.
const CRC_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc: u32, &byte| {
        (crc >> 8) ^ CRC_TABLE[((crc ^ u32::from(byte)) & 0xff) as usize]
    })
}

/// Returns the masked checksum that TFRecord stores: a CRC of data that contains CRCs would be
/// weak, so it is rotated and offset.
pub fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Appends `data` to `out` as one record.
pub fn push_record(out: &mut Vec<u8>, data: &[u8]) {
    let length = (data.len() as u64).to_le_bytes();
    out.extend(length);
    out.extend(masked_crc(&length).to_le_bytes());
    out.extend(data);
    out.extend(masked_crc(data).to_le_bytes());
}

/// A protobuf message being written.
#[derive(Default)]
pub struct Message(pub Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// An integer field.
    pub fn int(mut self, number: u32, value: u64) -> Message {
        self.varint(u64::from(number << 3));
        self.varint(value);
        self
    }

    /// A `double` field.
    pub fn double(mut self, number: u32, value: f64) -> Message {
        self.varint(u64::from(number << 3 | 1));
        self.0.extend(value.to_le_bytes());
        self
    }

    /// A `float` field.
    pub fn float(mut self, number: u32, value: f32) -> Message {
        self.varint(u64::from(number << 3 | 5));
        self.0.extend(value.to_le_bytes());
        self
    }

    /// A string, bytes or message field.
    pub fn bytes(mut self, number: u32, value: impl AsRef<[u8]>) -> Message {
        let value = value.as_ref();
        self.varint(u64::from(number << 3 | 2));
        self.varint(value.len() as u64);
        self.0.extend(value);
        self
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Value of a protobuf field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Field<'a> {
    /// A varint.
    Int(u64),
    /// Eight bytes.
    Fixed64([u8; 8]),
    /// Four bytes.
    Fixed32([u8; 4]),
    /// A string, bytes or message.
    Bytes(&'a [u8]),
}

/// Returns the fields of a message in order, each with its number; `None` if it is malformed.
pub fn fields(mut message: &[u8]) -> Option<Vec<(u32, Field<'_>)>> {
    let mut fields = Vec::new();
    while !message.is_empty() {
        let key = take_varint(&mut message)?;
        let field = match key & 7 {
            0 => Field::Int(take_varint(&mut message)?),
            1 => Field::Fixed64(*message.split_off(..8)?.as_array()?),
            2 => {
                let length = usize::try_from(take_varint(&mut message)?).ok()?;
                Field::Bytes(message.split_off(..length)?)
            }
            5 => Field::Fixed32(*message.split_off(..4)?.as_array()?),
            _ => return None,
        };
        fields.push((u32::try_from(key >> 3).ok()?, field));
    }
    Some(fields)
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.split_off_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_castagnolis() {
        // The check value of the CRC catalogue, and a vector of RFC 3720, B.4.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn fields_come_back() {
        let message = Message::default().int(2, 300).double(1, 0.5).float(3, 1.5).bytes(20, "text");
        assert_eq!(
            fields(&message.0).unwrap(),
            [
                (2, Field::Int(300)),
                (1, Field::Fixed64(0.5f64.to_le_bytes())),
                (3, Field::Fixed32(1.5f32.to_le_bytes())),
                (20, Field::Bytes(b"text")),
            ]
        );
        assert_eq!(fields(&message.0[..message.0.len() - 1]), None);
        let largest = Message::default().int(1, u64::MAX);
        assert_eq!(fields(&largest.0).unwrap(), [(1, Field::Int(u64::MAX))]);
    }
}
