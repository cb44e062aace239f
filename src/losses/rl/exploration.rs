//! Noise of actions, and rewards for what is new.

use super::super::{ensure_floats, ensure_same_shape};
use crate::random::{self, Key};
use crate::trace::ops::{self, arange, concatenate, where_};
use crate::trace::tensor::{fail_op, op};
use crate::trace::{DType, Tensor};
use crate::tree::Tree;

/// Adds normal noise to actions: `rlax.add_gaussian_noise`.
///
/// # Errors
/// Ends the trace if actions are not floats.
#[op]
pub fn add_gaussian_noise(key: Key<Tensor>, action: Tensor, stddev: f64) -> Tensor {
    ensure_floats("add_gaussian_noise", ["action"], [action]);
    action + random::normal(key, action.shape(), action.dtype()) * stddev
}

/// Adds noise of an Ornstein-Uhlenbeck process to actions: `rlax.add_ornstein_uhlenbeck_noise`. Returns the
/// actions, and as rlax does not, the noise for the next call.
///
/// # Errors
/// Ends the trace unless actions and noise are floats of one shape.
#[op]
pub fn add_ornstein_uhlenbeck_noise(
    key: Key<Tensor>,
    action: Tensor,
    noise_tm1: Tensor,
    damping: f64,
    stddev: f64,
) -> (Tensor, Tensor) {
    let op = "add_ornstein_uhlenbeck_noise";
    ensure_floats(op, ["action", "noise_tm1"], [action, noise_tm1]);
    ensure_same_shape(op, ["action", "noise_tm1"], [action, noise_tm1]);
    let drawn = random::normal(key, action.shape(), action.dtype());
    let noise = (1.0 - damping) * noise_tm1 + drawn * stddev;
    (action + noise, noise)
}

/// Mixes priors `[.., actions]` with noise of a Dirichlet distribution: `rlax.add_dirichlet_noise`.
///
/// # Errors
/// Ends the trace if priors are not floats, or have no axis of actions.
#[op]
pub fn add_dirichlet_noise(
    key: Key<Tensor>,
    prior: Tensor,
    dirichlet_alpha: f64,
    dirichlet_fraction: f64,
) -> Tensor {
    ensure_floats("add_dirichlet_noise", ["prior"], [prior]);
    let shape = prior.shape();
    let Some((&actions, batch)) = shape.split_last() else {
        fail_op("add_dirichlet_noise", "prior has no axis of actions")
    };
    let alpha = ops::full([actions], dirichlet_alpha, prior.dtype());
    let noise = random::dirichlet(key, alpha, batch, prior.dtype());
    (1.0 - dirichlet_fraction) * prior + dirichlet_fraction * noise
}

/// Neighbors of points; built by [`knn_query`].
#[derive(Debug, Clone, Copy, Tree)]
pub struct KnnQueryResult<T> {
    /// Neighbors, the nearest first, `[points, neighbors, size]`.
    pub neighbors: T,
    /// Their positions, `i32[points, neighbors]`.
    pub neighbor_indices: T,
    /// Their squared distances with the opposite sign.
    pub neighbor_neg_distances: T,
}

/// Finds the nearest of `data: [n, size]` to each of `query_points: [points, size]`: `rlax.knn_query`.
///
/// # Errors
/// Ends the trace unless both are float matrices of equal rows.
#[op]
pub fn knn_query(
    data: Tensor,
    query_points: Tensor,
    num_neighbors: usize,
) -> KnnQueryResult<Tensor> {
    ensure_floats("knn_query", ["data", "query_points"], [data, query_points]);
    if data.rank() != 2 || query_points.rank() != 2 || data.dim(1) != query_points.dim(1) {
        let problem = format!(
            "takes data [n, size] and points [points, size]; got {} and {}",
            data.ty(),
            query_points.ty()
        );
        fail_op("knn_query", problem);
    }
    let distances = (query_points.expand_dims(1) - data).square().sum(-1);
    let (neighbor_neg_distances, neighbor_indices) =
        (-distances).top_k(num_neighbors.min(data.dim(0)));
    let neighbors = data.take(neighbor_indices, 0);
    KnnQueryResult { neighbors, neighbor_indices, neighbor_neg_distances }
}

