//! Variables by which a launcher tells a process its rank.

use crate::error::{Error, Result};

/// Variables of one kind of launcher: the rank, the number of processes, and the number of them on
/// this machine.
const LAUNCHERS: [[&str; 3]; 4] = [
    // MPICH's mpiexec and what is like it, Slurm with --mpi=pmi2.
    ["PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"],
    ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"],
    ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"],
    ["PMIX_RANK", "PMIX_SIZE", "PMIX_LOCAL_SIZE"],
];

/// Command that starts several processes, for error messages.
const HOW: &str =
    "start them by `podracer mpiexec -n 2 podracer train ...`, after `podracer fetch mpi`";

/// Position of this process within its launch, by the variables of the launcher.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Launch {
    /// Rank of this process.
    pub rank: Option<usize>,
    /// Number of processes.
    pub size: Option<usize>,
    /// Number of processes on this machine.
    pub local_size: Option<usize>,
    /// True if the launcher has PMI, the interface of MPICH.
    has_pmi: bool,
    /// True if the launcher has PMIx, the interface of Open MPI.
    has_pmix: bool,
}

impl Launch {
    /// Reads the variables through `variable`.
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Launch {
        let number = |name: &str| variable(name)?.trim().parse().ok();
        let launcher = LAUNCHERS.iter().find(|names| variable(names[0]).is_some());
        let [rank, size, local_size] = launcher.map_or([None; 3], |names| names.map(number));
        let has = |name: &str| variable(name).is_some();
        Launch { rank, size, local_size, has_pmi: has("PMI_RANK"), has_pmix: has("PMIX_RANK") }
    }

    /// Checks that a launcher has started this process.
    ///
    /// # Errors
    /// [`Error::Config`] with the command that does.
    pub fn ensure_started(&self) -> Result<()> {
        match self.rank {
            Some(_) => Ok(()),
            None => Err(Error::Config(format!(
                "--distributed: no launcher of MPI has started this process: {HOW}"
            ))),
        }
    }

    /// Checks that the launcher can be used with the library of the pinned wheel, which is an MPICH
    /// and would end the process otherwise.
    ///
    /// # Errors
    /// [`Error::Config`] with the remedies.
    pub fn ensure_pmi(&self) -> Result<()> {
        if self.has_pmi || !self.has_pmix {
            return Ok(());
        }
        Err(Error::Config(format!(
            "--distributed: the launcher of this process has PMIx alone (Open MPI's mpirun, srun \
             --mpi=pmix), and there is no {library} of the system: {HOW}; or by srun --mpi=pmi2; or \
             point PODRACER_MPI at the {library} that belongs to the launcher",
            library = crate::native::MPI_LIBRARY
        )))
    }

    /// Checks that MPI knows as many processes as the launcher has started. A library that does not
    /// understand the launcher would make each process a run of its own.
    ///
    /// # Errors
    /// [`Error::Config`] with both numbers, or if this process is alone and has no launcher.
    pub fn check(&self, size: usize) -> Result<()> {
        match self.size {
            Some(started) if started != size => Err(Error::Config(format!(
                "--distributed: the launcher started {started} processes, and the MPI library knows \
                 {size}: they do not belong together; under Slurm, srun --mpi=pmi2 may be what \
                 helps, or else {HOW}"
            ))),
            None if size == 1 => self.ensure_started(),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(variables: &[(&str, &str)]) -> Launch {
        Launch::of(|name| {
            variables.iter().find(|(of, _)| *of == name).map(|(_, value)| value.to_string())
        })
    }

    #[test]
    fn launchers_are_understood() {
        let hydra = launch(&[("PMI_RANK", "1"), ("PMI_SIZE", "3"), ("MPI_LOCALNRANKS", "2")]);
        assert_eq!((hydra.rank, hydra.size, hydra.local_size), (Some(1), Some(3), Some(2)));
        hydra.ensure_started().and_then(|()| hydra.ensure_pmi()).unwrap();
        // Within a Slurm job, mpiexec starts its own helpers by srun: their variables are not ours.
        let inside = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "9"), ("PMI_RANK", "1")];
        let inside = launch(&[&inside[..], &[("PMI_SIZE", "2")]].concat());
        assert_eq!((inside.rank, inside.size), (Some(1), Some(2)));
        let slurm = launch(&[("SLURM_PROCID", "5"), ("SLURM_STEP_NUM_TASKS", "8")]);
        assert_eq!((slurm.rank, slurm.size, slurm.local_size), (Some(5), Some(8), None));
    }

    #[test]
    fn a_process_without_a_launcher_is_refused() {
        let alone = launch(&[]);
        for outcome in [alone.ensure_started(), alone.check(1)] {
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains("no launcher of MPI has started this process"), "{error}");
            assert!(error.contains("`podracer mpiexec -n 2 podracer train ...`"), "{error}");
            assert!(error.contains("`podracer fetch mpi`"), "{error}");
        }
        // A launcher that is not known, whose library is.
        alone.check(2).unwrap();
    }

    #[test]
    fn a_launcher_of_another_mpi_is_refused() {
        let variables = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")];
        let open_mpi = launch(&[&variables[..], &[("PMIX_RANK", "0")]].concat());
        let error = open_mpi.ensure_pmi().unwrap_err().to_string();
        assert!(error.contains("has PMIx alone") && error.contains("PODRACER_MPI"), "{error}");
        let error = open_mpi.check(1).unwrap_err().to_string();
        assert!(error.contains("started 2 processes, and the MPI library knows 1"), "{error}");
        open_mpi.check(2).unwrap();
    }
}
