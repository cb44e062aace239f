//! The MPI library of this process, and the launcher of the fetched one.

use std::path::{Path, PathBuf};

use super::Settings;
use crate::error::{Error, Result};
use crate::native::lock::Lock;

/// File name of a library with the standard ABI of MPI 5.0.
pub const MPI_LIBRARY: &str = "libmpi_abi.so.1";

impl Settings {
    /// Returns the MPI library that the user named (`PODRACER_MPI`): a file, or a folder with
    /// `libmpi_abi.so.1` or `lib/libmpi_abi.so.1`.
    ///
    /// # Errors
    /// [`Error::Native`] if there is no such file.
    pub(crate) fn named_mpi(&self) -> Result<Option<PathBuf>> {
        let Some(named) = &self.mpi else { return Ok(None) };
        let wrong = |problem: String| Error::Native {
            problem: format!("PODRACER_MPI is {}, which {problem}", named.display()),
            help: format!(
                "set it to the path of {MPI_LIBRARY} or to a folder with it, or unset it to use the \
                 one of this library"
            ),
        };
        let metadata = named.metadata().map_err(|e| wrong(format!("cannot be read: {e}")))?;
        if metadata.is_file() {
            return Ok(Some(named.clone()));
        }
        let inside = [named.join(MPI_LIBRARY), named.join("lib").join(MPI_LIBRARY)];
        match inside.into_iter().find(|path| path.is_file()) {
            Some(path) => Ok(Some(path)),
            None => Err(wrong(format!("has neither {MPI_LIBRARY} nor lib/{MPI_LIBRARY}"))),
        }
    }

    /// Returns the library of the pinned wheel, fetched if needed.
    ///
    /// # Errors
    /// Returns the errors of [`Settings::locate`].
    pub fn locate_mpi(&self) -> Result<PathBuf> {
        self.mpi_member("library")
    }

    /// Returns the launcher `mpiexec` of the pinned wheel, fetched if needed.
    ///
    /// # Errors
    /// Returns the errors of [`Settings::locate`].
    pub fn locate_mpiexec(&self) -> Result<PathBuf> {
        self.mpi_member("mpiexec")
    }

    fn mpi_member(&self, role: &str) -> Result<PathBuf> {
        let part = Lock::get().part("mpi")?;
        let member = part.wheel()?.member(role).expect("the lock file has it");
        Ok(self.locate(part)?.root.join(Path::new(&member.path)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_named_library_is_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let named = |path: &Path| {
            Settings { mpi: Some(path.into()), ..Settings::from_env().unwrap() }.named_mpi()
        };
        let missing = named(&folder.path().join("none.so")).unwrap_err().to_string();
        assert!(missing.contains("none.so, which cannot be read: "), "{missing}");
        let empty = named(folder.path()).unwrap_err().to_string();
        assert!(empty.contains("has neither libmpi_abi.so.1 nor lib/libmpi_abi.so.1"), "{empty}");
        fs::create_dir(folder.path().join("lib")).unwrap();
        let file = folder.path().join("lib").join(MPI_LIBRARY);
        fs::write(&file, "").unwrap();
        assert_eq!(named(folder.path()).unwrap(), Some(file.clone()));
        assert_eq!(named(&file).unwrap(), Some(file));
        let unset = Settings { mpi: None, ..Settings::from_env().unwrap() };
        assert_eq!(unset.named_mpi().unwrap(), None);
    }

    #[cfg(unix)]
    #[test]
    fn the_fetched_launcher_can_be_executed() {
        use std::os::unix::fs::PermissionsExt;
        let settings = Settings::from_env().unwrap();
        let mpiexec = settings.locate_mpiexec().unwrap();
        let proxy = mpiexec.with_file_name("hydra_pmi_proxy");
        for program in [mpiexec, proxy] {
            let mode = fs::metadata(&program).unwrap().permissions().mode();
            assert_eq!(mode & 0o111, 0o111, "{}", program.display());
        }
        assert!(settings.locate_mpi().unwrap().ends_with(MPI_LIBRARY));
    }
}
