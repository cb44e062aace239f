//! FlatBuffers, as much as an artifact needs: tables read with every offset checked, and trees of
//! tables written.

/// Fault of bytes that are no well-formed flatbuffer.
pub(super) type Fault = &'static str;

const CUT: Fault = "it is cut short or damaged: an offset leads outside of it";

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, Fault> {
    let end = at.checked_add(2).ok_or(CUT)?;
    Ok(u16::from_le_bytes(bytes.get(at..end).ok_or(CUT)?.try_into().expect("two bytes")))
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, Fault> {
    let end = at.checked_add(4).ok_or(CUT)?;
    Ok(u32::from_le_bytes(bytes.get(at..end).ok_or(CUT)?.try_into().expect("four bytes")))
}

/// Returns the target of the offset stored at `at`. Offsets only lead forward, so no reader runs in
/// circles.
fn follow(bytes: &[u8], at: usize) -> Result<usize, Fault> {
    match u32_at(bytes, at)? as usize {
        0 => Err(CUT),
        offset => Ok(at + offset),
    }
}

/// A table: fields by their numbers, each of which may be absent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table<'a> {
    bytes: &'a [u8],
    at: usize,
    vtable: usize,
    fields: usize,
}

impl<'a> Table<'a> {
    /// The root table.
    pub(super) fn root(bytes: &'a [u8]) -> Result<Table<'a>, Fault> {
        Table::at(bytes, follow(bytes, 0)?)
    }

    fn at(bytes: &'a [u8], at: usize) -> Result<Table<'a>, Fault> {
        let back = u32_at(bytes, at)? as i32 as i64;
        let vtable = usize::try_from(at as i64 - back).map_err(|_| CUT)?;
        let size = usize::from(u16_at(bytes, vtable)?);
        if size < 4 || size % 2 != 0 || vtable + size > bytes.len() {
            return Err(CUT);
        }
        Ok(Table { bytes, at, vtable, fields: (size - 4) / 2 })
    }

    /// Returns the position of a field, if it is present.
    fn field(&self, number: usize) -> Result<Option<usize>, Fault> {
        if number >= self.fields {
            return Ok(None);
        }
        let offset = u16_at(self.bytes, self.vtable + 4 + 2 * number)?;
        Ok((offset != 0).then(|| self.at + usize::from(offset)))
    }

    /// A field of one byte.
    pub(super) fn u8(&self, number: usize) -> Result<Option<u8>, Fault> {
        let Some(at) = self.field(number)? else { return Ok(None) };
        self.bytes.get(at).copied().map(Some).ok_or(CUT)
    }

    /// A field of two bytes.
    pub(super) fn u16(&self, number: usize) -> Result<Option<u16>, Fault> {
        self.field(number)?.map(|at| u16_at(self.bytes, at)).transpose()
    }

    /// A field of four bytes.
    pub(super) fn u32(&self, number: usize) -> Result<Option<u32>, Fault> {
        self.field(number)?.map(|at| u32_at(self.bytes, at)).transpose()
    }

    /// A table below this one.
    pub(super) fn table(&self, number: usize) -> Result<Option<Table<'a>>, Fault> {
        let Some(at) = self.field(number)? else { return Ok(None) };
        Table::at(self.bytes, follow(self.bytes, at)?).map(Some)
    }

    /// Start and length of the elements of a vector, each of `size` bytes. An absent one is empty.
    fn vector(&self, number: usize, size: usize) -> Result<(usize, usize), Fault> {
        let Some(at) = self.field(number)? else { return Ok((0, 0)) };
        let at = follow(self.bytes, at)?;
        let count = u32_at(self.bytes, at)? as usize;
        let end = count.checked_mul(size).and_then(|bytes| bytes.checked_add(at + 4));
        if end.is_none_or(|end| end > self.bytes.len()) {
            return Err(CUT);
        }
        Ok((at + 4, count))
    }

    /// Bytes.
    pub(super) fn bytes(&self, number: usize) -> Result<&'a [u8], Fault> {
        let (start, count) = self.vector(number, 1)?;
        Ok(&self.bytes[start..start + count])
    }

    /// A text.
    pub(super) fn text(&self, number: usize) -> Result<&'a str, Fault> {
        std::str::from_utf8(self.bytes(number)?).map_err(|_| "a text in it is not UTF-8")
    }

    /// Numbers of two bytes.
    pub(super) fn u16s(&self, number: usize) -> Result<Vec<u16>, Fault> {
        let (start, count) = self.vector(number, 2)?;
        (0..count).map(|i| u16_at(self.bytes, start + 2 * i)).collect()
    }

    /// Numbers of four bytes.
    pub(super) fn u32s(&self, number: usize) -> Result<Vec<u32>, Fault> {
        let (start, count) = self.vector(number, 4)?;
        (0..count).map(|i| u32_at(self.bytes, start + 4 * i)).collect()
    }

    /// A vector of tables.
    pub(super) fn tables(&self, number: usize) -> Result<Vec<Table<'a>>, Fault> {
        let (start, count) = self.vector(number, 4)?;
        let one = |i| Table::at(self.bytes, follow(self.bytes, start + 4 * i)?);
        (0..count).map(one).collect()
    }

    /// A vector of texts.
    pub(super) fn texts(&self, number: usize) -> Result<Vec<&'a str>, Fault> {
        let (start, count) = self.vector(number, 4)?;
        let one = |i| {
            let at = follow(self.bytes, start + 4 * i)?;
            let length = u32_at(self.bytes, at)? as usize;
            let end = (at + 4).checked_add(length).ok_or(CUT)?;
            let text = self.bytes.get(at + 4..end).ok_or(CUT)?;
            std::str::from_utf8(text).map_err(|_| "a text in it is not UTF-8")
        };
        (0..count).map(one).collect()
    }
}

