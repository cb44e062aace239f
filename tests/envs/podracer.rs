//! Podracer's own environments: their rules by hand, their states saved and restored, actions of several
//! choices through the pool and through compiled code.

use podracer::envs::podracer::{CartPolePositions, ConnectFour, Harvest, PendulumPositions};
use podracer::envs::{
    Action, Actions, Env, EnvPool, EnvRng, Handle, ObsMut, PoolOptions, StepOutcome, seeds, spec,
};
use podracer::{Array, Tensor, jit};

/// An environment outside of a pool.
struct Play<E> {
    env: E,
    rng: EnvRng,
    obs: Vec<f32>,
}

impl<E: Env> Play<E> {
    fn new(env: E) -> Play<E> {
        let obs = vec![7.0; env.spec().observation.shape().numel()];
        let mut play = Play { env, rng: EnvRng::new(seeds(1, 0, 0, 0)), obs };
        let row = ObsMut(bytemuck::cast_slice_mut(&mut play.obs));
        play.env.reset(&mut play.rng, row).unwrap();
        play
    }

    fn step(&mut self, action: Action<'_>) -> StepOutcome {
        let row = ObsMut(bytemuck::cast_slice_mut(&mut self.obs));
        self.env.step(action, &mut self.rng, row).unwrap()
    }
}

/// Plays columns until the game is over.
fn columns(columns: &[usize]) -> (Play<ConnectFour>, StepOutcome) {
    let mut play = Play::new(ConnectFour::v0());
    let mut last = StepOutcome::new(0.0, false);
    for (k, &column) in columns.iter().enumerate() {
        assert!(!last.terminated, "over before disc {k}");
        last = play.step(Action::MultiDiscrete(&[column]));
    }
    (play, last)
}

#[test]
fn four_in_a_row_win_in_every_direction() {
    let across = [0, 0, 1, 1, 2, 2, 3];
    let up = [4, 5, 4, 5, 4, 5, 4];
    let rising = [0, 1, 1, 2, 2, 3, 2, 3, 3, 6, 3];
    let falling = [6, 5, 5, 4, 4, 3, 4, 3, 3, 0, 3];
    for game in [&across[..], &up, &rising, &falling] {
        let (_, last) = columns(game);
        assert!(last.terminated && last.reward == 1.0, "{game:?}: {last:?}");
        let (_, before) = columns(&game[..game.len() - 1]);
        assert!(!before.terminated && before.reward == 0.0, "{game:?}");
    }
    // Three, and one beyond the edge: the end of a row and the begin of the next are no neighbors.
    let (_, last) = columns(&[4, 4, 5, 5, 6, 6, 0]);
    assert!(!last.terminated);
}

#[test]
fn the_board_is_seen_by_the_player_to_move() {
    let (play, _) = columns(&[3, 3, 2]);
    // The second player is to move: it has one disc, on that of the first.
    let cell = |row: usize, column: usize| row * 7 + column;
    let own: Vec<usize> = (0..42).filter(|&i| play.obs[i] == 1.0).collect();
    let other: Vec<usize> = (0..42).filter(|&i| play.obs[42 + i] == 1.0).collect();
    assert_eq!(own, [cell(4, 3)]);
    assert_eq!(other, [cell(5, 2), cell(5, 3)]);
    assert_eq!(play.obs[84..], [1.0; 7]);
}

