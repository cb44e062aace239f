//! Measurements of updates, kept in the state.

use std::collections::BTreeMap;

use super::adam::power;
use super::increment;
use crate::optim::transformation::GradientTransformation;
use crate::trace::tensor::op;
use crate::trace::{Tensor, ops};
use crate::tree::{self, Tree};

/// Transformation built by [`snapshot`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Snapshot<F> {
    name: &'static str,
    measure: F,
}

/// State of [`snapshot`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = M)]
pub struct SnapshotState<M> {
    /// Measurement of the last updates, at first of the parameters, by its name.
    pub measurements: BTreeMap<String, M>,
}

/// Leaves updates unchanged and keeps a measurement of them in the state, under a name:
/// `optax.snapshot`.
///
/// ```
/// use podracer::optim::{GradientTransformation, chain, global_norm, sgd, snapshot};
/// use podracer::{Array, Tensor, interpret};
///
/// let norm = interpret(|grads: Tensor| {
///     let optimizer = chain((snapshot("norm", global_norm::<Tensor>), sgd(0.1)));
///     let (_, state) = optimizer.update(&grads, optimizer.init(&grads), &grads);
///     state.0.measurements["norm"]
/// });
/// assert_eq!(norm.call(Array::from([3.0f32, 4.0]))?.item::<f32>()?, 5.0);
/// # Ok::<(), podracer::Error>(())
/// ```
pub fn snapshot<F>(name: &'static str, measure: F) -> Snapshot<F> {
    Snapshot { name, measure }
}

impl<P: Tree<Tensor>, M: Tree<Tensor>, F: Fn(&P) -> M> GradientTransformation<P> for Snapshot<F>
where
    SnapshotState<M>: Tree<Tensor>,
{
    type State = SnapshotState<M>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        let measurement = (self.measure)(params);
        SnapshotState { measurements: BTreeMap::from([(self.name.to_string(), measurement)]) }
    }

    #[track_caller]
    fn update(&self, grads: &P, _: Self::State, _: &P) -> (P, Self::State) {
        (tree::replace(grads, tree::leaves(grads)), self.init(grads))
    }
}

/// Measurement of updates, a tensor: a function of them, or [`measure_with_ema`].
pub trait Measure<P> {
    /// State, such as a running mean; `()` if there is none.
    type State: Tree<Tensor>;

    /// Returns the state before the first measurement, and zeros of the type of the measurement.
    fn init(&self, params: &P) -> (Tensor, Self::State);

    /// Returns the measurement, and the next state.
    fn measure(&self, updates: &P, state: Self::State) -> (Tensor, Self::State);
}

impl<P, F: Fn(&P) -> Tensor> Measure<P> for F {
    type State = ();

    #[track_caller]
    fn init(&self, params: &P) -> (Tensor, ()) {
        (ops::zeros_like(self(params)), ())
    }

    #[track_caller]
    fn measure(&self, updates: &P, (): ()) -> (Tensor, ()) {
        (self(updates), ())
    }
}

/// Measurement built by [`measure_with_ema`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasureWithEma<F> {
    measure: F,
    decay: f64,
    debias: bool,
}

/// State of [`measure_with_ema`].
#[derive(Debug, Clone, Tree)]
pub struct MeasureWithEmaState<T> {
    /// Number of measurements made, `i32`.
    pub count: T,
    /// Running mean.
    pub ema: T,
}

/// Measures the exponential moving average of `measure`, for [`monitor`]: `optax.measure_with_ema`.
/// With `debias`, which is optax's default, its bias towards 0 is corrected.
pub fn measure_with_ema<F>(measure: F, decay: f64, debias: bool) -> MeasureWithEma<F> {
    MeasureWithEma { measure, decay, debias }
}

impl<P, F: Fn(&P) -> Tensor> Measure<P> for MeasureWithEma<F> {
    type State = MeasureWithEmaState<Tensor>;

