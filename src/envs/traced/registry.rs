//! Registry of the traced environments, and one type for all of them.

use std::cell::OnceCell;

use super::{TracedEnv, TracedStep};
use crate::envs::env::spec::EnvSpec;
use crate::envs::programs;
use crate::envs::registry::{register_traced, registered_traced};
use crate::envs::traced::acrobot::Acrobot;
use crate::envs::traced::asterix::Asterix;
use crate::envs::traced::breakout::Breakout;
use crate::envs::traced::cartpole::CartPole;
use crate::envs::traced::cartpole_positions::CartPolePositions;
use crate::envs::traced::freeway::Freeway;
use crate::envs::traced::mountain_car::MountainCar;
use crate::envs::traced::pendulum::Pendulum;
use crate::envs::traced::programs::ProgramEnv;
use crate::envs::traced::seaquest::Seaquest;
use crate::envs::traced::space_invaders::SpaceInvaders;
use crate::error::{Error, Result};
use crate::random::Key;
use crate::trace::Tensor;
use crate::tree;

/// Id of an environment and the function that makes it.
type Entry = (&'static str, fn() -> Traced);

const ENVS: &[Entry] = &[
    ("Acrobot-v1", || Traced::new(Acrobot::v1())),
    ("CartPole-v0", || Traced::new(CartPole::v0())),
    ("CartPole-v1", || Traced::new(CartPole::v1())),
    ("CartPolePositions-v0", || Traced::new(CartPolePositions::v0())),
    ("MinAtar/Asterix-v0", || Traced::new(Asterix::v0())),
    ("MinAtar/Asterix-v1", || Traced::new(Asterix::v1())),
    ("MinAtar/Breakout-v0", || Traced::new(Breakout::v0())),
    ("MinAtar/Breakout-v1", || Traced::new(Breakout::v1())),
    ("MinAtar/Freeway-v0", || Traced::new(Freeway::v0())),
    ("MinAtar/Freeway-v1", || Traced::new(Freeway::v1())),
    ("MinAtar/Seaquest-v0", || Traced::new(Seaquest::v0())),
    ("MinAtar/Seaquest-v1", || Traced::new(Seaquest::v1())),
    ("MinAtar/SpaceInvaders-v0", || Traced::new(SpaceInvaders::v0())),
    ("MinAtar/SpaceInvaders-v1", || Traced::new(SpaceInvaders::v1())),
    ("MountainCar-v0", || Traced::new(MountainCar::v0())),
    ("Pendulum-v1", || Traced::new(Pendulum::v1())),
];

/// Registers a traced environment of your own under the id of its specification: `ppo_anakin` and
/// its relatives train on it, and the other algorithms too, through the [pool](crate::envs::EnvPool).
/// Its functions are traced here, once.
///
/// # Errors
/// [`Error::Trace`] for functions that cannot be typed; [`Error::Env`] for results that do not fit
/// the specification, and for an id that is empty, has a space, or already names an environment.
pub fn register<E: TracedEnv>(env: &E) -> Result<()> {
    register_traced(ProgramEnv::trace(env)?)
}

/// Returns the ids that [`make`] accepts, in alphabetical order, without those of [`register`]. Each is
/// also an id of the pool.
pub fn list_envs() -> Vec<&'static str> {
    ENVS.iter().map(|(id, _)| *id).collect()
}

/// Returns true if [`make`] accepts the id, without reading files.
pub fn is_traced(id: &str) -> bool {
    programs::jax_folder(id).is_some()
        || list_envs().contains(&id)
        || registered_traced(id).is_some()
}

/// Makes a traced environment by its id, or that of a folder of JAX programs by `jax:FOLDER`.
///
/// # Errors
/// [`Error::Env`] for an id without a traced environment; the message lists the known ids. Returns
/// the errors of [`ProgramEnv::load`].
pub fn make(id: &str) -> Result<Traced> {
    if let Some(folder) = programs::jax_folder(id) {
        return Ok(Traced::new(ProgramEnv::load(folder)?));
    }
    if let Some(env) = registered_traced(id) {
        return Ok(Traced::new(env));
    }
    match ENVS.iter().find(|(name, _)| *name == id) {
        Some((_, make)) => Ok(make()),
        None => {
            let pooled = crate::envs::registry::list_envs().contains(&id);
            let there = if pooled { "is in the pool only" } else { "is not known" };
            let all = list_envs().join(", ");
            Err(Error::Env(format!(
                "environment \"{id}\" {there}; traced environments: {all}; one of JAX is \
                 {}FOLDER",
                programs::PREFIX
            )))
        }
    }
}

/// Type-erased traced environment: its state is the list of its leaves.
pub struct Traced(Box<dyn Erased>);

impl Traced {
    /// Erases the type of an environment.
    pub fn new<E: TracedEnv + 'static>(env: E) -> Traced {
        Traced(Box::new(Typed { env, template: OnceCell::new() }))
    }
}

impl std::fmt::Debug for Traced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Traced").field(&self.0.spec().id).finish()
    }
}

impl TracedEnv for Traced {
    type State = Vec<Tensor>;

    fn spec(&self) -> EnvSpec {
        self.0.spec()
    }

    #[track_caller]
    fn reset(&self, key: Key<Tensor>) -> (Vec<Tensor>, Tensor) {
        self.0.reset(key)
    }

    #[track_caller]
    fn step(
        &self,
        state: Vec<Tensor>,
        action: Tensor,
        key: Key<Tensor>,
    ) -> TracedStep<Tensor, Vec<Tensor>> {
        self.0.step(state, action, key)
    }
}

/// [`TracedEnv`] without the type of the state.
trait Erased {
    fn spec(&self) -> EnvSpec;
    fn reset(&self, key: Key<Tensor>) -> (Vec<Tensor>, Tensor);
    fn step(
        &self,
        state: Vec<Tensor>,
        action: Tensor,
        key: Key<Tensor>,
    ) -> TracedStep<Tensor, Vec<Tensor>>;
}

struct Typed<E: TracedEnv> {
    env: E,
    /// A state that serves as template of the tree structure.
    template: OnceCell<E::State>,
}

impl<E: TracedEnv> Erased for Typed<E> {
    fn spec(&self) -> EnvSpec {
        self.env.spec()
    }

    fn reset(&self, key: Key<Tensor>) -> (Vec<Tensor>, Tensor) {
        let (state, obs) = self.env.reset(key);
        let leaves = tree::leaves(&state);
        self.template.get_or_init(|| state);
        (leaves, obs)
    }

    fn step(
        &self,
        state: Vec<Tensor>,
        action: Tensor,
        key: Key<Tensor>,
    ) -> TracedStep<Tensor, Vec<Tensor>> {
        // The results of this reset are unused and eliminated from the Program.
        let template = self.template.get_or_init(|| self.env.reset(Key::constant(0)).0);
        let TracedStep { state, obs, reward, terminated, truncated } =
            self.env.step(tree::replace(template, state), action, key);
        TracedStep { state: tree::leaves(&state), obs, reward, terminated, truncated }
    }
}
