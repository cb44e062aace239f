//! Options of clients and compilations. Compile options travel as a protocol buffer message, of
//! which we write the few fields that we use.

use prost::Message;

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
    /// With several partitions: the compiler may divide results otherwise than the program states.
    pub allow_spmd_sharding_propagation_to_output: bool,
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
            allow_spmd_sharding_propagation_to_output: true,
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
        let (replicas, partitions) = (self.num_replicas, self.num_partitions);
        let assignment = |ids: &Vec<i64>| DeviceAssignmentProto {
            replica_count: replicas as i64,
            computation_count: partitions as i64,
            computation_devices: (0..partitions)
                .map(|partition| {
                    let ids = ids.iter().skip(partition).step_by(partitions.max(1));
                    ComputationDevice { replica_device_ids: ids.copied().collect() }
                })
                .collect(),
        };
        let entry = |(name, value): &(String, OptionValue)| EnvOptionEntry {
            key: name.clone(),
            value: OptionOverrideProto {
                value: Some(match value {
                    OptionValue::String(text) => OverrideValue::String(text.clone()),
                    OptionValue::Bool(yes) => OverrideValue::Bool(*yes),
                    OptionValue::Int(number) => OverrideValue::Int(*number),
                    OptionValue::Float(number) => OverrideValue::Double(*number),
                }),
            },
        };
        let message = CompileOptionsProto {
            executable_build_options: BuildOptionsProto {
                num_replicas: replicas as i64,
                num_partitions: partitions as i64,
                use_spmd_partitioning: partitions > 1,
                device_assignment: self.device_assignment.as_ref().map(assignment),
                allow_spmd_sharding_propagation_to_output: vec![
                    self.allow_spmd_sharding_propagation_to_output;
                    usize::from(partitions > 1)
                ],
            },
            compile_portable_executable: self.portable,
            env_option_overrides: self.env_option_overrides.iter().map(entry).collect(),
        };
        message.encode_to_vec()
    }
}

/// Message of XLA's `compile_options.proto`. Fields that are `required` here are written even if they
/// are zero.
#[derive(Clone, PartialEq, Message)]
struct CompileOptionsProto {
    #[prost(message, required, tag = "3")]
    executable_build_options: BuildOptionsProto,
    #[prost(bool, tag = "4")]
    compile_portable_executable: bool,
    /// A map, in the order of its entries.
    #[prost(message, repeated, tag = "7")]
    env_option_overrides: Vec<EnvOptionEntry>,
}

/// `ExecutableBuildOptionsProto`. Its `debug_options` stay absent: present, they would replace all
/// defaults.
#[derive(Clone, PartialEq, Message)]
struct BuildOptionsProto {
    #[prost(int64, required, tag = "4")]
    num_replicas: i64,
    #[prost(int64, required, tag = "5")]
    num_partitions: i64,
    #[prost(bool, tag = "6")]
    use_spmd_partitioning: bool,
    #[prost(message, optional, tag = "9")]
    device_assignment: Option<DeviceAssignmentProto>,
    #[prost(bool, repeated, tag = "12")]
    allow_spmd_sharding_propagation_to_output: Vec<bool>,
}

/// Message of XLA's `xla_data.proto`.
#[derive(Clone, PartialEq, Message)]
struct DeviceAssignmentProto {
    #[prost(int64, required, tag = "1")]
    replica_count: i64,
    #[prost(int64, required, tag = "2")]
    computation_count: i64,
    #[prost(message, repeated, tag = "3")]
    computation_devices: Vec<ComputationDevice>,
}

/// Devices of one partition, a replica each.
#[derive(Clone, PartialEq, Message)]
struct ComputationDevice {
    #[prost(int64, repeated, tag = "1")]
    replica_device_ids: Vec<i64>,
}

/// Entry of the map of compiler flags.
#[derive(Clone, PartialEq, Message)]
struct EnvOptionEntry {
    #[prost(string, required, tag = "1")]
    key: String,
    #[prost(message, required, tag = "2")]
    value: OptionOverrideProto,
}

/// Message of XLA's `compile_options.proto`.
#[derive(Clone, PartialEq, Message)]
struct OptionOverrideProto {
    #[prost(oneof = "OverrideValue", tags = "1, 2, 3, 4")]
    value: Option<OverrideValue>,
}

/// Value of a compiler flag.
#[derive(Clone, PartialEq, prost::Oneof)]
enum OverrideValue {
    #[prost(string, tag = "1")]
    String(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Int(i64),
    #[prost(double, tag = "4")]
    Double(f64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_one_device_are_few_bytes() {
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
        let mut build = vec![0x20, 2, 0x28, 2, 0x30, 1, 0x4a, assignment.len() as u8];
        build.extend(assignment);
        build.extend([0x62, 1, 1]);
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
    fn overrides_are_entries_of_a_map() {
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
