//! Every Atari game that EnvPool has, beside EnvPool 1.2.5.
//!
//! `tests/fixtures/envs/atari_games.py` recorded 2,000 steps of each game over several episodes, and
//! proved its statement of EnvPool's rules by EnvPool's console memory, rewards, lives, ends and frames.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use podracer::envs::{Action, AtariOptions, Env, EnvRng, EnvSeed, ObsMut, make_atari};
use pretty_assertions::assert_eq;
use safetensors::SafeTensors;

const FIXTURE: &[u8] = include_bytes!("../fixtures/envs/atari_games.safetensors");
const PAGE: &str = include_str!("../../docs/environments.md");
const STEPS: usize = 2000;

/// Part of a recording in which a game differs.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Differs {
    /// Frames only: the first step, and the number of steps.
    Frames(usize, usize),
    /// Rewards, lives or ends as well, so that the game goes another way: the first step.
    Play(usize),
}
use Differs::{Frames, Play};

/// Games that differ, with the reason that docs/environments.md names.
const DIFFERENT: &[(&str, Differs, &str)] = &[
    ("Assault-v5", Play(500), "later starts"),
    ("BeamRider-v5", Play(500), "later starts"),
    ("ChopperCommand-v5", Play(1498), "score and end"),
    ("Darkchambers-v5", Play(0), "cartridge memory"),
    ("DemonAttack-v5", Play(1000), "later starts"),
    ("ElevatorAction-v5", Frames(0, 1975), "drawing"),
    ("FishingDerby-v5", Play(1000), "later starts"),
    ("Freeway-v5", Frames(1057, 5), "later starts"),
    ("Frostbite-v5", Play(843), "later starts"),
    ("Hangman-v5", Play(474), "later starts"),
    ("HauntedHouse-v5", Play(522), "later starts"),
    ("Hero-v5", Frames(512, 271), "later starts"),
    ("IceHockey-v5", Play(501), "later starts"),
    ("Kaboom-v5", Play(338), "later starts"),
    ("MiniatureGolf-v5", Frames(1501, 441), "later starts"),
    ("Pitfall2-v5", Frames(1000, 500), "later starts"),
    ("Pong-v5", Frames(460, 44), "drawing"),
    ("PrivateEye-v5", Frames(1003, 203), "later starts"),
    ("Seaquest-v5", Play(1500), "later starts"),
    ("SirLancelot-v5", Play(500), "later starts"),
    ("Solaris-v5", Frames(500, 1092), "later starts"),
    ("SpaceWar-v5", Frames(507, 667), "later starts"),
    ("Surround-v5", Frames(500, 1389), "later starts"),
    ("Tennis-v5", Play(515), "later starts"),
    ("TimePilot-v5", Play(510), "later starts"),
    ("VideoCheckers-v5", Play(202), "score and end"),
    ("YarsRevenge-v5", Play(531), "later starts"),
];

/// Choice of `count` actions at a step, as the script's `action`.
fn action(step: usize, count: usize) -> usize {
    let mut x = (step as u32).wrapping_mul(2_654_435_761).wrapping_add(12345);
    x ^= x >> 15;
    x = x.wrapping_mul(2_246_822_519);
    x ^= x >> 13;
    x as usize % count
}

struct Recording {
    noops: Vec<u8>,
    ended: Vec<u8>,
    rewards: HashMap<usize, i32>,
    frame: Vec<u8>,
    frames: u32,
}

impl Recording {
    fn load(tensors: &SafeTensors<'_>, id: &str) -> Recording {
        let column = |name: &str| tensors.tensor(&format!("{id}/{name}")).unwrap().data().to_vec();
        let words = |name: &str| column(name).as_chunks::<4>().0.to_vec();
        let steps: Vec<usize> = column("reward_step")
            .as_chunks::<2>()
            .0
            .iter()
            .map(|&step| u16::from_le_bytes(step).into())
            .collect();
        let rewards = words("reward").into_iter().map(i32::from_le_bytes);
        Recording {
            noops: column("noops"),
            ended: column("ended"),
            rewards: steps.into_iter().zip(rewards).collect(),
            frame: column("frame"),
            frames: u32::from_le_bytes(words("frames")[0]),
        }
    }
}

/// Generator whose next draw of one of `most` numbers of no-ops is `noops`.
fn drawing(noops: u8, most: u32) -> EnvRng {
    (0..)
        .map(|seed| EnvRng::new(EnvSeed(seed)))
        .find(|rng| 1 + rng.clone().below(most.into()) == u64::from(noops))
        .expect("every number is drawn by some seed")
}

