//! Binding of the emulator: `libale_c.so`, the C interface of the Arcade Learning Environment with
//! multi-player support, loaded once per process.
//!
//! The library ends the process when it is given a file that is no known cartridge, so all paths
//! passed to it come from [`super::cartridge`].

use std::ffi::{CString, c_char, c_float, c_int, c_void};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use libloading::Library;

use super::colors::Colors;
use super::games::Game;
use super::start_memory::START_MEMORY;
use crate::error::{Error, Result};

/// Seed of the memory at power-on: ale-py's setting `system_random_seed`.
const POWER_ON_SEED: c_int = 4_753_849;

/// `ale::ALEInterface*`.
type Handle = *mut c_void;
/// `ale::ALEState*`.
type State = *mut c_void;

/// Functions of the library that are called here, with the signatures of its header.
struct Functions {
    new: unsafe extern "C" fn() -> Handle,
    del: unsafe extern "C" fn(Handle),
    set_int: unsafe extern "C" fn(Handle, *const c_char, c_int),
    set_bool: unsafe extern "C" fn(Handle, *const c_char, bool),
    set_float: unsafe extern "C" fn(Handle, *const c_char, c_float),
    load_rom: unsafe extern "C" fn(Handle, *const c_char),
    act: unsafe extern "C" fn(Handle, c_int) -> c_int,
    act_all: unsafe extern "C" fn(Handle, *const c_int, *mut c_int),
    num_players: unsafe extern "C" fn(Handle) -> c_int,
    minimal_actions_size: unsafe extern "C" fn(Handle) -> c_int,
    minimal_actions: unsafe extern "C" fn(Handle, *mut c_int),
    game_over: unsafe extern "C" fn(Handle) -> bool,
    reset_game: unsafe extern "C" fn(Handle),
    lives_size: unsafe extern "C" fn(Handle) -> c_int,
    lives: unsafe extern "C" fn(Handle, *mut c_int),
    modes_size: unsafe extern "C" fn(Handle, c_int) -> c_int,
    modes: unsafe extern "C" fn(Handle, *mut c_int, c_int),
    set_mode: unsafe extern "C" fn(Handle, c_int),
    difficulties_size: unsafe extern "C" fn(Handle) -> c_int,
    difficulties: unsafe extern "C" fn(Handle, *mut c_int),
    set_difficulty: unsafe extern "C" fn(Handle, c_int),
    width: unsafe extern "C" fn(Handle) -> c_int,
    height: unsafe extern "C" fn(Handle) -> c_int,
    screen: unsafe extern "C" fn(Handle, *mut u8),
    screen_gray: unsafe extern "C" fn(Handle, *mut u8),
    clone_state: unsafe extern "C" fn(Handle) -> State,
    restore_state: unsafe extern "C" fn(Handle, State),
    delete_state: unsafe extern "C" fn(State),
    encoded_size: unsafe extern "C" fn(State) -> c_int,
    encode: unsafe extern "C" fn(State, *mut c_char, c_int),
    decode: unsafe extern "C" fn(*const c_char, c_int) -> State,
    set_ram: unsafe extern "C" fn(Handle, usize, u8),
    /// Color tables of the three television systems: 256 words each, in pairs of a color
    /// (`0x00RRGGBB`) and its gray, three times in one word.
    palettes: [Colors; 3],
    /// Held while an instance is made: that accesses the C library's streams.
    making: Mutex<()>,
}

/// Returns the library, which is loaded on first use and never unloaded.
fn functions() -> Result<&'static Functions> {
    static LOADED: Mutex<Option<&'static Functions>> = Mutex::new(None);
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(functions) = *loaded {
        return Ok(functions);
    }
    let functions = load(&super::cartridge::library()?)?;
    Ok(loaded.insert(Box::leak(Box::new(functions))))
}