    #[track_caller]
    fn init(&self, params: &P) -> (Tensor, Self::State) {
        let zeros = ops::zeros_like((self.measure)(params));
        (zeros, MeasureWithEmaState { count: ops::constant(0i32), ema: zeros })
    }

    #[op("measure_with_ema")]
    fn measure(&self, updates: &P, state: Self::State) -> (Tensor, Self::State) {
        let ema = (1.0 - self.decay) * (self.measure)(updates) + self.decay * state.ema;
        let count = increment(state.count);
        let scale: Tensor = 1.0 - power(self.decay, count, ema.dtype());
        let mean = if self.debias { ema / scale.to(ema.dtype()) } else { ema };
        (mean, MeasureWithEmaState { count, ema })
    }
}

/// Transformation built by [`monitor`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Monitor<C>(C);

/// State of [`monitor`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = S)]
pub struct MonitorState<T, S> {
    /// Measurements of the last updates by name; zeros before the first update.
    pub measurements: BTreeMap<String, T>,
    /// States of the measurements.
    pub measure_states: S,
}

/// Leaves updates unchanged and keeps measurements of them in the state: `optax.monitor`.
///
/// `measures` is a tuple of 1 to 6 pairs of a name and a [`Measure`]: a function of the updates, or
/// [`measure_with_ema`].
///
/// ```
/// use podracer::optim::{GradientTransformation, global_norm, measure_with_ema, monitor};
/// use podracer::{Array, Tensor, interpret};
///
/// let measured = interpret(|grads: Tensor| {
///     let measures = monitor((
///         ("norm", global_norm::<Tensor>),
///         ("mean norm", measure_with_ema(global_norm::<Tensor>, 0.9, true)),
///     ));
///     let (_, state) = measures.update(&grads, measures.init(&grads), &grads);
///     (state.measurements["norm"], state.measurements["mean norm"])
/// });
/// let (norm, mean) = measured.call(Array::from([3.0f32, 4.0]))?;
/// assert_eq!(norm.item::<f32>()?, 5.0);
/// assert!((mean.item::<f32>()? - 5.0).abs() < 1e-6);
/// # Ok::<(), podracer::Error>(())
/// ```
pub fn monitor<C>(measures: C) -> Monitor<C> {
    Monitor(measures)
}

macro_rules! monitor_of_tuple {
    ($($name:ident $index:tt),*) => {
        impl<P: Tree<Tensor>, $($name: Measure<P>),*> GradientTransformation<P>
            for Monitor<($((&'static str, $name),)*)>
        {
            type State = MonitorState<Tensor, ($($name::State,)*)>;

            #[track_caller]
            fn init(&self, params: &P) -> Self::State {
                let mut measurements = BTreeMap::new();
                let measure_states = ($({
                    let (name, measure) = &self.0.$index;
                    let (zeros, state) = measure.init(params);
                    measurements.insert(name.to_string(), zeros);
                    state
                },)*);
                MonitorState { measurements, measure_states }
            }

            #[track_caller]
            fn update(&self, grads: &P, state: Self::State, _: &P) -> (P, Self::State) {
                let mut measurements = BTreeMap::new();
                let measure_states = ($({
                    let (name, measure) = &self.0.$index;
                    let (value, state) = measure.measure(grads, state.measure_states.$index);
                    measurements.insert(name.to_string(), value);
                    state
                },)*);
                let updates = tree::replace(grads, tree::leaves(grads));
                (updates, MonitorState { measurements, measure_states })
            }
        }
    };
}
monitor_of_tuple!(A 0);
monitor_of_tuple!(A 0, B 1);
monitor_of_tuple!(A 0, B 1, C 2);
monitor_of_tuple!(A 0, B 1, C 2, D 3);
monitor_of_tuple!(A 0, B 1, C 2, D 3, E 4);
monitor_of_tuple!(A 0, B 1, C 2, D 3, E 4, F 5);
