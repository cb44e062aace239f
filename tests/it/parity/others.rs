//! Names of `jax.nn`, `jax.random`, `jax.scipy.special`, `jax.tree_util`, optax and Flax.

use podracer::nn::init;
use podracer::trace::{numpy, ops};
use podracer::{Key, distributions, losses, nn, optim, random, tree};

use super::{Row, calls, items};

pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    networks(&mut rows);
    sampling(&mut rows);
    special_functions(&mut rows);
    trees(&mut rows);
    trees_of_structs(&mut rows);
    optax(&mut rows);
    rows
}

fn networks(rows: &mut Vec<Row>) {
    items!(rows, "jax.nn", ops: one_hot);
    calls!(rows, "jax.nn":
        elu => |x| x.elu(), gelu => |x| x.gelu(), leaky_relu => |x| x.leaky_relu(0.01),
        log_sigmoid => |x| x.log_sigmoid(), log_softmax => |x| x.log_softmax(-1),
        logsumexp => |x| x.logsumexp(..), relu => |x| x.relu(), sigmoid => |x| x.sigmoid(),
        silu => |x| x.silu(), swish => |x| x.silu(), softmax => |x| x.softmax(-1),
        softplus => |x| x.softplus(), tanh => |x| x.tanh(), celu => |x| x.celu(1.0),
        glu => |x| x.glu(-1), hard_sigmoid => |x| x.hard_sigmoid(), hard_silu => |x| x.hard_silu(),
        hard_swish => |x| x.hard_silu(), hard_tanh => |x| x.hard_tanh(), identity => |x| x,
        log1mexp => |x| x.log1mexp(), logmeanexp => |x| x.logmeanexp(..), mish => |x| x.mish(),
        relu6 => |x| x.relu6(), selu => |x| x.selu(), soft_sign => |x| x.soft_sign(),
        sparse_plus => |x| x.sparse_plus(), sparse_sigmoid => |x| x.sparse_sigmoid(),
        squareplus => |x| x.squareplus(4.0), standardize => |x| x.standardize(-1, 1e-5),
    );
    items!(rows, "jax.nn.initializers", init: constant, delta_orthogonal, glorot_normal, glorot_uniform, he_normal,
        he_uniform, kaiming_normal = he_normal, kaiming_uniform = he_uniform, lecun_normal,
        lecun_uniform, normal, ones, orthogonal, truncated_normal, uniform, xavier_normal = glorot_normal,
        xavier_uniform = glorot_uniform, zeros);
    calls!(rows, "jax.nn.initializers":
        variance_scaling => |_x| init::Init::VarianceScaling {
            scale: 1.0,
            fan: init::Fan::In,
            distribution: init::Distribution::Normal
        },
    );
    items!(rows, "flax.linen", nn: BatchNorm, Bidirectional, Conv, ConvLSTMCell, ConvLocal, ConvTranspose, Dense,
        DenseGeneral, Dropout, Einsum, Embed, GRUCell, GroupNorm, InstanceNorm, LSTMCell, LayerNorm, MGUCell,
        MultiHeadAttention, MultiHeadDotProductAttention, OptimizedLSTMCell, PReLU, RMSNorm, RNN, RNNCellBase,
        SelfAttention, Sequential, SimpleCell, SpectralNorm, WeightNorm);
    items!(rows, "jax.nn", nn: dot_product_attention);
}

fn sampling(rows: &mut Vec<Row>) {
    items!(rows, "jax.random", random: ball, bernoulli, beta, binomial, bits, categorical, cauchy,
        chisquare, choice, dirichlet, double_sided_maxwell, exponential, f, gamma,
        generalized_normal, geometric, gumbel, laplace, loggamma, logistic, lognormal, maxwell,
        multinomial, multivariate_normal, normal, orthogonal, pareto, permutation, poisson,
        rademacher, randint, rayleigh, t, triangular, truncated_normal, uniform, wald, weibull_min);
    calls!(rows, "jax.random":
        PRNGKey => |_x| Key::new(0),
        key => |_x| Key::new(0),
        fold_in => |x| Key::from_data(x).fold_in(1),
        clone => |x| (Key::from_data(x), Key::from_data(x)),
        key_data => |x| Key::from_data(x).into_data(),
        split => |x| Key::from_data(x).split(),
        wrap_key_data => |x| Key::from_data(x),
    );
}

fn special_functions(rows: &mut Vec<Row>) {
    items!(rows, "jax.scipy.special", ops: polygamma);
    items!(rows, "jax.scipy.special", numpy: bernoulli, bessel_jn, beta, betainc, betaln, boxcox, boxcox1p, comb,
        dawsn, entr, erfcx, exp1, expi, expn, factorial, fresnel, gamma, gammainc, gammaincc, gammasgn, hyp1f1, hyp2f1, i0, i1,
        kl_div, log_ndtr, logit, multigammaln, ndtr, ndtri, owens_t, poch, rel_entr, sici, spence, sph_harm_y, wofz, xlog1py, xlogy,
        zeta);
    calls!(rows, "jax.scipy.special":
        digamma => |x| x.digamma(), erf => |x| x.erf(), erfc => |x| x.erfc(),
        erfinv => |x| x.erf_inv(), expit => |x| x.sigmoid(), gammaln => |x| x.lgamma(), loggamma => |x| x.lgamma(),
        i0e => |x| x.bessel_i0e(), i1e => |x| x.bessel_i1e(), log_softmax => |x| x.log_softmax(-1),
        logsumexp => |x| x.logsumexp(..), softmax => |x| x.softmax(-1),
    );
}

