//! Table of the games: properties known before the emulator loads a cartridge.

/// Game of the Atari 2600, with the differences between the emulator's library and ale-py.
#[derive(Debug, PartialEq)]
pub(super) struct Game {
    /// EnvPool's name of the game: `Pong-v5`.
    pub(super) id: &'static str,
    /// Stem of the cartridge's file, by which the emulator recognizes the game.
    pub(super) rom: &'static str,
    /// Joystick actions that the game distinguishes: ale-py's minimal set.
    pub(super) actions: &'static [i32],
    /// Number of rows of the screen; all screens have 160 columns.
    pub(super) height: usize,
    /// True if the game is for PAL television sets and has their colors.
    pub(super) pal: bool,
    /// ale-py's numbers of the game's modes, if the library numbers the same modes differently.
    pub(super) modes: &'static [i32],
    /// Rule by which lives are counted.
    pub(super) lives: Lives,
    /// Number of frames that the library's reset emulates and ale-py's does not: two, and one for
    /// each button that starts the game.
    pub(super) ahead: u32,
}

/// Conversion of the library's number of lives to ale-py's.
#[derive(Debug, PartialEq)]
pub(super) enum Lives {
    /// The library's number plus this one.
    Counted(i32),
    /// One until the game is over: the game has no lives.
    WhilePlaying,
}

impl Game {
    /// Returns the number of columns of the screen.
    pub(super) fn width(&self) -> usize {
        160
    }
}

/// All actions of a joystick: no-op, fire, eight directions, and the directions with fire.
pub(super) const FULL: &[i32] = &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17];

/// The most common properties.
pub(super) const USUAL: Game = Game {
    id: "",
    rom: "",
    actions: FULL,
    height: 210,
    pal: false,
    modes: &[],
    lives: Lives::Counted(0),
    ahead: 2,
};

/// Defines the table of games.
macro_rules! games {
    ($($id:literal => $rom:literal, $actions:expr $(, { $($field:ident: $value:expr),+ })?;)+) => {
        pub(super) const GAMES: &[Game] = &[$(
            Game { id: $id, rom: $rom, actions: $actions $($(, $field: $value)+)?, ..USUAL }
        ),+];
    };
}

