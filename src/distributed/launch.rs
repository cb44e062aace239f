//! Rank of this process, number of processes, and address of process 0: from flags, Slurm or
//! OpenMPI.

use clap::Args;

use crate::error::{Error, Result};

// Not a plain doc comment, which would become the description of the command.
#[cfg_attr(
    doc,
    doc = "Flags of a process among several, by `jax.distributed.initialize`'s names. They are not
settings of a run: a resumed run may have other processes."
)]
#[allow(missing_docs)]
#[derive(Debug, Clone, Default, Args)]
pub struct LaunchOptions {
    /// HOST:PORT where process 0 listens and the others connect; under Slurm, the default is the
    /// first machine
    #[arg(long, value_name = "HOST:PORT")]
    pub coordinator_address: Option<String>,
    /// HOST:PORT where process 0 listens, if it differs from the address that the others connect to
    #[arg(long, value_name = "HOST:PORT")]
    pub coordinator_bind_address: Option<String>,
    /// Number of processes; under Slurm or mpirun, the default is the number that they start
    #[arg(long)]
    pub num_processes: Option<usize>,
    /// Rank of this process, from 0; under Slurm or mpirun, the default is the rank that they
    /// assign
    #[arg(long)]
    pub process_id: Option<usize>,
    /// File with the secret that all processes know, readable only by its owner; without it the
    /// secret is the variable PODRACER_SECRET
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<std::path::PathBuf>,
}

/// Position of a process within a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Rank of this process, from 0.
    pub rank: usize,
    /// Number of processes.
    pub size: usize,
    /// `host:port` at which process 0 is reached.
    pub address: String,
    /// `host:port` at which process 0 listens, if it differs from `address`.
    pub bind: Option<String>,
}

/// Maximum number of processes of a run; each uses a connection and two threads of process 0.
const MAX_PROCESSES: usize = 4096;
/// First port of Slurm jobs. They use the last 4,096 ports, each job the one given by its id.
const SLURM_PORTS: u64 = 65_536 - 4_096;