/// Loads the library at `path`, whose checksum is the pinned one.
fn load(path: &Path) -> Result<Functions> {
    let broken = |problem: String| Error::Native {
        problem: format!("{}: {problem}", path.display()),
        help: "run `podracer doctor`, which says whether the file is what it should be".into(),
    };
    // SAFETY: the library's initializers are C++ constructors of constants; the file is the pinned
    // one by its checksum.
    let library = unsafe { Library::new(path) }.map_err(|e| broken(e.to_string()))?;
    // A library that was opened and lacks a symbol is not the pinned one: return an error and leave
    // it open.
    let library = Box::leak(Box::new(library));
    macro_rules! symbol {
        ($name:literal) => {
            // SAFETY: the type that the symbol gets is that of the field, which is the
            // declaration in the library's header.
            *unsafe { library.get(concat!($name, "\0").as_bytes()) }
                .map_err(|e| broken(e.to_string()))?
        };
    }
    macro_rules! palette {
        ($name:literal) => {{
            let words: *const [u32; 256] = symbol!($name);
            // SAFETY: the symbol is a constant array of 256 words.
            Colors::new(unsafe { &*words })
        }};
    }
    let set_logger_mode: unsafe extern "C" fn(c_int) = symbol!("setLoggerMode");
    // SAFETY: a plain store; 2 lets errors through and nothing else.
    unsafe { set_logger_mode(2) };
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        let new: unsafe extern "C" fn() -> Handle = symbol!("ALE_new");
        let tables: unsafe extern "C" fn(Handle) =
            symbol!("_ZN3ale13PhosphorBlend18makeAveragePaletteEv");
        // SAFETY: the file is the pinned one in every byte, and no instance exists yet.
        unsafe { leave_out_tables(new as usize, tables as usize) };
    }
    Ok(Functions {
        new: symbol!("ALE_new"),
        del: symbol!("ALE_del"),
        set_int: symbol!("setInt"),
        set_bool: symbol!("setBool"),
        set_float: symbol!("setFloat"),
        load_rom: symbol!("loadROM"),
        act: symbol!("act"),
        act_all: symbol!("actMulti"),
        num_players: symbol!("actMultiSize"),
        minimal_actions_size: symbol!("getMinimalActionSize"),
        minimal_actions: symbol!("getMinimalActionSet"),
        game_over: symbol!("game_over"),
        reset_game: symbol!("reset_game"),
        lives_size: symbol!("livesSize"),
        lives: symbol!("lives"),
        modes_size: symbol!("getAvailableModesSize"),
        modes: symbol!("getAvailableModes"),
        set_mode: symbol!("setMode"),
        difficulties_size: symbol!("getAvailableDifficultiesSize"),
        difficulties: symbol!("getAvailableDifficulties"),
        set_difficulty: symbol!("setDifficulty"),
        width: symbol!("getScreenWidth"),
        height: symbol!("getScreenHeight"),
        screen: symbol!("getScreen"),
        screen_gray: symbol!("getScreenGrayscale"),
        clone_state: symbol!("cloneSystemState"),
        restore_state: symbol!("restoreSystemState"),
        delete_state: symbol!("deleteState"),
        encoded_size: symbol!("encodeStateLen"),
        encode: symbol!("encodeState"),
        decode: symbol!("decodeState"),
        set_ram: symbol!("setRAM"),
        palettes: [
            palette!("_ZN3ale11NTSCPaletteE"),
            palette!("_ZN3ale10PALPaletteE"),
            palette!("_ZN3ale12SECAMPaletteE"),
        ],
        making: Mutex::new(()),
    })
}

/// Keeps new instances from computing the tables of color averaging, which is off.
///
/// These tables take seven eighths of the time to make an instance: 70 of 80 ms. The library calls
/// the function that computes them through its table of dynamic symbols, whose entry is replaced by
/// a function that does nothing.
///
/// # Safety
/// The library must be the pinned file, which is where the distances are from, and no other thread
/// may be in it.
unsafe fn leave_out_tables(new: usize, tables: usize) {
    /// Addresses within the file: `ALE_new`, the function, its entry in the table (a
    /// `R_X86_64_JUMP_SLOT`, on pages that stay writable), and the value of an entry that was never
    /// called through: the address of the instruction behind the jump that reads it.
    const NEW: usize = 0x1be120;
    const TABLES: usize = 0x2139c0;
    const ENTRY: usize = 0x30d300;
    const UNCALLED: usize = 0x1b3636;
    extern "C" fn nothing(_blend: Handle) {}

    let base = new - NEW;
    let entry = (base + ENTRY) as *mut usize;
    // SAFETY: by the caller's promise the entry is there, a pointer that may be written, and
    // nobody reads it now.
    unsafe {
        let found = entry.read();
        if tables == base + TABLES && [tables, base + UNCALLED].contains(&found) {
            entry.write(nothing as *const () as usize);
        }
    }
}

