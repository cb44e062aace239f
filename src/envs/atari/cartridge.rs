//! Paths of the emulator and the cartridges, and their checksums.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use sha2::{Digest, Sha256};

use super::games::Game;
use crate::error::{Error, Result};
use crate::files::{self, hex};
use crate::native::{Lock, Member, Settings};

/// Native part that contains the emulator.
pub(super) const EMULATOR: &str = "ale";
/// Native part that contains the cartridges.
pub(super) const CARTRIDGES: &str = "atari-roms";

/// Returns the path of the emulator's library, found by this process's environment variables and
/// fetched if it is missing. Its checksum is the pinned one.
pub(super) fn library() -> Result<PathBuf> {
    let part = Lock::get().part(EMULATOR)?;
    let member = part.wheel()?.member("library").expect("the lock file's test sees to it");
    Ok(Settings::from_env()?.locate(part)?.root.join(&member.path))
}

/// Returns the path of the cartridge of `game`, found by this process's environment variables and
/// fetched if it is missing. Its checksum is verified once per process.
pub(super) fn rom(game: &Game) -> Result<PathBuf> {
    static CHECKED: Mutex<Option<HashMap<&'static str, PathBuf>>> = Mutex::new(None);
    let mut checked = CHECKED.lock().unwrap_or_else(PoisonError::into_inner);
    let checked = checked.get_or_insert_default();
    if let Some(path) = checked.get(game.rom) {
        return Ok(path.clone());
    }
    let part = Lock::get().part(CARTRIDGES)?;
    let root = Settings::from_env()?.locate(part)?.root;
    let path = check(game, &root, &part.wheel()?.members)?;
    checked.insert(game.rom, path.clone());
    Ok(path)
}

/// Returns the file of `game` below `root`, or an error if its checksum is wrong.
fn check(game: &Game, root: &Path, members: &[Member]) -> Result<PathBuf> {
    let file = format!("{}.bin", game.rom);
    let member = members.iter().find(|member| {
        Path::new(&member.path).file_name().is_some_and(|name| name == file.as_str())
    });
    let member = member.expect("a test sees to it that every game has its cartridge");
    let path = root.join(&member.path);
    let broken = |problem: String| Error::Native {
        problem: format!("{}: the cartridge {} {problem}", game.id, path.display()),
        help: format!(
            "run `podracer fetch {CARTRIDGES}`, or install the package that it lies in again"
        ),
    };
    let mut bytes = Vec::new();
    files::open_regular(&path)
        .and_then(|file| file.take(member.bytes + 1).read_to_end(&mut bytes))
        .map_err(|source| broken(format!("cannot be read: {source}")))?;
    let sum = hex(&Sha256::digest(&bytes));
    if sum != member.sha256 {
        return Err(broken(format!("has sha256 {sum}, expected {}", member.sha256)));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::envs::atari::games::GAMES;

    #[test]
    fn every_game_has_its_cartridge() {
        let members = &Lock::get().part(CARTRIDGES).unwrap().wheels[0].members;
        for game in GAMES {
            let file = format!("ale_py/roms/{}.bin", game.rom);
            assert!(members.iter().any(|member| member.path == file), "{}", game.id);
            assert!(game.actions.is_sorted() && game.actions.len() >= 3, "{}", game.id);
        }
    }

    #[test]
    fn cartridges_are_checked() {
        let members = &Lock::get().part(CARTRIDGES).unwrap().wheels[0].members;
        let game = GAMES.iter().find(|game| game.id == "Pong-v5").unwrap();
        let root = tempfile::tempdir().unwrap();
        let missing = check(game, root.path(), members).unwrap_err().to_string();
        assert!(missing.contains("pong.bin cannot be read: No such file"), "{missing}");
        fs::create_dir_all(root.path().join("ale_py/roms")).unwrap();
        let rom = root.path().join("ale_py/roms/pong.bin");
        assert!(std::process::Command::new("mkfifo").arg(&rom).status().unwrap().success());
        let pipe = check(game, root.path(), members).unwrap_err().to_string();
        assert!(pipe.contains("pong.bin cannot be read: it is not a regular file"), "{pipe}");
        fs::remove_file(&rom).unwrap();
        fs::write(&rom, [0; 2048]).unwrap();
        let wrong = check(game, root.path(), members).unwrap_err().to_string();
        assert!(wrong.starts_with("Pong-v5: the cartridge "), "{wrong}");
        assert!(wrong.contains("has sha256 e5a00aa9991ac8a5ee3109844d84a55583bd20572ad3ffcd42792f3c36b183ad, expected "), "{wrong}");
        assert!(wrong.contains("podracer fetch atari-roms"), "{wrong}");
    }
}