#[test]
fn a_full_column_is_not_allowed_and_loses() {
    let (mut play, _) = columns(&[0, 0, 0, 0, 0, 0]);
    assert_eq!(play.obs[84..], [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
    let outcome = play.step(Action::MultiDiscrete(&[0]));
    assert!(outcome.terminated && outcome.reward == -1.0, "{outcome:?}");
}

#[test]
fn a_full_board_is_a_draw() {
    let game = [
        1, 4, 5, 3, 1, 5, 3, 4, 6, 0, 1, 6, 6, 4, 4, 2, 5, 0, 6, 6, 0, 3, 0, 0, 3, 4, 3, 1, 0, 6,
        4, 3, 1, 1, 2, 5, 2, 2, 5, 5, 2, 2,
    ];
    let (play, last) = columns(&game);
    assert!(last.terminated && last.reward == 0.0, "{last:?}");
    assert_eq!(play.obs[..84].iter().sum::<f32>(), 42.0);
    assert_eq!(play.obs[84..], [0.0; 7]);
}

const CHOICES: usize = 13;
const MASK: usize = 4 * 64 + 3;

/// Whether a worker may, by the observation.
fn may(obs: &[f32], worker: usize, choice: usize) -> bool {
    obs[MASK + worker * CHOICES + choice] == 1.0
}

fn cell_of(obs: &[f32], thing: usize) -> usize {
    (0..64).find(|cell| obs[thing * 64 + cell] == 1.0).unwrap()
}

#[test]
fn a_worker_carries_ore_from_the_mine_to_the_base() {
    let mut play = Play::new(Harvest::v0());
    let mine = cell_of(&play.obs, 3);
    // Worker 1 begins on the right of the base, which is at row 1, column 1.
    assert_eq!(cell_of(&play.obs, 1), 10);
    assert!(mine % 8 >= 4);
    assert!(may(&play.obs, 1, 0) && !may(&play.obs, 1, 4), "the base is in the way");
    let (up, right, down, left) = (1, 2, 3, 4);
    let mut earned = 0.0;
    let mut go = |play: &mut Play<Harvest>, choice: usize| {
        assert!(may(&play.obs, 1, choice), "{choice} is not allowed");
        earned += play.step(Action::MultiDiscrete(&[0, choice, 0])).reward;
    };
    // To the cell on the left of the mine, and back.
    let (row, column) = (mine / 8, mine % 8);
    for _ in 2..column - 1 {
        go(&mut play, right);
    }
    for _ in 1..row {
        go(&mut play, down);
    }
    for _ in row..1 {
        go(&mut play, up);
    }
    assert!(may(&play.obs, 1, 4 + right) && !may(&play.obs, 1, 8 + right));
    go(&mut play, 4 + right);
    assert_eq!(play.obs[4 * 64..4 * 64 + 3], [0.0, 1.0, 0.0]);
    for _ in 1..row {
        go(&mut play, up);
    }
    for _ in row..1 {
        go(&mut play, down);
    }
    for _ in 2..column - 1 {
        go(&mut play, left);
    }
    go(&mut play, 8 + left);
    assert_eq!(earned, 1.0);
    assert_eq!(play.obs[4 * 64..4 * 64 + 3], [0.0; 3]);
}

#[test]
fn what_is_not_allowed_does_nothing() {
    let mut play = Play::new(Harvest::v0());
    for t in 0..500 {
        let before = play.obs.clone();
        let choices: [usize; 3] = std::array::from_fn(|worker| {
            let start = (t * 5 + worker * 3) % CHOICES;
            (0..CHOICES).map(|k| (start + k) % CHOICES).find(|&c| !may(&before, worker, c)).unwrap()
        });
        let outcome = play.step(Action::MultiDiscrete(&choices));
        assert!(play.obs == before && outcome.reward == 0.0, "{choices:?}");
        // And something that is allowed, for another board.
        let choices: [usize; 3] = std::array::from_fn(|worker| {
            let start = (t * 7 + worker) % CHOICES;
            let choice = (0..CHOICES).map(|k| (start + k) % CHOICES);
            choice.into_iter().find(|&c| may(&play.obs, worker, c)).unwrap()
        });
        play.step(Action::MultiDiscrete(&choices));
        let mut cells: Vec<usize> = (0..4).map(|thing| cell_of(&play.obs, thing)).collect();
        cells.push(9);
        cells.sort_unstable();
        assert!(cells.windows(2).all(|pair| pair[0] < pair[1]), "two in one cell: {cells:?}");
    }
}

#[test]
fn positions_are_those_of_cartpole() {
    let whole = spec("CartPole-v1").unwrap();
    let seen = CartPolePositions::v0().spec();
    assert_eq!(seen.max_episode_steps, whole.max_episode_steps);
    let options = || PoolOptions { num_envs: 3, ..Default::default() };
    let mut pools =
        ["CartPole-v1", "CartPolePositions-v0"].map(|id| EnvPool::make(id, options()).unwrap());
    pools.iter_mut().for_each(|pool| drop(pool.reset().unwrap()));
    for t in 0..60 {
        let actions = [t % 2, (t / 2) % 2, (t / 3) % 2];
        let [whole, seen] = [0, 1].map(|k| pools[k].step(&actions).unwrap());
        for row in 0..3 {
            let all = whole.obs_row::<f32>(row);
            assert_eq!(seen.obs_row::<f32>(row), [all[0], all[2]]);
        }
        assert_eq!(whole.terminated(), seen.terminated());
    }
}

#[test]
fn positions_are_those_of_pendulum() {
    let whole = spec("Pendulum-v1").unwrap();
    let seen = PendulumPositions::v0().spec();
    assert_eq!((&seen.action, seen.max_episode_steps), (&whole.action, whole.max_episode_steps));
    let options = || PoolOptions { num_envs: 2, ..Default::default() };
    let mut pools =
        ["Pendulum-v1", "PendulumPositions-v0"].map(|id| EnvPool::make(id, options()).unwrap());
    pools.iter_mut().for_each(|pool| drop(pool.reset().unwrap()));
    for t in 0..250 {
        let torque = (0.3 * t as f32).sin();
        if t == 100 {
            let states = [0, 1].map(|row| pools[1].save(row).unwrap());
            states
                .iter()
                .enumerate()
                .for_each(|(row, state)| pools[1].restore(row, state).unwrap());
        }
        let [whole, seen] =
            [0, 1].map(|k| pools[k].step(Actions::F32(&[torque, 2.0 * torque])).unwrap());
        for row in 0..2 {
            assert_eq!(seen.obs_row::<f32>(row), &whole.obs_row::<f32>(row)[..2]);
        }
        assert_eq!(whole.reward(), seen.reward());
        assert_eq!(whole.truncated(), seen.truncated());
    }
}

#[test]
fn states_are_saved_and_restored() {
    for (id, actions) in [("Harvest-v0", 3), ("ConnectFour-v0", 1), ("CartPolePositions-v0", 1)] {
        let mut pool =
            EnvPool::make(id, PoolOptions { num_envs: 1, ..Default::default() }).unwrap();
        pool.reset().unwrap();
        let step = |pool: &mut EnvPool, t: i32| {
            let n = if id == "CartPolePositions-v0" { 2 } else { 7 };
            let choices: Vec<i32> = (0..actions).map(|k| (t * 3 + k) % n).collect();
            pool.step(&choices).unwrap().obs::<f32>().to_vec()
        };
        (0..6).for_each(|t| drop(step(&mut pool, t)));
        let state = pool.save(0).unwrap();
        let once: Vec<_> = (6..20).map(|t| step(&mut pool, t)).collect();
        pool.restore(0, &state).unwrap();
        assert_eq!(once, (6..20).map(|t| step(&mut pool, t)).collect::<Vec<_>>(), "{id}");
    }
    let mut game = ConnectFour::v0();
    // A disc in the air, and two players with the same disc.
    for wrong in ["{\"own\":1,\"other\":0}", "{\"own\":34359738368,\"other\":34359738368}", "{}"] {
        assert!(game.restore(wrong.as_bytes()).is_err(), "{wrong}");
    }
    let wrong = "{\"workers\":[[0,false],[0,false],[2,true]],\"mine\":60}";
    assert!(Harvest::v0().restore(wrong.as_bytes()).is_err());
}

#[test]
fn actions_of_several_choices_go_through_compiled_code() {
    let options = PoolOptions { num_envs: 2, ..Default::default() };
    let (handle, envs) = EnvPool::make("Harvest-v0", options).unwrap().xla().unwrap();
    let step = jit(|(handle, actions): (Handle<Tensor>, Tensor)| {
        let (handle, _) = envs.reset(handle);
        let (handle, message) = envs.step(handle, actions);
        (handle, message.obs)
    });
    let actions = Array::new([2, 3], &[0, 2, 0, 0, 0, 0]).unwrap();
    let (_, obs) = step.call((handle, actions)).unwrap();
    let obs = obs.to_vec::<f32>().unwrap();
    let (first, second) = obs.split_at(obs.len() / 2);
    assert_eq!((cell_of(first, 1), cell_of(second, 1)), (11, 10));
}

#[test]
fn choices_out_of_range_are_reported() {
    let options = PoolOptions { num_envs: 2, ..Default::default() };
    let mut pool = EnvPool::make("Harvest-v0", options).unwrap();
    pool.reset().unwrap();
    let error = |pool: &mut EnvPool, actions: &[i32]| pool.step(actions).unwrap_err().to_string();
    let text = error(&mut pool, &[0, 0, 0, 0, 13, 0]);
    assert!(
        text.contains("Harvest-v0: env 1: component 1 of its action is 13, expected 0 to 12"),
        "{text}"
    );
    let text = error(&mut pool, &[0, 0, -1, 0, 0, 0]);
    assert!(text.contains("component 2 of its action is -1"), "{text}");
    let text = error(&mut pool, &[0, 0]);
    assert!(text.contains("2 environments with 3 i32 or i64 each need 6 values"), "{text}");
    let text = pool.step(&[0.0f32; 6]).unwrap_err().to_string();
    assert!(text.contains("actions are f32, expected i32 or i64"), "{text}");
    assert!(pool.step(&[0, 0, 0, 0, 0, 0]).is_ok(), "nothing had moved");
    assert_eq!(
        spec("Harvest-v0").unwrap().action.to_string(),
        "MultiDiscrete([13, 13, 13], masked)"
    );
}
