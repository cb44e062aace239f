//! Reader of MLIR's bytecode: which native functions does a module of StableHLO's portable dialect call?
//!
//! It reads all operations, by the layout of version 6, and nothing of most attributes and types. A
//! module whose sections, tables or operations are cut short or contradict their lengths is refused.

/// The version of the layout, which is that of all modules since StableHLO 1.0.
const VERSION: u64 = 6;

/// Sections, by number.
const STRINGS: usize = 0;
const DIALECTS: usize = 1;
const ATTRS_AND_TYPES: usize = 2;
const OFFSETS: usize = 3;
const IR: usize = 4;
const DIALECT_VERSIONS: usize = 7;
const PROPERTIES: usize = 8;
const SECTIONS: usize = 9;

/// Parts that an operation has, as bits of its mask.
const HAS_ATTRS: u8 = 1;
const HAS_RESULTS: u8 = 2;
const HAS_OPERANDS: u8 = 4;
const HAS_SUCCESSORS: u8 = 8;
const HAS_REGIONS: u8 = 16;
const HAS_USE_ORDER: u8 = 32;
const HAS_PROPERTIES: u8 = 64;

/// Byte that fills the space before a section that must be aligned.
const PADDING: u8 = 0xcb;

/// Codes of attributes: a dictionary and a text of MLIR itself, and a text of the portable dialect.
const DICTIONARY: u64 = 1;
const TEXT: u64 = 2;
const PORTABLE_TEXT: u64 = 14;

/// Position of `call_target_name` among the attributes of `vhlo.custom_call_v1`, which are sorted.
const TARGET: usize = 2;

/// Depth of nested regions beyond which a module is refused.
const MAX_DEPTH: usize = 64;

type Fault = String;

fn fault(text: &str) -> Fault {
    format!("its module is damaged: {text}")
}

/// A part of the module, read from its start.
#[derive(Clone, Copy)]
struct Reader<'a> {
    module: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Reader<'a> {
    fn is_empty(&self) -> bool {
        self.at == self.end
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8], Fault> {
        let count = usize::try_from(count).ok().filter(|&count| count <= self.end - self.at);
        let count = count.ok_or_else(|| fault("it is cut short"))?;
        self.at += count;
        Ok(&self.module[self.at - count..self.at])
    }

    fn part(&mut self, count: u64) -> Result<Reader<'a>, Fault> {
        let at = self.at;
        self.take(count)?;
        Ok(Reader { module: self.module, at, end: self.at })
    }

    fn byte(&mut self) -> Result<u8, Fault> {
        Ok(self.take(1)?[0])
    }

    /// A number: the zeros at the low end of its first byte count the bytes that follow.
    fn number(&mut self) -> Result<u64, Fault> {
        let first = self.byte()?;
        let more = first.trailing_zeros();
        let mut bytes = [0; 8];
        if first == 0 {
            bytes.copy_from_slice(self.take(8)?);
            return Ok(u64::from_le_bytes(bytes));
        }
        bytes[0] = first;
        bytes[1..=more as usize].copy_from_slice(self.take(more.into())?);
        Ok(u64::from_le_bytes(bytes) >> (more + 1))
    }

    /// A number whose lowest bit is a flag.
    fn flagged(&mut self) -> Result<(u64, bool), Fault> {
        let number = self.number()?;
        Ok((number >> 1, number & 1 == 1))
    }

    fn skip_numbers(&mut self, count: u64) -> Result<(), Fault> {
        for _ in 0..count {
            self.number()?;
        }
        Ok(())
    }

    /// As many numbers as the first one says.
    fn skip_list(&mut self) -> Result<u64, Fault> {
        let count = self.number()?;
        self.skip_numbers(count)?;
        Ok(count)
    }

    fn section(&mut self) -> Result<(usize, Reader<'a>), Fault> {
        let kind = self.byte()?;
        let length = self.number()?;
        if kind & 0x80 != 0 {
            let alignment = self.number()?;
            if !alignment.is_power_of_two() {
                return Err(fault("the alignment of a section is no power of two"));
            }
            while !(self.at as u64).is_multiple_of(alignment) {
                if self.byte()? != PADDING {
                    return Err(fault("a section is not aligned"));
                }
            }
        }
        Ok(((kind & 0x7f).into(), self.part(length)?))
    }

    fn finish(&self, what: &str) -> Result<(), Fault> {
        match self.is_empty() {
            true => Ok(()),
            false => Err(fault(&format!("bytes are left over after {what}"))),
        }
    }

    /// Entries that are grouped by dialect: `entry` reads one.
    fn groups(
        &mut self,
        dialects: usize,
        mut entry: impl FnMut(&mut Reader<'a>, usize) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        while !self.is_empty() {
            let (dialect, count) = (self.number()?, self.number()?);
            let dialect = usize::try_from(dialect).ok().filter(|&dialect| dialect < dialects);
            let dialect =
                dialect.ok_or_else(|| fault("it names a dialect that it does not have"))?;
            for _ in 0..count {
                entry(self, dialect)?;
            }
        }
        Ok(())
    }
}