/// One emulated console with its cartridge.
///
/// `Send` and not `Sync`: the library keeps no state outside an instance, and an instance must not
/// be used by two threads at a time.
pub(super) struct Ale {
    handle: Handle,
    functions: &'static Functions,
    /// Path of the cartridge.
    path: CString,
    /// Number of bytes of a screen, the size of the buffers that the library fills.
    pixels: usize,
    players: usize,
    /// Memory at the start of a game, where it is not the one that the library's reset leaves.
    start_memory: &'static [(u8, u8)],
    /// State after a reset, kept from the first one; null before.
    start: State,
}

// SAFETY: all state of an instance is behind its handle, with no ties to the thread that made it.
unsafe impl Send for Ale {}

impl Drop for Ale {
    fn drop(&mut self) {
        // SAFETY: the state and the handle are ours and are not used again.
        unsafe {
            if !self.start.is_null() {
                (self.functions.delete_state)(self.start);
            }
            (self.functions.del)(self.handle);
        }
    }
}

impl Ale {
    /// Makes a console with the cartridge of `game`, which is at `rom` and has been checked.
    ///
    /// `mode` and `difficulty` are numbered as in ale-py; negative numbers select the game's own.
    pub(super) fn new(game: &Game, rom: &Path, mode: i32, difficulty: i32) -> Result<Ale> {
        let mut ale = Ale::open(rom)?;
        if ale.select(game, mode, difficulty)? {
            let of_game = START_MEMORY.iter().find(|(rom, _)| *rom == game.rom);
            ale.start_memory = of_game.map_or(&[], |(_, memory)| memory);
        }
        ale.measure(game)?;
        Ok(ale)
    }

    /// Makes a console for several players with the cartridge of `game`, which is at `rom` and has
    /// been checked. `mode` is a mode of the library for `num_players` players.
    pub(super) fn for_players(
        game: &Game,
        rom: &Path,
        mode: c_int,
        num_players: usize,
    ) -> Result<Ale> {
        let mut ale = Ale::open(rom)?;
        let functions = ale.functions;
        let count = num_players as c_int;
        // SAFETY: the handle is live; the library has modes for 1, 2 and 4 players.
        let mut modes = vec![0; unsafe { (functions.modes_size)(ale.handle, count) } as usize];
        // SAFETY: the list has the length that the library returned.
        unsafe { (functions.modes)(ale.handle, modes.as_mut_ptr(), count) };
        if !modes.contains(&mode) {
            return Err(unexpected(game, &format!("the modes {modes:?} for {count} players")));
        }
        // SAFETY: one of the modes that the library listed.
        unsafe { (functions.set_mode)(ale.handle, mode) };
        ale.measure(game)?;
        Ok(ale)
    }

    /// Makes a console with the cartridge at `rom`.
    fn open(rom: &Path) -> Result<Ale> {
        let functions = functions()?;
        let Some(path) = rom.to_str().and_then(|path| CString::new(path).ok()) else {
            return Err(Error::Native {
                problem: format!("{}: the emulator needs a path that is text", rom.display()),
                help: "set PODRACER_HOME to a folder whose path is UTF-8".into(),
            });
        };
        let making = functions.making.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: no arguments; the instance is owned by what we return.
        let handle = unsafe { (functions.new)() };
        drop(making);
        let ale = Ale {
            handle,
            functions,
            path,
            pixels: 0,
            players: 1,
            start_memory: &[],
            start: std::ptr::null_mut(),
        };
        // SAFETY: the handle is live, keys are terminated strings, and the path is of a file
        // that is a cartridge which the library knows, by its name and its checksum.
        unsafe {
            (functions.set_int)(handle, c"frame_skip".as_ptr(), 1);
            (functions.set_int)(handle, c"max_num_frames_per_episode".as_ptr(), 0);
            (functions.set_float)(handle, c"repeat_action_probability".as_ptr(), 0.0);
            (functions.set_bool)(handle, c"color_averaging".as_ptr(), false);
            // The library's own random numbers fill the memory at power-on only: sticky actions are
            // implemented in `console`.
            (functions.set_int)(handle, c"random_seed".as_ptr(), POWER_ON_SEED);
            (functions.load_rom)(handle, ale.path.as_ptr());
        }
        Ok(ale)
    }

    /// Reads the sizes of the screen and of the list of lives.
    fn measure(&mut self, game: &Game) -> Result<()> {
        let (handle, functions) = (self.handle, self.functions);
        // SAFETY: the handle is live and has a cartridge, as in all calls below.
        unsafe {
            let (width, height) = ((functions.width)(handle), (functions.height)(handle));
            self.pixels = width as usize * height as usize;
            self.players = (functions.lives_size)(handle) as usize;
            let found = (width as usize, height as usize);
            if found != (game.width(), game.height) {
                return Err(unexpected(game, &format!("a screen of {found:?}")));
            }
        }
        Ok(())
    }

