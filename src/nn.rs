//! Neural network layers: trees of parameters with a constructor and an `apply` function.
//!
//! A layer is a plain struct: its tensors are leaves, the rest is static. `init` samples the
//! parameters with a [`Key`](crate::random::Key); `apply` is a pure function of the parameters and
//! its inputs. Activations are methods of [`Tensor`](crate::Tensor).
//!
//! ```
//! use podracer::nn::{Dense, init};
//! use podracer::random::Key;
//! use podracer::{Tensor, Tree};
//!
//! #[derive(Tree, Clone)]
//! struct Critic<T> {
//!     hidden: Dense<T>,
//!     head: Dense<T>,
//! }
//!
//! impl Critic<Tensor> {
//!     fn init(key: Key<Tensor>, observation: usize) -> Critic<Tensor> {
//!         let [hidden, head] = key.split_n();
//!         Critic {
//!             hidden: Dense::init(hidden, observation, 64, init::orthogonal(2f64.sqrt())),
//!             head: Dense::init(head, 64, 1, init::orthogonal(1.0)),
//!         }
//!     }
//!
//!     /// f32[batch, observation] to f32[batch].
//!     fn apply(&self, observation: Tensor) -> Tensor {
//!         self.head.apply(self.hidden.apply(observation).tanh()).squeeze(-1)
//!     }
//! }
//! ```

mod attention;
mod cells;
mod conv;
mod encoder;
mod image_encoder;
mod impala;
pub mod init;
mod layers;
mod linear;
mod linear_rnn;
mod multi_head;
pub mod normalize;
mod norms;
mod policy_head;
mod recurrent;
mod recurrent_cell;
mod renorm;
mod rnn;
#[cfg(test)]
mod tests;
mod weight_norms;

pub use attention::{
    AttentionOptions, combine_masks, dot_product_attention, dot_product_attention_blockwise,
    dot_product_attention_weights, make_attention_mask, make_attention_mask_with, make_causal_mask,
};
pub use cells::{ConvLSTMCell, MGUCell, RNNCellBase, SimpleCell};
pub use conv::{Conv, ConvLocal, ConvPadding, ConvTranspose, avg_pool, max_pool, min_pool};
pub use encoder::Encoder;
pub use image_encoder::{ImageEncoder, normed};
pub use impala::{ImpalaCnn, Residual, Sequence};
pub use init::Init;
pub use layers::{Activation, Conv2d, ConvTranspose2d, Dense, LayerNorm, Mlp};
pub use linear::{DenseGeneral, Dropout, Einsum, Embed, PReLU};
pub use linear_rnn::{Lru, LruOptions, MinGru};
pub use multi_head::{
    AttentionCache, MultiHeadAttention, MultiHeadDotProductAttention, SelfAttention,
};
pub use norms::{BatchNorm, BatchStats, GroupNorm, InstanceNorm, RMSNorm};
pub use policy_head::PolicyHead;
/// Flax's cell with concatenated kernels, which [`LstmCell`] is.
pub use recurrent::LstmCell as OptimizedLSTMCell;
pub use recurrent::{GruCell, GruCell as GRUCell, LstmCell, LstmCell as LSTMCell, reset_carry};
pub use recurrent_cell::{RecurrentCell, RecurrentState, RnnKind};
pub use renorm::{BatchRenorm, BatchRenormStats};
pub use rnn::{Bidirectional, Layer, RNN, Sequential};
pub use weight_norms::{SpectralNorm, SpectralStats, WeightNorm};