/// Memory of [`episodic_memory_intrinsic_rewards`].
#[derive(Debug, Clone, Tree)]
pub struct IntrinsicRewardState<T> {
    /// Embeddings, `[max_memory_size, size]`; infinite where there is none.
    pub memory: T,
    /// Position of the next embedding, `i32`.
    pub next_memory_index: T,
    /// Sum of the distances with the opposite sign.
    pub distance_sum: T,
    /// Number of distances, `i32`.
    pub distance_count: T,
}

impl IntrinsicRewardState<Tensor> {
    /// Returns a memory in f32 of `num_neighbors` zeros.
    ///
    /// # Errors
    /// Ends the trace if these are more than the memory has places.
    #[track_caller]
    pub fn init(
        max_memory_size: usize,
        size: usize,
        num_neighbors: usize,
    ) -> IntrinsicRewardState<Tensor> {
        if num_neighbors > max_memory_size {
            let problem =
                format!("{num_neighbors} neighbors do not fit a memory of {max_memory_size}");
            fail_op("IntrinsicRewardState", problem);
        }
        let zeros = ops::zeros([num_neighbors, size], DType::F32);
        let free = ops::full([max_memory_size - num_neighbors, size], f64::INFINITY, DType::F32);
        IntrinsicRewardState {
            memory: concatenate(&[zeros, free], 0),
            next_memory_index: ops::constant(0i32),
            distance_sum: ops::constant(0f32),
            distance_count: ops::constant(0i32),
        }
    }
}

/// Parameters of [`episodic_memory_intrinsic_rewards`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EpisodicMemory {
    /// Number of neighbors that are compared.
    pub num_neighbors: usize,
    /// Factor of the rewards.
    pub reward_scale: f64,
    /// Number added to the mean distance and to the similarity.
    pub constant: f64,
    /// Number added to the distance in the kernel.
    pub epsilon: f64,
    /// Distance, relative to the mean one, within which embeddings count as equal.
    pub cluster_distance: f64,
    /// Similarity above which there is no reward.
    pub max_similarity: f64,
}

impl EpisodicMemory {
    /// Returns the parameters with rlax's other defaults: 1e-3, 1e-4, 8e-3, 8.
    pub fn new(num_neighbors: usize, reward_scale: f64) -> EpisodicMemory {
        EpisodicMemory {
            num_neighbors,
            reward_scale,
            constant: 1e-3,
            epsilon: 1e-4,
            cluster_distance: 8e-3,
            max_similarity: 8.0,
        }
    }
}

/// Returns rewards for embeddings `[n, size]` that differ from those in memory, and the memory with them:
/// `rlax.episodic_memory_intrinsic_rewards` (Badia et al. 2020).
///
/// # Errors
/// Ends the trace unless the embeddings are floats `[n, size]` of the size of the memory.
#[op]
pub fn episodic_memory_intrinsic_rewards(
    embeddings: Tensor,
    options: &EpisodicMemory,
    state: IntrinsicRewardState<Tensor>,
) -> (Tensor, IntrinsicRewardState<Tensor>) {
    let found = knn_query(state.memory, embeddings, options.num_neighbors);
    let distances = found.neighbor_neg_distances;
    let (places, count) = (state.memory.dim(0) as i32, embeddings.dim(0));
    let start = state.next_memory_index % places;
    let indices = (arange(count, DType::I32) + start) % places;
    let distance_sum = state.distance_sum + distances.sum(..);
    let distance_count = state.distance_count + distances.numel() as i32;
    let mean = distance_sum / distance_count.to(distance_sum.dtype());
    let rate = (distances / (mean + options.constant) - options.cluster_distance).maximum(0.0);
    let kernel = options.epsilon / (rate + options.epsilon);
    let similarity = kernel.sum(-1).sqrt() + options.constant;
    let reward = where_(similarity.gt(options.max_similarity), 0.0, 1.0 / similarity);
    let state = IntrinsicRewardState {
        memory: state.memory.at(&[indices]).set(embeddings),
        next_memory_index: start + count as i32 % places,
        distance_sum,
        distance_count,
    };
    (reward * options.reward_scale, state)
}
