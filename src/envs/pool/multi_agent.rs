//! Environments of several agents that act at the same time, as in PettingZoo's parallel API: each
//! agent is one environment of a pool, so that algorithms for one agent train all of them.
//!
//! The agents of a game are neighbors: environments `0 .. A` are the agents of the first game. All
//! end their episodes in the same step. An agent that is out of the game before the others gets
//! observations of zeros and rewards of 0 until then, and its steps have
//! [`StepOutcome::zero_discount`] and [`StepOutcome::life_lost`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::envs::env::seeds::EnvRng;
use crate::envs::env::spec::EnvSpec;
use crate::envs::env::{Action, Env, Frame, ObsMut, StepOutcome};
use crate::envs::pool::backend::{Backend, Call};
use crate::envs::pool::slot::guard;
use crate::envs::pool::{self, EnvPool, PoolOptions};
use crate::error::{Error, Result};

/// Environment of several agents with discrete actions and equal spaces.
pub(in crate::envs) trait ParallelEnv: Send {
    /// Returns the specification that one agent has.
    fn spec(&self) -> EnvSpec;

    /// Returns the number of agents.
    fn num_agents(&self) -> usize;

    /// Starts an episode of all agents.
    fn reset(&mut self, rng: &mut EnvRng) -> Result<()>;

    /// Takes one step with an action of each agent; [`outcome`](ParallelEnv::outcome) and
    /// [`observe`](ParallelEnv::observe) return its results.
    fn step(&mut self, actions: &[usize]) -> Result<()>;

    /// Returns the outcome of the last step for one agent.
    fn outcome(&self, agent: usize) -> StepOutcome;

    /// Writes the observation of one agent into all of `obs`.
    fn observe(&self, agent: usize, obs: ObsMut<'_>);

    /// Renders the current state as an image.
    fn render(&self) -> Option<Frame>;

    /// Serializes the whole state.
    fn save(&self) -> Result<Vec<u8>>;

    /// Restores the state from bytes that [`save`](ParallelEnv::save) returned.
    fn restore(&mut self, state: &[u8]) -> Result<()>;
}

/// Result of a step for one agent: the outcome and the observation, or the error of the game.
type Kept = Result<(StepOutcome, Vec<u8>), String>;

/// One game with the calls of its agents.
struct Game {
    env: Box<dyn ParallelEnv>,
    /// Actions of the next step; `None` for an agent that has not sent one.
    actions: Vec<Option<usize>>,
    /// Agents that have not received the results of the last step.
    unread: Vec<bool>,
    /// Unread results of a step after which another agent has started the next episode.
    kept: Vec<Option<Kept>>,
    /// Error of the last step.
    failure: Option<String>,
    /// Number of resets.
    episode: u64,
    /// Value of `episode` at each agent's last reset.
    agent_episodes: Vec<u64>,
}

impl Game {
    fn new(env: Box<dyn ParallelEnv>) -> Game {
        let num_agents = env.num_agents();
        Game {
            actions: vec![None; num_agents],
            unread: vec![false; num_agents],
            kept: vec![None; num_agents],
            failure: None,
            episode: 0,
            agent_episodes: vec![0; num_agents],
            env,
        }
    }

    /// Takes a step if every agent has sent an action.
    fn step_if_ready(&mut self) {
        let actions: Option<Vec<usize>> = self.actions.iter().copied().collect();
        let Some(actions) = actions else { return };
        self.failure = guard(|| self.env.step(&actions)).err();
        self.actions.fill(None);
        self.unread.fill(true);
    }

