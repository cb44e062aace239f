//! Attacks on the executable cache: whatever lies in its folder, a program gives its own results.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use podracer::lower::cache::{Cache, CacheStatus};
use podracer::lower::pjrt::{Client, CompileOptions, Plugin};
use podracer::native::locate_cpu_plugin;
use podracer::trace::types::{DType, TensorType};
use pretty_assertions::assert_eq;

fn client() -> &'static Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT.get_or_init(|| {
        let plugin = Plugin::load(locate_cpu_plugin().unwrap()).unwrap();
        Client::cpu(plugin, 1).unwrap()
    })
}

/// A cache in a folder of its own, as each process has one.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("executables")
    }

    /// Compiles `x + term` as a process that starts now does, and runs it for x = 1; also whether it
    /// came from the cache.
    fn add(&self, term: f32) -> (f32, bool) {
        let text = format!(
            "module @add {{
              func.func public @main(%a: tensor<f32>) -> tensor<f32> {{
                %b = stablehlo.constant dense<{term:?}> : tensor<f32>
                %0 = stablehlo.add %a, %b : tensor<f32>
                return %0 : tensor<f32>
              }}
            }}"
        );
        let cache = Cache::at(self.path(), 1 << 30);
        let (executable, outcome) =
            cache.compile(client(), &text, &CompileOptions::default()).unwrap();
        let ty = TensorType::new(DType::F32, []);
        let x = client().buffer_from_host(&1f32.to_ne_bytes(), &ty, 0).unwrap();
        let mut outputs = Vec::new();
        executable.execute([&x], &[], &mut outputs).unwrap();
        let mut result = [0; 4];
        outputs[0].copy_to_host(&mut result).unwrap();
        (f32::from_ne_bytes(result), outcome.hit)
    }

    /// The entries, without the key.
    fn entries(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = files.filter(|path| !path.ends_with(".key")).collect();
        files.sort();
        files
    }
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn swapped_entries_are_refused() {
    let folder = Folder::new();
    assert_eq!((folder.add(1.0), folder.add(2.0)), ((2.0, false), (3.0, false)));
    assert_eq!((folder.add(1.0), folder.add(2.0)), ((2.0, true), (3.0, true)));
    let entries = folder.entries();
    let other = folder.path().join("other");
    fs::rename(&entries[0], &other).unwrap();
    fs::rename(&entries[1], &entries[0]).unwrap();
    fs::rename(&other, &entries[1]).unwrap();
    assert_eq!((folder.add(1.0), folder.add(2.0)), ((2.0, false), (3.0, false)));
    assert_eq!((folder.add(1.0), folder.add(2.0)), ((2.0, true), (3.0, true)));
}

#[test]
fn entries_of_another_key_are_refused() {
    let (ours, theirs) = (Folder::new(), Folder::new());
    ours.add(1.0);
    theirs.add(1.0);
    // The same program, and every checksum right, but signed by somebody else.
    fs::copy(&theirs.entries()[0], &ours.entries()[0]).unwrap();
    assert_eq!(ours.add(1.0), (2.0, false));
    assert_eq!(ours.add(1.0), (2.0, true));
}

#[test]
fn only_regular_files_of_ours_are_entries() {
    let folder = Folder::new();
    folder.add(1.0);
    let entry = &folder.entries()[0];
    let genuine = folder.0.path().join("genuine");
    fs::copy(entry, &genuine).unwrap();
    let attacks: [(&str, &dyn Fn()); 5] = [
        ("a FIFO", &|| fifo(entry)),
        ("a link", &|| symlink(&genuine, entry).unwrap()),
        ("a file that others may write", &|| {
            fs::copy(&genuine, entry).unwrap();
            fs::set_permissions(entry, fs::Permissions::from_mode(0o666)).unwrap();
        }),
        ("a file of another user", &|| {
            fs::copy(&genuine, entry).unwrap();
            // Only root can give files away; to anybody else nobody gives one.
            if chown(entry, Some(1), None).is_err() {
                fs::write(entry, "").unwrap();
            }
        }),
        ("a huge file", &|| fs::File::create(entry).unwrap().set_len(1 << 40).unwrap()),
    ];
    for (name, attack) in attacks {
        fs::remove_file(entry).unwrap();
        attack();
        assert_eq!(folder.add(1.0), (2.0, false), "{name}");
        // It was replaced.
        assert_eq!(folder.add(1.0), (2.0, true), "{name}");
    }
    // A folder cannot be replaced, and does no harm.
    fs::remove_file(entry).unwrap();
    fs::create_dir(entry).unwrap();
    assert_eq!(folder.add(1.0), (2.0, false));
    assert_eq!(folder.add(1.0), (2.0, false));
}

#[test]
fn a_folder_that_others_can_write_is_not_used() {
    let folder = Folder::new();
    folder.add(1.0);
    let status = || Cache::at(folder.path(), 1 << 30).status();
    let mode = |mode| {
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
    };
    let refused = |reason: &str| {
        assert_eq!(folder.add(1.0), (2.0, false), "{reason}");
        assert_eq!(status(), CacheStatus::Refused(folder.path(), reason.into()));
    };
    for unsafe_mode in [0o777, 0o770, 0o1777] {
        mode(unsafe_mode);
        refused(&format!("other users may write to it (mode {:o})", unsafe_mode & 0o777));
    }
    mode(0o755);
    assert_eq!(folder.add(1.0), (2.0, true));
    let CacheStatus::Used { entries, bytes, limit, .. } = status() else {
        panic!("{:?}", status())
    };
    assert_eq!((entries, limit), (1, 1 << 30));
    assert_eq!(bytes, folder.entries()[0].metadata().unwrap().len());
    // A link to a good folder may be somebody else's.
    let real = folder.0.path().join("real");
    fs::rename(folder.path(), &real).unwrap();
    symlink(&real, folder.path()).unwrap();
    refused("it is a symbolic link");
    fs::remove_file(folder.path()).unwrap();
    fs::rename(&real, folder.path()).unwrap();

    // The key: nobody else may read it, and it is a regular file.
    let key = folder.path().join(".key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(folder.add(1.0), (2.0, false));
    fs::remove_file(&key).unwrap();
    fifo(&key);
    assert_eq!(folder.add(1.0), (2.0, false));
    fs::remove_file(&key).unwrap();
    // With a new key the old entries are worth nothing.
    assert_eq!(folder.add(1.0), (2.0, false));
    assert_eq!(folder.add(1.0), (2.0, true));
    if chown(folder.path(), Some(1), None).is_ok() {
        refused("user 1 owns it, and this process is user 0");
    }
}