impl Launch {
    /// Returns the launch from the flags; values that they leave out come from the environment
    /// variables of Slurm or OpenMPI, which `variable` reads.
    ///
    /// # Errors
    /// [`Error::Config`] that names the missing or impossible value.
    pub fn find(
        options: &LaunchOptions,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Launch> {
        let number = |names: [&str; 2]| -> Result<Option<usize>> {
            let Some((name, value)) = names.iter().find_map(|name| Some((name, variable(name)?)))
            else {
                return Ok(None);
            };
            let wrong = |_| Error::Config(format!("--distributed: {name} is `{value}`, no number"));
            value.trim().parse().map(Some).map_err(wrong)
        };
        let rank = match options.process_id {
            Some(rank) => Some(rank),
            None => number(["SLURM_PROCID", "OMPI_COMM_WORLD_RANK"])?,
        };
        let size = match options.num_processes {
            Some(size) => Some(size),
            None => number(["SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"])?,
        };
        let address = options.coordinator_address.clone().or_else(|| slurm_address(&variable));
        let (Some(rank), Some(size), Some(address)) = (rank, size, &address) else {
            let unknown = [
                ("--coordinator-address HOST:PORT", address.is_none()),
                ("--num-processes", size.is_none()),
                ("--process-id", rank.is_none()),
            ];
            let unknown = unknown.iter().filter(|flag| flag.1).map(|flag| flag.0);
            return Err(Error::Config(format!(
                "--distributed: no launcher says which process this is of how many, or where the \
                 first one is; tell it by {}{}",
                unknown.collect::<Vec<_>>().join(", "),
                match cfg!(feature = "mpi") {
                    true => "",
                    false => ". With MPI, build with --features mpi and start it by mpirun",
                }
            )));
        };
        if size > MAX_PROCESSES {
            return Err(Error::Config(format!(
                "--num-processes {size}: must be 1 to {MAX_PROCESSES}"
            )));
        }
        if rank >= size {
            return Err(Error::Config(format!(
                "--process-id {rank}: there are {size} processes, numbered from 0"
            )));
        }
        for (flag, given) in [
            ("coordinator-address", Some(address)),
            ("coordinator-bind-address", options.coordinator_bind_address.as_ref()),
        ] {
            let is_one = |text: &String| {
                let (host, port) = text.rsplit_once(':')?;
                (!host.is_empty() && port.parse::<u16>().is_ok()).then_some(())
            };
            if let Some(text) = given
                && is_one(text).is_none()
            {
                return Err(Error::Config(format!(
                    "--{flag} {text}: must be HOST:PORT, as in 10.0.0.1:6006 or [::1]:6006"
                )));
            }
        }
        let bind = options.coordinator_bind_address.clone();
        Ok(Launch { rank, size, address: address.clone(), bind })
    }

    /// Returns the address at which process 0 listens.
    pub(super) fn listens_at(&self) -> &str {
        self.bind.as_ref().unwrap_or(&self.address)
    }
}

/// Returns the first machine of a Slurm step, with a port derived from the job id, as JAX does.
fn slurm_address(variable: &impl Fn(&str) -> Option<String>) -> Option<String> {
    let nodes = variable("SLURM_STEP_NODELIST").or_else(|| variable("SLURM_NODELIST"))?;
    let job: u64 = variable("SLURM_JOB_ID")?.trim().parse().ok()?;
    Some(format!("{}:{}", first_node(&nodes), SLURM_PORTS + job % 4_096))
}

/// Returns the first name of a list such as `gpu[003-010,12]-ib,cpu7`.
fn first_node(nodes: &str) -> String {
    let end = nodes.find([',', '[']).unwrap_or(nodes.len());
    let (prefix, rest) = nodes.split_at(end);
    let Some((numbers, rest)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) else {
        return prefix.to_string();
    };
    let number = numbers.split([',', '-']).next().unwrap_or_default();
    let suffix = rest.split(',').next().unwrap_or_default();
    // A second pair of brackets is replaced by its first number too.
    first_node(&format!("{prefix}{number}{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(options: LaunchOptions, variables: &[(&str, &str)]) -> Result<Launch> {
        let value = |name: &str| {
            variables.iter().find(|(of, _)| *of == name).map(|(_, value)| value.to_string())
        };
        Launch::find(&options, value)
    }

    fn flags(rank: usize, size: usize, address: &str) -> LaunchOptions {
        LaunchOptions {
            coordinator_address: Some(address.into()),
            num_processes: Some(size),
            process_id: Some(rank),
            ..LaunchOptions::default()
        }
    }

    const SLURM: [(&str, &str); 4] = [
        ("SLURM_JOB_ID", "4100"),
        ("SLURM_STEP_NODELIST", "gpu[003-004,9],cpu1"),
        ("SLURM_NTASKS", "8"),
        ("SLURM_PROCID", "5"),
    ];

    #[test]
    fn launchers_are_understood() {
        let by_slurm = find(LaunchOptions::default(), &SLURM).unwrap();
        let expected = Launch { rank: 5, size: 8, address: "gpu003:61444".into(), bind: None };
        assert_eq!(by_slurm, expected);
        let by_flags = find(flags(1, 2, "10.0.0.1:6006"), &SLURM).unwrap();
        let address = "10.0.0.1:6006".to_string();
        assert_eq!(by_flags, Launch { rank: 1, size: 2, address: address.clone(), bind: None });
        let mpirun = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "3")];
        let options = LaunchOptions {
            coordinator_address: Some(address.clone()),
            coordinator_bind_address: Some("0.0.0.0:6006".into()),
            ..LaunchOptions::default()
        };
        let by_mpirun = find(options, &mpirun).unwrap();
        assert_eq!((by_mpirun.rank, by_mpirun.size), (0, 3));
        assert_eq!(by_mpirun.listens_at(), "0.0.0.0:6006");
    }

    #[test]
    fn what_is_unknown_is_asked_for() {
        let message = |options, variables: &[_]| find(options, variables).unwrap_err().to_string();
        let all = message(LaunchOptions::default(), &[]);
        let asked = "tell it by --coordinator-address HOST:PORT, --num-processes, --process-id";
        assert!(all.contains(asked), "{all}");
        let one = LaunchOptions { process_id: None, ..flags(0, 2, "a:1") };
        assert!(message(one, &[]).contains("tell it by --process-id"));
        assert!(message(flags(0, usize::MAX, "a:1"), &[]).contains("must be 1 to 4096"));
        let slurm = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1000000000000")];
        let of_slurm =
            LaunchOptions { process_id: None, num_processes: None, ..flags(0, 1, "a:1") };
        assert!(message(of_slurm, &slurm).contains("must be 1 to 4096"));
        assert!(
            message(flags(2, 2, "a:1"), &[]).contains("there are 2 processes, numbered from 0")
        );
        for wrong in ["a", "a:", ":1", "a:70000", "http://a"] {
            let message = message(flags(0, 1, wrong), &[]);
            assert!(message.contains(&format!("--coordinator-address {wrong}: must be HOST:PORT")));
        }
        let odd = [("SLURM_PROCID", "x")];
        assert!(message(LaunchOptions::default(), &odd).contains("SLURM_PROCID is `x`, no number"));
    }

    #[test]
    fn lists_of_machines_have_a_first_one() {
        for (list, first) in [
            ("one", "one"),
            ("one,two", "one"),
            ("n[01-16]", "n01"),
            ("n[7,9]", "n7"),
            ("n[2-3]-ib,m1", "n2-ib"),
            ("r[1-2]c[3-4]", "r1c3"),
        ] {
            assert_eq!(first_node(list), first, "{list}");
        }
    }
}