    /// Starts an episode. Agents that have not received the last step of the old one still get it.
    fn reset(&mut self, rng: &mut EnvRng, obs_bytes: usize) -> Result<()> {
        for agent in 0..self.unread.len() {
            if std::mem::take(&mut self.unread[agent]) {
                let result = || {
                    let mut obs = vec![0; obs_bytes];
                    self.env.observe(agent, ObsMut(&mut obs));
                    (self.env.outcome(agent), obs)
                };
                self.kept[agent] = Some(self.failure.clone().map_or_else(|| Ok(result()), Err));
            }
        }
        self.failure = None;
        self.env.reset(rng)?;
        self.episode += 1;
        Ok(())
    }
}

/// The games of a pool and the threads that step them.
struct Games {
    games: Arc<Vec<Mutex<Game>>>,
    num_agents: usize,
    threads: Vec<JoinHandle<()>>,
    /// True once the threads must end.
    ending: Arc<AtomicBool>,
}

impl Games {
    /// Starts `count - 1` threads: the caller of the pool is one more.
    fn new(games: Vec<Mutex<Game>>, num_agents: usize, count: usize) -> Result<Games> {
        let (games, ending) = (Arc::new(games), Arc::new(AtomicBool::new(false)));
        let mut threads = Vec::new();
        for _ in 1..count {
            let (games, ending) = (games.clone(), ending.clone());
            let work = move || {
                while !ending.load(Ordering::Acquire) {
                    // The caller begins with the first game. A game that is locked is being stepped.
                    for game in games.iter().rev() {
                        if let Ok(mut game) = game.try_lock() {
                            game.step_if_ready();
                        }
                    }
                    std::thread::park();
                }
            };
            let builder = std::thread::Builder::new().name("podracer-env".into());
            let thread = builder.spawn(work);
            threads.push(thread.map_err(|e| Error::Env(format!("cannot start a thread: {e}")))?);
        }
        Ok(Games { games, num_agents, threads, ending })
    }

    fn game(&self, env: usize) -> MutexGuard<'_, Game> {
        self.games[env / self.num_agents].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backend for Games {
    fn submit(&self, env: usize, call: Call<'_>) {
        if let Call::Step(action) = call {
            self.game(env).actions[env % self.num_agents] = Some(action.discrete());
        }
    }

    fn flush(&self) {
        self.threads.iter().for_each(|thread| thread.thread().unpark());
    }

    fn num_processes(&self) -> usize {
        self.threads.len() + 1
    }
}

impl Drop for Games {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // Panics of environments are caught.
            let _ = thread.join();
        }
    }
}

/// One agent of one game.
struct Agent {
    games: Arc<Games>,
    spec: EnvSpec,
    index: usize,
}

impl Agent {
    fn agent(&self) -> usize {
        self.index % self.games.num_agents
    }

    fn error(&self, problem: &str) -> Error {
        Error::Env(format!("{}: {problem}", self.spec.id))
    }
}

impl Env for Agent {
    fn spec(&self) -> EnvSpec {
        self.spec.clone()
    }

    /// The first agent that is reset starts the episode of all.
    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        let (mut game, agent) = (self.games.game(self.index), self.agent());
        game.actions[agent] = None;
        game.unread[agent] = false;
        if game.agent_episodes[agent] == game.episode {
            game.reset(rng, obs.0.len())?;
        }
        game.agent_episodes[agent] = game.episode;
        game.kept[agent] = None;
        game.env.observe(agent, obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        _rng: &mut EnvRng,
        obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        let (mut game, agent) = (self.games.game(self.index), self.agent());
        if let Some(kept) = game.kept[agent].take() {
            let (outcome, last) = kept.map_err(|failure| self.error(&failure))?;
            obs.0.copy_from_slice(&last);
            return Ok(outcome);
        }
        if game.agent_episodes[agent] != game.episode {
            return Err(self.error("another agent of this game was reset, and this one was not"));
        }
        if !game.unread[agent] {
            game.actions[agent] = Some(action.discrete());
            game.step_if_ready();
        }
        if let Some(failure) = &game.failure {
            return Err(self.error(failure));
        }
        if !game.unread[agent] {
            return Err(self.error("an agent of this game has no action: send those of all agents"));
        }
        game.unread[agent] = false;
        game.env.observe(agent, obs);
        Ok(game.env.outcome(agent))
    }

    fn render(&mut self) -> Option<Frame> {
        self.games.game(self.index).env.render()
    }

    /// The first agent's state holds the game.
    fn save(&self) -> Result<Vec<u8>> {
        match self.agent() {
            0 => self.games.game(self.index).env.save(),
            _ => Ok(Vec::new()),
        }
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        let (mut game, agent) = (self.games.game(self.index), self.agent());
        if agent == 0 {
            game.env.restore(state)?;
        }
        game.actions[agent] = None;
        game.unread[agent] = false;
        game.kept[agent] = None;
        game.failure = None;
        // All agents are in the same episode.
        let episode = game.episode;
        game.agent_episodes.fill(episode);
        Ok(())
    }
}