/// Replays a recording and returns the part in which the game differs.
fn replay(id: &str, recording: &Recording) -> Option<Differs> {
    let noop_max = if id == "RoadRunner-v5" { 30 } else { 100 };
    let options = AtariOptions { episodic_life: true, noop_max, ..AtariOptions::default() };
    let mut env = make_atari(id, &options).unwrap();
    let count = match env.spec().action {
        podracer::envs::Space::Discrete { n } => n,
        other => panic!("{id}: {other:?}"),
    };
    let mut obs = vec![0; env.spec().observation.bytes()];
    let mut noops = recording.noops.iter().map(|&noops| drawing(noops, noop_max));
    let mut rng = noops.next().unwrap();
    env.reset(&mut rng, ObsMut(&mut obs)).unwrap();
    let (mut first, mut different, mut frames) = (None, 0, 0);
    for t in 0..STEPS {
        let choice = Action::Discrete(action(t, count));
        let outcome = env.step(choice, &mut rng, ObsMut(&mut obs)).unwrap();
        let ended = recording.ended[t];
        let reward = recording.rewards.get(&t).copied().unwrap_or(0);
        let as_recorded = outcome.game_reward == f64::from(reward)
            && outcome.game_over == (ended & 2 > 0)
            && outcome.terminated == (ended & 3 > 0)
            && outcome.life_lost == (ended & 8 > 0);
        if !as_recorded {
            return Some(Play(first.unwrap_or(t)));
        }
        let frame = &obs[3 * 84 * 84..];
        if crc32(0, frame) as u8 != recording.frame[t] {
            first.get_or_insert(t);
            different += 1;
        }
        frames = crc32(frames, frame);
        if ended & 7 > 0 && t + 1 < STEPS {
            rng = noops.next().unwrap();
            let begin = if ended & 7 == 1 { Env::next_episode } else { Env::reset };
            begin(&mut *env, &mut rng, ObsMut(&mut obs)).unwrap();
        }
    }
    assert_eq!(first.is_some(), frames != recording.frames, "{id}: all frames");
    first.map(|first| Frames(first, different))
}

/// Games of the recording.
fn games(tensors: &SafeTensors<'_>) -> Vec<String> {
    let mut games: Vec<String> = tensors
        .names()
        .into_iter()
        .filter_map(|name| name.strip_suffix("/noops"))
        .map(String::from)
        .collect();
    games.sort();
    games
}

/// CRC-32 as zlib's, continued from `sum`.
fn crc32(sum: u32, bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut i = 0;
        while i < 256 {
            let (mut crc, mut bit) = (i as u32, 0);
            while bit < 8 {
                crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
                bit += 1;
            }
            table[i] = crc;
            i += 1;
        }
        table
    };
    !bytes.iter().fold(!sum, |crc, &byte| (crc >> 8) ^ TABLE[usize::from(crc as u8 ^ byte)])
}

/// Replays every `stride`-th game from number `first` on, on all processors.
fn compare(first: usize, stride: usize) {
    let tensors = SafeTensors::deserialize(FIXTURE).unwrap();
    let ids: Vec<String> = games(&tensors).into_iter().skip(first).step_by(stride).collect();
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(id) = ids.get(next.fetch_add(1, Ordering::Relaxed)) {
            let found = replay(id, &Recording::load(&tensors, id));
            let listed = DIFFERENT.iter().find(|row| row.0 == id).map(|row| row.1);
            if found != listed {
                wrong.lock().unwrap().push((id.as_str(), found, listed));
            }
        }
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..processors).for_each(|_| drop(scope.spawn(work))));
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "(game, found, listed): {wrong:?}");
}

#[test]
fn a_sample_of_games_is_as_envpool() {
    compare(1, 8);
}

/// `cargo test --release --test envs -- --ignored every_game_is_as_envpool`
#[test]
#[ignore = "104 games, 2,000 steps each: eight minutes of processor time without --release"]
fn every_game_is_as_envpool() {
    compare(0, 1);
}

/// docs/environments.md names each game that differs, with step and reason, and no other.
#[test]
fn the_page_names_each_game_that_differs() {
    let rows: Vec<String> = DIFFERENT
        .iter()
        .map(|(id, differs, reason)| {
            let name = id.strip_suffix("-v5").unwrap();
            match differs {
                Frames(first, steps) => format!("| {name} | {first} | {steps} frames | {reason} |"),
                Play(first) => format!("| {name} | {first} | another game | {reason} |"),
            }
        })
        .collect();
    let table =
        PAGE.split_once("| game | first step | what | why |\n|---|---|---|---|\n").unwrap().1;
    let named: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
    assert_eq!(named, rows);
    let all = games(&SafeTensors::deserialize(FIXTURE).unwrap()).len();
    let sentences = [
        format!("Each of the {all} games that EnvPool 1.2.5 has"),
        format!("In {} games every frame, reward, lost life and end is equal", all - rows.len()),
    ];
    for sentence in sentences {
        assert!(PAGE.contains(&sentence), "{sentence}");
    }
}
