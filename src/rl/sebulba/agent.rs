//! Actor-critic network shared by actors and learners.

use crate::distributions::ActionDistribution;
use crate::envs::{ActionKind, EnvSpec, ObsKind};
use crate::error::Result;
use crate::nn::init::orthogonal;
use crate::nn::{Dense, Encoder, ImageEncoder, PolicyHead};
use crate::rl::algorithm::Algorithm;
use crate::rl::environments::bounds::Bounds;
use crate::rl::environments::spaces;
use crate::rl::environments::support::ActionSupport;
use crate::rl::settings::options::ImageNetwork;
use crate::tree::Tree;
use crate::{Key, Shape, Tensor};

/// Sizes and kinds that an agent needs to know of its environment and network.
#[derive(Debug, Clone)]
pub struct Sizes {
    /// Kind of observation.
    pub obs_kind: ObsKind,
    /// Shape of one observation.
    pub shape: Shape,
    /// Kind of action.
    pub action_kind: ActionKind,
    /// Bounds of continuous actions; `None` for discrete ones.
    pub bounds: Option<Bounds>,
    /// Network for images of 84 by 84.
    pub network: ImageNetwork,
    /// Channels of the convolution sequences of the IMPALA network.
    pub channels: Vec<usize>,
    /// Units of the dense layers of the IMPALA network.
    pub hiddens: Vec<usize>,
}

impl Sizes {
    /// Returns the sizes for an environment of the algorithm `A`.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for observations or actions that the algorithm does
    /// not support.
    pub fn from_spec<A: Algorithm>(
        spec: &EnvSpec,
        network: ImageNetwork,
        (channels, hiddens): (&[usize], &[usize]),
    ) -> Result<Sizes> {
        let obs_kind = spaces::obs_kind(A::NAME, spec, &A::ENVS)?;
        let (channels, hiddens) = (channels.to_vec(), hiddens.to_vec());
        let action_kind = spaces::action_kind(A::NAME, spec)?;
        let bounds = match (A::ENVS.actions, action_kind) {
            (ActionSupport::BoundedContinuous, _) => Some(spaces::finite_bounds(A::NAME, spec)?),
            (_, ActionKind::Discrete { .. }) => None,
            _ => Some(spaces::bounds(A::NAME, spec)?),
        };
        let shape = spec.observation.shape();
        Ok(Sizes { obs_kind, shape, action_kind, bounds, network, channels, hiddens })
    }
}

/// Actor-critic network: shared layers with a head for the policy and one for the value.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    /// Layers that map observations to features.
    pub network: ImageEncoder<T>,
    /// Head that maps features to the policy.
    pub actor: PolicyHead<T>,
    /// Head that maps features to the value.
    pub critic: Dense<T>,
}

impl Agent<Tensor> {
    /// Initializes a new agent.
    #[track_caller]
    pub fn init(key: Key<Tensor>, sizes: &Sizes) -> Agent<Tensor> {
        let [network, actor, critic] = key.split_n();
        let Sizes { obs_kind, shape, .. } = sizes;
        let gain = orthogonal(2.0f64.sqrt());
        let network = match (sizes.network, obs_kind) {
            (ImageNetwork::Impala, ObsKind::Image) => {
                let layers = (&sizes.channels[..], &sizes.hiddens[..]);
                ImageEncoder::impala(network, *obs_kind, shape, layers, gain)
            }
            _ => ImageEncoder::Nature(Encoder::init(network, *obs_kind, shape, gain)),
        };
        Agent {
            actor: PolicyHead::init(actor, network.size(), sizes.action_kind),
            critic: Dense::init(critic, network.size(), 1, orthogonal(1.0)),
            network,
        }
    }

    /// Returns the policy and the values `f32[B]` of observations `[B, ..]`.
    #[track_caller]
    pub fn apply(&self, obs: Tensor) -> (ActionDistribution, Tensor) {
        let x = self.network.apply(obs);
        (self.actor.apply(x), self.critic.apply(x).squeeze(-1))
    }

    /// Returns the values `f32[B]` of observations `[B, ..]`.
    #[track_caller]
    pub fn value(&self, obs: Tensor) -> Tensor {
        self.critic.apply(self.network.apply(obs)).squeeze(-1)
    }
}
