//! The flatbuffer of an artifact: the tables of JAX's `serialization.fbs` that are read and written
//! here, by the numbers of their fields. A file is verified before anything of it is read.

use flatbuffers::{
    FlatBufferBuilder, Follow, ForwardsUOffset, InvalidFlatbuffer, Table, TableFinishedWIPOffset,
    VOffsetT, Vector, Verifiable, Verifier, VerifierOptions, WIPOffset,
};

/// Fault of bytes that are no well-formed flatbuffer.
pub(super) type Fault = &'static str;

/// Position of a field's entry in the table of entries, which begins with two sizes.
const fn slot(number: VOffsetT) -> VOffsetT {
    4 + 2 * number
}

type Text<'a> = ForwardsUOffset<&'a str>;
type List<'a, T> = ForwardsUOffset<Vector<'a, T>>;
type Texts<'a> = List<'a, Text<'a>>;
type Tables<'a, T> = List<'a, ForwardsUOffset<T>>;

/// Defines tables: for each a type whose methods are its fields, every one of which may be absent.
macro_rules! tables {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $ty:ty = $number:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub(super) struct $name<'a>(Table<'a>);

        impl<'a> $name<'a> {
            $(pub(super) fn $field(&self) -> Option<<$ty as Follow<'a>>::Inner> {
                // SAFETY: tables are only made from the bytes that `root` has verified, by these types
                // and numbers.
                unsafe { self.0.get::<$ty>(slot($number), None) }
            })*
        }

        impl<'a> Follow<'a> for $name<'a> {
            type Inner = $name<'a>;

            unsafe fn follow(bytes: &'a [u8], at: usize) -> $name<'a> {
                // SAFETY: the caller promises a table at this position.
                $name(unsafe { Table::new(bytes, at) })
            }
        }

        impl<'a> Verifiable for $name<'a> {
            fn run_verifier(v: &mut Verifier<'_, '_>, at: usize) -> Result<(), InvalidFlatbuffer> {
                let table = v.visit_table(at)?;
                $(let table = table.visit_field::<$ty>(stringify!($field), slot($number), false)?;)*
                table.finish();
                Ok(())
            }
        }
    )*};
}

tables! {
    /// Exported function: the root.
    Function {
        serialization_version: u16 = 0,
        function_name: Text<'a> = 1,
        in_tree: ForwardsUOffset<PyTreeDef<'a>> = 2,
        in_avals: Tables<'a, AbstractValue<'a>> = 3,
        out_tree: ForwardsUOffset<PyTreeDef<'a>> = 4,
        out_avals: Tables<'a, AbstractValue<'a>> = 5,
        num_devices_u16: u16 = 6,
        platforms: Texts<'a> = 9,
        ordered_effects: Tables<'a, Effect<'a>> = 10,
        unordered_effects: Tables<'a, Effect<'a>> = 11,
        disabled_checks: Tables<'a, DisabledSafetyCheck<'a>> = 12,
        mlir_module: List<'a, u8> = 13,
        calling_convention_version: u16 = 14,
        module_kept_var_idx: List<'a, u16> = 15,
        uses_global_constants: u8 = 16,
        num_devices: u32 = 18,
        unique_avals: Tables<'a, AbstractValue<'a>> = 19,
        in_aval_numbers: List<'a, u32> = 22,
        out_aval_numbers: List<'a, u32> = 23,
    }

    /// Node of a structure.
    PyTreeDef {
        kind: u8 = 0,
        children: Tables<'a, PyTreeDef<'a>> = 1,
        children_names: Texts<'a> = 2,
        custom_name: Text<'a> = 3,
    }

    /// Type of an argument or a result.
    AbstractValue {
        kind: u8 = 0,
        shape: Texts<'a> = 1,
        dtype: u8 = 2,
    }

    /// Side effect.
    Effect {
        type_name: Text<'a> = 0,
    }

    /// Check that is left out when the function is called.
    DisabledSafetyCheck {
        kind: u8 = 0,
    }
}

/// Verifies a file and returns its root table.
pub(super) fn root(bytes: &[u8]) -> Result<Function<'_>, Fault> {
    let options = VerifierOptions {
        max_depth: 128,
        // Tables that share bytes must not make a small file a large one.
        max_tables: bytes.len(),
        max_apparent_size: bytes.len().saturating_mul(4).saturating_add(1 << 20),
        ignore_missing_null_terminator: true,
    };
    flatbuffers::root_with_opts::<Function<'_>>(&options, bytes).map_err(|error| match error {
        InvalidFlatbuffer::Utf8Error { .. } => "a text in it is not UTF-8",
        InvalidFlatbuffer::DepthLimitReached
        | InvalidFlatbuffer::TooManyTables
        | InvalidFlatbuffer::ApparentSizeTooLarge => {
            "its structure is nested too deeply or too large"
        }
        _ => "it is another kind of file, cut short or damaged: an offset leads outside of it",
    })
}

/// Elements of a list, of which an absent one has none.
pub(super) fn elements<'a, T: Follow<'a> + 'a>(
    list: Option<Vector<'a, T>>,
) -> impl Iterator<Item = T::Inner> {
    list.into_iter().flat_map(|list| list.into_iter())
}

/// Position of a table in the file that is written.
pub(super) type Written = WIPOffset<TableFinishedWIPOffset>;

/// Value of a field that is written. Values other than numbers are written before their table.
pub(super) enum Field {
    U8(u8),
    U16(u16),
    U32(u32),
    At(WIPOffset<()>),
}

impl From<Written> for Field {
    fn from(table: Written) -> Field {
        Field::At(WIPOffset::new(table.value()))
    }
}

/// Writes a table of fields by their numbers.
pub(super) fn table(builder: &mut FlatBufferBuilder<'_>, fields: &[(VOffsetT, Field)]) -> Written {
    let start = builder.start_table();
    for (number, field) in fields {
        match *field {
            Field::U8(value) => builder.push_slot_always(slot(*number), value),
            Field::U16(value) => builder.push_slot_always(slot(*number), value),
            Field::U32(value) => builder.push_slot_always(slot(*number), value),
            Field::At(at) => builder.push_slot_always(slot(*number), at),
        }
    }
    builder.end_table(start)
}

/// Writes a text.
pub(super) fn text(builder: &mut FlatBufferBuilder<'_>, text: &str) -> Field {
    Field::At(WIPOffset::new(builder.create_string(text).value()))
}

/// Writes texts.
pub(super) fn texts<T: AsRef<str>>(builder: &mut FlatBufferBuilder<'_>, texts: &[T]) -> Field {
    let texts: Vec<_> = texts.iter().map(|text| builder.create_string(text.as_ref())).collect();
    Field::At(WIPOffset::new(builder.create_vector(&texts).value()))
}

/// Writes a list of tables.
pub(super) fn list(builder: &mut FlatBufferBuilder<'_>, tables: &[Written]) -> Field {
    Field::At(WIPOffset::new(builder.create_vector(tables).value()))
}

/// Writes a list of numbers.
pub(super) fn numbers<'b, T: flatbuffers::Push + Copy + 'b>(
    builder: &mut FlatBufferBuilder<'b>,
    numbers: &[T],
) -> Field {
    Field::At(WIPOffset::new(builder.create_vector(numbers).value()))
}
