//! Optimizers that are chains of transformations, under optax's names.

use super::{
    AddDecayedWeights, AddNoise, Chain, Ema, LearningRate, Scale, ScaleByAdadelta, ScaleByAdam,
    ScaleByAdamax, ScaleByAdan, ScaleByAmsgrad, ScaleByBelief, ScaleByLearningRate, ScaleByLion,
    ScaleByNovograd, ScaleByOptimisticGradient, ScaleByRprop, ScaleByRss, ScaleBySign,
    ScaleByTrustRatio, ScaleByYogi, Trace, add_decayed_weights, add_noise, chain, scale,
    scale_by_adam, scale_by_amsgrad, scale_by_learning_rate, scale_by_rprop, scale_by_sign,
    scale_by_trust_ratio, scale_by_yogi,
};
use crate::optim::adam::{Adam, RAdam};
use crate::optim::sgd::{RmsProp, Sgd};
use crate::optim::transformation::{GradientTransformation, OptState};
use crate::trace::Tensor;
use crate::tree::Tree;

/// Returns [`Adam`] with optax's defaults: `optax.adam`.
///
/// The learning rate is a number, a traced scalar or a [`Schedule`](super::Schedule).
pub fn adam<L>(learning_rate: L) -> Adam<L> {
    Adam::default().with_learning_rate(learning_rate)
}

/// Returns [`Adam`] with a weight decay of 1e-4: `optax.adamw`.
pub fn adamw<L>(learning_rate: L) -> Adam<L> {
    Adam { weight_decay: 1e-4, ..Adam::default() }.with_learning_rate(learning_rate)
}

/// Returns [`RAdam`] with optax's defaults: `optax.radam`.
pub fn radam<L>(learning_rate: L) -> RAdam<L> {
    RAdam::default().with_learning_rate(learning_rate)
}

/// Returns [`Sgd`] without momentum: `optax.sgd`.
pub fn sgd<L>(learning_rate: L) -> Sgd<L> {
    Sgd::default().with_learning_rate(learning_rate)
}

/// Returns [`RmsProp`] with optax's defaults: `optax.rmsprop`.
pub fn rmsprop<L>(learning_rate: L) -> RmsProp<L> {
    RmsProp::default().with_learning_rate(learning_rate)
}

