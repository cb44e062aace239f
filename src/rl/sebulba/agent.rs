//! Actor-critic network shared by actors and learners.

use clap::ValueEnum;
use serde::Serialize;

use crate::distributions::ActionDistribution;
use crate::envs::{ActionKind, EnvSpec, ObsKind};
use crate::error::Result;
use crate::nn::init::orthogonal;
use crate::nn::{Dense, Encoder, ImpalaCnn, PolicyHead};
use crate::rl::spaces;
use crate::tree::Tree;
use crate::{DType, Key, Shape, Tensor};

/// Network that encodes image observations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// IMPALA's residual network (Espeholt et al. 2018).
    Impala,
    /// The Nature network (Mnih et al. 2015).
    Nature,
}

/// Sizes and kinds that an agent needs to know of its environment and network.
#[derive(Debug, Clone)]
pub struct Sizes {
    /// Kind of observation.
    pub obs_kind: ObsKind,
    /// Shape of one observation.
    pub shape: Shape,
    /// Kind of action.
    pub action_kind: ActionKind,
    /// Network for images of 84 by 84.
    pub network: Network,
    /// Channels of the convolution sequences of the IMPALA network.
    pub channels: Vec<usize>,
    /// Units of the dense layers of the IMPALA network.
    pub hiddens: Vec<usize>,
}

impl Sizes {
    /// Returns the sizes for an environment; `algorithm` is the algorithm's name in error messages.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for observations or actions that no network here
    /// supports.
    pub fn of(
        algorithm: &str,
        spec: &EnvSpec,
        network: Network,
        (channels, hiddens): (&[usize], &[usize]),
    ) -> Result<Sizes> {
        let kinds = [ObsKind::Frames, ObsKind::Board, ObsKind::Vector];
        let obs_kind = spaces::obs_kind(algorithm, spec, &kinds)?;
        let (channels, hiddens) = (channels.to_vec(), hiddens.to_vec());
        let action_kind = spaces::action_kind(algorithm, spec)?;
        let shape = spec.observation.shape();
        Ok(Sizes { obs_kind, shape, action_kind, network, channels, hiddens })
    }
}

/// Layers that map observations to features.
#[derive(Debug, Clone, Tree)]
pub enum Trunk<T> {
    /// The layers of an [`Encoder`].
    Plain(Encoder<T>),
    /// Layers of the IMPALA network, for image observations.
    Impala(ImpalaCnn<T>),
}

impl Trunk<Tensor> {
    #[track_caller]
    fn init(key: Key<Tensor>, sizes: &Sizes) -> Trunk<Tensor> {
        let gain = orthogonal(2.0f64.sqrt());
        match (sizes.obs_kind, sizes.network, &sizes.shape[..]) {
            (ObsKind::Frames, Network::Impala, &[frames, height, width]) => {
                let shape = [height, width, frames];
                let net = ImpalaCnn::init(key, shape, &sizes.channels, &sizes.hiddens, gain);
                Trunk::Impala(net)
            }
            _ => Trunk::Plain(Encoder::init(key, sizes.obs_kind, &sizes.shape)),
        }
    }

    fn size(&self) -> usize {
        match self {
            Trunk::Plain(net) => net.size(),
            Trunk::Impala(net) => net.size(),
        }
    }

    #[track_caller]
    fn apply(&self, obs: Tensor) -> Tensor {
        match self {
            Trunk::Plain(net) => net.apply(obs),
            Trunk::Impala(net) => net.apply(obs.transpose(&[0, 2, 3, 1]).to(DType::F32) / 255.0),
        }
    }
}

/// Actor-critic network: shared layers with a head for the policy and one for the value.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    /// Layers that map observations to features.
    pub network: Trunk<T>,
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
        let network = Trunk::init(network, sizes);
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