    /// Sets mode and difficulty. Returns true if they are the game's own.
    fn select(&mut self, game: &Game, mode: i32, difficulty: i32) -> Result<bool> {
        let functions = self.functions;
        // SAFETY: the handle is live; the modes asked for are those of one player.
        let mut modes = vec![0; unsafe { (functions.modes_size)(self.handle, 1) } as usize];
        // SAFETY: the list has the length that the library returned.
        unsafe { (functions.modes)(self.handle, modes.as_mut_ptr(), 1) };
        let mut difficulties =
            // SAFETY: the handle is live.
            vec![0; unsafe { (functions.difficulties_size)(self.handle) } as usize];
        // SAFETY: the list has the length that the library returned.
        unsafe { (functions.difficulties)(self.handle, difficulties.as_mut_ptr()) };
        let choose = |what: &str, asked: i32, known: &[i32]| match known.contains(&asked) {
            true => Ok(asked),
            false => Err(Error::Config(format!(
                "{}: there is no {what} {asked}; there is {known:?}",
                game.id
            ))),
        };
        let mut own = true;
        if difficulty >= 0 {
            own &= Some(&difficulty) == difficulties.first();
            choose("difficulty", difficulty, &difficulties)?;
            // SAFETY: one of the difficulties that the library listed.
            unsafe { (functions.set_difficulty)(self.handle, difficulty) };
        }
        if mode >= 0 {
            // Some games number the same modes in the same order differently.
            let names = if game.modes.len() == modes.len() { game.modes } else { &modes[..] };
            choose("mode", mode, names)?;
            let place = names.iter().position(|&name| name == mode).expect("it was found");
            // SAFETY: one of the modes that the library listed.
            unsafe { (functions.set_mode)(self.handle, modes[place]) };
            own &= place == 0;
        }
        Ok(own)
    }

    /// Starts a game. The screen may be an old one until the next frame.
    ///
    /// The library emulates 64 frames or more for that, from the same state to the same state, so
    /// only the first call resets the console, and later calls restore the state after that reset.
    /// Bytes of its memory that differ from ale-py's, from which games draw random numbers, are set
    /// to ale-py's.
    pub(super) fn reset_game(&mut self) {
        // SAFETY: the handle is live and has a cartridge; the state is of this console, and ours;
        // offsets are below 128, the size of the memory, by a test of the table.
        unsafe {
            if self.start.is_null() {
                (self.functions.reset_game)(self.handle);
                for &(place, value) in self.start_memory {
                    debug_assert!(place < 128);
                    (self.functions.set_ram)(self.handle, place.into(), value);
                }
                self.start = (self.functions.clone_state)(self.handle);
            } else {
                (self.functions.restore_state)(self.handle, self.start);
            }
        }
    }

    /// Emulates one frame with a joystick action (0 to 17); returns the reward.
    pub(super) fn act(&mut self, action: i32) -> i32 {
        debug_assert!((0..18).contains(&action));
        // SAFETY: the handle is live and has a cartridge, and the action is a joystick's.
        unsafe { (self.functions.act)(self.handle, action) }
    }

    /// Starts a game of several players in the mode `mode`. With a seed, the console is switched on
    /// again: its memory is then filled with random numbers of that seed.
    pub(super) fn reset_players(&mut self, mode: c_int, seed: Option<c_int>) {
        let (handle, functions) = (self.handle, self.functions);
        // SAFETY: the handle is live, the cartridge and the mode are those of `for_players`.
        unsafe {
            if let Some(seed) = seed {
                (functions.set_int)(handle, c"random_seed".as_ptr(), seed);
                (functions.load_rom)(handle, self.path.as_ptr());
                (functions.set_mode)(handle, mode);
            }
            (functions.reset_game)(handle);
        }
    }

    /// Emulates one frame with a joystick action (0 to 17) of each player; writes their rewards.
    pub(super) fn act_all(&mut self, actions: &[c_int], rewards: &mut [c_int]) {
        assert!(actions.len() == self.players && rewards.len() == self.players);
        // SAFETY: the handle is live and has a cartridge; the library reads and writes one number a
        // player of the current mode, of whom there are as many as lives are counted for.
        unsafe { (self.functions.act_all)(self.handle, actions.as_ptr(), rewards.as_mut_ptr()) }
    }

