//! Secret shared by the processes of a run, and the proofs that a process knows it.

use std::fmt;
use std::fs;
use std::path::Path;

use hmac::{Hmac, KeyInit, Mac};
use rand::TryRng;
use rand::rngs::SysRng;
use sha2::Sha256;

use crate::error::{Error, Result};

/// Minimum number of characters of a secret.
const LEAST: usize = 16;

/// Random number that is used once.
pub(super) type Nonce = [u8; 32];
/// Message authentication code, which only holders of the secret can compute.
pub(super) type Proof = [u8; 32];

/// Secret shared by the processes of a run. It is never sent, displayed or saved.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// Makes a secret from this text, without the white space around it.
    ///
    /// # Errors
    /// [`Error::Config`] if it has fewer than 16 characters.
    pub fn new(text: &str) -> Result<Secret> {
        let text = text.trim();
        if text.len() < LEAST {
            return Err(Error::Config(format!(
                "--distributed: the secret has {} characters and needs at least {LEAST}: {MAKE}",
                text.len()
            )));
        }
        Ok(Secret(text.as_bytes().to_vec()))
    }

    /// Returns an unpredictable text for [`Secret::new`], to be passed to the other processes in
    /// private.
    ///
    /// # Errors
    /// [`Error::Config`] if the system provides no random bytes.
    pub fn fresh_text() -> Result<String> {
        Ok(nonce()?.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Reads the secret from a file that only its owner may read.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read, [`Error::Config`] if others may read it, and the
    /// errors of [`Secret::new`].
    pub fn read(file: &Path) -> Result<Secret> {
        let cannot = || Error::io("cannot read the secret in", file);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = fs::metadata(file).map_err(cannot())?.permissions().mode();
            if mode & 0o077 != 0 {
                return Err(Error::Config(format!(
                    "--secret-file {0}: others may read it (mode {1:o}); chmod 600 {0}",
                    file.display(),
                    mode & 0o777
                )));
            }
        }
        Secret::new(&fs::read_to_string(file).map_err(cannot())?)
    }

    /// Reads the secret from `file` or, if none is named, from the environment variable
    /// `PODRACER_SECRET`, through `variable`.
    ///
    /// # Errors
    /// [`Error::Config`] if there is none, and the errors of [`Secret::read`].
    pub fn find(file: Option<&Path>, variable: impl Fn(&str) -> Option<String>) -> Result<Secret> {
        match (file, variable("PODRACER_SECRET")) {
            (Some(file), _) => Secret::read(file),
            (None, Some(text)) => Secret::new(&text),
            (None, None) => Err(Error::Config(format!(
                "--distributed: the processes need a secret in common, by --secret-file or the \
                 variable PODRACER_SECRET: {MAKE}"
            ))),
        }
    }

    fn mac(&self, who: &str, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("keys of any length will do");
        mac.update(who.as_bytes());
        // All parts but the last have a fixed length, so no two lists of parts have the same
        // concatenation.
        parts.iter().for_each(|part| mac.update(part));
        mac
    }

    /// Returns the proof of `who` for this exchange.
    pub(super) fn prove(&self, who: &str, parts: &[&[u8]]) -> Proof {
        self.mac(who, parts).finalize().into_bytes().into()
    }

    /// Returns true if `proof` is the proof of `who`; the comparison takes constant time.
    pub(super) fn proves(&self, who: &str, parts: &[&[u8]], proof: &Proof) -> bool {
        self.mac(who, parts).verify_slice(proof).is_ok()
    }
}

/// Instructions for creating a secret, for error messages.
const MAKE: &str = "make one with `head -c 24 /dev/urandom | base64 > secret && chmod 600 secret`, and give the same \
     to all";

/// Returns unpredictable bytes from the system.
///
/// # Errors
/// [`Error::Config`] if the system provides none.
pub(super) fn nonce() -> Result<Nonce> {
    let mut bytes = [0; 32];
    let problem = |error| Error::Config(format!("the system gives no random bytes: {error}"));
    SysRng.try_fill_bytes(&mut bytes).map_err(problem)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proofs_are_hmac_sha256() {
        // RFC 4231, test case 6: a key longer than a block.
        let secret = Secret(vec![0xaa; 131]);
        let data = b"Test Using Larger Than Block-Size Key - Hash Key First";
        let proof = secret.prove("", &[data]);
        let hex: String = proof.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
        assert!(secret.proves("", &[data], &proof));
        assert!(!secret.proves("client", &[data], &proof));
        assert!(!Secret(vec![0xab; 131]).proves("", &[data], &proof));
        assert_ne!(nonce().unwrap(), nonce().unwrap());
    }

    #[test]
    fn secrets_that_are_none_are_refused() {
        let message = |secret: Result<Secret>| secret.unwrap_err().to_string();
        assert!(message(Secret::new(" short \n")).contains("5 characters and needs at least 16"));
        let none = Secret::find(None, |_| None);
        assert!(message(none).contains("--secret-file or the variable PODRACER_SECRET"));
        let set = Secret::find(None, |_| Some("a variable's secret".into())).unwrap();
        assert_eq!(set.0, b"a variable's secret");
        assert_eq!(format!("{set:?}"), "Secret(..)");
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_others_read_is_no_secret() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        let gone = Secret::read(&file).unwrap_err().to_string();
        assert!(gone.contains("cannot read the secret in") && gone.contains("secret: "), "{gone}");
        fs::write(&file, "sixteen characters\n").unwrap();
        let mode = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o640);
        let open = Secret::read(&file).unwrap_err().to_string();
        assert!(open.contains("mode 640") && open.contains("chmod 600"), "{open}");
        mode(0o600);
        assert_eq!(Secret::read(&file).unwrap().0, b"sixteen characters");
    }
}