games! {
    "Adventure-v5" => "adventure", FULL, { height: 250, pal: true };
    "AirRaid-v5" => "air_raid", &[0, 1, 3, 4, 11, 12], { height: 250, pal: true, lives: Lives::WhilePlaying, ahead: 3 };
    "Alien-v5" => "alien", FULL;
    "Amidar-v5" => "amidar", &[0, 1, 2, 3, 4, 5, 10, 11, 12, 13];
    "Assault-v5" => "assault", &[0, 1, 2, 3, 4, 11, 12];
    "Asterix-v5" => "asterix", &[0, 2, 3, 4, 5, 6, 7, 8, 9], { ahead: 3 };
    "Asteroids-v5" => "asteroids", &[0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15];
    "Atlantis-v5" => "atlantis", &[0, 1, 11, 12];
    "Atlantis2-v5" => "atlantis2", &[0, 1, 11, 12];
    "Backgammon-v5" => "backgammon", &[1, 3, 4], { modes: &[0], lives: Lives::WhilePlaying };
    "BankHeist-v5" => "bank_heist", FULL;
    "BasicMath-v5" => "basic_math", &[0, 1, 2, 3, 4, 5], { modes: &[5, 6, 7, 8], lives: Lives::WhilePlaying };
    "BattleZone-v5" => "battle_zone", FULL;
    "BeamRider-v5" => "beam_rider", &[0, 1, 2, 3, 4, 6, 7, 11, 12];
    "Berzerk-v5" => "berzerk", FULL;
    "Blackjack-v5" => "blackjack", &[0, 1, 2, 5], { lives: Lives::WhilePlaying };
    "Bowling-v5" => "bowling", &[0, 1, 2, 5, 10, 13];
    "Boxing-v5" => "boxing", FULL, { modes: &[0] };
    "Breakout-v5" => "breakout", &[0, 1, 3, 4];
    "Carnival-v5" => "carnival", &[0, 1, 3, 4, 11, 12], { height: 214 };
    "Casino-v5" => "casino", &[0, 1, 2, 5], { lives: Lives::WhilePlaying };
    "Centipede-v5" => "centipede", FULL;
    "ChopperCommand-v5" => "chopper_command", FULL;
    "CrazyClimber-v5" => "crazy_climber", &[0, 2, 3, 4, 5, 6, 7, 8, 9];
    "Crossbow-v5" => "crossbow", FULL, { lives: Lives::WhilePlaying };
    "Darkchambers-v5" => "darkchambers", FULL, { lives: Lives::WhilePlaying };
    "Defender-v5" => "defender", FULL;
    "DemonAttack-v5" => "demon_attack", &[0, 1, 3, 4, 11, 12];
    "DonkeyKong-v5" => "donkey_kong", FULL;
    "DoubleDunk-v5" => "double_dunk", FULL, { ahead: 3 };
    "Earthworld-v5" => "earthworld", FULL, { lives: Lives::WhilePlaying };
    "ElevatorAction-v5" => "elevator_action", FULL;
    "Enduro-v5" => "enduro", &[0, 1, 3, 4, 5, 8, 9, 11, 12], { ahead: 3 };
    "Entombed-v5" => "entombed", FULL, { modes: &[0], lives: Lives::WhilePlaying };
    "Et-v5" => "et", FULL;
    "FishingDerby-v5" => "fishing_derby", FULL, { modes: &[0] };
    "FlagCapture-v5" => "flag_capture", FULL, { lives: Lives::WhilePlaying };
    "Freeway-v5" => "freeway", &[0, 2, 5];
    "Frogger-v5" => "frogger", &[0, 2, 3, 4, 5];
    "Frostbite-v5" => "frostbite", FULL;
    "Galaxian-v5" => "galaxian", &[0, 1, 3, 4, 11, 12];
    "Gopher-v5" => "gopher", &[0, 1, 2, 3, 4, 10, 11, 12], { ahead: 3 };
    "Gravitar-v5" => "gravitar", FULL;
    "Hangman-v5" => "hangman", FULL, { lives: Lives::WhilePlaying };
    "HauntedHouse-v5" => "haunted_house", FULL;
    "Hero-v5" => "hero", FULL;
    "HumanCannonball-v5" => "human_cannonball", FULL, { lives: Lives::WhilePlaying };
    "IceHockey-v5" => "ice_hockey", FULL;
    "Jamesbond-v5" => "jamesbond", FULL;
    "JourneyEscape-v5" => "journey_escape", &[0, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17], { height: 230, ahead: 3 };
    "Joust-v5" => "joust", FULL;
    "Kaboom-v5" => "kaboom", &[0, 1, 3, 4], { lives: Lives::WhilePlaying, ahead: 3 };
    "Kangaroo-v5" => "kangaroo", FULL;
    "KeystoneKapers-v5" => "keystone_kapers", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13], { height: 250, pal: true };
    "KingKong-v5" => "king_kong", &[0, 1, 2, 3, 4, 5], { height: 250, pal: true };
    "Klax-v5" => "klax", FULL, { height: 250, pal: true, lives: Lives::WhilePlaying, ahead: 4 };
    "Koolaid-v5" => "koolaid", &[0, 2, 3, 4, 5, 6, 7, 8, 9];
    "Krull-v5" => "krull", FULL;
    "KungFuMaster-v5" => "kung_fu_master", &[0, 2, 3, 4, 5, 8, 9, 11, 12, 13, 14, 15, 16, 17];
    "LaserGates-v5" => "laser_gates", FULL, { height: 250, pal: true };
    "LostLuggage-v5" => "lost_luggage", &[0, 2, 3, 4, 5, 6, 7, 8, 9], { modes: &[0, 1], ahead: 3 };
    "MarioBros-v5" => "mario_bros", FULL, { modes: &[0, 2, 4, 6], lives: Lives::Counted(1), ahead: 3 };
    "MiniatureGolf-v5" => "miniature_golf", FULL, { lives: Lives::WhilePlaying };
    "MontezumaRevenge-v5" => "montezuma_revenge", FULL;
    "MrDo-v5" => "mr_do", &[0, 1, 2, 3, 4, 5, 10, 11, 12, 13], { height: 250, pal: true, ahead: 3 };
    "MsPacman-v5" => "ms_pacman", &[0, 2, 3, 4, 5, 6, 7, 8, 9];
    "NameThisGame-v5" => "name_this_game", &[0, 1, 3, 4, 11, 12];
    "Othello-v5" => "othello", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], { modes: &[0, 1, 2], lives: Lives::WhilePlaying };
    "Pacman-v5" => "pacman", &[0, 2, 3, 4, 5], { height: 250, pal: true };
    "Phoenix-v5" => "phoenix", &[0, 1, 3, 4, 5, 11, 12, 13];
    "Pitfall-v5" => "pitfall", FULL, { ahead: 3 };
    "Pitfall2-v5" => "pitfall2", FULL, { ahead: 3 };
    "Pong-v5" => "pong", &[0, 1, 3, 4, 11, 12], { modes: &[0, 1] };
    "Pooyan-v5" => "pooyan", &[0, 1, 2, 5, 10, 13], { height: 220 };
    "PrivateEye-v5" => "private_eye", FULL, { ahead: 3 };
    "Qbert-v5" => "qbert", &[0, 1, 2, 3, 4, 5];
    "Riverraid-v5" => "riverraid", FULL;
    "RoadRunner-v5" => "road_runner", FULL;
    "Robotank-v5" => "robotank", FULL;
    "Seaquest-v5" => "seaquest", FULL;
    "SirLancelot-v5" => "sir_lancelot", &[0, 1, 3, 4, 11, 12], { height: 250, pal: true, ahead: 3 };
    "Skiing-v5" => "skiing", &[0, 3, 4];
    "Solaris-v5" => "solaris", FULL;
    "SpaceInvaders-v5" => "space_invaders", &[0, 1, 3, 4, 11, 12], { modes: &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], lives: Lives::Counted(1) };
    "SpaceWar-v5" => "space_war", FULL, { height: 250, pal: true, lives: Lives::WhilePlaying };
    "StarGunner-v5" => "star_gunner", FULL;
    "Superman-v5" => "superman", FULL, { lives: Lives::WhilePlaying };
    "Surround-v5" => "surround", &[0, 2, 3, 4, 5], { modes: &[0, 2], lives: Lives::WhilePlaying };
    "Tennis-v5" => "tennis", FULL, { modes: &[0, 2] };
    "Tetris-v5" => "tetris", &[0, 1, 3, 4, 5];
    "TicTacToe3d-v5" => "tic_tac_toe_3d", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], { lives: Lives::WhilePlaying };
    "TimePilot-v5" => "time_pilot", &[0, 1, 2, 3, 4, 5, 10, 11, 12, 13];
    "Trondead-v5" => "trondead", FULL;
    "Turmoil-v5" => "turmoil", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12], { ahead: 3 };
    "Tutankham-v5" => "tutankham", &[0, 2, 3, 4, 5, 10, 11, 12];
    "UpNDown-v5" => "up_n_down", &[0, 1, 2, 5, 10, 13], { ahead: 3 };
    "Venture-v5" => "venture", FULL;
    "VideoCheckers-v5" => "video_checkers", &[1, 6, 7, 8, 9], { lives: Lives::WhilePlaying };
    "VideoChess-v5" => "video_chess", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
    "VideoCube-v5" => "video_cube", FULL, { lives: Lives::WhilePlaying };
    "VideoPinball-v5" => "video_pinball", &[0, 1, 2, 3, 4, 5, 10, 11, 12];
    "Warlords-v5" => "warlords", &[0, 1, 3, 4, 11, 12];
    "WizardOfWor-v5" => "wizard_of_wor", &[0, 1, 2, 3, 4, 5, 10, 11, 12, 13], { lives: Lives::Counted(1) };
    "WordZapper-v5" => "word_zapper", FULL, { lives: Lives::WhilePlaying, ahead: 3 };
    "YarsRevenge-v5" => "yars_revenge", FULL, { ahead: 3 };
    "Zaxxon-v5" => "zaxxon", FULL;
}