/// Something to be written.
pub(super) enum Node {
    /// Fields by their numbers.
    Table(Vec<(usize, Field)>),
    /// A text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// Numbers of two bytes.
    U16s(Vec<u16>),
    /// Numbers of four bytes.
    U32s(Vec<u32>),
    /// Texts or tables.
    List(Vec<Node>),
}

/// A field of a table to be written.
pub(super) enum Field {
    /// One byte.
    U8(u8),
    /// Two bytes.
    U16(u16),
    /// Four bytes.
    U32(u32),
    /// Data that does not fit in the table itself.
    Node(Node),
}

/// The flatbuffer of a root table.
pub(super) fn write(root: &Node) -> Vec<u8> {
    let mut out = vec![0; 4];
    put(&mut out, 0, root);
    out
}

fn align(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Appends `node`, and sets the offset at `slot` to it.
fn put(out: &mut Vec<u8>, slot: usize, node: &Node) {
    align(out);
    let counted = |out: &mut Vec<u8>, count: usize| {
        let at = out.len();
        out.extend_from_slice(&(count as u32).to_le_bytes());
        at
    };
    let at = match node {
        Node::Table(fields) => return table(out, slot, fields),
        Node::Text(text) => {
            let at = counted(out, text.len());
            out.extend_from_slice(text.as_bytes());
            out.push(0);
            at
        }
        Node::Bytes(bytes) => {
            let at = counted(out, bytes.len());
            out.extend_from_slice(bytes);
            at
        }
        Node::U16s(numbers) => {
            let at = counted(out, numbers.len());
            out.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
            at
        }
        Node::U32s(numbers) => {
            let at = counted(out, numbers.len());
            out.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
            at
        }
        Node::List(nodes) => {
            let at = counted(out, nodes.len());
            out.resize(at + 4 + 4 * nodes.len(), 0);
            for (i, node) in nodes.iter().enumerate() {
                put(out, at + 4 + 4 * i, node);
            }
            at
        }
    };
    link(out, slot, at);
}

fn link(out: &mut [u8], slot: usize, at: usize) {
    out[slot..slot + 4].copy_from_slice(&((at - slot) as u32).to_le_bytes());
}

/// A table has its vtable before it; every field takes four bytes.
fn table(out: &mut Vec<u8>, slot: usize, fields: &[(usize, Field)]) {
    let slots = fields.iter().map(|(number, _)| number + 1).max().unwrap_or(0);
    let vtable = out.len();
    out.extend_from_slice(&(4 + 2 * slots as u16).to_le_bytes());
    out.extend_from_slice(&(4 + 4 * fields.len() as u16).to_le_bytes());
    out.resize(vtable + 4 + 2 * slots, 0);
    for (i, (number, _)) in fields.iter().enumerate() {
        let entry = vtable + 4 + 2 * number;
        out[entry..entry + 2].copy_from_slice(&(4 + 4 * i as u16).to_le_bytes());
    }
    align(out);
    let at = out.len();
    out.extend_from_slice(&((at - vtable) as u32).to_le_bytes());
    for (_, field) in fields {
        let value = match field {
            Field::U8(x) => u32::from(*x),
            Field::U16(x) => u32::from(*x),
            Field::U32(x) => *x,
            Field::Node(_) => 0,
        };
        out.extend_from_slice(&value.to_le_bytes());
    }
    link(out, slot, at);
    for (i, (_, field)) in fields.iter().enumerate() {
        if let Field::Node(node) = field {
            put(out, at + 4 + 4 * i, node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let inner = Node::Table(vec![(1, Field::U16(300))]);
        let texts = Node::List(vec![Node::Text("one".into()), Node::Text(String::new())]);
        let tables = Node::List(vec![inner, Node::Table(vec![])]);
        write(&Node::Table(vec![
            (0, Field::U8(7)),
            (2, Field::Node(texts)),
            (3, Field::Node(tables)),
            (4, Field::Node(Node::Bytes(vec![1, 2, 3]))),
            (5, Field::Node(Node::U16s(vec![1, 65535]))),
            (6, Field::Node(Node::U32s(vec![u32::MAX]))),
            (9, Field::U32(1 << 20)),
        ]))
    }

    fn check(bytes: &[u8]) -> Result<(), Fault> {
        let table = Table::root(bytes)?;
        let tables = table.tables(3)?;
        let [first, second] = tables[..] else { return Err("another number of tables") };
        let same = table.u8(0)? == Some(7)
            && table.u8(1)?.is_none()
            && table.texts(2)? == ["one", ""]
            && first.u16(1)? == Some(300)
            && second.table(0)?.is_none()
            && table.bytes(4)? == [1, 2, 3]
            && table.u16s(5)? == [1, 65535]
            && table.u32s(6)? == [u32::MAX]
            && table.u32(9)? == Some(1 << 20)
            && table.u32(100)?.is_none();
        if same { Ok(()) } else { Err("another value") }
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(check(&sample()), Ok(()));
    }

    #[test]
    fn no_damage_makes_the_reader_panic() {
        let whole = sample();
        for length in 0..whole.len() {
            // The last bytes may be padding or the end of a text.
            assert!(check(&whole[..length]).is_err() || length + 4 > whole.len(), "{length}");
        }
        for at in 0..whole.len() {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                let _ = check(&damaged);
            }
        }
    }
}