/// An attribute or a type.
struct Entry<'a> {
    dialect: usize,
    /// False if it is written as text.
    encoded: bool,
    data: Reader<'a>,
}

/// The tables that operations refer to.
struct Tables<'a> {
    strings: Vec<&'a [u8]>,
    dialects: Vec<&'a [u8]>,
    /// Dialect and name of each kind of operation, and whether its writer knew it.
    ops: Vec<(usize, &'a [u8], bool)>,
    attrs: Vec<Entry<'a>>,
    properties: Vec<Reader<'a>>,
    refuse: Refuse,
    /// The native functions that are called.
    calls: Vec<String>,
}

fn at<T>(list: &[T], index: u64) -> Result<&T, Fault> {
    let index = usize::try_from(index).ok();
    index.and_then(|index| list.get(index)).ok_or_else(|| fault("a number is out of range"))
}

/// Fails for names of operations that a module must not have.
type Refuse = fn(&[u8]) -> Result<(), Fault>;

/// The names of the native functions that a module calls.
///
/// # Errors
/// Returns a description if the module is damaged, not of the portable dialect, or has an operation
/// that `refuse` does.
pub(super) fn calls(module: &[u8], refuse: Refuse) -> Result<Vec<String>, Fault> {
    let mut reader = Reader { module, at: super::BYTECODE.len(), end: module.len() };
    let version = reader.number()?;
    if version != VERSION {
        return Err(format!(
            "its module is bytecode of version {version}, and version {VERSION} is read"
        ));
    }
    while reader.byte()? != 0 {}
    let mut sections = [None; SECTIONS];
    while !reader.is_empty() {
        let (kind, part) = reader.section()?;
        let slot = sections.get_mut(kind).ok_or_else(|| fault("a section is of no known kind"))?;
        if slot.replace(part).is_some() {
            return Err(fault("two sections are of the same kind"));
        }
    }
    let section =
        |kind: usize| sections[kind].ok_or_else(|| fault("one of its sections is missing"));
    let strings = strings(section(STRINGS)?)?;
    let (dialects, ops) = dialects(section(DIALECTS)?, &strings)?;
    let attrs = attributes(section(OFFSETS)?, section(ATTRS_AND_TYPES)?, dialects.len())?;
    let mut properties = Vec::new();
    if let Some(mut section) = sections[PROPERTIES] {
        for _ in 0..section.number()? {
            let length = section.number()?;
            properties.push(section.part(length)?);
        }
        section.finish("the properties")?;
    }
    let mut tables =
        Tables { strings, dialects, ops, attrs, properties, refuse, calls: Vec::new() };
    let mut ir = section(IR)?;
    tables.block(&mut ir, 0)?;
    ir.finish("the operations")?;
    Ok(tables.calls)
}

/// The texts: their lengths from the last to the first, then their bytes, each with a zero at its end.
fn strings(mut section: Reader<'_>) -> Result<Vec<&[u8]>, Fault> {
    let count = section.number()?;
    let mut lengths = Vec::new();
    for _ in 0..count {
        lengths.push(section.number()?);
    }
    let mut strings = Vec::with_capacity(lengths.len());
    for &length in lengths.iter().rev() {
        match section.take(length)?.split_last() {
            Some((0, text)) => strings.push(text),
            _ => return Err(fault("a text has no end")),
        }
    }
    section.finish("the texts")?;
    Ok(strings)
}

type Ops<'a> = Vec<(usize, &'a [u8], bool)>;

fn dialects<'a>(
    mut section: Reader<'a>,
    strings: &[&'a [u8]],
) -> Result<(Vec<&'a [u8]>, Ops<'a>), Fault> {
    let mut dialects = Vec::new();
    for _ in 0..section.number()? {
        let (name, versioned) = section.flagged()?;
        if versioned && section.section()?.0 != DIALECT_VERSIONS {
            return Err(fault("the version of a dialect is missing"));
        }
        dialects.push(*at(strings, name)?);
    }
    let count = section.number()?;
    let mut ops = Vec::new();
    section.groups(dialects.len(), |section, dialect| {
        let (name, registered) = section.flagged()?;
        ops.push((dialect, *at(strings, name)?, registered));
        Ok(())
    })?;
    match ops.len() as u64 == count {
        true => Ok((dialects, ops)),
        false => Err(fault("it has another number of kinds of operations than it says")),
    }
}

/// The attributes; the types after them are only counted.
fn attributes<'a>(
    mut offsets: Reader<'a>,
    mut data: Reader<'a>,
    dialects: usize,
) -> Result<Vec<Entry<'a>>, Fault> {
    let (attrs, types) = (offsets.number()?, offsets.number()?);
    let mut entries = Vec::new();
    offsets.groups(dialects, |offsets, dialect| {
        let (length, encoded) = offsets.flagged()?;
        entries.push(Entry { dialect, encoded, data: data.part(length)? });
        Ok(())
    })?;
    data.finish("the attributes and types")?;
    if attrs.checked_add(types) != Some(entries.len() as u64) {
        return Err(fault("it has another number of attributes and types than it says"));
    }
    entries.truncate(attrs as usize);
    Ok(entries)
}

