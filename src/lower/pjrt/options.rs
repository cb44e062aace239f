//! Options of clients and compilations. Compile options travel as a protocol buffer message, of
//! which we write the few fields that we use.

/// A setting of a client: `cpu_device_count`, `memory_fraction` and the like, by plugin.
#[derive(Debug, Clone, PartialEq)]
pub enum CreateOption {
    /// A text.
    String(String),
    /// An integer.
    Int(i64),
    /// Several integers.
    IntList(Vec<i64>),
    /// A number.
    Float(f32),
    /// Yes or no.
    Bool(bool),
}

/// The value of a compiler flag in [`CompileOptions::env_option_overrides`].
#[derive(Debug, Clone, PartialEq)]
pub enum OptionValue {
    /// A text; the compiler parses it where the flag is not a text.
    String(String),
    /// Yes or no.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A number.
    Float(f64),
}

macro_rules! values {
    ($($from:ty => $variant:ident),* $(,)?) => {
        $(impl From<$from> for OptionValue {
            fn from(value: $from) -> OptionValue {
                OptionValue::$variant(value.into())
            }
        })*
    };
}
values!(bool => Bool, i32 => Int, i64 => Int, f64 => Float, &str => String, String => String);

/// Options that a program is compiled with.
#[derive(Debug, Clone, PartialEq)]
pub struct CompileOptions {
    /// Copies of the program that run side by side, one device each.
    pub num_replicas: usize,
    /// Parts into which one copy is divided.
    pub num_partitions: usize,
    /// Device ids, replica by replica and within a replica partition by partition. `None` is the
    /// client's default. On CPU keep them ascending: a permuted assignment runs, but slowly.
    pub device_assignment: Option<Vec<i64>>,
    /// A one-device program that may run on any device without being compiled again.
    pub portable: bool,
    /// Compiler flags for this compilation alone, by the names that `XLA_FLAGS` knows without the
    /// dashes: `xla_cpu_enable_fast_math`. Unknown names are an error.
    pub env_option_overrides: Vec<(String, OptionValue)>,
}

impl Default for CompileOptions {
    fn default() -> CompileOptions {
        CompileOptions {
            num_replicas: 1,
            num_partitions: 1,
            device_assignment: None,
            portable: false,
            env_option_overrides: Vec::new(),
        }
    }
}

impl CompileOptions {
    /// Options for a one-device program that runs on any device.
    pub fn portable() -> CompileOptions {
        CompileOptions { portable: true, ..CompileOptions::default() }
    }

    /// Options for a program on `num_replicas` devices.
    pub fn replicas(num_replicas: usize) -> CompileOptions {
        CompileOptions { num_replicas, ..CompileOptions::default() }
    }

    /// The `CompileOptionsProto` message.
    pub fn encode(&self) -> Vec<u8> {
        // Numbers of CompileOptionsProto, ExecutableBuildOptionsProto, DeviceAssignmentProto. The
        // build options' debug_options stay absent: present, they would replace all defaults.
        let mut build = Vec::new();
        int(&mut build, 4, self.num_replicas as i64);
        int(&mut build, 5, self.num_partitions as i64);
        if self.num_partitions > 1 {
            int(&mut build, 6, 1); // use_spmd_partitioning
            // allow_spmd_sharding_propagation_to_output: results as the compiler finds best.
            bytes(&mut build, 12, &[1]);
        }
        if let Some(ids) = &self.device_assignment {
            let mut assignment = Vec::new();
            int(&mut assignment, 1, self.num_replicas as i64);
            int(&mut assignment, 2, self.num_partitions as i64);
            for partition in 0..self.num_partitions {
                let mut packed = Vec::new();
                for id in ids.iter().skip(partition).step_by(self.num_partitions.max(1)) {
                    varint(&mut packed, *id as u64);
                }
                let mut computation = Vec::new();
                bytes(&mut computation, 1, &packed);
                bytes(&mut assignment, 3, &computation);
            }
            bytes(&mut build, 9, &assignment);
        }
        let mut message = Vec::new();
        bytes(&mut message, 3, &build);
        if self.portable {
            int(&mut message, 4, 1);
        }
        for (name, value) in &self.env_option_overrides {
            let mut option = Vec::new();
            match value {
                OptionValue::String(text) => bytes(&mut option, 1, text.as_bytes()),
                OptionValue::Bool(yes) => int(&mut option, 2, i64::from(*yes)),
                OptionValue::Int(number) => int(&mut option, 3, *number),
                OptionValue::Float(number) => {
                    varint(&mut option, 4 << 3 | 1);
                    option.extend_from_slice(&number.to_le_bytes());
                }
            }
            let mut entry = Vec::new();
            bytes(&mut entry, 1, name.as_bytes());
            bytes(&mut entry, 2, &option);
            bytes(&mut message, 7, &entry);
        }
        message
    }
}

/// Appends a base-128 number, low groups first.
fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends an integer field. Zeros are written too: inside a oneof they mean something.
fn int(out: &mut Vec<u8>, field: u64, value: i64) {
    varint(out, field << 3);
    varint(out, value as u64);
}

/// Appends a field with a length: a text or a message.
fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_device() {
        assert_eq!(CompileOptions::default().encode(), [0x1a, 4, 0x20, 1, 0x28, 1]);
        assert_eq!(CompileOptions::portable().encode(), [0x1a, 4, 0x20, 1, 0x28, 1, 0x20, 1]);
    }

    #[test]
    fn device_assignment_is_transposed() {
        let options = CompileOptions {
            num_replicas: 2,
            num_partitions: 2,
            device_assignment: Some(vec![0, 1, 2, 300]),
            ..CompileOptions::default()
        };
        let assignment = [
            0x08, 2, 0x10, 2, // replicas, computations
            0x1a, 4, 0x0a, 2, 0, 2, // first partition of either replica
            0x1a, 5, 0x0a, 3, 1, 0xac, 0x02, // second
        ];
        let mut build = vec![0x20, 2, 0x28, 2, 0x30, 1, 0x62, 1, 1, 0x4a];
        build.push(assignment.len() as u8);
        build.extend(assignment);
        let mut message = vec![0x1a, build.len() as u8];
        message.extend(build);
        assert_eq!(options.encode(), message);
    }

    #[test]
    fn the_message_is_the_recorded_one() {
        let entries = [
            ("s", OptionValue::from("")),
            ("i", OptionValue::Int(-1)),
            ("f", OptionValue::Float(0.5)),
            ("t", OptionValue::Bool(true)),
        ];
        let options = CompileOptions {
            num_replicas: 2,
            device_assignment: Some(vec![1, 0]),
            portable: true,
            env_option_overrides: entries.map(|(name, value)| (name.into(), value)).into(),
            ..CompileOptions::default()
        };
        let hex: String = options.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "1a10200228014a0a080210011a040a02010020013a070a017312020a003a100a0169120b\
             18ffffffffffffffffff013a0e0a0166120921000000000000e03f3a070a017412021001"
        );
    }

    #[test]
    fn overrides() {
        let options = CompileOptions {
            env_option_overrides: vec![
                ("a".into(), OptionValue::Bool(false)),
                ("b".into(), OptionValue::Float(1.0)),
            ],
            ..CompileOptions::default()
        };
        let message = options.encode();
        assert_eq!(message[6..15], [0x3a, 7, 0x0a, 1, b'a', 0x12, 2, 0x10, 0]);
        assert_eq!(message[15..24], [0x3a, 14, 0x0a, 1, b'b', 0x12, 9, 0x21, 0]);
    }
}