/// Defines optimizers: a struct of hyperparameters, the function that gives their defaults, and
/// the chain of transformations.
macro_rules! optimizers {
    ($(
        $(#[$doc:meta])*
        $name:ident $function:ident {
            $($(#[$field_doc:meta])* $field:ident: $ty:ty = $default:expr,)*
        } |$this:ident| ($($part:ty = $value:expr,)*);
    )*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub struct $name<L = f64> {
            /// Learning rate: a number, a traced scalar, a [`Schedule`](super::Schedule) or a
            /// function of the count of updates.
            pub learning_rate: L,
            $($(#[$field_doc])* pub $field: $ty,)*
        }

        $(#[$doc])*
        ///
        /// The defaults are optax's. To change one, see the [module](super).
        pub fn $function<L: LearningRate>(learning_rate: L) -> $name<L> {
            $name { learning_rate, $($field: $default,)* }
        }

        impl<L: LearningRate + Clone> $name<L> {
            fn transformation(&self) -> Chain<($($part,)*)> {
                let $this = self;
                chain(($($value,)*))
            }
        }

        impl<L: LearningRate + Clone, P: Tree<Tensor>> GradientTransformation<P> for $name<L> {
            type State = OptState<Chain<($($part,)*)>, P>;

            #[track_caller]
            fn init(&self, params: &P) -> Self::State {
                self.transformation().init(params)
            }

            #[track_caller]
            fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
                self.transformation().update(grads, state, params)
            }
        }
    )*};
}

/// Returns the transformation by the learning rate, the end of most chains.
fn rate<L: LearningRate + Clone>(learning_rate: &L) -> ScaleByLearningRate<L> {
    scale_by_learning_rate(learning_rate.clone())
}

optimizers! {
    /// Adam with Nesterov momentum (Dozat 2016), `optax.nadam`.
    Nadam nadam {
        /// Decay rate of the running mean of gradients.
        b1: f64 = 0.9,
        /// Decay rate of the running mean of squared gradients.
        b2: f64 = 0.999,
        /// Epsilon added to the root.
        eps: f64 = 1e-8,
        /// Epsilon added under the root.
        eps_root: f64 = 0.0,
    } |this| (
        ScaleByAdam = ScaleByAdam {
            b1: this.b1, b2: this.b2, eps: this.eps, eps_root: this.eps_root, nesterov: true,
        },
        ScaleByLearningRate<L> = rate(&this.learning_rate),
    );

    /// Nadam with decoupled weight decay, `optax.nadamw`.
    Nadamw nadamw {
        /// Decay rate of the running mean of gradients.
        b1: f64 = 0.9,
        /// Decay rate of the running mean of squared gradients.
        b2: f64 = 0.999,
        /// Epsilon added to the root.
        eps: f64 = 1e-8,
        /// Epsilon added under the root.
        eps_root: f64 = 0.0,
        /// Weight decay: fraction of the parameters that is added to the update.
        weight_decay: f64 = 1e-4,
    } |this| (
        ScaleByAdam = ScaleByAdam {
            b1: this.b1, b2: this.b2, eps: this.eps, eps_root: this.eps_root, nesterov: true,
        },
        AddDecayedWeights = add_decayed_weights(this.weight_decay),
        ScaleByLearningRate<L> = rate(&this.learning_rate),
    );

    /// Adam with the maximum of absolute gradients (Kingma & Ba 2015), `optax.adamax`.
    Adamax adamax {
        /// Decay rate of the running mean of gradients.
        b1: f64 = 0.9,
        /// Decay rate of the running maximum.
        b2: f64 = 0.999,
        /// Epsilon added to absolute gradients.
        eps: f64 = 1e-8,
    } |this| (
        ScaleByAdamax = ScaleByAdamax { b1: this.b1, b2: this.b2, eps: this.eps },
        ScaleByLearningRate<L> = rate(&this.learning_rate),
    );

    /// Adamax with decoupled weight decay, `optax.adamaxw`.
    Adamaxw adamaxw {
        /// Decay rate of the running mean of gradients.
        b1: f64 = 0.9,
        /// Decay rate of the running maximum.
        b2: f64 = 0.999,
        /// Epsilon added to absolute gradients.
        eps: f64 = 1e-8,
        /// Weight decay: fraction of the parameters that is added to the update.
        weight_decay: f64 = 1e-4,
    } |this| (
        ScaleByAdamax = ScaleByAdamax { b1: this.b1, b2: this.b2, eps: this.eps },
        AddDecayedWeights = add_decayed_weights(this.weight_decay),
        ScaleByLearningRate<L> = rate(&this.learning_rate),
    );

    /// Adam whose second moment never shrinks (Reddi et al. 2018), `optax.amsgrad`.
    Amsgrad amsgrad {
        /// Decay rate of the running mean of gradients.
        b1: f64 = 0.9,
        /// Decay rate of the running mean of squared gradients.
        b2: f64 = 0.999,
        /// Epsilon added to the root.
        eps: f64 = 1e-8,
        /// Epsilon added under the root.
        eps_root: f64 = 0.0,
    } |this| (
        ScaleByAmsgrad = ScaleByAmsgrad {
            b1: this.b1, b2: this.b2, eps: this.eps, eps_root: this.eps_root, ..scale_by_amsgrad()
        },
        ScaleByLearningRate<L> = rate(&this.learning_rate),
    );

    /// AdaBelief (Zhuang et al. 2020), `optax.adabelief`.
    Adabelief adabelief {
        /// Decay rate of the running mean of gradients.
        b1: f64 = 0.9,
        /// Decay rate of the running mean of squared deviations from that mean.
        b2: f64 = 0.999,
        /// Epsilon added to the root.
        eps: f64 = 1e-16,
        /// Epsilon added to the second moment.
        eps_root: f64 = 1e-16,
        /// If true, Nesterov momentum is used.
        nesterov: bool = false,
    } |this| (
        ScaleByBelief = ScaleByBelief {
            b1: this.b1, b2: this.b2, eps: this.eps, eps_root: this.eps_root,
            nesterov: this.nesterov,
        },
        ScaleByLearningRate<L> = rate(&this.learning_rate),
    );

    /// Yogi (Zaheer et al. 2018), `optax.yogi`.
    Yogi yogi {
        /// Decay rate of the running mean of gradients.
        b1: f64 = 0.9,
        /// Decay rate of the second moment.
        b2: f64 = 0.999,
        /// Epsilon added to the root.
        eps: f64 = 1e-3,
    } |this| (
        ScaleByYogi = ScaleByYogi { b1: this.b1, b2: this.b2, eps: this.eps, ..scale_by_yogi() },
        ScaleByLearningRate<L> = rate(&this.learning_rate),
    );

    /// NovoGrad (Ginsburg et al. 2019), `optax.novograd`.
    Novograd novograd {
        /// Decay rate of the running sum of normalized gradients.
        b1: f64 = 0.9,
        /// Decay rate of the running mean of the squared norm of each leaf.
        b2: f64 = 0.25,
        /// Epsilon added to the root.
        eps: f64 = 1e-6,
        /// Epsilon added under the root.
        eps_root: f64 = 0.0,
        /// Weight decay: fraction of the parameters that is added to normalized gradients.
        weight_decay: f64 = 0.0,
    } |this| (
        ScaleByNovograd = ScaleByNovograd {
            b1: this.b1, b2: this.b2, eps: this.eps, eps_root: this.eps_root,
            weight_decay: this.weight_decay,
        },
        ScaleByLearningRate<L> = rate(&this.learning_rate),
    );

    /// Adan (Xie et al. 2022), `optax.adan`.
    Adan adan {
        /// Decay rate of the running mean of gradients.
        b1: f64 = 0.98,
        /// Decay rate of the running mean of differences of gradients.
        b2: f64 = 0.92,
        /// Decay rate of the running mean of squares.
        b3: f64 = 0.99,
        /// Epsilon added to the root.
        eps: f64 = 1e-8,
        /// Epsilon added under the root.
        eps_root: f64 = 1e-8,
        /// Weight decay: fraction of the parameters that is added to the update.
        weight_decay: f64 = 0.0,
    } |this| (
        ScaleByAdan = ScaleByAdan {
            b1: this.b1, b2: this.b2, b3: this.b3, eps: this.eps, eps_root: this.eps_root,
        },
        AddDecayedWeights = add_decayed_weights(this.weight_decay),
        ScaleByLearningRate<L> = rate(&this.learning_rate),
    );

    /// Lion (Chen et al. 2023), `optax.lion`.
    Lion lion {
        /// Weight of the running mean of gradients in the update.
        b1: f64 = 0.9,
        /// Decay rate of the running mean of gradients.
        b2: f64 = 0.99,
        /// Weight decay: fraction of the parameters that is added to the update.
        weight_decay: f64 = 1e-3,
    } |this| (
        ScaleByLion = ScaleByLion { b1: this.b1, b2: this.b2 },
        AddDecayedWeights = add_decayed_weights(this.weight_decay),
        ScaleByLearningRate<L> = rate(&this.learning_rate),
    );

    /// LAMB (You et al. 2020), `optax.lamb`: Adam with a rate for each leaf, for large batches.
    Lamb lamb {
        /// Decay rate of the running mean of gradients.
        b1: f64 = 0.9,
        /// Decay rate of the running mean of squared gradients.
        b2: f64 = 0.999,
        /// Epsilon added to the root.
        eps: f64 = 1e-6,
        /// Epsilon added under the root.
        eps_root: f64 = 0.0,
        /// Weight decay: fraction of the parameters that is added to the update.
        weight_decay: f64 = 0.0,
    } |this| (
        ScaleByAdam = ScaleByAdam {
            b1: this.b1, b2: this.b2, eps: this.eps, eps_root: this.eps_root, nesterov: false,
        },
        AddDecayedWeights = add_decayed_weights(this.weight_decay),
        ScaleByTrustRatio = scale_by_trust_ratio(),
        ScaleByLearningRate<L> = rate(&this.learning_rate),
    );

    /// LARS (You et al. 2017), `optax.lars`: momentum with a rate for each leaf, for large batches.
    Lars lars {
        /// Weight decay: fraction of the parameters that is added to the gradient.
        weight_decay: f64 = 0.0,
        /// Factor of the ratio of the norms of parameters and gradients.
        trust_coefficient: f64 = 1e-3,
        /// Epsilon added to the norm of the gradient.
        eps: f64 = 0.0,
        /// Decay rate of the trace of updates.
        momentum: f64 = 0.9,
        /// If true, Nesterov momentum is used.
        nesterov: bool = false,
    } |this| (
        AddDecayedWeights = add_decayed_weights(this.weight_decay),
        ScaleByTrustRatio = ScaleByTrustRatio {
            trust_coefficient: this.trust_coefficient, eps: this.eps, ..scale_by_trust_ratio()
        },
        ScaleByLearningRate<L> = rate(&this.learning_rate),
        Trace = Trace { decay: this.momentum, nesterov: this.nesterov },
    );

    /// Adagrad (Duchi et al. 2011), `optax.adagrad`.
    Adagrad adagrad {
        /// Initial value of the sum of squared gradients.
        initial_accumulator_value: f64 = 0.1,
        /// Epsilon added under the root.
        eps: f64 = 1e-7,
    } |this| (
        ScaleByRss = ScaleByRss {
            initial_accumulator_value: this.initial_accumulator_value, eps: this.eps,
        },
        ScaleByLearningRate<L> = rate(&this.learning_rate),
    );

    /// Adadelta (Zeiler 2012), `optax.adadelta`.
    Adadelta adadelta {
        /// Decay rate of the running means.
        rho: f64 = 0.9,
        /// Epsilon added under the roots.
        eps: f64 = 1e-6,
        /// Weight decay: fraction of the parameters that is added to the gradient.
        weight_decay: f64 = 0.0,
    } |this| (
        AddDecayedWeights = add_decayed_weights(this.weight_decay),
        ScaleByAdadelta = ScaleByAdadelta { rho: this.rho, eps: this.eps },
        ScaleByLearningRate<L> = rate(&this.learning_rate),
    );

    /// Descent by the signs of gradients, `optax.sign_sgd`.
    SignSgd sign_sgd {} |this| (
        ScaleBySign = scale_by_sign(),
        ScaleByLearningRate<L> = rate(&this.learning_rate),
    );

    /// Descent by the signs of a running mean of gradients (Bernstein et al. 2018), `optax.signum`.
    Signum signum {
        /// Decay rate of the running mean.
        beta: f64 = 0.9,
    } |this| (
        Ema = Ema { decay: this.beta, debias: false },
        ScaleBySign = scale_by_sign(),
        ScaleByLearningRate<L> = rate(&this.learning_rate),
    );

    /// Gradient descent with noise (Neelakantan et al. 2014), `optax.noisy_sgd`.
    NoisySgd noisy_sgd {
        /// Initial variance of the noise.
        eta: f64 = 0.01,
        /// Exponent of the decay of the variance.
        gamma: f64 = 0.55,
        /// Seed of the noise: `key` of optax.
        seed: u64 = 0,
    } |this| (
        AddNoise = add_noise(this.eta, this.gamma, this.seed),
        ScaleByLearningRate<L> = rate(&this.learning_rate),
    );

    /// Optimistic gradient descent (Mokhtari et al. 2020), `optax.optimistic_gradient_descent`.
    OptimisticGradientDescent optimistic_gradient_descent {
        /// Weight of the gradient.
        alpha: f64 = 1.0,
        /// Weight of its change since the step before.
        beta: f64 = 1.0,
    } |this| (
        ScaleByOptimisticGradient = ScaleByOptimisticGradient {
            alpha: this.alpha, beta: this.beta,
        },
        ScaleByLearningRate<L> = rate(&this.learning_rate),
    );

    /// Optimistic Adam (Daskalakis et al. 2017), `optax.optimistic_adam_v2`.
    OptimisticAdam optimistic_adam_v2 {
        /// Weight of the update.
        alpha: f64 = 1.0,
        /// Weight of its change since the step before.
        beta: f64 = 1.0,
        /// Decay rate of the running mean of gradients.
        b1: f64 = 0.9,
        /// Decay rate of the running mean of squared gradients.
        b2: f64 = 0.999,
        /// Epsilon added to the root.
        eps: f64 = 1e-8,
        /// Epsilon added under the root.
        eps_root: f64 = 0.0,
        /// If true, Nesterov momentum is used.
        nesterov: bool = true,
    } |this| (
        ScaleByAdam = ScaleByAdam {
            b1: this.b1, b2: this.b2, eps: this.eps, eps_root: this.eps_root,
            nesterov: this.nesterov,
        },
        ScaleByOptimisticGradient = ScaleByOptimisticGradient {
            alpha: this.alpha, beta: this.beta,
        },
        ScaleByLearningRate<L> = rate(&this.learning_rate),
    );
}

/// Returns Rprop with optax's defaults (Riedmiller & Braun 1993): `optax.rprop`. The learning rate
/// is the initial step size.
pub fn rprop(learning_rate: f64) -> Chain<(ScaleByRprop, Scale)> {
    chain((scale_by_rprop(learning_rate), scale(-1.0)))
}

/// Returns optimistic Adam in its first form (Daskalakis et al. 2017), whose learning rate is a
/// number: `optax.optimistic_adam`. Without `optimism` it is the learning rate.
/// [`optimistic_adam_v2`] takes schedules.
pub fn optimistic_adam(
    learning_rate: f64,
    optimism: Option<f64>,
) -> Chain<(ScaleByAdam, ScaleByOptimisticGradient, Scale)> {
    chain((
        ScaleByAdam { nesterov: true, ..scale_by_adam() },
        ScaleByOptimisticGradient { alpha: learning_rate, beta: optimism.unwrap_or(learning_rate) },
        scale(-1.0),
    ))
}

/// Returns Fromage (Bernstein et al. 2020), whose steps keep the norm of each leaf:
/// `optax.fromage`. Norms are at least `min_norm`, 1e-6 in optax.
pub fn fromage(
    learning_rate: f64,
    min_norm: f64,
) -> Chain<(ScaleByTrustRatio, Scale, AddDecayedWeights)> {
    let factor = 1.0 / (1.0 + learning_rate * learning_rate).sqrt();
    chain((
        ScaleByTrustRatio { min_norm, ..scale_by_trust_ratio() },
        scale(-learning_rate * factor),
        add_decayed_weights(factor - 1.0),
    ))
}