impl<'a> Tables<'a> {
    fn region(&mut self, reader: &mut Reader<'a>, depth: usize) -> Result<(), Fault> {
        if depth > MAX_DEPTH {
            return Err(fault("its operations are nested too deeply"));
        }
        let blocks = reader.number()?;
        if blocks > 0 {
            reader.number()?;
        }
        for _ in 0..blocks {
            self.block(reader, depth)?;
        }
        Ok(())
    }

    fn block(&mut self, reader: &mut Reader<'a>, depth: usize) -> Result<(), Fault> {
        let (ops, has_arguments) = reader.flagged()?;
        if has_arguments {
            let arguments = reader.number()?;
            for _ in 0..arguments {
                if reader.flagged()?.1 {
                    reader.number()?;
                }
            }
            if reader.byte()? != 0 {
                use_order(reader, arguments)?;
            }
        }
        for _ in 0..ops {
            self.operation(reader, depth)?;
        }
        Ok(())
    }

    fn operation(&mut self, reader: &mut Reader<'a>, depth: usize) -> Result<(), Fault> {
        let &(dialect, name, registered) = at(&self.ops, reader.number()?)?;
        let known = match self.dialects[dialect] {
            b"vhlo" => true,
            b"builtin" => name == b"module",
            _ => false,
        };
        if !known || !registered {
            return Err(format!(
                "its module has the operation {}.{}, which is not of StableHLO's portable dialect",
                self.dialects[dialect].escape_ascii(),
                name.escape_ascii()
            ));
        }
        let mask = reader.byte()?;
        reader.number()?;
        let attrs = if mask & HAS_ATTRS != 0 { Some(reader.number()?) } else { None };
        let properties = if mask & HAS_PROPERTIES != 0 { Some(reader.number()?) } else { None };
        if name.starts_with(b"custom_call") {
            let target = self.target(attrs, properties)?;
            self.calls.push(target);
        } else {
            (self.refuse)(name)?;
        }
        let results = if mask & HAS_RESULTS != 0 { reader.skip_list()? } else { 0 };
        for part in [HAS_OPERANDS, HAS_SUCCESSORS] {
            if mask & part != 0 {
                reader.skip_list()?;
            }
        }
        if mask & HAS_USE_ORDER != 0 {
            use_order(reader, results)?;
        }
        if mask & HAS_REGIONS == 0 {
            return Ok(());
        }
        let (regions, isolated) = reader.flagged()?;
        for _ in 0..regions {
            if !isolated {
                self.region(reader, depth + 1)?;
                continue;
            }
            let (kind, mut section) = reader.section()?;
            if kind != IR {
                return Err(fault("an operation lacks its body"));
            }
            self.region(&mut section, depth + 1)?;
            section.finish("an operation's body")?;
        }
        Ok(())
    }

    /// The native function that a custom call names.
    fn target(&self, attrs: Option<u64>, properties: Option<u64>) -> Result<String, Fault> {
        if let Some(attrs) = attrs {
            let mut dictionary = self.attribute(attrs, b"builtin", DICTIONARY)?;
            for _ in 0..dictionary.number()? {
                let name = dictionary.number()?;
                dictionary.number()?;
                if self.text(name, b"builtin", TEXT)? == b"call_target_name" {
                    return Err(fault("a custom call names two functions"));
                }
            }
        }
        let properties = properties.ok_or_else(|| fault("a custom call has no properties"))?;
        let mut properties = *at(&self.properties, properties)?;
        properties.skip_numbers(TARGET as u64)?;
        let target = self.text(properties.number()?, b"vhlo", PORTABLE_TEXT)?;
        Ok(String::from_utf8_lossy(target).into_owned())
    }

    fn attribute(&self, index: u64, dialect: &[u8], code: u64) -> Result<Reader<'a>, Fault> {
        let entry = at(&self.attrs, index)?;
        let mut data = entry.data;
        if !entry.encoded || self.dialects[entry.dialect] != dialect || data.number()? != code {
            return Err(fault("an attribute of a custom call is not of the expected kind"));
        }
        Ok(data)
    }

    fn text(&self, index: u64, dialect: &[u8], code: u64) -> Result<&'a [u8], Fault> {
        let text = self.attribute(index, dialect, code)?.number()?;
        Ok(at(&self.strings, text)?)
    }
}

/// Skips the order of the uses of `values` values.
fn use_order(reader: &mut Reader<'_>, values: u64) -> Result<(), Fault> {
    let several = values > 1;
    let count = if several { reader.number()? } else { 1 };
    for _ in 0..count {
        reader.skip_numbers(several.into())?;
        let (uses, _) = reader.flagged()?;
        reader.skip_numbers(uses)?;
    }
    Ok(())
}