fn trees(rows: &mut Vec<Row>) {
    items!(rows, "jax.tree_util", tree: tree_all = all, tree_flatten_with_path = leaves_with_path,
        tree_leaves = leaves, tree_leaves_with_path = leaves_with_path, tree_map = map,
        tree_map_with_path = map_with_path, tree_reduce = reduce, tree_structure = structure,
        tree_unflatten = rebuild, tree_flatten = into_leaves, tree_reduce_associative = reduce_associative,
        tree_broadcast = broadcast, treedef_is_leaf = is_leaf, tree_transpose = transpose, keystr = paths,
        all_leaves, flatten_one_level, flatten_one_level_with_keys, is_tree_node);
}

/// `register_dataclass` and its relatives are a derive.
fn trees_of_structs(rows: &mut Vec<Row>) {
    items!(rows, "jax.tree_util", podracer: register_dataclass = Tree, register_pytree_node_class = Tree,
        register_pytree_node = Tree, register_pytree_with_keys = Tree, register_pytree_with_keys_class = Tree,
        register_static = Tree);
}

fn optax(rows: &mut Vec<Row>) {
    items!(rows, "optax", optim: chain, apply_updates, identity, set_to_zero, stateless, adam, adamw, nadam, nadamw,
        adamax, adamaxw, amsgrad, radam, adabelief, yogi, novograd, adan, lion, lamb, lars,
        adafactor, adagrad, adadelta, rmsprop, rprop, sgd, sign_sgd, signum, noisy_sgd, fromage,
        optimistic_gradient_descent, optimistic_adam_v2, lbfgs, scale, scale_by_schedule,
        scale_by_learning_rate, scale_by_sign, scale_by_adam, scale_by_adamax, scale_by_amsgrad,
        scale_by_radam, scale_by_belief, scale_by_yogi, scale_by_novograd, scale_by_adan,
        scale_by_lion, scale_by_rms, scale_by_stddev, scale_by_rss, scale_by_adadelta,
        scale_by_rprop, scale_by_optimistic_gradient, scale_by_factored_rms, scale_by_lbfgs,
        scale_by_trust_ratio, scale_by_param_block_norm, scale_by_param_block_rms,
        normalize_by_update_norm, centralize, clip, clip_by_global_norm, clip_by_block_rms,
        adaptive_grad_clip, add_decayed_weights, add_noise, trace, ema, apply_every, lookahead,
        zero_nans, apply_if_finite, keep_params_nonnegative, masked, multi_transform,
        constant_schedule, linear_schedule, polynomial_schedule, cosine_decay_schedule,
        exponential_decay, piecewise_constant_schedule, piecewise_interpolate_schedule,
        linear_onecycle_schedule, cosine_onecycle_schedule, warmup_constant_schedule,
        warmup_cosine_decay_schedule, warmup_exponential_decay_schedule, sgdr_schedule,
        join_schedules, inject_hyperparams, global_norm, incremental_update, periodic_update,
        safe_norm, safe_root_mean_squares, MultiSteps = multi_steps, partition =
        multi_transform, scale_by_backtracking_linesearch = backtracking_linesearch,
        scale_by_zoom_linesearch = zoom_linesearch, microbatch,
        conditionally_transform, conditionally_mask, freeze, selective_transform, named_chain, flatten,
        stateless_with_tree_map, optimistic_adam, scale_by_distance_over_gradients, sm3, scale_by_sm3,
        skip_not_finite, skip_large_updates, snapshot, monitor, measure_with_ema, update_moment,
        update_infinity_moment, update_moment_per_elem_norm = update_moment, bias_correction, scale_gradient,
        unitwise_norm, unitwise_clip, per_example_global_norm_clip, per_example_layer_norm_clip,
        power_iteration, matrix_inverse_pth_root, nnls, polyak_sgd, scale_by_polyak,
        inject_stateful_hyperparams = inject_hyperparams);
    calls!(rows, "optax":
        init_empty_state => |_x| (),
        value_and_grad_from_state => |x| optim::zoom_linesearch(20).init(&x).value_and_grad(|x| x, &x),
        multi_normal => |x, y| distributions::DiagNormal::new(x, y.exp()),
    );
    items!(rows, "optax", losses: squared_error, l2_loss, huber_loss, log_cosh, cosine_similarity, cosine_distance,
        softmax_cross_entropy, safe_softmax_cross_entropy,
        softmax_cross_entropy_with_integer_labels, sigmoid_binary_cross_entropy,
        sigmoid_focal_loss, hinge_loss, perceptron_loss, sparsemax_loss, multiclass_hinge_loss,
        multiclass_perceptron_loss, poly_loss_cross_entropy, ranking_softmax_loss,
        smooth_labels, kl_divergence, kl_divergence_with_log_targets, generalized_kl_divergence,
        convex_kl_divergence, ntxent, triplet_margin_loss, ctc_loss, ctc_loss_with_forward_probs,
        dice_loss, binary_dice_loss, multiclass_generalized_dice_loss, multiclass_sparsemax_loss,
        make_fenchel_young_loss);
}