    /// Returns the number of players of the current mode.
    pub(super) fn num_players(&self) -> usize {
        // SAFETY: the handle is live and has a cartridge.
        unsafe { (self.functions.num_players)(self.handle) as usize }
    }

    /// Returns the joystick actions that the library says the game distinguishes.
    pub(super) fn minimal_actions(&self) -> Vec<c_int> {
        // SAFETY: the handle is live; the list has the length that the library returned.
        unsafe {
            let size = (self.functions.minimal_actions_size)(self.handle);
            let mut actions = vec![0; size as usize];
            (self.functions.minimal_actions)(self.handle, actions.as_mut_ptr());
            actions
        }
    }

    /// Returns true if the game is over.
    pub(super) fn game_over(&self) -> bool {
        // SAFETY: the handle is live and has a cartridge.
        unsafe { (self.functions.game_over)(self.handle) }
    }

    /// Returns the lives that the library counts for the first player.
    pub(super) fn lives(&self) -> i32 {
        self.all_lives()[0]
    }

    /// Returns the lives that the library counts for each player; below 0 for one that is out of
    /// the game, and 0 for players that the mode does not have.
    pub(super) fn all_lives(&self) -> [i32; 4] {
        let mut lives = [0; 4];
        debug_assert!(self.players <= lives.len());
        // SAFETY: the library has at most four players, and as many lives were counted.
        unsafe { (self.functions.lives)(self.handle, lives.as_mut_ptr()) };
        lives
    }

    /// Copies the screen as pixel values, row by row.
    pub(super) fn screen(&self, pixels: &mut [u8]) {
        assert_eq!(pixels.len(), self.pixels);
        // SAFETY: the handle is live, and the buffer has the size of the whole screen.
        unsafe { (self.functions.screen)(self.handle, pixels.as_mut_ptr()) }
    }

    /// Returns the colors of this game's pixel values: the table by which the library itself
    /// converts the current screen to gray.
    pub(super) fn colors(&self, game: &Game) -> Result<&'static Colors> {
        let mut pixels = vec![0; self.pixels];
        let mut gray = vec![0; self.pixels];
        self.screen(&mut pixels);
        // SAFETY: the handle is live, and the buffer has the size of the whole screen.
        unsafe { (self.functions.screen_gray)(self.handle, gray.as_mut_ptr()) };
        let fits = |colors: &&Colors| {
            pixels.iter().zip(&gray).all(|(&pixel, &gray)| colors.gray[usize::from(pixel)] == gray)
        };
        // A black screen matches all of them.
        let found = self.functions.palettes[usize::from(game.pal)..].iter().find(fits);
        found.ok_or_else(|| unexpected(game, "colors of no television system that we know"))
    }

    /// Serializes the state of the console, without the screen.
    pub(super) fn save(&self) -> Vec<u8> {
        let functions = self.functions;
        // SAFETY: the state is ours until it is deleted; the buffer has the size that the library
        // says the bytes have.
        unsafe {
            let state = (functions.clone_state)(self.handle);
            let size = (functions.encoded_size)(state);
            let mut bytes = vec![0u8; size as usize];
            (functions.encode)(state, bytes.as_mut_ptr().cast(), size);
            (functions.delete_state)(state);
            bytes
        }
    }

    /// Restores the state from bytes that [`save`](Ale::save) returned for the same game.
    pub(super) fn restore(&mut self, bytes: &[u8]) {
        let functions = self.functions;
        // SAFETY: the caller's bytes are of `save`, so they decode; the state is ours until it is
        // deleted.
        unsafe {
            let state = (functions.decode)(bytes.as_ptr().cast(), bytes.len() as c_int);
            (functions.restore_state)(self.handle, state);
            (functions.delete_state)(state);
        }
    }
}

fn unexpected(game: &Game, what: &str) -> Error {
    Error::Native {
        problem: format!("{}: the emulator shows {what}", game.id),
        help: "the emulator's library is not the one that this was written for; `podracer fetch \
               ale` installs that one"
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::games::GAMES;
    use super::START_MEMORY;

    #[test]
    fn start_memory_is_of_games_and_within_the_console() {
        for (rom, memory) in START_MEMORY {
            assert!(GAMES.iter().any(|game| game.rom == *rom), "{rom}");
            assert!(memory.iter().all(|&(place, _)| place < 128), "{rom}");
        }
    }
}