/// Makes a pool in which each agent of a game is one environment; `make` makes the games.
///
/// Returns an error if the number of environments is not a multiple of the number of agents, and if
/// the pool is asynchronous.
pub(in crate::envs) fn pool(
    make: impl Fn() -> Result<Box<dyn ParallelEnv>>,
    options: PoolOptions,
) -> Result<EnvPool> {
    let options = pool::check(options)?;
    let first = make()?;
    let (spec, num_agents) = (first.spec(), first.num_agents());
    check_agents(&spec.id, num_agents, &options)?;
    let num_games = options.num_envs / num_agents;
    let mut games = vec![Mutex::new(Game::new(first))];
    for _ in 1..num_games {
        games.push(Mutex::new(Game::new(make()?)));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let wanted = if options.num_threads == 0 { cores } else { options.num_threads };
    let games = Arc::new(Games::new(games, num_agents, wanted.min(num_games))?);
    let agent =
        |index| Box::new(Agent { games: games.clone(), spec: spec.clone(), index }) as Box<dyn Env>;
    let envs = (0..options.num_envs).map(agent).collect();
    EnvPool::with_backend(envs, games, options)
}

/// Returns an error if a pool with these options cannot hold games of `num_agents` agents.
pub(in crate::envs) fn check_agents(
    id: &str,
    num_agents: usize,
    options: &PoolOptions,
) -> Result<()> {
    let PoolOptions { num_envs, batch_size, .. } = *options;
    if !num_envs.is_multiple_of(num_agents) {
        return Err(Error::Config(format!(
            "{id}: num_envs is {num_envs}, expected a multiple of {num_agents}: each of its \
             {num_agents} agents is one environment"
        )));
    }
    if batch_size != num_envs {
        return Err(Error::Config(format!(
            "{id}: batch_size is {batch_size}, expected num_envs, {num_envs}: its agents act at the \
             same time"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envs::OnError;
    use crate::spaces::Space;

    /// Two agents, whose third step fails.
    struct Faulty(u32);

    impl ParallelEnv for Faulty {
        fn spec(&self) -> EnvSpec {
            EnvSpec {
                id: "Faulty".into(),
                observation: Space::f32([1], 0.0, f64::INFINITY),
                action: Space::Discrete { n: 2 },
                max_episode_steps: None,
                reward_threshold: None,
            }
        }

        fn num_agents(&self) -> usize {
            2
        }

        fn reset(&mut self, _: &mut EnvRng) -> Result<()> {
            self.0 = 0;
            Ok(())
        }

        fn step(&mut self, _: &[usize]) -> Result<()> {
            self.0 += 1;
            match self.0 {
                3 => Err(Error::Env("the ball is lost".into())),
                _ => Ok(()),
            }
        }

        fn outcome(&self, _: usize) -> StepOutcome {
            StepOutcome::new(1.0, false)
        }

        fn observe(&self, _: usize, mut obs: ObsMut<'_>) {
            obs.write(&[self.0 as f32]);
        }

        fn render(&self) -> Option<Frame> {
            None
        }

        fn save(&self) -> Result<Vec<u8>> {
            Ok(Vec::new())
        }

        fn restore(&mut self, _: &[u8]) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_failed_step_truncates_the_episodes_of_all_agents() {
        let on_error = OnError::Truncate;
        let options = PoolOptions { num_envs: 4, num_threads: 2, on_error, ..Default::default() };
        let mut pool = pool(|| Ok(Box::new(Faulty(0))), options).unwrap();
        pool.reset().unwrap();
        for _ in 0..2 {
            pool.step(&[0; 4]).unwrap();
        }
        let batch = pool.step(&[0; 4]).unwrap();
        assert_eq!((batch.truncated(), batch.reward()), (&[true; 4][..], &[0.0; 4][..]));
        let envs: Vec<usize> = pool.take_failures().iter().map(|failure| failure.env_id).collect();
        assert_eq!(envs, [0, 1, 2, 3]);
        let batch = pool.step(&[0; 4]).unwrap();
        assert_eq!((batch.obs::<f32>(), batch.reward()), (&[1.0; 4][..], &[1.0; 4][..]));
    }
}
