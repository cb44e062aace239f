//! MinAtar's games against recordings of the reference.

use podracer::DType;
use podracer::envs::minatar::{self, MinAtarOptions};
use podracer::envs::{
    Action, Env, EnvPool, EnvRng, EnvSeed, ObsMut, PoolOptions, Space, list_envs,
};
use pretty_assertions::assert_eq;
use safetensors::SafeTensors;

const FIXTURE: &[u8] = include_bytes!("../fixtures/envs/minatar.safetensors");

const GAMES: [(&str, usize, usize); 5] = [
    ("Asterix", 4, 5),
    ("Breakout", 4, 3),
    ("Freeway", 7, 3),
    ("Seaquest", 10, 6),
    ("SpaceInvaders", 6, 4),
];

/// Fowler, Noll and Vo's hash: the recordings hold it instead of the observations.
fn fnv(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// A game outside of a pool.
struct Play {
    env: Box<dyn Env>,
    rng: EnvRng,
    obs: Vec<u8>,
}

impl Play {
    fn new(id: &str, options: MinAtarOptions, seed: u128) -> Play {
        let env = minatar::make(id, options).unwrap();
        let obs = vec![7; env.spec().observation.bytes()];
        Play { env, rng: EnvRng::new(EnvSeed(seed)), obs }
    }

    fn reset(&mut self) -> u32 {
        self.env.reset(&mut self.rng, ObsMut(&mut self.obs)).unwrap();
        fnv(&self.obs)
    }

    /// Hash, reward, whether the game is over.
    fn step(&mut self, action: usize) -> (u32, f64, bool) {
        let action = Action::Discrete(action);
        let outcome = self.env.step(action, &mut self.rng, ObsMut(&mut self.obs)).unwrap();
        assert!(!outcome.truncated && outcome.game_over == outcome.terminated);
        (fnv(&self.obs), outcome.reward, outcome.terminated)
    }
}

fn column<T: bytemuck::AnyBitPattern>(tensors: &SafeTensors, name: String) -> Vec<T> {
    let bytes = tensors.tensor(&name).unwrap().data();
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// Replays every recording of `game`: the reference drew from our generator, so both must see the
/// same boards, rewards and endings in every frame of every episode.
fn align(game: &str) {
    let tensors = SafeTensors::deserialize(FIXTURE).unwrap();
    let mut recordings = 0;
    for name in tensors.names() {
        let Some(name) = name.strip_suffix("/settings") else { continue };
        if !name.starts_with(&format!("{game}/")) {
            continue;
        }
        recordings += 1;
        let settings = column::<f64>(&tensors, format!("{name}/settings"));
        let actions = column::<u8>(&tensors, format!("{name}/actions"));
        let reward = column::<u8>(&tensors, format!("{name}/reward"));
        let terminal = column::<u8>(&tensors, format!("{name}/terminal"));
        let obs = column::<u32>(&tensors, format!("{name}/obs"));
        let mut starts = column::<u32>(&tensors, format!("{name}/start")).into_iter();
        let options = MinAtarOptions {
            sticky_action_prob: settings[1],
            difficulty_ramping: settings[2] != 0.0,
        };
        let mut play = Play::new(&format!("MinAtar/{game}-v0"), options, settings[0] as u128);
        assert_eq!(play.reset(), obs[0], "{name}: first observation");
        for (t, &action) in actions.iter().enumerate() {
            let expected = (obs[t + 1], f64::from(reward[t]), terminal[t] != 0);
            assert_eq!(play.step(action.into()), expected, "{name}: frame {t}");
            if terminal[t] != 0 {
                assert_eq!(Some(play.reset()), starts.next(), "{name}: reset after frame {t}");
            }
        }
        assert_eq!(starts.next(), None);
    }
    assert!(recordings >= 3, "{game} has {recordings} recordings");
}

#[test]
fn align_asterix() {
    align("Asterix");
}

#[test]
fn align_breakout() {
    align("Breakout");
}

#[test]
fn align_freeway() {
    align("Freeway");
}

#[test]
fn align_seaquest() {
    align("Seaquest");
}

#[test]
fn align_space_invaders() {
    align("SpaceInvaders");
}

/// The next action of a random player, the same for every game.
fn player(t: usize, n: usize) -> usize {
    fnv(&t.to_le_bytes()) as usize % n
}

#[test]
fn specifications_have_the_channels_and_actions_of_each_game() {
    for (game, channels, minimal) in GAMES {
        for (version, actions) in [("v0", 6), ("v1", minimal)] {
            let id = format!("MinAtar/{game}-{version}");
            assert!(list_envs().contains(&id.as_str()));
            let spec = podracer::envs::spec(&id).unwrap();
            assert_eq!(spec.id, id);
            assert_eq!(spec.observation.shape(), [10, 10, channels].into());
            assert_eq!(spec.observation.dtype(), DType::Bool);
            assert_eq!(spec.action, Space::Discrete { n: actions });
            assert_eq!(spec.max_episode_steps, None);
        }
    }
}

/// The few actions of `-v1` are some of the six of `-v0`.
#[test]
fn minimal_actions_are_some_of_all_six() {
    let maps: [&[usize]; 5] =
        [&[0, 1, 2, 3, 4], &[0, 1, 3], &[0, 2, 4], &[0, 1, 2, 3, 4, 5], &[0, 1, 3, 5]];
    for ((game, ..), map) in GAMES.into_iter().zip(maps) {
        let options = MinAtarOptions::default();
        let mut full = Play::new(&format!("MinAtar/{game}-v0"), options, 3);
        let mut minimal = Play::new(&format!("MinAtar/{game}-v1"), options, 3);
        assert_eq!(full.reset(), minimal.reset());
        for t in 0..300 {
            let choice = player(t, map.len());
            let message = full.step(map[choice]);
            assert_eq!(minimal.step(choice), message, "{game}: frame {t}");
            if message.2 {
                assert_eq!(full.reset(), minimal.reset());
            }
        }
    }
}

#[test]
fn saved_states_continue() {
    for (game, ..) in GAMES {
        let id = format!("MinAtar/{game}-v0");
        let mut play = Play::new(&id, MinAtarOptions::default(), 5);
        play.reset();
        for t in 0..400 {
            let mut other = Play::new(&id, MinAtarOptions::default(), 5);
            other.env.restore(&play.env.save().unwrap()).unwrap();
            other.rng = play.rng.clone();
            let message = play.step(player(t, 6));
            assert_eq!(other.step(player(t, 6)), message, "{id}: frame {t}");
            assert_eq!(other.obs, play.obs);
            assert_eq!(other.env.save().unwrap(), play.env.save().unwrap(), "{id}: frame {t}");
            if message.2 {
                play.reset();
            }
        }
    }
}

/// What is not a saved state is refused, and leaves the game as it is.
#[test]
fn bad_states_are_refused_and_change_nothing() {
    for (game, ..) in GAMES {
        let id = format!("MinAtar/{game}-v0");
        let mut play = Play::new(&id, MinAtarOptions::default(), 5);
        play.reset();
        for t in 0..60 {
            play.step(player(t, 6));
        }
        let saved = play.env.save().unwrap();
        // Every number of the state in turn, far off: refused, or harmless for a while.
        let text = String::from_utf8(saved.clone()).unwrap();
        let digits: Vec<usize> = (1..text.len())
            .filter(|&i| {
                let bytes = text.as_bytes();
                bytes[i].is_ascii_digit() && !bytes[i - 1].is_ascii_digit()
            })
            .collect();
        let mut refused = 0;
        for i in digits {
            let end = i + text[i..].find(|c: char| !c.is_ascii_digit()).unwrap();
            for number in ["77", "10", "1000000"] {
                let wrong = format!("{}{number}{}", &text[..i], &text[end..]);
                let mut other = Play::new(&id, MinAtarOptions::default(), 5);
                match other.env.restore(wrong.as_bytes()) {
                    Err(error) => {
                        let expected = format!(
                            "{id}: this is not a saved state: something lies where the rules \
                             cannot put it"
                        );
                        assert_eq!(error.to_string(), expected);
                        refused += 1;
                    }
                    Ok(()) => (0..50).for_each(|t| {
                        other.step(player(t, 6));
                    }),
                }
            }
        }
        assert!(refused > 0, "{id}");
        let error = play.env.restore(&saved[1..]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{id}: this is not a saved state: ")), "{error}");
        assert_eq!(play.env.save().unwrap(), saved);
    }
}

#[test]
fn pictures_show_the_board_in_colors() {
    let mut play = Play::new("MinAtar/Breakout-v0", MinAtarOptions::default(), 5);
    play.reset();
    let frame = play.env.render().unwrap();
    assert_eq!((frame.height, frame.width, frame.rgb.len()), (160, 160, 160 * 160 * 3));
    let pixel = |x: usize, y: usize| &frame.rgb[(y * 160 + x) * 3..][..3];
    // Column 4 of the last row is the paddle, rows 1 to 3 are bricks; the rest is black, but for
    // the ball, whose trail, at first in the same cell, covers it.
    assert_eq!(pixel(4 * 16, 9 * 16), [66, 158, 130]);
    assert_eq!(pixel(4 * 16 + 15, 159), [66, 158, 130]);
    assert_eq!(pixel(4 * 16 + 16, 159), [0, 0, 0]);
    assert_eq!(pixel(80, 16), [200, 72, 72]);
    assert_eq!(pixel(80, 15), [0, 0, 0]);
}

#[test]
fn a_finished_game_stays_finished() {
    let mut play = Play::new("MinAtar/Breakout-v0", MinAtarOptions::default(), 5);
    play.reset();
    while !play.step(0).2 {}
    let obs = play.obs.clone();
    assert_eq!(play.step(1), (fnv(&obs), 0.0, true));
}

#[test]
fn options_are_checked() {
    let options = |p| MinAtarOptions { sticky_action_prob: p, ..Default::default() };
    for p in [-0.1, 1.5, f64::NAN] {
        let error = EnvPool::minatar("MinAtar/Breakout-v1", options(p), PoolOptions::default())
            .unwrap_err();
        let error = error.to_string();
        let expected = format!(
            "making env 0 failed: MinAtar/Breakout-v1: sticky_action_prob is {p}, expected a \
             probability from 0 to 1"
        );
        assert!(error.contains(&expected), "{error}");
    }
    let error = minatar::make("Breakout-v5", options(0.1)).err().unwrap().to_string();
    assert!(error.starts_with("\"Breakout-v5\" is not of MinAtar, which has MinAtar/Asterix-v0, "));
}

/// Through the pool: observations are bytes of 0 and 1, and a sure stickiness repeats the no-op
/// with which every episode begins.
#[test]
fn a_pool_gives_boards_of_zeros_and_ones() {
    let stuck = MinAtarOptions { sticky_action_prob: 1.0, ..Default::default() };
    let options = PoolOptions { num_envs: 3, ..Default::default() };
    let mut pool = EnvPool::minatar("MinAtar/Breakout-v1", stuck, options).unwrap();
    pool.reset().unwrap();
    for _ in 0..50 {
        let batch = pool.step(&[1; 3]).unwrap();
        assert_eq!(batch.obs_shape(), [3, 10, 10, 4].into());
        assert!(batch.obs::<u8>().iter().all(|&cell| cell <= 1));
        for row in 0..3 {
            assert_eq!(batch.obs_row::<u8>(row)[(9 * 10 + 4) * 4], 1, "the paddle has moved");
        }
    }
}
