//! The network of actors and learners.

use clap::ValueEnum;
use serde::Serialize;

use crate::envs::EnvSpec;
use crate::error::Result;
use crate::nn::init::orthogonal;
use crate::nn::{Dense, Encoder, ImpalaCnn, View};
use crate::rl::policy::{Choice, Head, Policy};
use crate::rl::spaces;
use crate::tree::Tree;
use crate::{DType, Key, Shape, Tensor};

/// What sees images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// IMPALA's residual network (Espeholt et al. 2018).
    Impala,
    /// The Nature network (Mnih et al. 2015).
    Nature,
}

/// What an agent must know of its environment, and how large it is.
#[derive(Debug, Clone)]
pub struct Sizes {
    /// What the environment shows.
    pub view: View,
    /// The shape of an observation.
    pub shape: Shape,
    /// What it wants chosen.
    pub choice: Choice,
    /// What sees images of 84 by 84.
    pub network: Network,
    /// Features of IMPALA's sequences.
    pub channels: Vec<usize>,
    /// Units of its dense layers.
    pub hiddens: Vec<usize>,
}

impl Sizes {
    /// Those of an environment; `algorithm` is its name.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for observations or actions that no network here is
    /// for.
    pub fn of(
        algorithm: &str,
        spec: &EnvSpec,
        network: Network,
        (channels, hiddens): (&[usize], &[usize]),
    ) -> Result<Sizes> {
        let view = spaces::view(algorithm, spec, &[View::Frames, View::Board, View::Vector])?;
        let (channels, hiddens) = (channels.to_vec(), hiddens.to_vec());
        let choice = Choice::of(algorithm, spec)?;
        Ok(Sizes { view, shape: spec.observation.shape(), choice, network, channels, hiddens })
    }
}

/// Observations to features.
#[derive(Debug, Clone, Tree)]
pub enum Trunk<T> {
    /// The layers of an [`Encoder`].
    Plain(Encoder<T>),
    /// IMPALA's, for frames.
    Impala(ImpalaCnn<T>),
}

impl Trunk<Tensor> {
    #[track_caller]
    fn init(key: Key<Tensor>, sizes: &Sizes) -> Trunk<Tensor> {
        let gain = orthogonal(2.0f64.sqrt());
        match (sizes.view, sizes.network, &sizes.shape[..]) {
            (View::Frames, Network::Impala, &[frames, height, width]) => {
                let shape = [height, width, frames];
                let net = ImpalaCnn::init(key, shape, &sizes.channels, &sizes.hiddens, gain);
                Trunk::Impala(net)
            }
            _ => Trunk::Plain(Encoder::init(key, sizes.view, &sizes.shape)),
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

/// Layers that see, with a head for the policy and one for the value.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    /// Observations to features.
    pub network: Trunk<T>,
    /// Features to the policy.
    pub actor: Head<T>,
    /// Features to the value.
    pub critic: Dense<T>,
}

impl Agent<Tensor> {
    /// A new agent.
    #[track_caller]
    pub fn init(key: Key<Tensor>, sizes: &Sizes) -> Agent<Tensor> {
        let [network, actor, critic] = key.split_n();
        let network = Trunk::init(network, sizes);
        Agent {
            actor: Head::init(actor, network.size(), sizes.choice),
            critic: Dense::init(critic, network.size(), 1, orthogonal(1.0)),
            network,
        }
    }

    /// The policies and the values `f32[B]` of observations `[B, ..]`.
    #[track_caller]
    pub fn apply(&self, obs: Tensor) -> (Policy, Tensor) {
        let x = self.network.apply(obs);
        (self.actor.apply(x), self.critic.apply(x).squeeze(-1))
    }

    /// The values alone.
    #[track_caller]
    pub fn value(&self, obs: Tensor) -> Tensor {
        self.critic.apply(self.network.apply(obs)).squeeze(-1)
    }
}
